"""When held-out items are evaluated, that nothing is evaluated twice, and the computed forgetting."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from edge.config.schema import PhaseConfig
from edge.core.events import MemorySink
from edge.learning.forgetting import Forgetting, RetentionWatch, forgetting_of
from edge.state.events import HeldOutScored, StepFinished
from edge.state.folder import StateFolder
from edge.testing.clock import ManualClock
from tests.worlds.agent import HELP, World, local_answer, number_in, numbers
from tests.worlds.steps import step

PHASES = (PhaseConfig(source="sums", steps=3), PhaseConfig(source="other", steps=2))


async def watched_run(world: World, seen: list[HeldOutScored], every: int | None = None, max_steps: int | None = None):  # type: ignore[no-untyped-def]
    """Learn with evaluations; returns (step, source, adapter version) of each, and the evaluations."""
    sink = MemorySink()
    async with world.agent() as agent:
        watch = RetentionWatch(
            agent.learning,
            agent.learning.held_out(4),
            seen,
            sink,
            ManualClock(),
            run_id=agent.components.state.run_id,
            every=every,
        )
        await agent.learn(max_steps, between_steps=watch.between_steps)
    scores = [event for event in sink.events if isinstance(event, HeldOutScored)]
    return [(score.step, score.source, score.adapter_version) for score in scores], scores


async def test_every_source_is_evaluated_before_the_first_step_and_after_each_phase(tmp_path: Path) -> None:
    keys, _ = await watched_run(World(tmp_path / "state", phases=PHASES), [])
    assert keys == [(step, source, step) for step in (0, 3, 5) for source in ("sums", "other")]


async def test_periodic_evaluations_complement_phase_ends_and_never_repeat_at_a_step(tmp_path: Path) -> None:
    keys, _ = await watched_run(World(tmp_path / "state", phases=PHASES), [], every=3)
    assert [step for step, source, _ in keys if source == "sums"] == [0, 3, 5]
    keys, _ = await watched_run(World(tmp_path / "state2", phases=PHASES), [], every=2)
    assert [step for step, source, _ in keys if source == "sums"] == [0, 2, 3, 4, 5]


async def test_resumed_run_evaluates_only_what_is_missing(tmp_path: Path) -> None:
    world = World(tmp_path / "state", phases=PHASES)
    _, first = await watched_run(world, [], max_steps=3)
    assert [score.step for score in first] == [0, 0, 3, 3]
    keys, second = await watched_run(world, first[:-1])
    assert keys == [(3, "other", 3), (5, "sums", 5), (5, "other", 5)]
    keys, _ = await watched_run(world, [*first, *second])
    assert keys == []
    keys, _ = await watched_run(World(tmp_path / "fresh", phases=PHASES), [*first, *second])
    assert len(keys) == 6, "results of another run are not taken for this one"


async def test_evaluations_do_not_change_what_is_learned(tmp_path: Path) -> None:
    watched, alone = World(tmp_path / "watched", phases=PHASES), World(tmp_path / "alone", phases=PHASES)
    for world in (watched, alone):  # the scripted coordinator's keys and the rollouts' seeds hang on the run's id
        with StateFolder(world.folder) as state:
            state.set_meta("run_id", "0123456789abcdef")
    await watched_run(watched, [], every=1)
    await alone.learn()
    assert [numbers(event) for event in watched.events(StepFinished)] == [numbers(event) for event in alone.events(StepFinished)]
    assert watched.client.calls == alone.client.calls


async def test_stop_ends_a_running_evaluation_and_the_rest_is_done_later(tmp_path: Path) -> None:
    world = World(tmp_path / "state", phases=PHASES)
    async with world.agent() as agent:

        async def stopped_while_evaluating(plan: object, steps_done: int, adapter_version: int) -> None:
            agent.request_stop()
            await asyncio.Event().wait()

        finished = await agent.learn(between_steps=stopped_while_evaluating)
    assert (finished.reason, finished.steps_done) == ("stopped", 0)
    keys, _ = await watched_run(world, [])
    assert len(keys) == 6


async def test_evaluation_forces_local_answers_and_asks_no_cloud(tmp_path: Path) -> None:
    def asks_unless_it_must_not(messages, sampling, seed):  # type: ignore[no-untyped-def]
        assert sampling.temperature == 0.0
        return local_answer(number_in(messages[-1].content) + 1) if sampling.suppress_help else HELP

    world = World(tmp_path / "state", script=asks_unless_it_must_not, phases=PHASES)
    async with world.agent() as agent:
        watch = RetentionWatch(
            agent.learning, agent.learning.held_out(4), [], world.sink, ManualClock(), run_id=agent.components.state.run_id
        )
        await watch.between_steps(None, 0, 0)
    [score, _] = world.events(HeldOutScored)
    assert (score.items, score.forced_local_accuracy, score.kept_accuracy, score.assist_rate) == (4, 1.0, None, 1.0)
    assert score.forced_local_interval[0] < 1.0 == score.forced_local_interval[1]
    assert world.client.calls == []


def steps_of(*phases: tuple[str, int]) -> list[StepFinished]:
    steps: list[StepFinished] = []
    for phase, (source, count) in enumerate(phases):
        for number in range(1, count + 1):
            steps.append(replace(step(len(steps) + 1), phase=phase, phase_step=number, source=source, task=source))
    return steps


def scored(at: int, source: str, forced: float, kept: float | None = 0.5) -> HeldOutScored:
    return HeldOutScored("run", at, source, source, at, 10, forced, (0.0, 1.0), kept, 0.8, 0.2, 0.0)


def test_forgetting_compares_the_phase_end_with_the_last_evaluation_after_the_switch() -> None:
    scores = [
        scored(2, "a", 0.8, kept=0.9),
        scored(3, "a", 0.7),
        scored(4, "a", 0.6, kept=0.5),
        scored(4, "b", 0.9),
        scored(0, "a", 0.1),
    ]
    assert forgetting_of(steps_of(("a", 2), ("b", 2)), scores) == [
        Forgetting(0, "a", "a", 2, 4, 0.8, 0.6, pytest.approx(0.25), 0.9, 0.5)
    ]


def test_source_learned_again_was_forgotten_until_then_and_a_single_one_forgets_nothing() -> None:
    scores = [scored(2, "a", 0.8), scored(4, "a", 0.4), scored(6, "a", 0.9), scored(4, "b", 0.5), scored(6, "b", 0.3)]
    assert forgetting_of(steps_of(("a", 2), ("a", 2)), scores) == forgetting_of([], scores) == []
    found = forgetting_of(steps_of(("a", 2), ("b", 2), ("a", 2)), scores)
    assert [(entry.source, entry.post_step, entry.forgetting_rate) for entry in found] == [
        ("a", 4, pytest.approx(0.5)),
        ("b", 6, pytest.approx(0.4)),
    ]


def test_forgetting_is_unknown_without_a_later_evaluation_and_undefined_from_zero() -> None:
    steps = steps_of(("a", 2), ("b", 2))
    [unseen] = forgetting_of(steps, [scored(2, "a", 0.8)])
    assert (unseen.during_task_acc, unseen.post_switch_acc, unseen.forgetting_rate) == (0.8, None, None)
    [nothing] = forgetting_of(steps, [scored(2, "a", 0.0), scored(4, "a", 0.0)])
    assert (nothing.post_switch_acc, nothing.forgetting_rate) == (0.0, None)
    assert forgetting_of(steps, [scored(4, "a", 0.8)]) == []
