"""Learning is held to the τ that λ steers to, whatever the dial of people's questions is."""

from __future__ import annotations

from pathlib import Path

from tests.worlds.fleet import group, played

LEARNING = {"steps_per_day": 24, "from_hour": 0, "until_hour": 0}
STEPS = [{"from_step": 3, "target_rate": 0.7}]


def test_a_dial_has_its_own_target_rate_and_learning_the_coordinators(tmp_path: Path) -> None:
    groups = (group(dial=0.1, learning=LEARNING), group("dialled", dial=0.1), group("plain", learning=LEARNING))
    result, _ = played(tmp_path, *groups)
    rates = [(each.target_rate, each.training_target_rate) for each in result.groups]
    assert rates == [(0.1, 0.3), (0.1, None), (0.3, None)]
    learning = result.groups[0]
    assert set(learning.target_rates(training=True)) == {0.3}
    assert set(learning.target_rates(training=False)) == {0.1}
    assert result.groups[1].dual is None and set(result.groups[1].series.dual) == {None}, "who does not learn has no λ"


def test_a_schedule_of_the_coordinators_is_learnings_where_people_have_a_dial(tmp_path: Path) -> None:
    tasks = {"math": {"target_rate": 0.3, "target_rate_schedule": STEPS}}
    (found,) = played(tmp_path, group(dial=0.1, learning=LEARNING), coordinator={"tasks": tasks})[0].groups
    assert found.training_target_rate == 0.7
    assert list(dict.fromkeys(found.target_rates(training=True))) == [0.3, 0.7]
    assert found.series.target_rate == []
