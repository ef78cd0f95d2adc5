"""Learning is held to the τ that λ steers to, whatever the dial of people's questions is; in both engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.simulate.fleet_worlds import group, played, scenario
from tools.simulate.reports.assertions import evaluate
from tools.simulate.reports.result import SimulationResult
from tools.simulate.reports.tables import group_columns
from tools.simulate.vectorised.run import run_vectorised

LEARNING = {"steps_per_day": 24, "from_hour": 0, "until_hour": 0}
STEPS = [{"from_step": 3, "target_rate": 0.7}]


def by_both(folder: Path, *groups: dict[str, Any], **values: Any) -> list[SimulationResult]:
    return [played(folder, *groups, **values)[0], run_vectorised(scenario(*groups, **values))]


def test_a_dial_has_its_own_target_rate_and_learning_the_coordinators(tmp_path: Path) -> None:
    for result in by_both(
        tmp_path, group(dial=0.1, learning=LEARNING), group("dialled", dial=0.1), group("plain", learning=LEARNING)
    ):
        rates = [(each.target_rate, each.training_target_rate) for each in result.groups]
        assert rates == [(0.1, 0.3), (0.1, None), (0.3, None)], result.engine
        learning = result.groups[0]
        assert set(learning.target_rates(training=True)) == {0.3}
        assert set(learning.target_rates(training=False)) == {0.1}
        told = dict(group_columns(result)[1])
        assert told["Target rate τ"] == ["", "0.1", "0.1", "0.3"]
        assert told["Target rate τ, learning"] == ["", "0.3", "", ""]
        (claim,) = evaluate(result, ["training rate of laptops within 1 of τ"])
        assert "τ 0.3" in claim.found


def test_a_schedule_of_the_coordinators_is_learnings_where_people_have_a_dial(tmp_path: Path) -> None:
    tasks = {"math": {"target_rate": 0.3, "target_rate_schedule": STEPS}}
    for result in by_both(tmp_path, group(dial=0.1, learning=LEARNING), coordinator={"tasks": tasks}):
        (found,) = result.groups
        assert found.training_target_rate == 0.7, result.engine
        assert list(dict.fromkeys(found.target_rates(training=True))) == [0.3, 0.7]
        assert found.series.target_rate == []


def test_who_does_not_learn_has_no_price_to_tell_of(tmp_path: Path) -> None:
    for result in by_both(tmp_path, group(), group("learners", learning=LEARNING)):
        still, learns = result.groups
        assert (still.dual, set(still.series.dual)) == (None, {None}), result.engine
        assert learns.dual is not None
        told = dict(group_columns(result)[1])
        assert told["λ at the end"][1] == "-"
        assert told["λ at the end"][0] == told["λ at the end"][2]
