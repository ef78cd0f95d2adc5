"""Devices are online for a share of the time, not at the moments at which it is checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worlds.fleet import group, played
from tools.simulate.fleet.scenario import HOUR_S
from tools.simulate.reports.quantities import QUANTITIES, Scope
from tools.simulate.reports.result import SimulationResult


def online(result: SimulationResult) -> float:
    found = QUANTITIES["online"].measure(Scope(result, result.groups))
    assert found is not None
    return found


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
