"""`edge-agent chat` at a real terminal: keys, paste, history and Ctrl-C, with an agent that runs elsewhere. Scripted answers."""

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
from tests.service.pseudo_terminal import (
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

SAID = ["<think>\nStep 1: 2+2=4\n</think>\n<answer>", "\\boxed{4}", "</answer>"]
NOTE = AnswerNote("", "local", "answered on this device", adapter_version=6, latency_s=0.4, final="4")
BUDGET = {"version": 1, "dual": 0.5, "target_rate": 0.3, "calls": 7, "calls_limit": 20, "tokens": 90, "tokens_limit": None}
READY = "\n>"


@pytest.fixture
def answers() -> ScriptedAnswers:
    return ScriptedAnswers(SAID, note=NOTE)


@pytest.fixture
async def state(answers: ScriptedAnswers, tmp_path: Path) -> AsyncIterator[Path]:
    control = ScriptedControl(answers)
    control.state = {"budget": {**BUDGET, "spend_uusd": 1500, "spend_limit_uusd": 2_000_000}}
    async with serving(build_app(answers, control, ManualClock()), "127.0.0.1", 0) as url:
        with announced(tmp_path, url):
            yield tmp_path


@pytest.fixture
async def chat(state: Path) -> AsyncIterator[PseudoTerminal]:
    async with at_a_terminal("chat", "--state", str(state)) as terminal:
        await terminal.sees(READY)
        yield terminal


def asked(answers: ScriptedAnswers) -> list[str]:
    return [question.messages[-1].content for question in answers.asked]


async def test_a_question_is_answered_and_explained_and_the_conversation_is_left(
    chat: PseudoTerminal, answers: ScriptedAnswers
) -> None:
    chat.type(f"2+2?{ENTER}")
    await chat.sees("answered locally (answered on this device)")
    await chat.sees(READY)
    chat.type(f"/why{ENTER}")
    await chat.sees("source:         answered locally")
    await chat.sees(READY)
    chat.type(f"/budget{ENTER}")
    await chat.sees("calls 7 of 20 · tokens 90 (unlimited) · spend 0.0015 USD of 2.00 USD (practice cloud, nothing is charged)")
    await chat.sees("learning's target 30")
    await chat.sees(READY)
    chat.type(CTRL_D)
    assert await chat.ends() == 0
    assert asked(answers) == ["2+2?"]


async def test_ctrl_c_stops_the_answer_alone_keeps_what_was_shown_and_leaves_nothing_in_the_conversation(
    chat: PseudoTerminal, answers: ScriptedAnswers
) -> None:
    chat.type(f"first{ENTER}")
    await chat.sees("answered locally")
    await chat.sees(READY)
    held = asyncio.Event()
    answers.wait_before = {1: held}
    chat.type(f"second{ENTER}")
    await chat.sees("Step 1: 2+2=4")
    chat.type(CTRL_C)
    await chat.sees("(stopped)")
    await chat.sees(READY)
    assert "Step 1: 2+2=4" in chat.screen
    assert chat.raw.rindex("\x1b[0m") > chat.raw.rindex("\x1b[2m")  # the dim colour of reasoning does not stay
    async with asyncio.timeout(60):
        while answers.closed < 2:  # the agent stops making it, too
            await asyncio.sleep(0.01)
    held.set()
    chat.type(f"third{ENTER}")
    await chat.sees("answered locally")
    assert [message.content for message in answers.asked[-1].messages] == ["first", "\\boxed{4}", "third"]


async def test_a_stopped_question_is_asked_again_as_it_was_and_an_answered_one_is_sampled_anew(
    chat: PseudoTerminal, answers: ScriptedAnswers
) -> None:
    held = asyncio.Event()
    answers.wait_before = {1: held}
    chat.type(f"/local 2+2?{ENTER}")
    await chat.sees("Step 1")
    chat.type(CTRL_C)
    await chat.sees(READY)
    held.set()
    for _ in range(2):
        chat.type(f"/retry{ENTER}")
        await chat.sees("answered locally")
        await chat.sees(READY)
    told = [(question.mode, question.temperature, question.seed, len(question.messages)) for question in answers.asked]
    assert told == [("local-only", None, None, 1), ("local-only", None, None, 1), ("local-only", 0.7, 1, 1)]


async def test_ctrl_c_at_the_prompt_drops_the_line_and_stays(chat: PseudoTerminal, answers: ScriptedAnswers) -> None:
    chat.type("never sent")
    await chat.sees("never sent")
    chat.type(CTRL_C)
    await chat.sees(READY)
    chat.type(f"sent{ENTER}")
    await chat.sees("answered locally")
    assert asked(answers) == ["sent"]


async def test_a_paste_keeps_its_lines_and_enter_sends_it_whole(chat: PseudoTerminal, answers: ScriptedAnswers) -> None:
    chat.type(pasted("one\ntwo\n\nfour"))
    await chat.sees("four")
    assert answers.asked == []
    chat.type(ENTER)
    await chat.sees("answered locally")
    assert asked(answers) == ["one\ntwo\n\nfour"]


async def test_alt_enter_and_a_backslash_begin_a_new_line(chat: PseudoTerminal, answers: ScriptedAnswers) -> None:
    chat.type(f"one{ALT_ENTER}two\\{ENTER}three{ENTER}")
    await chat.sees("answered locally")
    assert asked(answers) == ["one\ntwo\nthree"]


async def test_what_was_asked_is_found_again_in_a_later_conversation(state: Path, answers: ScriptedAnswers) -> None:
    for keys in (f"the red car{ENTER}", f"the blue car{ENTER}"):
        async with at_a_terminal("chat", "--state", str(state)) as chat:
            await chat.sees(READY)
            chat.type(keys)
            await chat.sees("answered locally")
            await chat.sees(READY)
            chat.type(f"/quit{ENTER}")
            assert await chat.ends() == 0
    assert stat.S_IMODE((state / "chat-history").stat().st_mode) == 0o600
    async with at_a_terminal("chat", "--state", str(state)) as chat:
        await chat.sees(READY)
        chat.type(UP + UP + ENTER)  # /quit was the last line
        await chat.sees("answered locally")
        await chat.sees(READY)
        chat.type(f"{CTRL_R}red")
        await chat.sees("the red car")
        chat.type(ENTER + ENTER)
        await chat.sees("answered locally")
    assert asked(answers)[2:] == ["the blue car", "the red car"]


@pytest.mark.parametrize("words", [["--no-history"], ["--set", "chat.history=false"]])
async def test_nothing_is_remembered_where_that_is_switched_off(state: Path, words: list[str], answers: ScriptedAnswers) -> None:
    async with at_a_terminal("chat", "--state", str(state), *words) as chat:
        await chat.sees(READY)
        chat.type(f"a secret{ENTER}")
        await chat.sees("answered locally")
        await chat.sees(READY)
        chat.type(UP + ENTER)  # within this conversation it is
        await chat.sees("answered locally")
    assert asked(answers) == ["a secret", "a secret"]
    assert not (state / "chat-history").exists()


async def test_a_command_is_completed_and_an_unknown_one_told_without_ending_anything(
    chat: PseudoTerminal, answers: ScriptedAnswers
) -> None:
    chat.type(f"/loc{TAB}2+2?{ENTER}")
    await chat.sees("answered locally")
    await chat.sees(READY)
    chat.type(f"/nonsense{ENTER}")
    await chat.sees("error: unknown command /nonsense; /help lists them")
    await chat.sees(READY)
    chat.type(f"//etc/hosts?{ENTER}")
    await chat.sees("answered locally")
    assert [(question.mode, question.messages[-1].content) for question in answers.asked] == [
        ("local-only", "2+2?"),
        (None, "/etc/hosts?"),
    ]


async def test_what_the_model_says_cannot_steer_the_terminal(chat: PseudoTerminal, answers: ScriptedAnswers) -> None:
    answers.pieces = ["<think>\n\x1b]0;owned\x07\x1b[2J\n</think>\n<answer>\\boxed{4}</answer>"]
    chat.type(f"2+2?{ENTER}")
    await chat.sees("answered locally")
    assert "\\x1b]0;owned\\x07\\x1b[2J" in chat.screen
    assert "\x1b]0;owned" not in chat.raw
