"""Devices are online for a share of the time, not at the moments at which somebody looks."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tests.simulate.fleet_worlds import group, played
from tools.simulate.fleet.hardware import LinkModel
from tools.simulate.fleet.link import Link, covered_s
from tools.simulate.fleet.scenario import HOUR_S
from tools.simulate.reports.quantities import QUANTITIES, Asked
from tools.simulate.reports.result import SimulationResult
from tools.simulate.reports.tables import group_columns

STEADY = LinkModel("steady", 0.02, 0.0, 1e6, 1e6)
SPANS = some.lists(some.tuples(some.integers(-5, 60), some.integers(0, 20)).map(lambda each: (each[0], each[0] + each[1])))
ALWAYS_OFF = """
link: {name: dead, rtt_ms: 20, up_mbit_per_s: 10, down_mbit_per_s: 10, offline_from_hour: 0, offline_until_hour: 24}
"""


def online(result: SimulationResult) -> float:
    found = QUANTITIES["online"].measure(Asked(result, result.groups))
    assert found is not None
    return found


@given(SPANS, some.integers(0, 40), some.integers(1, 20))
def test_what_spans_cover_is_what_is_in_any_of_them(spans: list[tuple[int, int]], begins: int, width: int) -> None:
    seconds = range(begins, begins + width)
    assert covered_s(spans, begins, begins + width) == sum(any(one <= at < other for one, other in spans) for at in seconds)


@pytest.mark.parametrize(
    ("event", "gone_s"),
    [
        ({"at_h": 2.24, "links_down_for_s": 300}, 300),
        ({"at_h": 5.99, "links_down_for_s": 3600}, 36),
        ({"at_h": 1.99, "coordinator_down_for_s": 120}, 120),
    ],
)
def test_an_outage_counts_for_as_long_as_it_takes(tmp_path: Path, event: dict, gone_s: float) -> None:
    result, _ = played(tmp_path, events=[event])
    assert online(result) == pytest.approx(1 - gone_s / (6 * HOUR_S), abs=2e-5)


def test_an_outage_of_one_group_is_not_the_others_and_two_at_once_count_once(tmp_path: Path) -> None:
    cuts = [
        {"at_h": 2, "links_down_for_s": 1000, "groups": ["laptops"]},
        {"at_h": 2.1, "links_down_for_s": 100, "groups": ["laptops"]},
        {"at_h": 2.2, "coordinator_down_for_s": 40},
    ]
    result, _ = played(tmp_path, group(), group("phones"), events=cuts)
    shares = [sum(each.series.online_share) / len(each.series.online_share) for each in result.groups]
    assert shares == pytest.approx([1 - 1000 / 21600, 1 - 40 / 21600], abs=2e-5)


def test_a_link_that_is_off_from_0_to_24_is_reported_as_always_off(tmp_path: Path) -> None:
    (tmp_path / "off.yaml").write_text(ALWAYS_OFF)
    asking = group(link=str(tmp_path / "off.yaml"), mind={"ask": 3.0})
    result, _ = played(tmp_path, asking, lasts_h=26)
    assert online(result) == 0.0
    assert "cloud" not in result.groups[0].answers
    told = dict(group_columns(result)[1])
    assert told["Devices online"] == told["Went to the cloud"] == ["0.0 %"]


def test_each_outage_of_a_device_is_returned_once() -> None:
    flapping = replace(STEADY, mean_up_s=90.0, mean_down_s=40.0, offline_hours=(3.0, 4.0))
    asked, looked = (Link(flapping, random.Random(5), 0.0) for _ in range(2))
    for begins in range(0, 18000, 900):
        asked.up_again(begins + 450.0)
        down_s = covered_s(asked.outages_until(begins + 900.0), begins, begins + 900.0)
        seen = sum(looked.up_again(at / 4) > at / 4 for at in range(4 * begins, 4 * (begins + 900))) / 4
        assert down_s == pytest.approx(seen, abs=5.0)


def test_a_link_forced_down_twice_stays_down_for_the_longer_time() -> None:
    one = Link(STEADY, random.Random(1), 0.0)
    one.force_down(10.0, 100.0)
    one.force_down(20.0, 10.0)
    assert one.up_again(40.0) == 110.0
    one.heal(60.0)
    assert one.up_again(60.0) == 60.0
    assert covered_s(one.outages_until(60.0), 0.0, 60.0) == 50.0
