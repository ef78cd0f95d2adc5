"""Reports of simulations in a real browser: readable and accessible on desktop and phone, in light and dark."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.worlds import page_checks as checks
from tests.worlds.browser import CHROMIUM, Browser
from tests.worlds.sample_results import sample_result
from tools.simulate.reports.assertions import Assertion, evaluate
from tools.simulate.reports.page import write_report

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
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, result = tmp_path_factory.mktemp("pages"), sample_result()
    judged = msgspec.structs.replace(result, assertions=evaluate(result, CLAIMS))
    write_report(judged, folder / "report.html")
    return folder / "report.html"


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
async def test_a_report_is_readable_labelled_fits_and_makes_no_request(
    browser: Browser, report: Path, scheme: str, width: int
) -> None:
    async with browser.tab() as page:
        await page.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        await page.open(f"file://{report}", width=width)
        assert await checks.faint(page) == []
        assert await checks.unnamed(page) == []
        assert await checks.skipped_headings(page) == []
        assert not await checks.overflows(page)
        assert page.complaints == []
        assert [url for url in page.requested if not url.endswith("report.html") and not url.startswith("data:")] == []
