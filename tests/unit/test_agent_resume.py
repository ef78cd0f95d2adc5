"""Crashes at every named place of every kind of step, and an unreachable coordinator: the run ends with the same numbers."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edge.budget.daily import DailyLimits
from edge.config.schema import PhaseConfig
from edge.core.errors import (
    CoordinatorError,
    CoordinatorUnavailable,
    InvalidRequest,
    ModelFileError,
    NotFound,
    PermissionDenied,
    StateError,
    Unauthenticated,
    Withheld,
)
from edge.core.types import Message
from edge.dagrpo.dual import dual_step
from edge.learning.checkpoints import Checkpoints
from edge.rpc.client import StepUnits
from edge.state.answer_record import AnswerRequest
from edge.state.events import Notice, Offline, Online, ReportsDelivered
from edge.state.folder import StateFolder
from edge.state.rows import Position, StoredTerms
from edge.testing.backend import ScriptedBackend
from edge.testing.coordinator import ScriptedCoordinatorClient
from tests.unit.test_agent_promotion import gated
from tests.unit.test_collapse import STUCK_AT, fragile
from tests.unit.test_dual_unit import CostWorld, Ticking
from tests.unit.test_own_use import corrected, world_in
from tests.unit.test_teaching import listed
from tests.worlds.agent import HELP, Crash, World, crash_at, item, local_answer, numbers, used_by
from tests.worlds.deciding import DecidingWorld

PLACES = ("collected", "updated", "checkpointed", "closed", "committed")


def unreachable(world: World) -> None:
    """The coordinator of this world is away until its failures are cleared."""
    for method in ("register", "open_step", "complete", "close_step", "get_budget"):
        world.client.fail_next(method, CoordinatorUnavailable("nobody there"), times=1000)


async def uninterrupted(folder: Path):  # type: ignore[no-untyped-def]
    world = World(folder)
    return world, [numbers(step) for step in await world.learn()]


def with_a_daily_budget(folder: Path) -> World:
    return World(folder, daily_limits=DailyLimits(calls=100))


def with_priced_calls(folder: Path) -> World:
    world = CostWorld(folder)
    world.clock = Ticking()
    return world


def with_a_help_bias(folder: Path) -> World:
    return DecidingWorld(folder, estimates_dual=True)


def with_questions_that_teach(folder: Path) -> World:
    return listed(folder, steps=6)


def with_own_questions(folder: Path) -> World:
    corrected(folder, 1, 2, 3, 4)
    return world_in(folder, steps=4)


def with_a_gate(folder: Path) -> World:
    return gated(folder, steps=8, worse=[4, 6])


def with_a_collapse(folder: Path) -> World:
    return fragile(folder, steps=STUCK_AT + 2)


async def to_the_end(world: World) -> tuple[Any, ...]:
    """Learn with a new agent; returns all that a crash before it must not change."""
    async with world.agent() as agent:
        state = agent.components.state
        assert agent.status().adapter_version == state.lineage().serving
        await agent.learn()
        steps, spent, calls = state.steps(), used_by(agent), world.client.calls
        uses, line = dict(state.database.execute("SELECT item, uses FROM item_uses")), state.lineage()
    assert (spent.calls, spent.open_calls) == (steps[-1].cloud.total_cloud_calls, 0)
    assert len({call.call_key for call in calls}) == len(calls)
    made = [(call.task, call.step, call.prompt_id) for call in calls]
    return [numbers(step) for step in steps], made, spent, uses, line, world.learners[-1].step


@pytest.mark.parametrize(
    ("kind", "place", "times"),
    [
        *((World, place, times) for place in PLACES for times in (1, 3)),
        *((with_a_daily_budget, place, 2) for place in PLACES[:3]),
        *((with_priced_calls, place, 3) for place in PLACES[:3]),
        *((with_a_help_bias, place, 3) for place in PLACES),
        *((with_questions_that_teach, place, 4) for place in PLACES),
        *((with_own_questions, place, 2) for place in PLACES),
        *((with_a_collapse, place, STUCK_AT) for place in PLACES[2:]),
        *((with_a_gate, place, times) for place in (*PLACES[2:], "judged") for times in (2, 4, 6, 7)),
    ],
)
async def test_a_crash_anywhere_in_a_step_changes_no_number_and_no_decision_and_pays_nothing_twice(
    tmp_path: Path, kind: Callable[[Path], World], place: str, times: int
) -> None:
    calm, crashing = kind(tmp_path / "calm"), kind(tmp_path / "crashing")
    with pytest.raises(Crash):
        await crashing.learn(failpoint=crash_at(place, times))
    assert await to_the_end(crashing) == await to_the_end(calm)


async def test_step_cut_after_its_checkpoint_is_finished_at_the_start_and_reported(tmp_path: Path) -> None:
    world = World(tmp_path / "state")
    with pytest.raises(Crash):
        await world.learn(failpoint=crash_at("checkpointed", 2))
    async with world.agent() as agent:
        assert (agent.status().steps_done, agent.status().adapter_version) == (2, 2)
    assert any("step 2 had been cut" in notice.text for notice in world.events(Notice))


async def test_a_manifest_keeps_all_that_reporting_its_step_needs(tmp_path: Path) -> None:
    world, _ = await uninterrupted(tmp_path / "state")
    checkpoint = Checkpoints(world.folder / "checkpoints").at(4)
    assert checkpoint is not None
    manifest = replace(checkpoint.manifest(), units=StepUnits(12, 5, 2, own_rate=0.25))
    (checkpoint.folder / "manifest.json").write_text(json.dumps(manifest.to_json()))
    assert checkpoint.manifest() == manifest


def damage(checkpoint: Path, part: str) -> None:
    if part == "manifest":
        (checkpoint / "manifest.json").write_text("{broken")
    elif part == "learner":
        (checkpoint / "learner" / "learner.json").write_text("garbage")
    else:
        shutil.rmtree(checkpoint / "adapter" if part == "adapter" else checkpoint)


@pytest.mark.parametrize("part", ["manifest", "adapter", "learner", "all"])
async def test_with_a_damaged_last_checkpoint_serving_and_learning_use_the_one_before(tmp_path: Path, part: str) -> None:
    world, _ = await uninterrupted(tmp_path / "state")
    world.phases = (PhaseConfig(source="sums", target_rate=0.3, steps=6),)
    damage(world.folder / "checkpoints" / "step-000004", part)
    async with world.agent() as agent:
        assert agent.status().adapter_version == (4 if part == "learner" else 3)
        await agent.learn(max_steps=1)
        assert (agent.status().steps_done, agent.status().adapter_version) == (5, 5)
        assert [step.step for step in agent.components.state.steps()] == [1, 2, 3, 4, 5]
        assert agent.components.state.steps()[-1].adapter.base_version == 3
    [notice] = world.events(Notice)
    assert "step 3" in notice.text
    assert (await world.client.register("", ["math"])).tasks[0].next_step == 5


async def test_without_any_intact_checkpoint_the_bare_model_answers_and_learning_is_refused(tmp_path: Path) -> None:
    world, _ = await uninterrupted(tmp_path / "state")
    for checkpoint in (world.folder / "checkpoints").iterdir():
        damage(checkpoint, "adapter")
    async with world.agent() as agent:
        assert agent.status().adapter_version == 0
        with pytest.raises(StateError, match="no checkpoint is intact"):
            await agent.learn()
    assert ["bare model" in notice.text for notice in world.events(Notice)] == [True]


@pytest.mark.parametrize("place", ["checkpointed", "closed"])
@pytest.mark.parametrize("part", ["manifest", "adapter"])
async def test_cut_step_with_a_damaged_checkpoint_does_not_block_the_agent(tmp_path: Path, place: str, part: str) -> None:
    world = World(tmp_path / "state")
    with pytest.raises(Crash):
        await world.learn(failpoint=crash_at(place, 2))
    damage(world.folder / "checkpoints" / "step-000002", part)
    async with world.agent() as agent:
        assert agent.status().adapter_version == 1
        assert agent.status().steps_done == (1 if part == "manifest" else 2)
        finished = await agent.learn()
    assert finished.steps_done == 4


async def test_while_the_coordinator_is_away_learning_uses_the_last_dual_and_reports_later(tmp_path: Path) -> None:
    world = World(tmp_path / "state", phases=(PhaseConfig(source="sums", steps=6),))
    async with world.agent() as agent:
        await agent.learn(max_steps=2)
        unreachable(world)
        await agent.learn(max_steps=2)
        offline = agent.components.state.steps()[2:]
        status = agent.status()
        assert [step.control.offline for step in offline] == [True, True]
        duals = {dual for step in offline for dual in (step.control.dual_before, step.control.dual_after)}
        assert duals == {agent.components.state.steps()[1].control.dual_after}
        assert (status.online, status.offline_reason, status.waiting_reports) == (False, "nobody there", 2)
        assert all(step.scores.masked == round(step.control.assist_rate * step.scores.responses) > 0 for step in offline)
        assert all(step.cloud.cloud_calls == 0 for step in offline)
        world.client._failures.clear()
        await agent.learn()
        steps, status = agent.components.state.steps(), agent.status()
    assert (status.online, status.waiting_reports, status.steps_done) == (True, 0, 6)
    dual = steps[1].control.dual_after
    for step in offline:
        dual = dual_step(dual, step.control.assist_rate, 0.3, 0.1)
    assert steps[4].control.dual_before == dual
    assert (len(world.events(Offline)), len(world.events(Online))) == (1, 1)
    assert [(event.reports, event.dual) for event in world.events(ReportsDelivered)] == [(2, dual)]


async def test_a_device_that_was_never_online_learns_and_its_reports_survive_a_restart(tmp_path: Path) -> None:
    world = World(tmp_path / "state")
    unreachable(world)
    async with world.agent() as agent:
        await agent.learn(max_steps=2)
        assert agent.status().online is False
    world.client._failures.clear()
    async with world.agent() as agent:
        assert agent.status().waiting_reports == 2
        await agent.learn()
        assert agent.status().waiting_reports == 0
    assert (await world.client.register("", ["math"])).tasks[0].next_step == 4


async def test_a_report_whose_answer_was_lost_moves_the_dual_once(tmp_path: Path) -> None:
    _, expected = await uninterrupted(tmp_path / "calm")
    world = World(tmp_path / "state")
    real = world.client.close_step
    lost = iter([False, True, False, False])

    async def close_step(*arguments):  # type: ignore[no-untyped-def]
        closed = await real(*arguments)
        if next(lost, False):
            raise CoordinatorUnavailable("cut", reason="CONNECTION_LOST")
        return closed

    world.client.close_step = close_step  # type: ignore[method-assign]
    steps = await world.learn()
    assert [step.control.dual_before for step in steps] == [step.control.dual_before for step in expected]
    assert [step.control.offline for step in steps] == [False, True, False, False]


async def test_a_coordinator_ahead_of_the_state_folder_is_followed(tmp_path: Path) -> None:
    world, _ = await uninterrupted(tmp_path / "first")
    other = World(tmp_path / "second")
    other.client = world.client
    with StateFolder(other.folder) as state:
        state.note_terms(StoredTerms("math", 0.3, 0.5, 0))
    [step] = await other.learn(max_steps=1)
    assert len(other.events(Notice)) == 1 and not step.control.offline


async def test_reset_coordinator_is_followed_and_pending_reports_are_renumbered(tmp_path: Path) -> None:
    world = World(tmp_path / "state", phases=(PhaseConfig(source="sums", steps=6),))
    async with world.agent() as agent:
        await agent.learn(max_steps=2)
        unreachable(world)
        await agent.learn(max_steps=1)
    fresh = World(tmp_path / "other")
    world.client = fresh.client
    async with world.agent() as agent:
        await agent.learn(max_steps=1)
        assert agent.status().waiting_reports == 0
    assert (await world.client.register("", ["math"])).tasks[0].next_step == 2


async def test_a_refused_credential_ends_the_start_with_the_coordinators_words(tmp_path: Path) -> None:
    world = World(tmp_path / "state")
    world.client.fail_next("register", Unauthenticated("bad token"))
    with pytest.raises(Unauthenticated, match="bad token"):
        async with world.agent():
            pass
    with StateFolder(world.folder):
        pass


async def test_forbidden_task_is_answered_locally_and_refused_before_learning(tmp_path: Path) -> None:
    world = World(tmp_path / "state")
    foreign = PermissionDenied("device lamp may not work on task 'math'", hint="its token names its tasks")
    world.client.fail_next("register", foreign, times=2)
    world.client.fail_next("complete", foreign, times=100)
    async with world.agent() as agent:
        assert len(world.events(Notice)) == 1
        for number in range(8):
            assert (await agent.answerer.answer(AnswerRequest((Message("user", item(number).question),)))).text
        with pytest.raises(PermissionDenied, match="may not work on task 'math'") as refused:
            await agent.learn(max_steps=1)
        assert "its token names its tasks" in refused.value.hint and "--tasks" in refused.value.hint
        await agent.learn(max_steps=1)
        assert agent.status().steps_done == 1, "given back meanwhile"


async def test_a_task_that_is_unknown_by_now_keeps_neither_the_agent_nor_its_later_phases_waiting(tmp_path: Path) -> None:
    world = World(tmp_path / "state", phases=(PhaseConfig(source="sums", target_rate=0.3, steps=1),))
    await world.learn()
    world.phases = (*world.phases, PhaseConfig(source="other", target_rate=0.3, steps=1))
    world.client.fail_next("register", NotFound("no task is called 'math'"), times=2)
    assert [step.task for step in await world.learn()] == ["math", "code"]


TAKEN_AWAY = (
    PermissionDenied("this device may not work on math"),
    NotFound("no task is called 'math'"),
    InvalidRequest("a step has at most 4 prompts"),
)


@pytest.mark.parametrize(
    "refusal", [*TAKEN_AWAY, Withheld("a never-send rule matches the label")], ids=["forbidden", "unknown", "invalid", "withheld"]
)
async def test_reports_that_are_refused_are_set_aside_and_block_no_other_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: CoordinatorError
) -> None:
    world = World(tmp_path / "state")
    async with world.agent() as agent:
        unreachable(world)
        await agent.learn(max_steps=3)
    world.phases, world.client = (PhaseConfig(source="other", target_rate=0.3, steps=2),), ScriptedCoordinatorClient()
    opened = world.client.open_step

    async def taken_away(task: str, *rest: Any) -> Any:
        if task == "math":
            raise refusal
        return await opened(task, *rest)

    monkeypatch.setattr(world.client, "open_step", taken_away)
    before = len(world.events(Notice))
    assert [step.task for step in await world.learn()] == ["math"] * 3 + ["code"] * 2
    with StateFolder(world.folder) as state:
        assert [(report.task, report.task_step, report.refused) for _, report in state.waiting_reports()] == [
            ("math", step, str(refusal)) for step in range(3)
        ]
    reported = [notice.text for notice in world.events(Notice)[before:] if str(refusal) in notice.text]
    assert len(reported) == 1 and "3 step reports" in reported[0]


async def test_what_was_set_aside_is_reported_when_the_task_is_given_back(tmp_path: Path) -> None:
    _, expected = await uninterrupted(tmp_path / "calm")
    world = World(tmp_path / "state")
    async with world.agent() as agent:
        unreachable(world)
        await agent.learn(max_steps=3)
    world.client = ScriptedCoordinatorClient(terms=world.terms)
    world.client.fail_next("open_step", TAKEN_AWAY[0])  # given back before the second report is sent
    async with world.agent() as agent:
        with pytest.raises(PermissionDenied):
            await agent.learn(max_steps=1)
        assert agent.status().waiting_reports == 3, "no later report, and no new step, takes the number of the first"
        await agent.learn()
        assert (agent.status().waiting_reports, agent.status().steps_done) == (0, len(expected))
    assert (await world.client.register("", ["math"])).tasks[0].next_step == len(expected)


@pytest.mark.parametrize(
    "error", [Unauthenticated("the token has expired"), PermissionDenied("shut out", reason="DEVICE_DISABLED")]
)
async def test_reports_wait_on_where_the_device_and_not_the_task_is_refused(tmp_path: Path, error: CoordinatorError) -> None:
    world = World(tmp_path / "state")
    async with world.agent() as agent:
        unreachable(world)
        await agent.learn(max_steps=2)
    world.client = ScriptedCoordinatorClient()
    async with world.agent() as agent:
        world.client.fail_next("open_step", error)
        with pytest.raises(type(error)):
            await agent.learn(max_steps=1)
        assert agent.status().waiting_reports == 2
        await agent.learn(max_steps=1)
        assert agent.status().waiting_reports == 0


@pytest.mark.parametrize(
    ("refusal", "steps", "aside"),
    [*((refusal, 2, 1) for refusal in TAKEN_AWAY), (Unauthenticated("the token has expired"), 1, 0)],
    ids=["forbidden", "unknown", "invalid", "of the device"],
)
async def test_cut_step_that_is_refused_does_not_keep_the_agent_from_answering(
    tmp_path: Path, refusal: CoordinatorError, steps: int, aside: int
) -> None:
    world = World(tmp_path / "state")
    with pytest.raises(Crash):
        await world.learn(failpoint=crash_at("checkpointed", 2))
    world.client.fail_next("close_step", refusal)
    async with world.agent() as agent:
        assert agent.status().steps_done == agent.status().adapter_version == steps, "what it learned is kept where it can be"
        assert (await agent.answerer.answer(AnswerRequest((Message("user", item(1).question),)))).text
        waiting = agent.components.state.waiting_reports()
        assert [report.refused for _, report in waiting] == [str(refusal)] * aside
    assert any(str(refusal) in notice.text for notice in world.events(Notice))


async def test_a_cut_step_that_cannot_be_finished_at_the_start_is_finished_by_learning(tmp_path: Path) -> None:
    _, expected = await uninterrupted(tmp_path / "calm")
    world = World(tmp_path / "state")
    with pytest.raises(Crash):
        await world.learn(failpoint=crash_at("checkpointed", 2))
    world.client.fail_next("close_step", PermissionDenied("shut out", reason="DEVICE_DISABLED"), times=2)
    async with world.agent() as agent:
        assert agent.status().steps_done == 1
        with pytest.raises(PermissionDenied, match="shut out"):
            await agent.learn()
        await agent.learn()
        assert [numbers(step) for step in agent.components.state.steps()] == expected


async def test_refused_report_in_the_middle_of_a_run_keeps_what_its_step_learned(tmp_path: Path) -> None:
    world = World(tmp_path / "state")
    async with world.agent() as agent:
        await agent.learn(max_steps=1)
        world.client.fail_next("close_step", TAKEN_AWAY[0])
        await agent.learn(max_steps=1)
        first, second = agent.components.state.steps()
        assert agent.status().adapter_version == 2 and second.control.offline
        assert second.control.dual_after == first.control.dual_after, "λ stays where nobody moved it"


async def test_of_two_tasks_the_allowed_one_keeps_its_terms(tmp_path: Path) -> None:
    phases = (PhaseConfig(source="sums", steps=2), PhaseConfig(source="sums", task="code", steps=2))
    world = World(tmp_path / "state", phases=phases)
    for reason in (None, "DEVICE_DISABLED"):
        for _ in range(2):  # both together, then the first one by itself
            world.client.fail_next("register", PermissionDenied("not this one", reason=reason))
        if reason is None:
            async with world.agent():
                assert len(world.events(Notice)) == 1
        else:
            with pytest.raises(PermissionDenied, match="not this one"):
                async with world.agent():
                    pass


class Started:
    """A coordinator process that counts its requests."""

    def __init__(self) -> None:
        self.starts = self.ends = 0

    async def start(self) -> None:
        self.starts += 1

    async def aclose(self) -> None:
        self.ends += 1


@pytest.mark.parametrize(("switched_off", "answering_only"), [("", 1), ("the cloud is switched off", 0)])
async def test_with_the_cloud_disabled_only_learning_starts_the_embedded_coordinator(
    tmp_path: Path, switched_off: str, answering_only: int
) -> None:
    coordinator = Started()
    world = World(tmp_path / "state", switched_off=switched_off, coordinator=coordinator)
    async with world.agent() as agent:
        assert coordinator.starts == answering_only
        await agent.learn(max_steps=1)
        await agent.learn(max_steps=1)
        assert coordinator.starts == 1
        assert agent.status().online
    assert coordinator.ends == 1


class Starting(Started):
    """Serves once the engine was tried; what is asked of it when it has ended fails."""

    def __init__(self, client: ScriptedCoordinatorClient) -> None:
        super().__init__()
        self.serves = asyncio.Event()
        self._client = client

    async def start(self) -> None:
        await super().start()
        await self.serves.wait()

    async def aclose(self) -> None:
        await super().aclose()
        self._client.fail_next("register", CoordinatorUnavailable("it has ended", reason="UNREACHABLE"))
        self.serves.set()
        for _ in range(9):
            await asyncio.sleep(0)


async def test_an_engine_that_cannot_be_opened_ends_the_coordinator_that_starts_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path / "state")
    world.coordinator = coordinator = Starting(world.client)

    async def broken(_: World) -> ScriptedBackend:
        await asyncio.sleep(0)
        raise ModelFileError("not a model")

    monkeypatch.setattr(World, "_open_backend", broken)
    with pytest.raises(ModelFileError):
        async with world.agent():
            pass
    assert (coordinator.starts, coordinator.ends, world.events(Offline)) == (1, 1, [])


async def test_changed_phases_start_anew_with_the_current_adapter(tmp_path: Path) -> None:
    world = World(tmp_path / "state")
    await world.learn(max_steps=2)
    world.phases = (PhaseConfig(source="other", steps=1), PhaseConfig(source="sums", steps=1))
    steps = await world.learn()
    assert [(step.step, step.task, step.phase_step) for step in steps[2:]] == [(3, "code", 1), (4, "math", 1)]


async def test_more_steps_or_another_rate_for_the_same_phase_resume_where_it_stopped(tmp_path: Path) -> None:
    world, _ = await uninterrupted(tmp_path / "state")
    world.phases = (PhaseConfig(source="sums", target_rate=0.6, steps=6),)
    async with world.agent() as agent:
        finished = await agent.learn()
        assert [(step.phase_step, step.control.target_rate) for step in agent.components.state.steps()[4:]] == [
            (5, 0.6),
            (6, 0.6),
        ]
    assert finished.steps_done == 6


def test_a_second_process_on_the_same_state_folder_is_refused_in_one_line(tmp_path: Path) -> None:
    with StateFolder(tmp_path / "state"):
        code = (
            f"from pathlib import Path; from edge.state.folder import StateFolder; StateFolder(Path({str(tmp_path / 'state')!r}))"
        )
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "another agent is using this state folder" in other.stderr.splitlines()[-1]
    with StateFolder(tmp_path / "state") as state:
        assert state.position() == Position()


def test_lock_of_a_killed_process_is_free_immediately(tmp_path: Path) -> None:
    code = (
        "import os, signal; from pathlib import Path; from edge.state.folder import StateFolder;"
        f"state = StateFolder(Path({str(tmp_path / 'state')!r})); state.set_meta('a', 'b'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", code], check=False)
    assert killed.returncode == -signal.SIGKILL
    with StateFolder(tmp_path / "state") as state:
        assert state.meta("a") == "b"


def test_a_damaged_or_foreign_state_file_and_an_impossible_folder_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="cannot create the state folder"):
        StateFolder(tmp_path / "file" / "state")
    folder = tmp_path / "state"
    folder.mkdir()
    (folder / "agent.sqlite").write_bytes(b"this is no database " * 100)
    with pytest.raises(StateError, match="cannot be used") as caught:
        StateFolder(folder)
    assert "\n" not in str(caught.value)


async def test_pending_report_keeps_its_uncalled_units(tmp_path: Path) -> None:
    world = World(tmp_path / "state", script=lambda messages, sampling, seed: HELP, skip_unanimous_calls=True)
    world.client.fail_next("close_step", CoordinatorUnavailable("nobody there"), times=1000)
    await world.learn(max_steps=1)
    with StateFolder(tmp_path / "state") as state:
        [(_, report)] = state.waiting_reports()
    assert report.units == StepUnits(12, 12, 12)


def test_the_state_folder_is_private_and_unknown_answers_are_not_found(state: StateFolder) -> None:
    assert state.folder.stat().st_mode & 0o077 == 0
    assert (state.folder / "agent.sqlite").stat().st_mode & 0o077 == 0
    with pytest.raises(NotFound):
        state.request("none")


async def test_learning_without_any_signal_skips_updates_and_continues(tmp_path: Path) -> None:
    world = World(tmp_path / "state", script=[HELP, local_answer(1)], switched_off="the cloud is switched off")
    async with world.agent() as agent:
        finished = await agent.learn()
    assert finished.steps_done == 4
    assert world.client.calls == []


def test_checkpoints_are_ordered_by_their_number_also_beyond_six_digits(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in (999_998, 999_999, 1_000_000, 1_000_001):
        (tmp_path / f"step-{step:06d}").mkdir()
    checkpoints.prune()
    assert [checkpoint.step for checkpoint in checkpoints.all()] == [1_000_000, 1_000_001]
