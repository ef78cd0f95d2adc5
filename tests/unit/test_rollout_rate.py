"""The help bias holds the rate of rollouts at τ while the policy drifts, and a step's λ may be what asking gains."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from edge.config.agent import resolve_agent_config
from edge.config.schema import PhaseConfig
from edge.core.errors import ConfigError
from edge.dagrpo.advantages import mean
from edge.dagrpo.dual import MOST_BIAS, estimated_dual
from edge.learning.checkpoints import Checkpoints, StepManifest
from edge.learning.step_event import help_record
from edge.state.events import StepFinished
from edge.state.rows import HelpRecord
from tests.unit.test_agent_resume import unreachable
from tests.unit.test_dual_unit import group
from tests.worlds.deciding import Decider, DecidingWorld

RATES = [0.1, 0.3, 0.6]
FIRST = 100
"""Decisions after which the rate is to be held."""


def learning(folder: Path, rate: float, steps: int, prompts: int = 4, **options: Any) -> DecidingWorld:
    phases = (PhaseConfig(source="sums", target_rate=rate, steps=steps),)
    return DecidingWorld(folder / "state", phases=phases, prompts_per_step=prompts, group_size=8, **options)


def rate_after_the_first_decisions(steps: list[StepFinished]) -> float:
    first = -(-FIRST // steps[0].scores.responses)
    return mean([step.control.assist_rate for step in steps[first:]])


POLICIES = {
    "steady": Decider(),
    "five nats up in twenty steps": Decider(lambda version: -3.0 + 0.25 * version),
    "five nats down in twenty steps": Decider(lambda version: 2.0 - 0.25 * version),
    "another policy at once": Decider(lambda version: -3.0 if version < 10 else 2.0),
    "three in ten reach no decision": Decider(undecided=0.3),
    "three requests in ten are invalid": Decider(invalid=0.3),
    "hardly ever asks": Decider(lambda version: -14.0),
}


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("policy", POLICIES)
async def test_after_a_hundred_decisions_rollouts_ask_at_the_target_rate(tmp_path: Path, policy: str, rate: float) -> None:
    steps = await learning(tmp_path, rate, 24, decider=POLICIES[policy]).learn()
    assert rate_after_the_first_decisions(steps) == pytest.approx(rate, abs=0.05)


@pytest.mark.parametrize("rate", RATES[1:])
async def test_an_integrated_help_bias_runs_after_a_drifting_policy(tmp_path: Path, rate: float) -> None:
    """By drift · τ (1 - τ) / κ in the limit: .088 and .1 here, and .038 at τ = .1."""
    steps = await learning(tmp_path, rate, 24, decider=POLICIES["five nats up in twenty steps"], rule="integrated").learn()
    assert rate_after_the_first_decisions(steps) > rate + 0.05


async def test_a_step_says_what_rate_was_expected_of_its_bias_and_the_first_knows_none(tmp_path: Path) -> None:
    world = learning(tmp_path, 0.3, 4)
    steps = await world.learn()
    assert (steps[0].control.help_bias, steps[0].control.expected_rate) == (0.0, None)
    for step in steps[1:]:
        assert step.control.help_bias != 0.0
        assert step.control.expected_rate is not None and 0.02 <= step.control.expected_rate <= 0.98
    assert steps[1].control.expected_rate == pytest.approx(0.3, abs=1e-5)


async def test_record_has_the_newest_step_and_of_small_steps_the_last_thirty_two_responses(tmp_path: Path) -> None:
    async with learning(tmp_path, 0.3, 3, prompts=6).agent() as agent:
        await agent.learn()
        large = agent.components.state.help_record("math")
    async with learning(tmp_path / "small", 0.3, 6, prompts=1, decider=Decider(undecided=0.4)).agent() as agent:
        await agent.learn()
        small = agent.components.state.help_record("math")
    assert len(large.log_odds_N) == 48 and None not in large.log_odds_N
    assert len(small.log_odds_N) == len(small.weights_N) == 32 and None in small.log_odds_N
    assert large.log_odds_N == tuple(one and round(one, 4) for one in large.log_odds_N)


async def test_policy_that_reaches_no_decision_has_no_bias_and_one_beyond_reach_a_bounded_one(tmp_path: Path) -> None:
    none = await learning(tmp_path / "none", 0.3, 3, decider=Decider(undecided=1.0)).learn()
    assert [step.control.help_bias for step in none] == [0.0, 0.0, 0.0]
    certain = await learning(tmp_path / "certain", 0.3, 3, decider=Decider(lambda version: -200.0)).learn()
    assert 50.0 < (certain[-1].control.help_bias or 0.0) <= MOST_BIAS


async def test_each_task_has_a_bias_of_its_own(tmp_path: Path) -> None:
    world = learning(tmp_path, 0.3, 2)
    world.phases = (*world.phases, PhaseConfig(source="other", target_rate=0.6, steps=2))
    steps = await world.learn()
    assert [step.control.help_bias == 0.0 for step in steps] == [True, False, True, False]


def test_record_weighs_each_response_by_what_its_call_is_expected_to_cost() -> None:
    record = help_record([group([1, 0], 3.0, log_odds=-1.23456), group([0], 0.5, log_odds=-math.inf), group([0], 1.0)])
    assert record == HelpRecord((-1.2346, -1.2346, -60.0, None), (3.0, 3.0, 0.5, 1.0))


async def test_manifest_that_was_written_before_there_was_a_record_is_finished_without_one(tmp_path: Path) -> None:
    world = learning(tmp_path, 0.3, 2)
    await world.learn()
    checkpoint = Checkpoints(world.folder / "checkpoints").at(2)
    assert checkpoint is not None
    manifest = checkpoint.manifest()
    assert manifest.help_record is not None and StepManifest.from_json(2, manifest.to_json()) == manifest
    before = manifest.to_json()
    del before["help_record"], before["opened"]["expected_rate"], before["opened"]["estimated_dual"]
    assert StepManifest.from_json(2, before).help_record is None


def test_older_responses_leave_a_record_as_newer_ones_come() -> None:
    record = HelpRecord((1.0,) * 30, (1.0,) * 30).followed_by(HelpRecord((2.0,) * 8, (1.0,) * 8))
    assert record.log_odds_N == (1.0,) * 24 + (2.0,) * 8
    assert record.followed_by(HelpRecord((3.0,) * 40, (1.0,) * 40)).log_odds_N == (3.0,) * 40


async def test_estimated_dual_is_what_asking_gained_in_the_step_and_then_in_the_last_eight(tmp_path: Path) -> None:
    world = learning(tmp_path, 0.3, 11, estimates_dual=True)
    async with world.agent() as agent:
        await agent.learn()
        steps, terms = agent.components.state.steps(), agent.components.state.terms("math")
    slopes = [step.control.ask_slope for step in steps]
    for number, step in enumerate(steps):
        assert step.control.dual_before == pytest.approx(estimated_dual([slopes[number]]))
        assert step.control.dual_after == pytest.approx(estimated_dual(slopes[max(0, number - 7) : number + 1]))
    assert 0.3 < steps[-1].control.dual_after < 0.7, "the cloud is right, half of the local answers are"
    assert terms is not None and terms.dual not in (steps[-1].control.dual_before, steps[-1].control.dual_after)


async def test_estimated_dual_goes_on_without_a_coordinator(tmp_path: Path) -> None:
    world = learning(tmp_path, 0.3, 3, estimates_dual=True, decider=Decider(lambda version: 0.0))
    async with world.agent() as agent:
        await agent.learn(max_steps=1)
        unreachable(world)
        await agent.learn()
        steps, terms = agent.components.state.steps(), agent.components.state.terms("math")
    assert [step.control.offline for step in steps] == [False, True, True]
    assert steps[2].control.dual_before == steps[1].control.dual_after, (
        "nobody is helped, so the last steps show what asking gains"
    )
    assert terms is not None and terms.dual != steps[2].control.dual_after


async def test_without_a_group_that_holds_both_the_coordinators_dual_is_used(tmp_path: Path) -> None:
    world = learning(tmp_path, 0.3, 2, estimates_dual=True, decider=Decider(undecided=1.0))
    steps = await world.learn()
    assert steps[0].control.dual_before == world.terms.dual_init
    assert all(step.control.ask_variance == 0.0 for step in steps)


def test_estimated_dual_needs_a_help_bias_to_hold_the_rate(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("learning:\n  control: {controller: paper, step_dual: estimated}\n")
    with pytest.raises(ConfigError, match=r"agent.yaml:2: learning.control step_dual estimated needs controller dial"):
        resolve_agent_config(file)
