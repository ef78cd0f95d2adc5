"""A conversation with an agent in this process: Ctrl-C, commands and records. The agent is real, its model scripted."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edge.agent import Agent
from edge.cli.ask import own_reader
from edge.cli.chat import Conversation, Interrupts, Stopped
from edge.core.errors import NotFound, UsageError
from edge.core.types import Message, Sampling
from tests.worlds.agent import World, local_answer, number_in

Capture = pytest.CaptureFixture[str]


def sums(messages: Sequence[Message], sampling: Sampling, seed: int) -> str:
    return local_answer(number_in(messages[-1].content) + 1)


@dataclass
class Setting:
    """An agent and a conversation with it."""

    world: World
    agent: Agent
    conversation: Conversation
    interrupts: Interrupts

    def slow(self, seconds_per_token: float) -> None:
        self.world.serving._seconds_per_token = seconds_per_token

    def kept(self) -> list[str]:
        """Ids of the answers in the state folder."""
        rows = self.agent.components.state.database.execute("SELECT id FROM requests").fetchall()
        return [row[0] for row in rows]


@pytest.fixture
async def setting(tmp_path: Path) -> AsyncIterator[Setting]:
    world = World(tmp_path / "state", script=sums)
    async with world.agent() as agent:
        with Interrupts(idle=lambda: None) as interrupts:
            conversation = Conversation(own_reader(agent), None, interrupts, as_json=True, lenient=True)
            yield Setting(world, agent, conversation, interrupts)


def printed(capsys: Capture) -> list[Mapping[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


async def test_ctrl_c_stops_generation_records_nothing_and_the_next_question_works(setting: Setting, capsys: Capture) -> None:
    setting.slow(3600.0)
    turn = asyncio.ensure_future(setting.conversation.take("What is 1 + 1?"))
    while not (setting.agent.precedence.busy or turn.done()):
        await asyncio.sleep(0.005)
    assert not turn.done()
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)  # impatience changes nothing
    assert await turn
    assert (printed(capsys), setting.kept()) == ([{"error": "stopped", "hint": ""}], [])
    setting.slow(0.0)
    await setting.conversation.take("What is 2 + 1?")
    (answer,) = printed(capsys)
    assert (answer["answer"], setting.kept()) == ("3", [answer["id"]])


async def test_quit_leaves_and_wrong_usage_ends_only_a_strict_conversation(setting: Setting) -> None:
    assert await setting.conversation.take("/quit") is False
    strict = Conversation(own_reader(setting.agent), None, setting.interrupts, as_json=True, lenient=False)
    with pytest.raises(UsageError):
        await strict.take("/nonsense")


async def test_signal_between_two_jobs_reaches_the_waiting_caller() -> None:
    idle: list[str] = []
    with Interrupts(idle=lambda: idle.append("idle")) as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0.01)
        assert idle == ["idle"]
        work = asyncio.ensure_future(interrupts.stoppable(asyncio.sleep(3600)))
        await asyncio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(Stopped):
            await work
        with pytest.raises(NotFound):  # a failure of its own is no stop
            await interrupts.stoppable(fails())
    assert idle == ["idle"]


async def fails() -> None:
    raise NotFound("nothing here")
