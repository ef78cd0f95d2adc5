from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.providers.provider import bound_by_bytes
from edge.cloud.group_calls import GroupCalls
from edge.cloud.hints import LEAD
from edge.config.schema import PhaseConfig
from edge.core.errors import (
    BudgetExhausted,
    CoordinatorUnavailable,
    EdgeError,
    OutcomeUnknown,
    UsageError,
)
from edge.core.types import Message
from edge.dagrpo.dual import DualState, dual_step, proportional_integral_step
from edge.evaluation.judging import call_key
from edge.learning.methods import DaGrpo
from edge.learning.rollout import Rollout, step_units
from edge.learning.step_event import cloud_use
from edge.routing.policy import SelfOffload
from edge.rpc.client import StepUnits, fingerprint
from edge.state.events import AdapterSwapped, Notice, PhaseStarted, StepFinished
from edge.testing.backend import ScriptedBackend
from edge.testing.clock import ManualClock
from edge.testing.coordinator import ScriptedCoordinatorClient, ScriptedTerms
from edge.verifiers.math_answer import ExactMathAnswer
from tests.worlds.agent import BROKEN_HELP, HELP, World, batch_of, item, local_answer, mixed_script, number_in, numbers
from tests.worlds.trained import training_groups

CUT = "<think>\nStep 1: " + "word " * 80 + "\n</think>\nI need external assistance."
"""Longer than a response may be."""


async def collected(world: World, client: ScriptedCoordinatorClient, texts: list[str], items: int = 1):
    """Groups whose response i is texts[i], scored against `client`."""
    order = iter(texts * items)
    backend = ScriptedBackend(lambda messages, sampling, seed: next(order))
    await client.open_step("math", 0, items, len(texts), 0.3)
    settings = world.rollout_settings("run")
    settings = replace(settings, group_size=len(texts), prompt_form="compact")
    rollout = Rollout(backend, GroupCalls(client, 1.0), ExactMathAnswer(), SelfOffload(), ManualClock(), settings)
    return await rollout.collect(batch_of(*(item(number) for number in range(items))))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "state")


async def test_rewards_and_costs_follow_the_table_and_a_group_makes_one_cloud_call(world: World) -> None:
    texts = [
        local_answer(1),
        local_answer(5),
        HELP,
        HELP,
        BROKEN_HELP,
        "<think>\nStep 2: x\n</think>\n<answer>\\boxed{1}</answer>",
    ]
    [group] = await collected(world, world.client, texts)
    assert [scored.reward for scored in group.responses] == [1.0, 0.0, 1.0, 1.0, -0.1, -0.1]
    assert [scored.cost for scored in group.responses] == [0, 0, 1, 1, 0, 0]
    assert [scored.correct for scored in group.responses] == [True, False, True, True, False, True]
    assert len(world.client.calls) == 1
    assert world.client.calls[0].help_units == 2
    assert world.client.calls[0].messages[-1].content == "What is 0 + 1?"
    assert step_units([group]) == StepUnits(6, 2)


async def test_first_attempt_that_asks_is_sent_as_a_hint_where_configured(world: World) -> None:
    world.hint_chars = 100
    texts = [local_answer(1), HELP.replace("hard", "mail me@example.org"), HELP]
    await collected(world, world.client, texts)
    (call,) = world.client.calls
    assert call.messages[-1].content == f"What is 0 + 1?\n\n{LEAD}\nStep 1: mail [cut]"
    plain = replace(call, messages=(Message("user", "What is 0 + 1?"),))
    assert call.help_units == 2 and fingerprint(call) != fingerprint(plain)
    assert bound_by_bytes(call.messages) > bound_by_bytes(plain.messages), "the hold covers what is sent"


@pytest.mark.parametrize(
    ("texts", "answer", "rewards", "costs", "calls"),
    [
        ([local_answer(1), BROKEN_HELP, "nothing"], local_answer(1), [1.0, -0.1, -0.1], [0, 0, 0], 0),
        ([HELP, local_answer(1)], local_answer("wrong"), [0.0, 1.0], [1, 0], 1),
        ([CUT, local_answer(1)], local_answer(1), [-0.1, 1.0], [0, 0], 0),
    ],
    ids=["nobody validly asks", "the cloud is wrong", "cut at its length"],
)
async def test_only_a_valid_request_makes_a_call_and_only_a_right_answer_is_rewarded(
    world: World, texts: list[str], answer: str, rewards: list[float], costs: list[int], calls: int
) -> None:
    client = ScriptedCoordinatorClient(lambda call: answer)
    [group] = await collected(world, client, texts)
    assert ([scored.reward for scored in group.responses], [scored.cost for scored in group.responses]) == (rewards, costs)
    assert len(client.calls) == calls and not any(scored.masked for scored in group.responses)


