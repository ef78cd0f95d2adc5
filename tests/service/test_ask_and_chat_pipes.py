"""`ask`, `chat` and `feedback` in pipes and scripts: context, exit codes, JSON lines, closed outputs. Real processes, scripted answers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edge.cli.remote import announced
from edge.core.errors import BudgetExhausted, ContextOverflow
from edge.serve.endpoint import build_app
from edge.serve.ports import AnswerNote
from edge.serve.server import serving
from edge.testing.clock import ManualClock
from edge.testing.endpoint import ScriptedAnswers, ScriptedControl
from tests.service.warm_commands import edge_agent

SAID = ["<think>\nStep 1: 2+2=4\n</think>\n<answer>", "\\boxed{4}", "</answer>"]
NOTE = AnswerNote("", "local", "answered on this device", adapter_version=6, latency_s=0.4, final="4")


@pytest.fixture
def answers() -> ScriptedAnswers:
    return ScriptedAnswers(SAID, note=NOTE)


class Judged(ScriptedControl):
    """Keeps every verdict, in order."""

    def __init__(self, answers: ScriptedAnswers) -> None:
        super().__init__(answers)
        self.judged: list[Mapping[str, Any]] = []

    async def feedback(self, answer_id: str, verdict: str, correction: str | None) -> Mapping[str, Any]:
        kept = await super().feedback(answer_id, verdict, correction)
        self.judged.append(kept)
        return kept


@pytest.fixture
def control(answers: ScriptedAnswers) -> Judged:
    return Judged(answers)


@pytest.fixture
async def state(answers: ScriptedAnswers, control: Judged, tmp_path: Path) -> AsyncIterator[Path]:
    async with serving(build_app(answers, control, ManualClock()), "127.0.0.1", 0) as url:
        with announced(tmp_path, url):
            yield tmp_path


async def test_files_and_what_is_piped_in_stand_before_the_question(
    state: Path, answers: ScriptedAnswers, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("alpha\n")
    (tmp_path / "b.md").write_text("beta")
    files = ("--file", str(tmp_path / "a.txt"), "--file", str(tmp_path / "b.md"))
    code, out, _ = await edge_agent("ask", "Which?", *files, "--system", "Be brief.", "--state", str(state), stdin="gamma\n")
    assert (code, out) == (0, "4\n")
    system, user = answers.asked[0].messages
    assert (system.role, system.content) == ("system", "Be brief.")
    assert user.content == "a.txt:\nalpha\n\nb.md:\nbeta\n\ngamma\n\nWhich?"


async def test_sampling_and_the_demand_for_the_cloud_reach_the_agent(state: Path, answers: ScriptedAnswers) -> None:
    words = ("--cloud", "--max-tokens", "7", "--temperature", "0.5", "--seed", "11")
    assert (await edge_agent("ask", "2+2?", *words, "--state", str(state)))[0] == 0
    question = answers.asked[0]
    assert (question.mode, question.max_tokens, question.temperature, question.seed) == ("cloud-only", 7, 0.5, 11)


async def test_the_task_that_is_named_reaches_the_agent(state: Path, answers: ScriptedAnswers) -> None:
    assert (await edge_agent("ask", "2+2?", "--task", "arith:easy", "--state", str(state)))[0] == 0
    assert (await edge_agent("chat", "--task", "code", "--state", str(state), stdin="2+2?\n/retry\n"))[0] == 0
    assert (await edge_agent("ask", "2+2?", "--state", str(state)))[0] == 0
    assert [question.task for question in answers.asked] == ["arith:easy", "code", "code", None]


async def test_the_exit_code_tells_a_fallback_only_where_that_is_wanted(state: Path, answers: ScriptedAnswers) -> None:
    answers.note = replace(NOTE, source="local-fallback", reason="the model asked for help, but the budget is gone")
    code, out, _ = await edge_agent("ask", "2+2?", "--state", str(state))
    assert (code, out) == (0, "4\n")
    code, out, err = await edge_agent("ask", "2+2?", "--fail-on-fallback", "--state", str(state))
    assert (code, out) == (3, "4\n")
    assert "without the help it asked for (the model asked for help, but the budget is gone)" in err
    answers.note = NOTE
    assert (await edge_agent("ask", "2+2?", "--fail-on-fallback", "--state", str(state)))[0] == 0


async def test_a_cloud_that_was_demanded_and_refused_is_a_failure(state: Path, answers: ScriptedAnswers) -> None:
    answers.failure = BudgetExhausted("no calls left")
    code, out, err = await edge_agent("ask", "--cloud", "2+2?", "--state", str(state))
    assert (code, out, err) == (1, "", "error: no calls left\n")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x7fELF\x02\x00\x01", "is a binary file"),
        (b"caf\xe9", "is not UTF-8 text (byte 3)"),
        (b"x" * (256 * 1024 + 1), "may hold 256 KiB"),
    ],
)
async def test_a_file_that_cannot_be_read_as_text_is_refused_before_anything_is_asked(
    state: Path, answers: ScriptedAnswers, tmp_path: Path, content: bytes, words: str
) -> None:
    (tmp_path / "data").write_bytes(content)
    code, out, err = await edge_agent("ask", "What?", "--file", str(tmp_path / "data"), "--state", str(state))
    assert (code, out, answers.asked, err.count("\n")) == (2, "", [], 1)
    assert words in err
    code, _, err = await edge_agent("ask", "What?", "--state", str(state), stdin=content)
    assert (code, answers.asked) == (2, [])
    assert f"stdin: {words}" in err or words in err


async def test_wrong_usage_of_ask_is_one_line(state: Path, tmp_path: Path) -> None:
    place = ("--state", str(state))
    for words, told in (
        (("ask", "What?", "--file", str(tmp_path / "none")), "No such file"),
        (("ask", "What?", "--file", str(tmp_path)), "Is a directory"),
        (("ask", "What?", "--cloud", "--local-only"), "local-only and cloud-only are two modes"),
        (("chat", "--mode", "auto", "--local-only"), "local-only and auto are two modes"),
        (("ask",), "the question is empty"),
        (("ask", "What?", "--task", "my task"), "--task 'my task': not a label of 1 to 64 letters, digits and . _ : + -"),
        (("chat", "--task", ""), "--task '': not a label"),
        (("budget", "set", "10%", "--task", "-x" * 40), "not a label"),
    ):
        code, out, err = await edge_agent(*words, *place)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert told in err


async def test_a_reader_that_goes_away_ends_the_command_quietly(state: Path) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    for words in (("ask", "2+2?"), ("ask", "--json", "2+2?")):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "edge.cli", *words, "--state", str(state), stdin=asyncio.subprocess.DEVNULL, stdout=theirs,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        _, err = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 0
        assert b"Traceback" not in err and b"error" not in err and b"Exception" not in err
    os.close(theirs)


async def test_chat_gives_one_json_object_a_line_and_goes_on_after_failures(state: Path, answers: ScriptedAnswers) -> None:
    lines = "one\n/nonsense\n/budget\n/why\n/quit\nnever\n"
    code, out, err = await edge_agent("chat", "--json", "--state", str(state), stdin=lines)
    assert (code, err) == (0, "")
    one, nonsense, budget, why = map(json.loads, out.splitlines())
    assert (one["answer"], one["reasoning"], one["source"]) == ("4", "Step 1: 2+2=4\n", "local")
    assert nonsense["error"] == "unknown command /nonsense"
    assert budget["budget"] is None and (budget["dial"]["questions"], budget["switched_off"]) == (240, "")
    assert why["id"] == one["id"] == answers.asked[0].id
    answers.failure = ContextOverflow("too long")
    code, out, _ = await edge_agent("chat", "--json", "--state", str(state), stdin="two\n")
    assert (code, json.loads(out)) == (0, {"error": "too long", "hint": ""})


async def test_chat_reads_lines_as_they_come_and_a_signal_while_it_waits_ends_it(state: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "edge.cli", "chat", "--json", "--state", str(state), stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    for _ in range(2):  # the second question is written after the first answer was read
        process.stdin.write(b"2+2?\n")
        assert json.loads(await asyncio.wait_for(process.stdout.readline(), 60))["answer"] == "4"
    process.send_signal(signal.SIGINT)
    assert await asyncio.wait_for(process.wait(), 60) == 130


async def test_feedback_reaches_the_agent_from_chat_and_from_the_command(
    state: Path, answers: ScriptedAnswers, control: Judged
) -> None:
    lines = "one\n/good\n/bad it is five\ntwo\n/good\n"
    code, out, err = await edge_agent("chat", "--state", str(state), stdin=lines)
    assert (code, out) == (0, "Step 1: 2+2=4\n4\n" * 2)
    first, second = (question.id for question in answers.asked)
    assert f"noted: good · id {first}" in err
    assert control.judged == [
        {"id": first, "verdict": "good", "correction": None},
        {"id": first, "verdict": "bad", "correction": "it is five"},
        {"id": second, "verdict": "good", "correction": None},
    ]
    await edge_agent("chat", "--state", str(state), stdin=f"three\n/bad {first} it is six\n/good {second}\n")
    assert [(one["id"], one["correction"]) for one in control.judged[3:]] == [(first, "it is six"), (second, None)]
    code, out, _ = await edge_agent("feedback", f"chatcmpl-{first}", "bad", "seven", "--state", str(state))
    assert (code, out) == (0, f'noted: bad, right is "seven" · id {first}\n')
    assert control.judged[-1] == {"id": first, "verdict": "bad", "correction": "seven"}
    for words, told, wanted in (
        (("nobody", "good"), "no answer 'nobody'", 1),
        ((first, "great"), "great: not a verdict; say good, bad or none", 2),
        ((first, "good", "five"), "a correction goes with bad", 2),
    ):
        code, _, err = await edge_agent("feedback", *words, "--state", str(state))
        assert code == wanted
        assert told in err


async def test_a_token_that_was_changed_since_the_agent_began_is_told(
    answers: ScriptedAnswers, control: Judged, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("another-token-than-the-agent-has-read")
    (tmp_path / "token").chmod(0o600)
    app = build_app(answers, control, ManualClock(), token="the-token-that-the-agent-has-read")
    async with serving(app, "127.0.0.1", 0) as url:
        with announced(tmp_path, url, str(tmp_path / "token")):
            code, out, err = await edge_agent("ask", "2+2?", "--state", str(tmp_path))
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "does not take the token that is in its token file now; start it again" in err


async def test_what_is_no_text_is_not_looked_through_for_private_data() -> None:
    code, out, err = await edge_agent("privacy", "check", stdin=b"caf\xe9 a@b.de")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "the text is not UTF-8 (character 4)" in err


async def test_feedback_without_an_answer_says_so(state: Path) -> None:
    code, _, err = await edge_agent("chat", "--state", str(state), stdin="/good\n")
    assert (code, err) == (2, "error: there is no answer yet; give the id that stands beside an answer\n")
