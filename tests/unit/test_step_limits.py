"""A step samples whole groups up to its limit of tokens, plain answers are limited by the given ones, and a step shows how far it is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edge.cloud.group_calls import GroupCalls
from edge.core.answer_key import OwnKey
from edge.core.types import AnswerKind, Message, Sampling, TaskItem
from edge.inference.backend import RolloutCounts
from edge.learning.rollout import Rollout, ScoredGroup
from edge.learning.step import StepPhases, learned_by, sampled_by
from edge.routing.policy import SelfOffload
from edge.state.events import Notice, StepFinished, StepProgress
from edge.testing.backend import ScriptedBackend
from edge.testing.clock import ManualClock
from edge.testing.coordinator import ScriptedCoordinatorClient
from edge.verifiers.math_answer import ExactMathAnswer
from tests.worlds.agent import HELP, Crash, World, batch_of, crash_at, item, local_answer, number_in, numbers

LENGTHS = {0: 30, 1: 2, 2: 20, 3: 1, 4: 40, 5: 3}
"""Words of the reasoning of each question's responses."""


def wordy(messages: Sequence[Message], sampling: Sampling, seed: int) -> str:
    words = LENGTHS[number_in(messages[-1].content) % len(LENGTHS)]
    return local_answer(7).replace("add", "word " * words)


def asks_when_short(messages: Sequence[Message], sampling: Sampling, seed: int) -> str:
    words = LENGTHS[number_in(messages[-1].content) % len(LENGTHS)]
    return HELP if words < 5 else wordy(messages, sampling, seed)


async def collected(
    world: World, step_tokens: int, script: Any = wordy, client: ScriptedCoordinatorClient | None = None
) -> tuple[list[ScoredGroup], frozenset[int]]:
    client = client or world.client
    await client.open_step("math", 0, len(LENGTHS), 2, 0.3)
    backend = ScriptedBackend(script, seconds_per_token=0.001)
    settings = replace(world.rollout_settings("run"), group_size=2, prompt_form="compact", step_tokens=step_tokens)
    rollout = Rollout(backend, GroupCalls(client, 1.0), ExactMathAnswer(), SelfOffload(), ManualClock(), settings)
    return await rollout.collect(batch_of(*map(item, LENGTHS))), rollout.beyond_limit


def tokens_of(groups: Sequence[ScoredGroup]) -> list[int]:
    return [sum(len(one.response.token_ids) for one in group.responses) for group in groups]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "state", prompts_per_step=6)


@pytest.mark.parametrize("limit", [1, 40, 100, 150, 10_000])
async def test_the_groups_of_a_limited_step_are_the_first_ones_whatever_ends_first(world: World, limit: int) -> None:
    everything, nothing_left = await collected(world, 0)
    groups, left_out = await collected(world, limit)
    sizes = tokens_of(everything)
    kept = next((count for count in range(1, 7) if sum(sizes[:count]) >= limit), 6)
    assert [group.item.id for group in groups] == [f"math-{number}" for number in range(kept)]
    assert groups == everything[:kept]
    assert left_out == frozenset(range(kept, 6)) and not nothing_left


async def test_no_call_is_made_for_a_group_beyond_the_limit(world: World) -> None:
    """Short groups end first, and would have asked by then."""
    sizes = tokens_of((await collected(world, 0, asks_when_short))[0])
    other = World(world.folder.parent / "other", prompts_per_step=6)
    groups, left_out = await collected(other, sizes[0] + sizes[1], asks_when_short)
    assert len(groups) == 2 and len(left_out) == 4
    assert [call.prompt_id for call in other.client.calls] == ["1:math-1"]


async def test_a_prompt_that_fails_takes_no_tokens_from_those_after_it(world: World) -> None:
    def fails_at_first(messages: Sequence[Message], sampling: Sampling, seed: int) -> str:
        if number_in(messages[-1].content) == 0:
            raise_too_long()
        return wordy(messages, sampling, seed)

    groups, left_out = await collected(world, 1, fails_at_first)
    assert [group.item.id for group in groups] == ["math-1"] and left_out == frozenset(range(2, 6))


def raise_too_long() -> None:
    from edge.core.errors import ContextOverflow

    raise ContextOverflow("the prompt has too many tokens")