async def test_with_skip_only_a_unanimous_group_makes_no_call_and_counts_as_demand(world: World) -> None:
    world.skip_unanimous_calls = True
    [divided] = await collected(world, world.client, [HELP, local_answer(1), HELP])
    assert len(world.client.calls) == 1 and step_units([divided]) == StepUnits(3, 2, 0)
    world.client.calls.clear()
    [group] = await collected(world, world.client, [HELP, HELP, HELP])
    assert world.client.calls == []
    assert [(scored.asked, scored.cost, scored.outcome.value, scored.judged) for scored in group.responses] == [
        (True, 1, "uncalled", False)
    ] * 3
    assert step_units([group]) == StepUnits(3, 3, 3)
    [trained] = training_groups(DaGrpo(), [group], 0.5)
    assert [sample.advantage for sample in trained.samples] == [0.0] * 3


async def test_skipping_unanimous_calls_changes_the_bill_and_no_advantage_and_no_dual(tmp_path: Path) -> None:
    """Two responses a group: about one group in eleven asks as a whole."""
    phases = (PhaseConfig(source="sums", target_rate=0.3, steps=8),)
    worlds = [World(tmp_path / str(skip), phases=phases, group_size=2, skip_unanimous_calls=skip) for skip in (False, True)]
    made, skipped = [await world.learn() for world in worlds]
    assert [(step.control.dual_after, step.control.assist_rate) for step in made] == [
        (step.control.dual_after, step.control.assist_rate) for step in skipped
    ]
    assert worlds[0].learners[0].updates == worlds[1].learners[0].updates
    uncalled_groups = sum(step.scores.uncalled for step in skipped) // 2
    assert 0 < uncalled_groups == len(worlds[0].client.calls) - len(worlds[1].client.calls)
    assert sum(step.scores.uncalled for step in made) == 0
    assert not [notice for notice in worlds[1].events(Notice) if "coordinator" in notice.text]


@pytest.mark.parametrize(
    "error", [CoordinatorUnavailable("away"), OutcomeUnknown("cut"), CoordinatorUnavailable("500", reason="UPSTREAM_FAILED")]
)
async def test_cloud_failure_masks_only_the_responses_that_asked(world: World, error: Exception) -> None:
    world.client.fail_next("complete", error)  # type: ignore[arg-type]
    [group] = await collected(world, world.client, [HELP, local_answer(1), local_answer(2), HELP])
    assert [scored.masked for scored in group.responses] == [True, False, False, True]
    [training] = training_groups(DaGrpo(), [group], 0.5)
    assert [sample.advantage for sample in training.samples] == [0.5, -0.5]
    assert training.group_weight == 1.0
    assert step_units([group]) == StepUnits(4, 2)


@pytest.mark.parametrize(("metadata", "use"), [({"charged_uusd": "70"}, (1, 0, 70)), ({}, (0, 0, 0))])
async def test_charged_call_without_an_answer_is_in_the_bill_of_the_step(
    world: World, metadata: dict[str, str], use: tuple[int, int, int]
) -> None:
    world.client.fail_next("complete", OutcomeUnknown("cut", metadata=metadata))
    [group] = await collected(world, world.client, [HELP, local_answer(1)])
    assert (group.completion, cloud_use([group])) == (None, use)


async def test_a_group_with_fewer_than_two_unmasked_responses_is_not_trained_on(world: World) -> None:
    world.client.fail_next("complete", CoordinatorUnavailable("away"))
    [group] = await collected(world, world.client, [HELP, local_answer(1), HELP])
    assert training_groups(DaGrpo(), [group], 0.5) == []


async def test_a_budget_refusal_is_reward_zero_cost_one_without_a_bill(world: World) -> None:
    world.client.fail_next("complete", BudgetExhausted("gone", metadata={"budget": "device"}))
    [group] = await collected(world, world.client, [HELP, local_answer(1)])
    refused = group.responses[0]
    assert (refused.reward, refused.cost, refused.masked, refused.outcome.value) == (0.0, 1, False, "refused")
    assert world.client.calls == []
    assert step_units([group]) == StepUnits(2, 1)


