"""`ask`, `chat`, `why` and `budget` use the agent that already runs on the state folder. Processes of their own, scripted answers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from edge.cli.remote import announced, running_agent
from edge.core.errors import CloudOff, ContextOverflow, CoordinatorUnavailable
from edge.serve.endpoint import build_app
from edge.serve.ports import AnswerNote
from edge.serve.server import serving
from edge.serve.token_file import make_token
from edge.testing.clock import ManualClock
from edge.testing.endpoint import ScriptedAnswers, ScriptedControl
from tests.service.warm_commands import edge_agent

SAID = ["<think>\nStep 1: 2+2=4\n</think>\n<answer>", "\\boxed{4}", "</answer>"]
NOTE = AnswerNote(
    "", "local", "answered on this device", help_log_odds=-1.5, dual=0.5, adapter_version=6, latency_s=0.4, final="4"
)


@pytest.fixture
def answers() -> ScriptedAnswers:
    return ScriptedAnswers(SAID, note=NOTE)


@pytest.fixture
def control(answers: ScriptedAnswers) -> ScriptedControl:
    return ScriptedControl(answers)


@pytest.fixture
async def state(answers: ScriptedAnswers, control: ScriptedControl, tmp_path: Path) -> AsyncIterator[Path]:
    async with serving(build_app(answers, control, ManualClock()), "127.0.0.1", 0) as url:
        with announced(tmp_path, url):
            yield tmp_path


async def test_ask_prints_the_answer_alone_on_stdout_and_its_source_on_stderr(state: Path) -> None:
    code, out, err = await edge_agent("ask", "2+2?", "--state", str(state))
    assert (code, out) == (0, "4\n")
    assert err.startswith("answered locally (answered on this device) · help log-odds -1.50 · λ 0.500 · adapter 6 · 0.4 s · id ")


async def test_ask_reads_a_pipe_and_gives_json(state: Path, answers: ScriptedAnswers) -> None:
    code, out, err = await edge_agent("ask", "--json", "--local-only", "--state", str(state), stdin="2+2?\n")
    answer = json.loads(out)
    assert (code, err) == (0, "")
    assert (answer["answer"], answer["content"], answer["source"], answer["adapter_version"]) == ("4", "\\boxed{4}", "local", 6)
    assert answers.asked[0].messages[0].content == "2+2?"
    assert answers.asked[0].mode == "local-only"


async def test_ask_shows_the_reasoning_when_wanted(state: Path) -> None:
    _, out, _ = await edge_agent("ask", "--full", "2+2?", "--state", str(state))
    assert out == "Step 1: 2+2=4\n4\n"


async def test_commands_show_the_token_that_the_agent_asks_for(answers: ScriptedAnswers, tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    app = build_app(answers, ScriptedControl(answers), ManualClock(), token=make_token(token_file))
    async with serving(app, "127.0.0.1", 0) as url:
        with announced(tmp_path, url, str(token_file)):
            assert (await edge_agent("ask", "2+2?", "--state", str(tmp_path)))[:2] == (0, "4\n")
            token_file.chmod(0o644)
            code, out, err = await edge_agent("ask", "2+2?", "--state", str(tmp_path))
    assert (code, out, len(answers.asked)) == (1, "", 1)
    assert "chmod 600" in err


async def test_a_failure_in_the_stream_is_one_line(state: Path, answers: ScriptedAnswers) -> None:
    answers.failure, answers.fail_after = CoordinatorUnavailable("the cloud is gone"), 2
    code, _, err = await edge_agent("ask", "2+2?", "--state", str(state))
    assert (code, err) == (1, "error: the cloud is gone\n")


async def test_another_model_than_the_running_one_is_refused(state: Path) -> None:
    code, _, err = await edge_agent("ask", "2+2?", "--model", "nano-edge", "--state", str(state))
    assert code == 2
    assert "leave out --model" in err


async def test_the_callers_kill_switch_binds_a_running_agent(state: Path, answers: ScriptedAnswers) -> None:
    place = ("--state", str(state))
    for mode in ("auto", "prefer-local"):
        code, _, _ = await edge_agent("ask", "2+2?", "--mode", mode, *place, EDGE_AGENT_NO_CLOUD="1")
        assert (code, answers.asked[-1].mode) == (0, "local-only")
    code, _, err = await edge_agent("ask", "2+2?", "--mode", "cloud-only", *place, EDGE_AGENT_NO_CLOUD="1")
    assert (code, len(answers.asked)) == (1, 2), "as the help says: the demanded cloud might not answer"
    assert "switched off by EDGE_AGENT_NO_CLOUD" in err
    await edge_agent("chat", *place, stdin="one\n", EDGE_AGENT_NO_CLOUD="1")
    assert answers.asked[-1].mode == "local-only"
    code, _, _ = await edge_agent("chat", *place, stdin="/cloud one\n", EDGE_AGENT_NO_CLOUD="1")
    assert (code, len(answers.asked)) == (1, 3)


async def test_the_reason_of_a_local_answer_is_the_caller_s_own(state: Path, answers: ScriptedAnswers) -> None:
    place = ("--state", str(state))
    await edge_agent("ask", "2+2?", *place, EDGE_AGENT_NO_CLOUD="1")
    await edge_agent("ask", "2+2?", "--never-send", "2+2", *place)
    await edge_agent("ask", "2+2?", *place)
    assert [asked.no_cloud for asked in answers.asked] == [
        "the cloud is switched off by EDGE_AGENT_NO_CLOUD",
        "--never-send forbids it",
        "",
    ]
    code, _, err = await edge_agent("ask", "--cloud", "2+2?", "--never-send", "2+2", *place)
    assert (code, "--never-send forbids it" in err) == (1, True)


async def test_a_demanded_cloud_that_the_agent_may_not_ask_is_a_failure(state: Path, answers: ScriptedAnswers) -> None:
    answers.failure = CloudOff("the cloud is paused")
    code, _, err = await edge_agent("ask", "--cloud", "2+2?", "--state", str(state))
    assert (code, "mode cloud-only is not possible: the cloud is paused" in err) == (1, True)


async def test_the_callers_mode_travels_wherever_it_was_set(state: Path, answers: ScriptedAnswers, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("mode: local-only\n", encoding="utf-8")
    given = {"--config": (str(file), "local-only"), "--set": ("mode=local-only", "local-only"), "--mode": ("auto", "auto")}
    for option, (value, mode) in given.items():
        code, _, _ = await edge_agent("ask", "2+2?", option, value, "--state", str(state))
        assert (code, answers.asked[-1].mode) == (0, mode)
    await edge_agent("ask", "2+2?", "--mode", "prefer-local", "--state", str(state))
    await edge_agent("ask", "2+2?", "--state", str(state))
    assert [question.mode for question in answers.asked[-2:]] == ["prefer-local", None]


async def test_a_setting_that_the_running_agent_cannot_take_is_refused(state: Path, answers: ScriptedAnswers) -> None:
    code, _, err = await edge_agent("ask", "2+2?", "--set", "serve.temperature=0.5", "--state", str(state))
    assert (code, answers.asked) == (2, [])
    assert "leave out --set serve.temperature" in err


async def test_chat_keeps_the_conversation_and_forgets_it_on_request(state: Path, answers: ScriptedAnswers) -> None:
    code, out, _ = await edge_agent("chat", "--state", str(state), stdin="one\n/local two\n/new\nthree\n/quit\n")
    assert code == 0
    assert out.count("4\n") >= 3
    turns = [[message.content for message in question.messages] for question in answers.asked]
    assert turns == [["one"], ["one", "\\boxed{4}", "two"], ["three"]]
    assert answers.asked[1].mode == "local-only"


async def test_chat_goes_on_after_a_question_that_is_too_long(state: Path, answers: ScriptedAnswers) -> None:
    answers.failure = ContextOverflow("the prompt has 2000 tokens, the context 1024")
    code, _, err = await edge_agent("chat", "--state", str(state), stdin="long\nlonger\n")
    assert (code, len(answers.asked), err.count("error: the prompt has 2000 tokens")) == (0, 2, 2)


async def test_why_explains_an_answer_and_an_unknown_one_is_an_error(state: Path) -> None:
    _, out, _ = await edge_agent("ask", "--json", "2+2?", "--state", str(state))
    code, out, _ = await edge_agent("why", json.loads(out)["id"], "--state", str(state))
    assert code == 0
    assert "price λ:        0.500" in out
    code, _, err = await edge_agent("why", "nothing", "--state", str(state))
    assert (code, err) == (1, "error: no answer 'nothing'\n")


async def test_a_file_left_by_a_killed_agent_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "endpoint.json").write_text('{"url": "http://127.0.0.1:9"}', encoding="utf-8")
    async with running_agent(tmp_path) as remote:
        assert remote is None


def version(number: int, *, serving: bool) -> dict[str, object]:
    unknown = dict.fromkeys(("phase", "task", "source", "gate_before", "gate_after", "kept_accuracy", "joint_accuracy"))
    return {
        **unknown, "version": number, "folder": f"/none/step-{number}/adapter", "at": 0.0, "base": number - 1, "size_bytes": 2048,
        "gate": "promoted", "gate_reason": "", "assist_rate": 0.25, "serving": serving, "head": serving, "on_line": True, "damage": "",
    }  # fmt: skip


async def test_adapters_are_listed_and_rolled_back_in_the_running_agent(state: Path, control: ScriptedControl) -> None:
    control.versions = [version(3, serving=False), version(4, serving=True)]
    code, out, _ = await edge_agent("adapters", "list", "--state", str(state))
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["version", "3", "4"]
    code, out, _ = await edge_agent("adapters", "rollback", "3", "--state", str(state))
    assert code == 0
    assert out.startswith("adapter 3 is active")
    assert [one["serving"] for one in control.versions] == [True, False]
    code, out, err = await edge_agent("adapters", "rollback", "9", "--state", str(state))
    assert (code, out, err) == (1, "", "error: there is no adapter version 9 here\n")


async def test_pause_resume_and_report_reach_the_running_agent(state: Path, control: ScriptedControl) -> None:
    code, out, _ = await edge_agent("pause", "--state", str(state))
    assert (code, control.state["paused"]) == (0, True)
    assert out.startswith("learning is paused")
    code, out, _ = await edge_agent("resume", "--state", str(state), "--json")
    assert (code, json.loads(out)) == (0, {"paused": False, "waiting": ""})
    code, out, _ = await edge_agent("report", "--since", "2026-03-01", "--state", str(state), "--json")
    assert (code, json.loads(out)["tasks"]) == (0, [])
