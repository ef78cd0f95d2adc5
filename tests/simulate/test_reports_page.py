"""The report of a run as one HTML file."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from tests.simulate.sample_results import histogram, sample_cloud, sample_group, sample_result
from tools.simulate.reports.assertions import Assertion, evaluate
from tools.simulate.reports.charts import POOL, Book, Shown, pooled
from tools.simulate.reports.page import hours, write_comparison, write_report
from tools.simulate.reports.result import CloudResult, LatencyHistogram, Series, SimulationResult
from tools.simulate.reports.tables import differences, group_columns, overview

CLAIMS = [
    Assertion(metric="p95", op="<", value=4),
    Assertion(metric="spend over budget", op="<=", value=0),
]


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


def test_it_says_what_was_run_and_what_holds(page: str) -> None:
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; co" in page
    assert "200 devices for 24 h (warm-up 4 h), exact engine, seed 1" in page
    assert "1 of 2 do not hold" in page
    assert re.search(r"✗ does not hold</span> <b>p95 &lt; 4 s</b> <span class=\"found\">p95 [\d.]+ s<", page)
    assert "12 h: cloud down for 30 min" in page


def test_every_chart_is_told_in_words_and_its_texts_are_text(page: str) -> None:
    figures = [found for tag, found in Elements(page).found if found.get("role") == "img"]
    assert len(figures) == page.count("<figure>") == 15
    assert all(len(found["aria-label"] or "") > 60 for found in figures)
    assert "laptops half within 1." in (figures[0]["aria-label"] or "")
    assert ">hours since the start</text>" in page and ">share of answers</text>" in page


def test_colours_follow_the_page_and_ids_are_each_there_once(page: str) -> None:
    drawings = "".join(re.findall(r"<svg.*?</svg>", page, re.DOTALL))
    assert not re.findall(r"#0[12][0-9a-f]{4}|#[0-9a-f]{6}", drawings)
    ids = [found["id"] for _, found in Elements(page).found if "id" in found]
    assert len(ids) == len(set(ids))
    used = set(re.findall(r"url\(#([^)]+)\)", page)) | set(re.findall(r'href="#([^"]+)"', page))
    assert used <= set(ids)


def test_an_event_is_a_numbered_line_in_every_chart_over_time(page: str) -> None:
    over_time = [svg for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL) if "hours since the start" in svg]
    assert len(over_time) == 10
    assert all(
        re.search(r"var\(--alarm\)[^>]*>1</text>", svg) and re.search(r"var\(--alarm\)[^>]*>2</text>", svg) for svg in over_time
    )


def test_the_same_result_gives_the_same_bytes(tmp_path: Path) -> None:
    small = sample_result(groups=[sample_group(1, "laptops")])
    for name in ("a.html", "b.html"):
        write_report(SimulationResult.from_json(small.to_json()), tmp_path / name)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.html", "b.html"]


def test_a_result_is_read_back_as_it_was_and_gives_the_same_bytes_whatever_the_order_of_its_counts() -> None:
    one, other = sample_result(), sample_result()
    for group in other.groups:
        for source, found in group.latency_total.items():
            group.latency_total[source] = LatencyHistogram(dict(reversed(found.counts.items())), found.sum_s)
    assert one.to_json() == other.to_json()
    assert SimulationResult.from_json(one.to_json()) == one


def test_a_run_in_which_nobody_answered_has_a_report_too(tmp_path: Path) -> None:
    empty = Series([], [], [], [], [], [], [], [], [], [], [])
    group = msgspec.structs.replace(
        sample_group(1, "silent"),
        answers={},
        latency_first={},
        latency_total={},
        assist_rate=None,
        accuracy=None,
        local_accuracy=None,
        calls=0,
        spend_uusd=0,
        calls_by_device=[],
        series=empty,
    )
    cloud = CloudResult([], [], [], [], [], [], [], [], [], {}, 0, None)
    result = sample_result(groups=[group], cloud=cloud, events=[])
    write_report(judged(result), tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<figure>" not in page and "p95: no answers" in page
    assert dict(overview(result))["95 % answered within"] == "-"


def test_a_single_known_point_between_gaps_is_seen() -> None:
    group = sample_group(1, "laptops")
    lonely = [0.5 if number == 7 else None for number in range(len(group.series.at_s))]
    series = msgspec.structs.replace(group.series, training_assist_rate=lonely)
    result = sample_result(groups=[msgspec.structs.replace(group, series=series)])
    charts = {chart.title: chart.svg for chart in Book([Shown(result)]).charts()}
    lonely_ticks, whole_ticks = (
        charts[f"How often {who} the cloud"].count("<use") for who in ("learning asks", "people's questions go to")
    )
    assert lonely_ticks > whole_ticks


def test_intervals_with_few_answers_are_drawn_together_and_lose_no_answer() -> None:
    at, shares = pooled([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [None, 0.0, 1.0, 0.5, None, 1.0], [0, 10, 5, 5, 0, 3])
    assert (at, shares) == ([1.0, 6.0], [None, (5 + 2.5 + 3) / 23])
    assert pooled([1.0, 2.0], [0.5, 1.0], [3, 1]) == ([2.0], [2.5 / 4])
    dense = [0.1, None, 0.3]
    assert pooled([1.0, 2.0, 3.0], dense, [POOL, 0, POOL]) == ([1.0, 2.0, 3.0], dense)


def test_times_that_are_all_alike_leave_room_for_the_names_of_their_axis() -> None:
    alike = {"local": histogram([0.75] * 60 + [0.85])}
    group = msgspec.structs.replace(sample_group(1, "laptops"), latency_total=alike)
    chart = Book([Shown(sample_result(groups=[group]))]).charts()[0]
    assert 2 <= len(re.findall(r">[\d.]+ m?s</text>", chart.svg)) <= 5


def test_days_take_the_place_of_hours_in_a_long_run() -> None:
    group = sample_group(1, "laptops")
    long = msgspec.structs.replace(group.series, at_s=[each * 7 for each in group.series.at_s])
    result = sample_result(groups=[msgspec.structs.replace(group, series=long)], virtual_s=7 * 86_400.0)
    chart = next(chart for chart in Book([Shown(result)]).charts() if chart.title == "Devices online")
    assert "days since the start" in chart.svg
    assert hours(5_400.0) == "1 h 30 min"


def test_more_groups_than_colours_are_told_apart_by_their_dashes() -> None:
    groups = [sample_group(1, f"g{number}", devices=2) for number in range(10)]
    strokes = [stroke for stroke, _ in Book([Shown(sample_result(groups=groups))]).charts()[0].legend]
    assert len(set(strokes)) == 10
    assert strokes[8].colour == strokes[0].colour and strokes[8].dashes != strokes[0].dashes


def test_the_table_of_groups_begins_with_the_whole_fleet_and_leaves_out_what_nobody_has() -> None:
    heads, rows = group_columns(sample_result())
    found = dict(rows)
    assert heads == ["all", "laptops", "jetsons", "phones"]
    assert found["Devices"] == ["200", "100", "60", "40"]
    assert found["Refused calls"] == ["20", "10", "6", "4"]
    assert "Battery empty" not in found
    assert group_columns(sample_result(groups=[sample_group(1, "one")]))[0] == ["one"]


def test_two_runs_are_drawn_over_each_other_and_told_apart(tmp_path: Path) -> None:
    first, second = sample_result(groups=[sample_group(1, "laptops")]), sample_result(2, [sample_group(2, "laptops")], events=[])
    write_comparison(first, second, ("a.json", "b.json"), tmp_path / "both.html")
    page = (tmp_path / "both.html").read_text(encoding="utf-8")
    assert "A: laptops half within" in page and "B: laptops half within" in page and "b.json" in page
    chart = Book([Shown(first, "A"), Shown(second, "B", 1)]).charts()[0]
    assert [name for _, name in chart.legend] == ["laptops", "A", "B"]
    assert [stroke.dashes for stroke, _ in chart.legend] == ["", "", "6 3"]
    assert chart.svg.count("stroke-dasharray") == Book([Shown(first)]).charts()[0].svg.count("stroke-dasharray") + 1


def test_events_that_are_near_to_each_other_share_a_label() -> None:
    result = sample_result(groups=[sample_group(1, "laptops")], events=[(40_000.0, "a"), (40_060.0, "b"), (50_000.0, "c")])
    chart = next(chart for chart in Book([Shown(result)]).charts() if chart.title == "Devices online")
    assert ">1, 2</text>" in chart.svg and ">3</text>" in chart.svg


def test_differences_are_signed_relative_and_in_points_for_shares() -> None:
    first = sample_result(groups=[sample_group(1, "laptops")])
    group = msgspec.structs.replace(first.groups[0], assist_rate=0.29, spend_uusd=2 * first.groups[0].spend_uusd, accuracy=None)
    second = sample_result(groups=[group], cloud=sample_cloud([group]))
    found = {row.name: row for row in differences(first, second)}
    assert found["Went to the cloud"].difference == "+5.0 points"
    assert found["Spend"].difference.endswith("(+100.0 %)") and found["Spend"].difference.startswith("+0.298 USD")
    assert found["Answers"].difference == "same"
    assert (found["Right, all answers"].second, found["Right, all answers"].difference) == ("-", "")


def test_first_letters_that_all_take_one_time_are_explained() -> None:
    plain = sample_group(1, "laptops")
    steady = msgspec.structs.replace(plain, latency_first={"local": histogram([0.5] * 100)})
    captions = [
        chart.caption
        for each in (plain, steady)
        for chart in Book([Shown(sample_result(groups=[each]))]).charts()
        if chart.title == "Waiting for the first letter"
    ]
    assert ["one length" in caption for caption in captions] == [False, True]


def test_a_figure_that_is_0_is_told_and_one_that_is_not_known_is_not() -> None:
    idle = msgspec.structs.replace(
        sample_group(1, "laptops"), calls=0, spend_uusd=0, assist_rate=0.0, training_assist_rate=None, lost=None
    )
    told = dict(group_columns(sample_result(groups=[idle]))[1])
    assert (told["Cloud calls"], told["Spend"], told["Went to the cloud"]) == (["0"], ["0.00 USD"], ["0.0 %"])
    assert "Asked while learning" not in told and "Lost answers" not in told
    rows = {row.name: row.second for row in differences(sample_result(groups=[idle]), sample_result(groups=[idle]))}
    assert rows["Spend"] == "0.00 USD"


def test_one_device_is_one_device(tmp_path: Path) -> None:
    write_report(sample_result(groups=[sample_group(1, "laptops", 1)]), tmp_path / "x.html")
    assert "1 device for 24 h" in (tmp_path / "x.html").read_text(encoding="utf-8")
