"""The steps of the TRL integration: opened at a scripted coordinator, scored by the agent's own rollout, kept in its state folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.core.errors import CoordinatorUnavailable, EdgeError, InvalidRequest
from edge.learning.methods import DaGrpo
from edge.rpc.client import StepUnits
from edge.state.events import Notice, StepFinished
from tests.worlds.agent import BROKEN_HELP, HELP, local_answer
from tests.worlds.trained import training_groups
from tests.worlds.trl import TrlWorld, completions
from tools.integrations.trl.steps import ResponseVerdict, report_of, verdicts_of

RIGHT, WRONG = local_answer(1), local_answer(99)
UPDATE = report_of({"loss": 0.5, "grad_norm": 0.25, "entropy": 1.0, "learning_rate": 1e-3}, 1.0)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TrlWorld]:
    world = TrlWorld(tmp_path / "state")
    yield world
    world.close()


def groups_of(step: int) -> list[list[str]]:
    """Two prompts (numbers 2(step-1) and one more); one response in each group asks, one is right."""
    first = 2 * (step - 1)
    return [[local_answer(first + index + 1), HELP, WRONG, "no format"] for index in range(2)]


async def make(world: TrlWorld, steps, step: int, groups=None) -> list[ResponseVerdict | None]:
    await steps.open(step)
    verdicts = await steps.score(completions(step, groups or groups_of(step)))
    await steps.close(UPDATE)
    return verdicts


def finished_steps(world: TrlWorld) -> list[StepFinished]:
    return [event for event in world.sink.events if isinstance(event, StepFinished)]


async def test_responses_get_the_reward_of_the_composed_text_and_the_cost_of_asking(world):
    verdicts = await make(world, world.process(), 1)
    assert verdicts[:4] == [
        ResponseVerdict(1.0, 0, 1.0),
        ResponseVerdict(1.0, 1, 1.0),
        ResponseVerdict(0.0, 0, 1.0),
        ResponseVerdict(-0.1, 0, 1.0),
    ]
    assert len(world.client.calls) == 2


async def test_group_with_many_requests_makes_one_call(world):
    verdicts = await make(world, world.process(), 1, [[HELP, HELP, HELP, RIGHT], [WRONG] * 4])
    assert [one.cost for one in verdicts] == [1, 1, 1, 0, 0, 0, 0, 0]
    assert [call.help_units for call in world.client.calls] == [3]


async def test_malformed_request_and_request_in_a_cut_response_make_no_call(world):
    steps = world.process()
    await steps.open(1)
    cut = HELP + " "
    verdicts = await steps.score(completions(1, [[BROKEN_HELP, cut, RIGHT, RIGHT], [WRONG] * 4], cut=[cut]))
    assert [(one.reward, one.cost) for one in verdicts[:2]] == [(-0.1, 0), (-0.1, 0)]
    assert world.client.calls == []


async def test_response_beyond_its_steps_counts_as_stopped_there_as_in_the_agent(world):
    steps = world.process()
    await steps.open(1)
    long = "<think>\n" + "\n".join(f"Step {number}: a" for number in range(1, 20))
    verdicts = await steps.score(completions(1, [[long, RIGHT, WRONG, WRONG], [WRONG] * 4], cut=[long]))
    await steps.close(UPDATE)
    assert verdicts[0] == ResponseVerdict(-0.1, 0, 1.0)
    assert finished_steps(world)[0].scores.truncated == 0.0


async def test_lambda_comes_from_the_coordinator_and_moves_by_its_rule(world):
    steps = world.process()
    assert await steps.open(1) == 0.5
    await steps.score(completions(1, groups_of(1)))
    await steps.close(UPDATE)
    assert await steps.open(2) == pytest.approx(0.5)  # 2 of 8 asked, which is the target rate
    await steps.score(completions(2, [[HELP] * 4, [WRONG] * 4]))
    await steps.close(UPDATE)
    assert await steps.open(3) == pytest.approx(0.5 + 0.1 * (0.5 - 0.25))
    assert [(step.control.dual_before, step.control.dual_after) for step in finished_steps(world)] == [
        (0.5, 0.5),
        (0.5, pytest.approx(0.525)),
    ]


async def test_failed_call_drops_its_responses_and_reweights_the_rest(world):
    steps = world.process()
    await steps.open(1)
    world.client.fail_next("complete", InvalidRequest("the cloud cannot take it"))
    verdicts = await steps.score(completions(1, [[HELP, RIGHT, WRONG, WRONG], [RIGHT, WRONG, WRONG, WRONG]]))
    assert verdicts[0] is None
    assert [one.weight for one in verdicts[1:]] == [3 / 2] * 3 + [1.0] * 4
    await steps.close(UPDATE)
    assert (finished_steps(world)[0].scores.masked, finished_steps(world)[0].control.assist_rate) == (1, 1 / 8)


async def test_group_without_two_responses_left_is_dropped_from_the_mean(world):
    steps = world.process()
    await steps.open(1)
    world.client.fail_next("complete", InvalidRequest("the cloud cannot take it"))
    verdicts = await steps.score(completions(1, [[HELP, HELP, HELP, RIGHT], [RIGHT, WRONG, WRONG, WRONG]]))
    assert verdicts[:4] == [None] * 4
    assert [one.weight for one in verdicts[4:]] == [2.0] * 4


async def test_weighted_scores_give_the_coefficients_of_the_agents_own_update(world):
    steps = world.process()
    dual = await steps.open(1)
    world.client.fail_next("complete", InvalidRequest("the cloud cannot take it"))
    await steps.score(completions(1, [[HELP, HELP, RIGHT, WRONG], [RIGHT, HELP, WRONG, WRONG]]))
    groups = steps._now.groups
    own = training_groups(DaGrpo(), groups, dual)
    expected = [sample.advantage * group.group_weight / len(own) for group in own for sample in group.samples]
    assert trl_coefficients(verdicts_of(groups), dual, 4) == pytest.approx(expected)


def trl_coefficients(verdicts: list[ResponseVerdict | None], dual: float, size: int) -> list[float]:
    """TRL's factor of Σ log π in the paper's scale: G/(G-1) · 1/(P·G) · (advantage), of the counted responses."""
    found = []
    for start in range(0, len(verdicts), size):
        shaped = [one.weight * (one.reward - dual * one.cost) for one in verdicts[start : start + size] if one is not None]
        average = sum(shaped) / len(shaped) if shaped else 0.0
        found += [(value - average) / (size - 1) / (len(verdicts) // size) for value in shaped]
    return found


async def test_prompts_of_another_step_are_refused(world):
    steps = world.process()
    await steps.open(1)
    with pytest.raises(EdgeError, match="other prompts than this step's"):
        await steps.score(completions(2, groups_of(2)))


async def test_a_step_that_was_killed_before_its_report_pays_nothing_twice(world):
    steps = world.process()
    await steps.open(1)
    await steps.score(completions(1, groups_of(1)))
    spent = len(world.client.calls)
    await make(world, world.process(), 1)
    assert len(world.client.calls) == spent
    assert [step.cloud.cloud_calls for step in finished_steps(world)] == [2]


async def test_step_killed_after_its_report_keeps_its_number_and_the_first_answer(world):
    steps = world.process()
    await steps.open(1)
    await steps.score(completions(1, groups_of(1)))
    await world.client.close_step("math", 0, StepUnits(8, 2))
    spent = len(world.client.calls)
    await make(world, world.process(), 1)
    registered = await world.client.register("1", ["math"])
    assert (len(world.client.calls), registered.tasks[0].next_step) == (spent, 1)
    assert len(finished_steps(world)) == 1


async def test_steps_repeated_from_an_older_checkpoint_get_their_original_lambda(world):
    steps = world.process()
    await make(world, steps, 1, [[HELP] * 4, [WRONG] * 4])
    await make(world, steps, 2)
    spent, dual = len(world.client.calls), finished_steps(world)[1].control.dual_before
    again = world.process()
    await make(world, again, 1, [[HELP] * 4, [WRONG] * 4])
    assert await again.open(2) == dual
    verdicts = await again.score(completions(2, groups_of(2)))
    await again.close(UPDATE)
    assert [one.cost for one in verdicts] == [0, 1, 0, 0, 0, 1, 0, 0]
    assert (len(world.client.calls), len(finished_steps(world))) == (spent, 2)
    await make(world, again, 3)
    assert [step.step for step in finished_steps(world)] == [1, 2, 3]


async def test_repeated_step_with_another_result_is_reported_and_not_sent(world):
    await make(world, world.process(), 1)
    before = (await world.client.register("1", ["math"])).tasks[0]
    verdicts = await make(world, world.process(), 1, [[HELP, RIGHT, WRONG, WRONG], [WRONG] * 4])
    assert verdicts[0] == ResponseVerdict(1.0, 1, 1.0)  # answered from the ledger
    assert (await world.client.register("1", ["math"])).tasks[0] == before
    assert any("turned out otherwise" in event.text for event in world.sink.events if isinstance(event, Notice))


async def test_while_the_coordinator_is_away_the_last_lambda_holds_and_reports_wait(world):
    steps = world.process()
    world.client.fail_next("open_step", CoordinatorUnavailable("away", reason="UNREACHABLE"))
    assert await steps.open(1) == 0.5
    verdicts = await steps.score(completions(1, groups_of(1)))
    assert [one is None for one in verdicts[:4]] == [False, True, False, False]
    await steps.close(UPDATE)
    assert finished_steps(world)[0].control.offline
    await make(world, steps, 2)
    assert (await world.client.register("1", ["math"])).tasks[0].next_step == 2
