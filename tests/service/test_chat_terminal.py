"""`edge-agent chat` at a real terminal: keys, paste, history and Ctrl-C, with a separately running agent and scripted answers."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from edge.cli.remote import announced
from edge.serve.endpoint import build_app
from edge.serve.ports import AnswerNote
from edge.serve.server import serving
from edge.testing.clock import ManualClock
from edge.testing.endpoint import ScriptedAnswers, ScriptedControl
from tests.until import until
from tests.worlds.pseudo_terminal import (
    ALT_ENTER,
    CTRL_C,
    CTRL_D,
    CTRL_R,
    ENTER,
    TAB,
    UP,
    PseudoTerminal,
    at_a_terminal,
    pasted,
)

PIECES = ["<think>\nStep 1: 2+2=4\n</think>\n<answer>", "\\boxed{4}", "</answer>"]
NOTE = AnswerNote("", "local", "answered on this device", adapter_version=6, latency_s=0.4, final="4")
BUDGET = {"version": 1, "dual": 0.5, "target_rate": 0.3, "calls": 7, "calls_limit": 20, "tokens": 90, "tokens_limit": None}
READY = "\n>"


@pytest.fixture
def answers() -> ScriptedAnswers:
    return ScriptedAnswers(PIECES, note=NOTE)


@pytest.fixture
async def state(answers: ScriptedAnswers, tmp_path: Path) -> AsyncIterator[Path]:
    control = ScriptedControl(answers)
    control.state["budget"] = {**BUDGET, "spend_uusd": 1500, "spend_limit_uusd": 2_000_000}
    async with serving(build_app(answers, control, ManualClock()), "127.0.0.1", 0) as url:
        with announced(tmp_path, url):
            yield tmp_path


@pytest.fixture
async def chat(state: Path) -> AsyncIterator[PseudoTerminal]:
    async with at_a_terminal("chat", "--state", str(state)) as terminal:
        await terminal.sees(READY)
        yield terminal


async def type_keys(chat: PseudoTerminal, keys: str, sees: str = "answered locally") -> None:
    """Type keys, and wait for the expected output and the next prompt."""
    chat.type(keys)
    await chat.sees(sees)
    await chat.sees(READY)


async def test_a_question_is_answered_and_explained_and_its_answer_cannot_steer_the_terminal(
    chat: PseudoTerminal, answers: ScriptedAnswers
) -> None:
    answers.pieces = ["<think>\n\x1b]0;owned\x07\x1b[2J\n</think>\n<answer>\\boxed{4}</answer>"]
    await type_keys(chat, f"2+2?{ENTER}", "answered locally (answered on this device)")
    assert "\\x1b]0;owned\\x07\\x1b[2J" in chat.screen and "\x1b]0;owned" not in chat.raw
    await type_keys(chat, f"/why{ENTER}", "source:         answered locally")
    await type_keys(chat, f"/budget{ENTER}", "calls 7 of 20")
    await type_keys(chat, f"/nonsense{ENTER}", "error: unknown command /nonsense")
    chat.type(CTRL_D)
    assert await chat.ends() == 0
    assert [question.messages[-1].content for question in answers.asked] == ["2+2?"]


async def test_ctrl_c_stops_only_the_answer_keeps_the_shown_text_and_records_no_turn(
    chat: PseudoTerminal, answers: ScriptedAnswers
) -> None:
    await type_keys(chat, f"first{ENTER}")
    held = asyncio.Event()
    answers.wait_before = {1: held}
    chat.type(f"/local second{ENTER}")
    await chat.sees("Step 1: 2+2=4")
    await type_keys(chat, CTRL_C, "(stopped)")
    assert chat.raw.rindex("\x1b[0m") > chat.raw.rindex("\x1b[2m")  # the dim colour of reasoning does not stay
    await until(lambda: answers.closed >= 2)  # the agent stops making it, too
    held.set()
    for _ in range(2):  # a stopped question is asked again as it was, an answered one is sampled anew
        await type_keys(chat, f"/retry{ENTER}")
    asked = [(question.mode, question.temperature, question.seed) for question in answers.asked[1:]]
    assert asked == [("local-only", None, None), ("local-only", None, None), ("local-only", 0.7, 1)]
    assert [message.content for message in answers.asked[2].messages] == ["first", "\\boxed{4}", "second"]


async def test_keys_edit_complete_and_send_lines(chat: PseudoTerminal, answers: ScriptedAnswers) -> None:
    chat.type("never sent")
    await chat.sees("never sent")
    chat.type(CTRL_C)
    await chat.sees(READY)
    chat.type(pasted("one\ntwo\n\nfour"))
    await chat.sees("four")
    assert answers.asked == []
    await type_keys(chat, ENTER)
    await type_keys(chat, f"one{ALT_ENTER}two\\{ENTER}three{ENTER}")
    await type_keys(chat, f"/loc{TAB}2+2?{ENTER}")
    await type_keys(chat, f"//etc/hosts?{ENTER}")
    assert [(question.mode, question.messages[-1].content) for question in answers.asked] == [
        (None, "one\ntwo\n\nfour"),
        (None, "one\ntwo\nthree"),
        ("local-only", "2+2?"),
        (None, "/etc/hosts?"),
    ]


async def test_input_history_is_available_in_a_later_conversation(state: Path, answers: ScriptedAnswers) -> None:
    async with at_a_terminal("chat", "--state", str(state)) as chat:
        await chat.sees(READY)
        for keys in (f"the red car{ENTER}", f"the blue car{ENTER}"):
            await type_keys(chat, keys)
        chat.type(CTRL_D)
        assert await chat.ends() == 0
    assert stat.S_IMODE((state / "chat-history").stat().st_mode) == 0o600
    async with at_a_terminal("chat", "--state", str(state)) as chat:
        await chat.sees(READY)
        await type_keys(chat, UP + ENTER)
        chat.type(f"{CTRL_R}red")
        await chat.sees("the red car")
        await type_keys(chat, ENTER + ENTER)
    assert [question.messages[-1].content for question in answers.asked[2:]] == ["the blue car", "the red car"]


async def test_disabled_history_remembers_nothing(state: Path, answers: ScriptedAnswers) -> None:
    async with at_a_terminal("chat", "--state", str(state), "--no-history") as chat:
        await chat.sees(READY)
        await type_keys(chat, f"a secret{ENTER}")
        await type_keys(chat, UP + ENTER)  # within this conversation it is
    assert [question.messages[-1].content for question in answers.asked] == ["a secret", "a secret"]
    assert not (state / "chat-history").exists()
