"""The report of a run as an HTML file."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from tests.worlds.sample_results import sample_group, sample_result
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
    assert not {tag for tag, _ in elements} & {"script", "link", "iframe", "object"}
    places = [value or "" for _, found in elements for name, value in found.items() if name in ("href", "src")]
    assert places and all(place.startswith("data:image/svg+xml;base64,") for place in places)
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
