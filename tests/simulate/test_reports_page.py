"""The reports of one run and of two as HTML files, and `python -m tools.simulate compare`."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from tests.simulate.sample_results import sample_cloud, sample_group, sample_result
from tools.simulate.__main__ import main
from tools.simulate.reports.assertions import Assertion, evaluate
from tools.simulate.reports.charts import POOL, pooled
from tools.simulate.reports.page import write_report
from tools.simulate.reports.result import CloudResult, LatencyHistogram, Series, SimulationResult
from tools.simulate.reports.tables import differences, group_columns

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


def test_the_page_has_scenario_assertions_and_events(page: str) -> None:
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; co" in page
    assert "1 of 2 do not hold" in page
    assert "12 h: cloud down for 30 min" in page


def test_every_chart_has_alt_text_page_colours_and_unique_ids(page: str) -> None:
    elements = Elements(page).found
    figures = [found for _, found in elements if found.get("role") == "img"]
    assert len(figures) == page.count("<figure>") == 15
    assert all(len(found["aria-label"] or "") > 60 for found in figures)
    drawings = "".join(re.findall(r"<svg.*?</svg>", page, re.DOTALL))
    assert not re.findall(r"#0[12][0-9a-f]{4}|#[0-9a-f]{6}", drawings)
    ids = [found["id"] for _, found in elements if "id" in found]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"url\(#([^)]+)\)", page)) | set(re.findall(r'href="#([^"]+)"', page)) <= set(ids)


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
    nothing = {"answers": {}, "latency_first": {}, "latency_total": {}, "calls_by_device": [], "calls": 0, "spend_uusd": 0}
    unknown = dict.fromkeys(("assist_rate", "accuracy", "local_accuracy"))
    empty = Series([], [], [], [], [], [], [], [], [], [], [])
    group = msgspec.structs.replace(sample_group(1, "silent"), series=empty, **nothing, **unknown)
    cloud = CloudResult([], [], [], [], [], [], [], [], [], {}, 0, None)
    write_report(judged(sample_result(groups=[group], cloud=cloud, events=[])), tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<figure>" not in page and "p95: no answers" in page


def test_intervals_with_few_answers_are_drawn_together_and_lose_no_answer() -> None:
    at, shares = pooled([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [None, 0.0, 1.0, 0.5, None, 1.0], [0, 10, 5, 5, 0, 3])
    assert (at, shares) == ([1.0, 6.0], [None, (5 + 2.5 + 3) / 23])
    assert pooled([1.0, 2.0], [0.5, 1.0], [3, 1]) == ([2.0], [2.5 / 4])
    dense = [0.1, None, 0.3]
    assert pooled([1.0, 2.0, 3.0], dense, [POOL, 0, POOL]) == ([1.0, 2.0, 3.0], dense)


def test_a_figure_of_0_is_shown_and_an_unknown_one_is_not() -> None:
    idle = msgspec.structs.replace(
        sample_group(1, "laptops"), calls=0, spend_uusd=0, assist_rate=0.0, training_assist_rate=None, lost=None
    )
    told = dict(group_columns(sample_result(groups=[idle]))[1])
    assert (told["Cloud calls"], told["Spend"], told["Went to the cloud"]) == (["0"], ["0.00 USD"], ["0.0 %"])
    assert "Asked while learning" not in told and "Lost answers" not in told and "Battery empty" not in told


def test_differences_are_signed_relative_and_in_points_for_shares() -> None:
    first = sample_result(groups=[sample_group(1, "laptops")])
    group = msgspec.structs.replace(first.groups[0], assist_rate=0.29, spend_uusd=2 * first.groups[0].spend_uusd, accuracy=None)
    found = {row.name: row for row in differences(first, sample_result(groups=[group], cloud=sample_cloud([group])))}
    assert found["Went to the cloud"].difference == "+5.0 points"
    assert found["Spend"].difference.endswith("(+100.0 %)")
    assert found["Answers"].difference == "same"
    assert (found["Right, all answers"].second, found["Right, all answers"].difference) == ("-", "")


@pytest.fixture
def runs(tmp_path: Path) -> tuple[str, str]:
    for seed, name in ((1, "a.json"), (2, "b.json")):
        (tmp_path / name).write_bytes(sample_result(seed).to_json())
    return str(tmp_path / "a.json"), str(tmp_path / "b.json")


def test_two_runs_are_put_side_by_side_by_figure_and_group(
    runs: tuple[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["compare", *runs, "--html", str(tmp_path / "both.html")]) == 0
    page = (tmp_path / "both.html").read_text(encoding="utf-8")
    assert "A: laptops" in page and "B: laptops" in page and "b.json" in page
    said = capsys.readouterr().out.splitlines()
    assert any("Cloud calls" in line and "%)" in line for line in said)
    assert any("phones: 95 % answered within" in line for line in said)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot be read"),
        (b"[1]", "other.json is no such file"),
        (b'{"format": 99}', "has format 99"),
        (b'{"format": 1, "scenario": 5}', "other.json is no such file"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(
    runs: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], text: bytes | None, says: str
) -> None:
    if text is not None:
        (tmp_path / "other.json").write_bytes(text)
    assert main(["compare", runs[0], str(tmp_path / "other.json")]) == 2
    told = capsys.readouterr()
    assert says in told.err and "other.json" in told.err
    assert told.err.count("\n") == 1 and not told.out