async def test_a_limited_step_reports_what_it_left_out_and_is_the_same_when_it_is_made_again(tmp_path: Path) -> None:
    options: Any = {"prompts_per_step": 6, "step_tokens": 100, "script": wordy}
    whole = World(tmp_path / "whole", **options)
    steps = await whole.learn(3)
    assert [step.scores.prompts + step.scores.beyond_limit for step in steps] == [6, 6, 6]
    assert all(step.scores.beyond_limit for step in steps)
    notices = [event.text for event in whole.events(Notice) if "learning.step_tokens" in event.text]
    assert len(notices) == 1

    cut = World(tmp_path / "cut", **options)
    with pytest.raises(Crash):
        await cut.learn(failpoint=crash_at("collected", 2))
    again = await cut.learn(2)
    assert list(map(numbers, again)) == list(map(numbers, steps))


def plain(answer: str, kind: AnswerKind = AnswerKind.TEXT, **fields: Any) -> TaskItem:
    return replace(item(1), answer=answer, kind=kind, **fields)


LONG = "the key of the shed hangs next to the door of the boat house"
GIVEN = OwnKey("text", ("Mia", LONG), (), False).to_json()


@pytest.mark.parametrize(
    ("asked", "limit"),
    [
        (plain("Thursday"), 24),
        (plain("4417", AnswerKind.MATH, form="plain"), 24),
        (plain(LONG), len(LONG)),
        (plain(GIVEN, AnswerKind.FEEDBACK), len(LONG)),
        (plain("", AnswerKind.FEEDBACK), 64),
        (plain("A", AnswerKind.CHOICE, form="plain", options=("red", "blue")), 64),
        (plain("8", AnswerKind.MATH), 64),
        (plain(2 * LONG), 64),
    ],
    ids=["a word", "a number", "a sentence", "a correction", "not known", "options", "reasoned", "beyond the usual limit"],
)
def test_a_plain_answer_is_limited_by_the_given_one(world: World, asked: TaskItem, limit: int) -> None:
    settings = replace(world.rollout_settings("run"), prompt_form="full", guided=True)
    assert settings.sampling(asked).max_tokens == limit


class CountingBackend(ScriptedBackend):
    """Has counts that a test moves."""

    rollout_counts = RolloutCounts(100, 5000)


class CountingLearner:
    progress = (0, 400)


async def reported(world: World, part: Any, count: Any, moves: Sequence[Any]) -> list[StepProgress]:
    """What is shown of a part of a step inside which these things happen, each once the one before is shown."""
    async with world.agent() as agent:
        phases = StepPhases(3, agent.components)
        async with phases.watched(part, count) as is_counted:
            assert is_counted
            for number, move in enumerate(moves):
                world.clock.advance(10.0)
                move()
                while len(world.events(StepProgress)) <= number:
                    await asyncio.sleep(0.05)
            await asyncio.sleep(1.5)  # nothing happens, nothing is shown
    return world.events(StepProgress)


async def test_a_step_shows_responses_tokens_and_the_seconds_that_are_left(world: World) -> None:
    backend = CountingBackend(wordy)

    def sampled(responses: int, tokens: int) -> None:
        backend.rollout_counts = RolloutCounts(100 + responses, 5000 + tokens)

    moves = [lambda: sampled(0, 40), lambda: sampled(8, 300)]
    shown = await reported(world, "rollout", sampled_by(backend, 32), moves)
    assert [(one.step, one.part, one.done, one.of, one.tokens) for one in shown] == [
        (3, "rollout", 0, 32, 40),
        (3, "rollout", 8, 32, 300),
    ]
    assert shown[0].left_s is None and shown[1].left_s == pytest.approx(3 * 20.0)


async def test_an_update_shows_how_much_of_it_is_done(world: World) -> None:
    learner = CountingLearner()
    shown = await reported(world, "update", learned_by(learner), [lambda: setattr(learner, "progress", (100, 400))])  # type: ignore[arg-type]
    assert [(one.part, one.done, one.of, one.left_s) for one in shown] == [("update", 100, 400, pytest.approx(30.0))]


async def test_a_backend_that_counts_nothing_shows_its_groups(tmp_path: Path) -> None:
    world = World(tmp_path / "state", prompts_per_step=3, group_size=4)
    await world.learn(1)
    rollout = [(one.done, one.of) for one in world.events(StepProgress) if one.part == "rollout"]
    assert rollout[0] == (0, 12) and rollout[-1] == (12, 12)


async def test_the_status_shows_the_step_under_way_and_nothing_between_steps(tmp_path: Path) -> None:
    world = World(tmp_path / "state", prompts_per_step=2, seconds_per_token=0.01)
    async with world.agent() as agent:
        learning = asyncio.create_task(agent.learn(max_steps=1))
        while agent.status().progress is None and not learning.done():
            await asyncio.sleep(0.01)
        progress = agent.status().progress
        await learning
        assert progress is not None and progress.step == 1
        assert agent.status().progress is None
        assert world.events(StepFinished)