async def test_cloud_calls_overlap_with_the_generation_of_other_groups(world: World) -> None:
    """The first group asks while the second is still being sampled: in sequence the event below would never be set."""
    second_is_done, asked = asyncio.Event(), asyncio.Event()

    class Slow(ScriptedBackend):
        async def sample_group(self, messages, sampling, seeds, priority=None):  # type: ignore[no-untyped-def]
            if number_in(messages[-1].content) == 1:
                await asked.wait()
                second_is_done.set()
            return await super().sample_group(messages, sampling, seeds)

    class Watching(ScriptedCoordinatorClient):
        async def complete(self, call, deadline_s):  # type: ignore[no-untyped-def]
            asked.set()
            await second_is_done.wait()
            return await super().complete(call, deadline_s)

    client = Watching(lambda call: local_answer(1))
    await client.open_step("math", 0, 2, 2, 0.3)
    settings = replace(world.rollout_settings("r"), group_size=2, prompt_form="compact")
    rollout = Rollout(Slow([HELP]), GroupCalls(client, 5.0), ExactMathAnswer(), SelfOffload(), ManualClock(), settings)
    async with asyncio.timeout(10):
        groups = await rollout.collect(batch_of(item(0), item(1)))
    assert all(group.completion for group in groups)


def test_call_keys_depend_on_run_task_step_and_prompt_only() -> None:
    key = call_key("run", "math", 3, 1, "math-5")
    assert key == call_key("run", "math", 3, 1, "math-5")
    others = [("ruN", "math", 3, 1, "math-5"), ("run", "code", 3, 1, "math-5"), ("run", "math", 4, 1, "math-5")]
    others += [("run", "math", 3, 2, "math-5"), ("run", "math", 3, 1, "math-6")]
    assert len({key, *(call_key(*other) for other in others)}) == 6


async def test_learning_moves_the_dual_by_the_papers_rule_and_keeps_each_step(world: World) -> None:
    async with world.agent() as agent:
        finished = await agent.learn()
        steps, adapter = agent.components.state.steps(), agent.adapter.in_use()
    assert (finished.reason, finished.steps_done) == ("done", 4)
    dual = world.terms.dual_init
    for number, step in enumerate(steps, start=1):
        assert (step.step, step.control.dual_before) == (number, dual)
        dual = dual_step(dual, step.control.assist_rate, 0.3, world.terms.dual_lr)
        assert step.control.dual_after == dual
        assert step.scores.responses == 12
    assert sum(step.cloud.cloud_calls for step in steps) == len(world.client.calls) == steps[-1].cloud.total_cloud_calls
    assert steps[-1].cloud.total_spend_uusd == 100 * len(world.client.calls)
    assert [numbers(event) for event in world.events(StepFinished)] == [numbers(step) for step in steps]
    assert [event.version for event in world.events(AdapterSwapped)] == [1, 2, 3, 4]
    assert adapter is not None
    assert (adapter.version, Path(adapter.folder).name) == (4, "adapter")


@pytest.mark.parametrize("gain", [0.0, 0.5])
@pytest.mark.parametrize("scope", ["task", "global"])
async def test_label_keeps_its_dual_across_phases_or_all_labels_move_one(tmp_path: Path, scope: str, gain: float) -> None:
    """math, code, math again. `task`: math resumes where it was and code starts anew; `global`: one λ for all."""
    phases = tuple(PhaseConfig(source=source, target_rate=0.3, steps=2) for source in ("sums", "other", "sums"))
    terms = ScriptedTerms(dual_lr=0.1, step_credit_kappa=None, dual_scope=scope, dual_proportional=gain, dual_window=2)
    world = World(tmp_path / "state", phases=phases, terms=terms)
    steps = await world.learn()
    assert [step.task for step in steps] == ["math"] * 2 + ["code"] * 2 + ["math"] * 2
    states: dict[str, DualState] = {}
    for step in steps:
        whose = step.task if scope == "task" else ""
        before = states.get(whose, DualState(0.5))
        states[whose] = proportional_integral_step(before, step.control.assist_rate, 0.3, terms.rule)
        assert (step.control.dual_before, step.control.dual_after) == (before.dual, states[whose].dual)
    assert (steps[2].control.dual_before, steps[4].control.dual_before) == (
        (0.5, steps[1].control.dual_after) if scope == "task" else (steps[1].control.dual_after, steps[3].control.dual_after)
    )
    assert len({step.control.dual_after for step in steps}) > 4


async def test_every_batch_is_trained_against_the_dual_its_step_was_opened_with(tmp_path: Path) -> None:
    """Half ask (and are right), half are wrong: Â of those that ask is (1 - λ) / 2, so the learner's advantages show which λ was used."""
    halves = iter([HELP, HELP, local_answer(0), local_answer(0)] * 12)
    terms = ScriptedTerms(dual_lr=1.0, step_credit_kappa=None)
    world = World(tmp_path / "state", script=lambda messages, sampling, seed: next(halves), terms=terms)
    steps = await world.learn()
    [learner] = world.learners
    used = [[sample.advantage for group in update for sample in group.samples] for update in learner.updates]
    assert used == [
        pytest.approx([side * (1.0 - step.control.dual_before) / 2 for _ in range(3) for side in (1, 1, -1, -1)])
        for step in steps
    ]
    assert len({step.control.dual_before for step in steps}) == 4


