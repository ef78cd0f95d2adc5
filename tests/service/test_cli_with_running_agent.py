"""`ask`, `chat`, `feedback` and other commands use the running agent of the state folder: requests, output and exit codes in scripts and
pipes. Separate processes, scripted answers."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edge.cli import main
from edge.cli.remote import announced
from edge.core.errors import BudgetExhausted, CloudOff, ContextOverflow, CoordinatorUnavailable
from edge.serve.agent_schemas import FeedbackView
from edge.serve.endpoint import build_app
from edge.serve.ports import INSTANCE, AnswerNote
from edge.serve.server import serving
from edge.serve.token_file import make_token
from edge.testing.clock import ManualClock
from edge.testing.endpoint import ScriptedAnswers, ScriptedControl
from tests.worlds.warm_commands import Ended, edge_agent

PIECES = ["<think>\nStep 1: 2+2=4\n</think>\n<answer>", "\\boxed{4}", "</answer>"]
NOTE = AnswerNote(
    "", "local", "answered on this device", help_log_odds=-1.5, dual=0.5, adapter_version=6, latency_s=0.4, final="4"
)


@pytest.fixture
def answers() -> ScriptedAnswers:
    return ScriptedAnswers(PIECES, note=NOTE)


class Judged(ScriptedControl):
    """Records all feedback in order."""

    def __init__(self, answers: ScriptedAnswers) -> None:
        super().__init__(answers)
        self.judged: list[FeedbackView] = []

    async def feedback(self, answer_id: str, verdict: str, correction: str | None) -> FeedbackView:
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


async def ask(state: Path, *words: str, **more: Any) -> Ended:
    return await edge_agent("ask", "2+2?", *words, "--state", str(state), **more)


async def test_the_answer_alone_is_on_stdout_and_its_source_on_stderr_or_all_in_json(
    state: Path, answers: ScriptedAnswers
) -> None:
    code, out, err = await ask(state)
    assert (code, out) == (0, "4\n")
    assert err.startswith("answered locally (answered on this device) · help log-odds -1.50 · λ 0.500 · adapter 6 · 0.4 s · id ")
    assert (await ask(state, "--full"))[1] == "Step 1: 2+2=4\n4\n"
    code, out, err = await edge_agent("ask", "--json", "--local-only", "--state", str(state), stdin="3+3?\n")
    answer = json.loads(out)
    assert (code, err) == (0, "")
    assert (answer["answer"], answer["content"], answer["source"], answer["adapter_version"]) == ("4", "\\boxed{4}", "local", 6)
    assert (answers.asked[-1].messages[0].content, answers.asked[-1].mode) == ("3+3?", "local-only")


async def test_files_piped_input_and_options_reach_the_agent(state: Path, answers: ScriptedAnswers, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("alpha\n")
    (tmp_path / "b.md").write_text("beta")
    files = ("--file", str(tmp_path / "a.txt"), "--file", str(tmp_path / "b.md"))
    options = ("--cloud", "--max-tokens", "7", "--temperature", "0.5", "--seed", "11", "--task", "arith:easy")
    code, out, _ = await ask(state, *files, "--system", "Be brief.", *options, stdin="gamma\n")
    assert (code, out) == (0, "4\n")
    question = answers.asked[0]
    system, user = question.messages
    assert (system.role, system.content) == ("system", "Be brief.")
    assert user.content == "a.txt:\nalpha\n\nb.md:\nbeta\n\ngamma\n\n2+2?"
    assert (question.mode, question.max_tokens, question.temperature, question.seed) == ("cloud-only", 7, 0.5, 11)
    assert question.task == "arith:easy"


async def test_exit_code_reports_a_fallback_only_on_request(state: Path, answers: ScriptedAnswers) -> None:
    answers.note = replace(NOTE, source="local-fallback", reason="the model asked for help, but the budget is gone")
    assert (await ask(state))[:2] == (0, "4\n")
    code, out, err = await ask(state, "--fail-on-fallback")
    assert (code, out) == (3, "4\n")
    assert "the budget is gone" in err
    answers.note = NOTE
    assert (await ask(state, "--fail-on-fallback"))[0] == 0


async def test_a_response_without_an_answer_is_reasoning_and_no_answer(state: Path, answers: ScriptedAnswers) -> None:
    answers.pieces, answers.note = (
        ["<think>\nStep 1: 2", "+2</think><answer></answer>"],
        replace(NOTE, final="", reason="no answer"),
    )
    code, out, err = await ask(state)
    assert (code, out) == (1, "")
    assert "no answer" in err


@pytest.mark.parametrize(
    ("failure", "after", "message"),
    [
        (BudgetExhausted("no calls left"), 0, "no calls left"),
        (CloudOff("the cloud is paused"), 0, "mode cloud-only is not possible: the cloud is paused"),
        (CoordinatorUnavailable("the cloud is gone"), 2, "the cloud is gone"),
    ],
    ids=["budget", "switch", "in the stream"],
)
async def test_failed_cloud_only_request_is_one_line(
    state: Path, answers: ScriptedAnswers, failure: Exception, after: int, message: str
) -> None:
    answers.failure, answers.fail_after = failure, after
    code, _, err = await ask(state, "--cloud")
    assert (code, err.count("\n")) == (1, 1)
    assert message in err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x7fELF\x02\x00\x01", "is a binary file"),
        (b"caf\xe9", "is not UTF-8 text (byte 3)"),
        (b"x" * (256 * 1024 + 1), "may hold 256 KiB"),
    ],
    ids=["binary", "latin", "large"],
)
def test_non_text_file_is_refused_before_anything_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, words: str
) -> None:
    (tmp_path / "data").write_bytes(content)
    assert main(["ask", "What?", "--file", str(tmp_path / "data"), "--state", str(tmp_path / "state")]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1) and words in err


async def test_unsupported_option_for_a_running_agent_is_wrong_usage(state: Path, answers: ScriptedAnswers) -> None:
    for words, message in (
        (("--file", str(state)), "Is a directory"),
        (("--cloud", "--local-only"), "local-only and cloud-only are two modes"),
        (("--task", "my task"), "--task 'my task': not a label"),
        (("--model", "nano-edge"), "leave out --model"),
        (("--set", "serve.temperature=0.5"), "leave out --set serve.temperature"),
    ):
        code, out, err = await ask(state, *words)
        assert (code, out, answers.asked) == (2, "", []), err
        assert message in err


async def test_commands_send_the_token_that_the_agent_requires(answers: ScriptedAnswers, tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    app = build_app(answers, ScriptedControl(answers), ManualClock(), token=make_token(token_file))
    async with serving(app, "127.0.0.1", 0) as url:
        with announced(tmp_path, url, str(token_file)):
            assert (await ask(tmp_path))[:2] == (0, "4\n")
            token_file.write_text("another-token-than-the-agent-has-read")
            code, out, err = await ask(tmp_path)
            assert (code, out) == (1, "") and "start it again" in err
            token_file.chmod(0o644)
            code, out, err = await ask(tmp_path)
    assert (code, out, len(answers.asked)) == (1, "", 1)
    assert "chmod 600" in err


async def test_the_callers_kill_switch_binds_a_running_agent_and_is_the_reason(state: Path, answers: ScriptedAnswers) -> None:
    off = {"EDGE_AGENT_NO_CLOUD": "1"}
    assert (await ask(state, "--mode", "auto", **off))[0] == 0
    assert (answers.asked[-1].mode, answers.asked[-1].no_cloud) == (
        "local-only",
        "the cloud is switched off by EDGE_AGENT_NO_CLOUD",
    )
    code, _, err = await ask(state, "--mode", "cloud-only", **off)
    assert (code, len(answers.asked)) == (1, 1), "as in the help: the demanded cloud might not answer"
    assert "switched off by EDGE_AGENT_NO_CLOUD" in err
    code, _, _ = await edge_agent("chat", "--state", str(state), stdin="one\n/cloud two\n", **off)
    assert (code, answers.asked[-1].mode, len(answers.asked)) == (1, "local-only", 2)
    await ask(state, "--never-send", "2+2")
    assert answers.asked[-1].no_cloud == "--never-send forbids it"
    code, _, err = await ask(state, "--cloud", "--never-send", "2+2")
    assert (code, "--never-send forbids it" in err) == (1, True)


async def test_callers_mode_is_sent_wherever_it_was_set(state: Path, answers: ScriptedAnswers, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("mode: local-only\n", encoding="utf-8")
    for words in (("--config", str(file)), ("--mode", "prefer-local"), ()):
        assert (await ask(state, *words))[0] == 0
    assert [question.mode for question in answers.asked] == ["local-only", "prefer-local", None]


async def test_chat_keeps_the_conversation_and_forgets_it_on_request(state: Path, answers: ScriptedAnswers) -> None:
    words = ("chat", "--task", "code", "--state", str(state))
    code, out, _ = await edge_agent(*words, stdin="one\n/local two\n/new\nthree\n/quit\nnever\n")
    assert (code, out.count("4\n") >= 3) == (0, True)
    turns = [[message.content for message in question.messages] for question in answers.asked]
    assert turns == [["one"], ["one", "\\boxed{4}", "two"], ["three"]]
    assert [(question.mode, question.task) for question in answers.asked] == [
        (None, "code"),
        ("local-only", "code"),
        (None, "code"),
    ]


async def test_chat_prints_one_json_object_a_line_and_continues_after_failures(state: Path, answers: ScriptedAnswers) -> None:
    code, out, err = await edge_agent("chat", "--json", "--state", str(state), stdin="one\n/nonsense\n/budget\n/why\n")
    assert (code, err) == (0, "")
    one, nonsense, budget, why = map(json.loads, out.splitlines())
    assert (one["answer"], one["reasoning"], one["source"]) == ("4", "Step 1: 2+2=4\n", "local")
    assert nonsense["error"] == "unknown command /nonsense"
    assert (budget["dial"]["questions"], budget["switched_off"]) == (240, "")
    assert why["id"] == one["id"] == answers.asked[0].id
    answers.failure = ContextOverflow("too long")
    code, out, _ = await edge_agent("chat", "--json", "--state", str(state), stdin="two\nthree\n")
    assert (code, [json.loads(line)["error"] for line in out.splitlines()]) == (0, ["too long"] * 2)


async def test_chat_reads_lines_as_they_arrive_and_a_signal_while_waiting_ends_it(state: Path) -> None:
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
    code, _, err = await edge_agent("chat", "--state", str(state), stdin=lines)
    first, second = (question.id for question in answers.asked)
    assert code == 0 and f"noted: good · id {first}" in err
    code, out, _ = await edge_agent("feedback", f"chatcmpl-{first}", "bad", "seven", "--state", str(state))
    assert (code, out) == (0, f'noted: bad, right is "seven" · id {first}\n')
    assert [(one.id, one.verdict, one.correction) for one in control.judged] == [
        (first, "good", None),
        (first, "bad", "it is five"),
        (second, "good", None),
        (first, "bad", "seven"),
    ]


def version(number: int, *, serving: bool) -> dict[str, object]:
    unknown = dict.fromkeys(("phase", "task", "source", "gate_before", "gate_after", "kept_accuracy", "joint_accuracy"))
    return {
        **unknown, "version": number, "folder": f"/none/step-{number}/adapter", "at": 0.0, "base": number - 1, "size_bytes": 2048,
        "gate": "promoted", "gate_reason": "", "assist_rate": 0.25, "serving": serving, "head": serving, "on_line": True, "damage": "",
    }  # fmt: skip


async def test_adapters_learning_and_report_come_from_the_running_agent(state: Path, control: Judged) -> None:
    place = ("--state", str(state))
    control.versions = [version(3, serving=False), version(4, serving=True)]
    code, out, _ = await edge_agent("adapters", "list", *place)
    assert (code, [line.split()[0] for line in out.splitlines()]) == (0, ["version", "3", "4"])
    assert (await edge_agent("adapters", "rollback", "3", *place))[0] == 0
    assert [one["serving"] for one in control.versions] == [True, False]
    assert (await edge_agent("adapters", "rollback", "9", *place))[0] == 1
    code, _, _ = await edge_agent("pause", *place)
    assert (code, control.state["paused"]) == (0, True)
    code, out, _ = await edge_agent("resume", *place, "--json")
    assert (code, json.loads(out)) == (0, {"paused": False, "waiting": ""})
    code, out, _ = await edge_agent("report", "--since", "2026-03-01", *place, "--json")
    assert (code, json.loads(out)["tasks"]) == (0, [])


HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
PIECE = b'data: {"choices": [{"delta": {"content": "4"}}]}\n'
CUTS = {
    "before the headers": b"",
    "within the headers": b"HTTP/1.1 200 OK\r\ntransfer-",
    "within a chunk": HEAD + b"%x\r\n%s" % (len(PIECE) + 9, PIECE),
    "between two chunks": HEAD + b"%x\r\n%s\r\n" % (len(PIECE), PIECE),
    "at the end without its note": HEAD + b"%x\r\n%s\r\n0\r\n\r\n" % (len(PIECE), PIECE),
    "by what is no HTTP": b"SSH-2.0-other\r\n",
}


@pytest.mark.parametrize("sent", CUTS.values(), ids=CUTS)
async def test_an_answer_that_is_cut_is_one_line_of_error(tmp_path: Path, sent: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        alive = json.dumps({"status": "ok", "instance": INSTANCE}).encode()
        health = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(alive), alive)
        writer.write(health if b"/health" in request else sent)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with announced(tmp_path, f"http://127.0.0.1:{port}"):
            code, _, err = await edge_agent("ask", "2+2?", "--state", str(tmp_path))
    assert code == 1
    assert [line.split(":")[0] for line in err.splitlines()] == ["error"]
    assert "went away" in err or "cut off" in err
