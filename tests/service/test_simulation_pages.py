"""Reports of simulations in a real browser: readable and accessible on desktop and phone, in light and dark."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.worlds import page_checks as checks
from tests.worlds.browser import CHROMIUM, Browser
from tests.worlds.sample_results import sample_result
from tools.simulate.reports.assertions import Assertion, evaluate
from tools.simulate.reports.page import write_page, write_report
from tools.simulate.sweeps.engines import Finished
from tools.simulate.sweeps.plan import Variation, runs_of
from tools.simulate.sweeps.summary import charts_of, rows_of, table_of

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium to look at reports"),
    pytest.mark.asyncio(loop_scope="module"),
]


CLAIMS = [
    Assertion(metric="p95", op="<", value=4),
    Assertion(metric="lost answers", op="==", value=0),
    Assertion(metric="spend over budget", op="<=", value=0),
]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, result = tmp_path_factory.mktemp("pages"), sample_result()
    judged = msgspec.structs.replace(result, assertions=evaluate(result, CLAIMS))
    write_report(judged, folder / "report.html")
    _write_sweep(folder / "sweep.html")
    return folder


def _write_sweep(path: Path) -> None:
    variations = [Variation.of("groups.*.dial=0.1,0.3"), Variation.of("cloud.slots=8,64")]
    runs = runs_of({"seed": 1, "groups": [{"name": "laptops"}]}, variations, 2)
    finished = [Finished(run, sample_result(10 * number + run.seed)) for number, run in enumerate(runs)]
    rows = rows_of(finished)
    heads, cells = table_of(rows, variations)
    write_page(
        path, "sweep.html", charts=lambda: charts_of(rows, variations), name="day", about="A day.", variations=variations,
        heads=heads, rows=cells, failed=[("dial=0.3 seed=2", "nobody foresaw this")], runs=len(finished),
    )  # fmt: skip


@pytest.mark.parametrize("name", ["report", "sweep"])
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
async def test_every_page_is_readable_labelled_fits_and_makes_no_request(
    browser: Browser, pages: Path, name: str, scheme: str, width: int
) -> None:
    async with browser.tab() as page:
        await page.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        await page.open(f"file://{pages / name}.html", width=width)
        assert await checks.faint(page) == []
        assert await checks.unnamed(page) == []
        assert await checks.skipped_headings(page) == []
        assert not await checks.overflows(page)
        assert page.complaints == []
        assert [url for url in page.requested if not url.endswith(f"{name}.html")] == []


async def test_chart_lines_contrast_with_the_background_in_light_and_dark(browser: Browser, pages: Path) -> None:
    grounds = set()
    for scheme in ("light", "dark"):
        async with browser.tab() as page:
            await page.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            await page.open(f"file://{pages / 'report.html'}")
            assert await page.value(_FAINT_LINES) == []
            grounds.add(await page.value("getComputedStyle(document.querySelector('figure')).backgroundColor"))
    assert len(grounds) == 2


_FAINT_LINES = """(() => {
  const light = (text) => { const [r, g, b] = text.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const below = light(getComputedStyle(document.querySelector('figure')).backgroundColor);
  const lines = [...document.querySelectorAll('.legend line')].map((line) => getComputedStyle(line).stroke);
  return lines.length ? lines.map((stroke) => [light(stroke), below].sort((x, y) => y - x))
    .map(([a, b]) => (a + 0.05) / (b + 0.05)).filter((ratio) => ratio < 3) : ['no lines'];
})()"""