async def test_series_of_refusals_is_reported_once(tmp_path: Path) -> None:
    world = World(tmp_path / "state", script=lambda messages, sampling, seed: HELP)
    world.client.fail_next("complete", BudgetExhausted("gone", metadata={"told": "device calls 12 of 12"}), times=1000)
    async with world.agent() as agent:
        await agent.learn()
        assert [step.scores.refused > 0 for step in agent.components.state.steps()] == [True] * 4
    [text] = [notice.text for notice in world.events(Notice) if "budget" in notice.text]
    assert "device calls 12 of 12" in text


async def test_phases_have_their_own_rate_and_task_and_the_cursor_continues(tmp_path: Path) -> None:
    phases = tuple(
        PhaseConfig(source=name, target_rate=rate, steps=2) for name, rate in [("sums", 0.1), ("other", 0.5), ("sums", 0.7)]
    )
    seen: list[int] = []

    def script(messages, sampling, seed):  # type: ignore[no-untyped-def]
        seen.append(number_in(messages[-1].content))
        return mixed_script(messages, sampling, seed)

    world = World(tmp_path / "s", phases=phases, script=script, group_size=2)
    steps = await world.learn()
    assert [(step.task, step.control.target_rate, step.phase, step.phase_step) for step in steps] == [
        ("math", 0.1, 0, 1), ("math", 0.1, 0, 2), ("code", 0.5, 1, 1), ("code", 0.5, 1, 2), ("math", 0.7, 2, 1), ("math", 0.7, 2, 2),
    ]  # fmt: skip
    assert [event.phase for event in world.events(PhaseStarted)] == [0, 1, 2]
    firsts = seen[::2]
    assert firsts == [*range(7000, 7006), *range(7000, 7006), *range(7006, 7012)]


async def test_stop_during_the_rollout_abandons_the_step_and_pays_nothing_twice(tmp_path: Path) -> None:
    world = World(tmp_path / "state", seconds_per_token=0.002)
    async with world.agent() as agent:
        learning = asyncio.create_task(agent.learn())
        while not world.client.calls and not learning.done():
            await asyncio.sleep(0.001)
        agent.request_stop()
        finished = await learning
    assert finished.reason == "stopped"
    calls_before = len(world.client.calls)
    async with world.agent() as agent:
        assert agent.status().steps_done == finished.steps_done < 4
        await agent.learn()
        steps = agent.components.state.steps()
    calm = World(tmp_path / "calm")
    expected = await calm.learn()
    assert [numbers(step) for step in steps] == [numbers(step) for step in expected]
    assert len(world.client.calls) == len(calm.client.calls) >= calls_before


class Refuses(ScriptedBackend):
    """Refuses prompts whose number is in `refused`, as an engine does when a prompt does not fit its context."""

    refused: frozenset[int] = frozenset()

    async def sample_group(self, messages, sampling, seeds, priority=None):  # type: ignore[no-untyped-def]
        if number_in(messages[-1].content) in self.refused:
            raise EdgeError("the prompt has 9999 tokens, the context 1024")
        return await super().sample_group(messages, sampling, seeds)


async def test_oversized_prompt_is_skipped_with_a_notice_and_the_run_ends_where_none_fits(world: World) -> None:
    backend = Refuses(mixed_script)
    backend.refused = frozenset({7001})

    async def open_backend() -> ScriptedBackend:
        return backend

    world._open_backend = open_backend  # type: ignore[method-assign]
    async with world.agent() as agent:
        await agent.learn(1)
        [step] = agent.components.state.steps()
        assert (step.scores.prompts, step.scores.responses) == (2, 8)
        [notice] = world.events(Notice)
        assert "9999 tokens" in notice.text
        backend.refused = frozenset(range(7003, 7006))
        with pytest.raises(EdgeError, match="9999 tokens"):
            await agent.learn(1)
        assert agent.status().learning == "stopped"


async def test_learning_twice_concurrently_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path / "state", seconds_per_token=0.01)
    async with world.agent() as agent:
        learning = asyncio.create_task(agent.learn(max_steps=1))
        await asyncio.sleep(0.01)
        with pytest.raises(UsageError, match="learning already"):
            await agent.learn()
        await learning


async def test_a_hard_limit_is_never_exceeded_and_the_dual_rises(tmp_path: Path) -> None:
    terms = ScriptedTerms(dual_lr=0.1, step_credit_kappa=None, calls_limit=2)
    world = World(tmp_path / "state", terms=terms, script=[HELP])
    steps = await world.learn()
    assert len(world.client.calls) == 2
    assert [step.scores.refused for step in steps] == [4, 12, 12, 12]
    assert steps[-1].control.dual_after > steps[0].control.dual_before
