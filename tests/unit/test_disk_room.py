"""Learning on a full disk: it waits, says so, and goes on by itself; nothing that was committed is lost."""

from __future__ import annotations

import asyncio
import errno
import sqlite3
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from edge.learning.conditions import LEAST_BYTES, ConditionRules, DiskSpace, MachineConditions
from edge.state.events import LearningResumed, LearningWaits, StepFinished
from edge.testing.probe import ScriptedProbe
from tests.unit.agent_world import World

MIB = 2**20


@dataclass
class Disk:
    """What the system tells of a disk."""

    free: int = 2**40


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    told = Disk()
    monkeypatch.setattr("shutil.disk_usage", lambda folder: told)
    return told


def test_room_is_twice_the_newest_checkpoint_and_at_least_some(tmp_path: Path, disk: Disk) -> None:
    disk.free, room = LEAST_BYTES, DiskSpace(tmp_path)
    assert room.shortage() == ""
    (tmp_path / "checkpoints/step-000001").mkdir(parents=True)
    (tmp_path / "checkpoints/step-000001/weights").write_bytes(bytes(12 * MIB))
    assert room.shortage() == f"no space on {tmp_path}: 16 MiB free, a step needs 24 MiB"
    disk.free = 24 * MIB
    assert room.shortage() == ""


def test_after_a_failure_there_is_room_when_a_step_could_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = DiskSpace(tmp_path)
    assert not room.was_missing(), "the disk is fine: the step failed of something else"

    def full(descriptor: int, start: int, count: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.posix_fallocate", full, raising=False)
        assert room.was_missing()
        assert room.shortage() == f"no space on {tmp_path}: it cannot be written"
    assert room.shortage() == "" and list(tmp_path.iterdir()) == []


PLACES = ["collected", "updated", "checkpointed", "closed", "committed"]


@pytest.mark.parametrize("place", PLACES)
async def test_learning_waits_for_space_says_so_and_goes_on_where_the_step_was_cut(
    tmp_path: Path, disk: Disk, place: str
) -> None:
    often = MachineConditions(ConditionRules(check_s=0.01), ScriptedProbe())
    world, undisturbed = World(tmp_path / "full", conditions=often), World(tmp_path / "roomy")
    reached = Counter[str]()

    def failing(name: str) -> None:
        reached[name] += 1
        if name == place and reached[name] == 2:
            disk.free = 0
            raise sqlite3.OperationalError("database or disk is full")

    async with world.agent(failpoint=failing) as agent:
        learning = asyncio.create_task(agent.learn(max_steps=3))
        while not agent.learning.waiting:
            await asyncio.sleep(0.01)
        assert agent.learning.waiting == f"waiting: no space on {world.folder}: 0 MiB free, a step needs 16 MiB"
        assert agent.learning.stage == "paused" and len(agent.steps()) == 1 + (place == "committed")
        disk.free = 2**40
        await learning
        steps = agent.steps()
    async with undisturbed.agent() as agent:
        await agent.learn(max_steps=len(steps))
        assert [what_was_learned(step) for step in steps] == [what_was_learned(step) for step in agent.steps()]
    assert len(steps) >= 3 and len(world.events(LearningWaits)) == len(world.events(LearningResumed)) == 1


def what_was_learned(step: StepFinished) -> tuple[object, ...]:
    return step.step, step.control.dual_after, step.control.assist_rate, step.cloud.total_cloud_calls, step.cloud.total_spend_uusd


async def test_another_failure_ends_learning_as_before(tmp_path: Path, disk: Disk) -> None:
    def failing(name: str) -> None:
        raise ValueError("broken")

    async with World(tmp_path).agent(failpoint=failing) as agent:
        with pytest.raises(ValueError, match="broken"):
            await agent.learn(max_steps=1)
