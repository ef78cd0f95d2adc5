"""The report of a run as an HTML file, and `python -m tools.simulate compare`."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from tests.worlds.sample_results import sample_group, sample_result
from tools.simulate.__main__ import main
from tools.simulate.reports.assertions import Assertion, evaluate
from tools.simulate.reports.page import write_report
from tools.simulate.reports.result import CloudResult, LatencyHistogram, Series, SimulationResult

CLAIMS = [Assertion(metric="p95", op="<", value=4), Assertion(metric="spend over budget", op="<=", value=0)]


def judged(result: SimulationResult) -> SimulationResult:
    return msgspec.structs.replace(result, assertions=evaluate(result, CLAIMS))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("report") / "deep" / "report.html"
    write_report(judged(sample_result(about="<script>alert(1)</script> & co")), path)
    return path.read_text(encoding="utf-8")


class Elements(HTMLParser):
    """Every element of a page with its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_it_loads_nothing_and_runs_nothing(page: str) -> None:
    elements = Elements(page).found
    assert not {tag for tag, _ in elements} & {"script", "link", "img", "iframe", "object", "image"}
    places = [value or "" for _, found in elements for name, value in found.items() if name in ("href", "src", "xlink:href")]
    assert places and all(place.startswith("#") for place in places)
    assert not [name for _, found in elements for name in found if name.startswith("on")]
    assert "url(http" not in page and "@import" not in page


def test_the_same_result_gives_the_same_bytes_whatever_the_order_of_its_counts(tmp_path: Path) -> None:
    one, other = sample_result(groups=[sample_group(1, "laptops")]), sample_result(groups=[sample_group(1, "laptops")])
    for source, found in other.groups[0].latency_total.items():
        other.groups[0].latency_total[source] = LatencyHistogram(dict(reversed(found.counts.items())), found.sum_s)
    assert one.to_json() == other.to_json()
    assert SimulationResult.from_json(one.to_json()) == one
    for result, name in ((one, "a.html"), (SimulationResult.from_json(other.to_json()), "b.html")):
        write_report(result, tmp_path / name)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_a_run_in_which_nobody_answered_has_a_report_too(tmp_path: Path) -> None:
    nothing = {"answers": {}, "latency_first": {}, "latency_total": {}, "calls": 0, "spend_uusd": 0}
    unknown = dict.fromkeys(("assist_rate", "accuracy", "local_accuracy"))
    empty = Series([], [], [], [], [], [], [], [])
    group = msgspec.structs.replace(sample_group(1, "silent"), series=empty, **nothing, **unknown)
    cloud = CloudResult([], [], [], [], [], [], [], [], [], {}, 0, None)
    write_report(judged(sample_result(groups=[group], cloud=cloud, events=[])), tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<figure>" not in page and "p95: no answers" in page


@pytest.fixture
def runs(tmp_path: Path) -> tuple[str, str]:
    for seed, name in ((1, "a.json"), (2, "b.json")):
        (tmp_path / name).write_bytes(sample_result(seed).to_json())
    return str(tmp_path / "a.json"), str(tmp_path / "b.json")


def test_two_runs_are_put_side_by_side_by_figure_and_group(runs: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *runs]) == 0
    said = capsys.readouterr().out.splitlines()
    assert any("Cloud calls" in line and "%)" in line for line in said)
    assert any("phones: 95 % answered within" in line for line in said)


def test_comparing_loads_neither_arrays_nor_templates(runs: tuple[str, str]) -> None:
    program = "import sys; from tools.simulate.__main__ import main; main(); sys.exit(' '.join({'numpy', 'jinja2'} & {*sys.modules}) or 0)"
    done = subprocess.run([sys.executable, "-c", program, "compare", *runs], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert {"run", "compare", "sweep", "explore", "validate"} <= set(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot be read"),
        (b"[1]", "damaged"),
        (b'{"format": 99}', "has format 99"),
        (b'{"format": 1, "scenario": 5}', "damaged"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(
    runs: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], text: bytes | None, says: str
) -> None:
    if text is not None:
        (tmp_path / "other.json").write_bytes(text)
    assert main(["compare", runs[0], str(tmp_path / "other.json")]) == 2
    printed = capsys.readouterr()
    assert says in printed.err and "other.json" in printed.err
    assert printed.err.count("\n") == 1 and not printed.out
