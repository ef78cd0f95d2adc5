"""A full disk: answers continue locally with a note that they are not recorded, no money is spent uncounted, and learning waits for space
and resumes by itself."""

from __future__ import annotations

import asyncio
import errno
import sqlite3
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from edge.agent import Agent
from edge.budget.daily import DailyBudget, DailyLimits
from edge.cloud.group_calls import CloudOutcome
from edge.cloud.unconfirmed import ARRIVES_WITHIN_S
from edge.config.schema import WhenConfig
from edge.core.errors import BudgetExhausted, NotFound, StateError, Withheld
from edge.core.types import Message
from edge.learning.conditions import LEAST_BYTES, DiskSpace, MachineConditions
from edge.rpc.client import CloudCall
from edge.state.answer_record import AnswerRequest
from edge.state.events import LearningResumed, LearningWaits, Notice, StepFinished
from edge.testing.probe import ScriptedProbe
from tests.until import until
from tests.worlds.agent import World, always_asks, recorded


def fill(agent: Agent, full: bool = True) -> None:
    """Nothing can be written from now on, or again."""
    agent.components.state.database.execute(f"PRAGMA query_only = {int(full)}")


def question(**options: object) -> AnswerRequest:
    return AnswerRequest((Message("user", "What is 4 + 1?"),), **options)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "state", script=always_asks)


async def test_full_disk_answers_locally_and_sends_no_unrecorded_call(world: World) -> None:
    async with world.agent() as agent:
        fill(agent)
        record = await agent.answerer.answer(question())
        with pytest.raises(NotFound):
            recorded(agent, record.id)
        local = await agent.answerer.answer(question(mode="local-only"))
        with pytest.raises(Withheld, match="cannot be written down"):
            await agent.answerer.answer(question(mode="cloud-only"))
        fill(agent, False)
        again = await agent.answerer.answer(question())
    assert (record.source, record.final, record.call_key) == ("local-fallback", "3", "")
    assert "the call cannot be written down" in record.reason
    assert "not recorded, the state folder cannot be written" in record.reason
    assert "not recorded" in local.reason
    assert (again.source, [call.call_key for call in world.client.calls]) == ("cloud", [again.call_key])
    assert any(record.id in notice.text for notice in world.events(Notice))


async def test_disk_that_fills_during_a_cloud_call_leaves_it_to_be_settled(world: World) -> None:
    async with world.agent() as agent:
        world.client._answer = lambda call: fill(agent) or "\\boxed{5}"
        record = await agent.answerer.answer(question())
        assert await agent.access.unconfirmed.settle() == 0
        fill(agent, False)
        assert await agent.access.unconfirmed.settle() == 1
        kept = recorded(agent, record.id)
    assert (record.source, record.final) == ("cloud", "5") and "not recorded" in record.reason
    assert (kept.charged_uusd, kept.call_state) == (100, "completed")


async def test_a_refusal_stays_a_refusal(world: World) -> None:
    async with world.agent() as agent:

        def refuse(call: CloudCall) -> str:
            fill(agent)
            raise BudgetExhausted("the device's calls are used up")

        world.client._answer = refuse
        record = await agent.answerer.answer(question())
    assert record.source == "local-fallback" and "the budget is used up" in record.reason


async def test_pause_lasts_while_the_agent_lives_and_resuming_needs_the_disk(world: World) -> None:
    async with world.agent() as agent:
        fill(agent)
        agent.access.pause_cloud(True)
        record = await agent.answerer.answer(question())
        with pytest.raises(StateError, match="cannot be written"):
            agent.access.pause_cloud(False)
        assert agent.access.switch.paused
        fill(agent, False)
        agent.access.pause_cloud(False)
        assert not agent.access.switch.reason
    assert world.client.calls == [] and "the cloud is paused" in record.reason
    assert any("only until this agent stops" in notice.text for notice in world.events(Notice))


async def test_learning_makes_no_call_that_its_daily_budget_cannot_count(world: World) -> None:
    async with world.agent() as agent:
        fill(agent)
        session = agent.learning.session
        outcome: CloudOutcome = await session.cloud.ask(CloudCall("k" * 32, "math", 0, "0:x", 1, (Message("user", "?"),), 8))
        assert DailyBudget(agent.components.state, world.clock, DailyLimits()).today().calls == 0
    assert outcome.unsent and "cannot be written down" in outcome.reason
    assert world.client.calls == []


