"""λ on the cost of calls: each group weights its call's expected cost in the advantages, the rate and the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from edge.config.agent import resolve_agent_config
from edge.core.errors import ConfigError
from edge.core.types import FinishReason, LocalResponse
from edge.learning.methods import DaGrpo
from edge.learning.rollout import ScoredGroup, asked_share, step_units
from edge.testing.clock import ManualClock
from tests.worlds.agent import World, item
from tests.worlds.trained import scored, training_groups


def group(asked: Sequence[int], weight: float, log_odds: float | None = None) -> ScoredGroup:
    local = LocalResponse("x", (1, 2), (-0.5, -0.25), FinishReason.EOS, help_log_odds=log_odds)
    responses = tuple(scored(local, asked=bool(ask), correct=True, reward=1.0, cost=ask) for ask in asked)
    return ScoredGroup(item(1), (1, 2), responses, None, cost_weight=weight)


def test_asking_costs_lambda_times_the_weight_of_its_call() -> None:
    cheap, dear = training_groups(DaGrpo(), [group([1, 0], 0.5), group([1, 0], 2.0)], dual=0.4)
    assert [sample.advantage for sample in cheap.samples] == pytest.approx([-0.1, 0.1])
    assert [sample.advantage for sample in dear.samples] == pytest.approx([-0.4, 0.4])


def test_weighted_rate_reflects_call_costs_and_stays_a_share() -> None:
    groups = [group([1, 1, 0, 0], 3.0), group([0, 0, 0, 0], 1.0)]
    assert asked_share(groups) == pytest.approx(0.375)
    assert step_units(groups).own_rate is None, "λ acts on calls"
    assert step_units(groups, by_cost=True).own_rate == pytest.approx(0.375)
    assert (step_units(groups, by_cost=True).help, step_units(groups, by_cost=True).total) == (2, 8)
    even = [group([1, 0], 3.0, log_odds=0.0), group([0, 0], 1.0, log_odds=-50.0)]
    assert step_units(even, with_bias=True, by_cost=True).own_rate == pytest.approx(0.375)


class CostWorld(World):
    """Calls cost; λ acts on money."""

    def settings(self, run_id):  # type: ignore[no-untyped-def]
        return replace(super().settings(run_id), dual_unit="spend")


async def test_a_step_reports_the_weighted_rate_and_the_coordinator_moves_lambda_by_it(tmp_path: Path) -> None:
    world = CostWorld(tmp_path / "state")
    async with world.agent() as agent:
        await agent.learn(2)
        steps = agent.components.state.steps()
        rows = agent.components.state.rows("SELECT count(*), min(chars) FROM learning_spend")
    assert rows[0][0] > 0 and rows[0][1] > 0, "the length of each question is stored with its call"
    for step in steps:
        control = step.control
        assert control.cost_rate is not None and control.own_rate == control.cost_rate
        expected = control.dual_before + 0.1 * (control.cost_rate - control.target_rate)
        assert control.dual_after == pytest.approx(max(0.0, expected))


def test_invalid_dual_unit_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("learning:\n  control: {dual_unit: money}\n")
    with pytest.raises(ConfigError, match=r"agent.yaml:2: learning.control.dual_unit"):
        resolve_agent_config(file)
    with pytest.raises(ConfigError, match="method da-grpo"):
        resolve_agent_config(sets=["learning.control.dual_unit=spend", "learning.method=grpo"])


class Ticking(ManualClock):
    """A clock that advances a second at each reading."""

    def now(self) -> float:
        self.advance(1.0)
        return super().now()
