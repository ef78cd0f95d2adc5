"""Conversations: the parsing of lines, the input history, Ctrl-C with an agent in this process, and the line below an answer."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from prompt_toolkit.history import InMemoryHistory

from edge.agent import Agent
from edge.cli.ask import own_reader
from edge.cli.chat import Conversation, Interrupts, Stopped, understood
from edge.cli.output import print_line, source_line, why_lines
from edge.cli.prompt import HISTORY_FILE, KEPT_ENTRIES, MOST_HISTORY_BYTES, open_history
from edge.console import spoken
from edge.core.errors import NotFound, UsageError
from edge.core.types import Message, Sampling
from edge.serve.agent_schemas import ExplanationView
from edge.serve.ports import AnswerNote
from edge.state.events import AnswerFinished, Notice, Offline
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


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("What is 2 + 2?", ("", "What is 2 + 2?")),
        ("//etc/hosts", ("", "/etc/hosts")),
        ("/local  2+2?", ("/local", "2+2?")),
        ("/cloud\none\ntwo", ("/cloud", "one\ntwo")),
        ("/cloud one\ntwo", ("/cloud", "one\ntwo")),
        ("/bad", ("/bad", "")),
        ("half /quit", ("", "half /quit")),
    ],
)
def test_chat_line_is_a_question_or_a_command(line: str, expected: tuple[str, str]) -> None:
    assert understood(line) == expected


@pytest.mark.parametrize("line", ["/", "/local", "/cloud  ", "/Quit", "/etc/hosts is a file"])
def test_unknown_or_incomplete_command_is_wrong_usage(line: str) -> None:
    with pytest.raises(UsageError):
        understood(line)


def test_history_is_made_private_even_if_it_was_not(tmp_path: Path) -> None:
    file = tmp_path / HISTORY_FILE
    file.touch(mode=0o644)
    open_history(tmp_path, stored=True).append_string("one\ntwo")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(open_history(tmp_path, stored=True).load_history_strings()) == ["one\ntwo"]


def test_a_long_history_keeps_its_newest_entries_in_order(tmp_path: Path) -> None:
    history = open_history(tmp_path, stored=True)
    padding = "x" * (MOST_HISTORY_BYTES // KEPT_ENTRIES)
    for number in range(KEPT_ENTRIES + 5):
        history.store_string(f"{number} {padding}")
    newest_first = [entry.split()[0] for entry in open_history(tmp_path, stored=True).load_history_strings()]
    assert newest_first == [str(number) for number in reversed(range(5, KEPT_ENTRIES + 5))]
    assert [file.name for file in tmp_path.iterdir()] == [HISTORY_FILE]


def test_unwritable_history_is_reported_and_kept_in_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert isinstance(open_history(tmp_path / "none", stored=True), InMemoryHistory)
    assert capsys.readouterr().err.count("\n") == 1
    (tmp_path / "elsewhere").touch()
    (tmp_path / HISTORY_FILE).symlink_to(tmp_path / "elsewhere")  # a link would lead the questions out of the state folder
    assert isinstance(open_history(tmp_path, stored=True), InMemoryHistory)
    assert not list(open_history(tmp_path, stored=False).load_history_strings())


NOTE = AnswerNote("a1", "local", "answered on this device", calls_left=12, adapter_version=3, latency_s=0.42)


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        ("low", True),
        ("used_up", True),
        ("offline", True),
        ("paused", True),
        ("switched_off", True),
        ("ok", False),
        ("newer", False),
    ],
)
def test_low_quota_replaces_the_calls_left(state: str, shown: bool) -> None:
    line = source_line(replace(NOTE, quota={"state": state, "line": "20 of 20 calls"}))
    assert ("20 of 20 calls" in line, "12 calls left" in line) == (shown, not shown)


STEERS = "\x1b]0;owned\x07\x1b[2Jok\u202e\x9b1m"
SHOWN = "\\x1b]0;owned\\x07\\x1b[2Jok\\u202e\\x9b1m"


@pytest.mark.parametrize("field", ["final", "reason", "cloud_text", "local_text", "correction", "cloud_model"])
def test_stored_answer_cannot_inject_terminal_codes(field: str) -> None:
    answer = ExplanationView.model_validate({"id": "a1", "source": "cloud", "reason": "", field: STEERS})
    (shown,) = [line for line in why_lines(answer) if "owned" in line]
    assert shown.endswith(SHOWN)


def test_coordinator_message_cannot_inject_terminal_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert SHOWN in source_line(replace(NOTE, reason=f"the cloud cannot be reached ({STEERS})"))
    finished = AnswerFinished("a1", "local-fallback", STEERS, None, None, 0, 0.1, 0, 0)
    for event in (finished, Offline(STEERS, 0.0), Notice(STEERS, 0.0)):
        assert SHOWN in spoken(event)
    print_line(f"quota: {STEERS}")
    assert capsys.readouterr().err == f"quota: {SHOWN}\n"