async def test_undelivered_call_is_settled_only_once_that_is_recorded(world: World) -> None:
    async with world.agent() as agent:
        record = await agent.answerer.answer(question(mode="local-only"))
        agent.access.unconfirmed.begin(replace(record, id="other", call_key="k"))
        with agent.access.unconfirmed.waited_for(lambda: "k"):
            fill(agent)
        await agent.access.unconfirmed.settle()
        world.clock.advance(ARRIVES_WITHIN_S)
        assert (await agent.access.unconfirmed.settle(), agent.access.unconfirmed.waiting()) == (0, ["k"])
        fill(agent, False)
        await agent.access.unconfirmed.settle()
        world.clock.advance(ARRIVES_WITHIN_S)
        assert (await agent.access.unconfirmed.settle(), agent.access.unconfirmed.waiting()) == (1, [])


# -- learning -----------------------------------------------------------------------------------------------------------------------

MIB = 2**20


@dataclass
class Disk:
    """The system's report of a disk."""

    free: int = 2**40


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    usage = Disk()
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage)
    return usage


def test_required_space_is_twice_the_newest_checkpoint_with_a_minimum(tmp_path: Path, disk: Disk) -> None:
    disk.free, room = LEAST_BYTES, DiskSpace(tmp_path)
    assert room.shortage() == ""
    (tmp_path / "checkpoints/step-000001").mkdir(parents=True)
    (tmp_path / "checkpoints/step-000001/weights").write_bytes(bytes(12 * MIB))
    assert "16 MiB free, a step needs 24 MiB" in room.shortage()
    disk.free = 24 * MIB
    assert room.shortage() == ""


def test_after_a_failure_space_is_enough_when_a_step_could_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = DiskSpace(tmp_path)
    assert not room.was_missing(), "the disk is fine: the step failed of something else"

    def full(descriptor: int, start: int, count: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.posix_fallocate", full, raising=False)
        assert room.was_missing()
        assert str(tmp_path) in room.shortage()
    assert room.shortage() == "" and list(tmp_path.iterdir()) == []


PLACES = ["collected", "updated", "checkpointed", "closed", "committed"]


@pytest.mark.parametrize("place", PLACES)
async def test_learning_waits_for_space_with_a_notice_and_resumes_at_the_cut_step(tmp_path: Path, disk: Disk, place: str) -> None:
    often = MachineConditions(WhenConfig(check_s=0.01), ScriptedProbe())
    world, undisturbed = World(tmp_path / "full", conditions=often), World(tmp_path / "roomy")
    reached = Counter[str]()

    def failing(name: str) -> None:
        reached[name] += 1
        if name == place and reached[name] == 2:
            disk.free = 0
            raise sqlite3.OperationalError("database or disk is full")

    async with world.agent(failpoint=failing) as agent:
        learning = asyncio.create_task(agent.learn(max_steps=3))
        await until(lambda: agent.learning.waiting)
        assert f"no space on {world.folder}" in agent.learning.waiting
        assert agent.learning.stage == "paused" and len(agent.components.state.steps()) == 1 + (place == "committed")
        disk.free = 2**40
        await learning
        steps = agent.components.state.steps()
    assert [what_was_learned(step) for step in steps] == [
        what_was_learned(step) for step in await undisturbed.learn(max_steps=len(steps))
    ]
    assert len(steps) >= 3 and len(world.events(LearningWaits)) == len(world.events(LearningResumed)) == 1


def what_was_learned(step: StepFinished) -> tuple[object, ...]:
    return step.step, step.control.dual_after, step.control.assist_rate, step.cloud.total_cloud_calls, step.cloud.total_spend_uusd


async def test_other_failures_still_end_learning(tmp_path: Path, disk: Disk) -> None:
    def failing(name: str) -> None:
        raise ValueError("broken")

    async with World(tmp_path).agent(failpoint=failing) as agent:
        with pytest.raises(ValueError, match="broken"):
            await agent.learn(max_steps=1)
