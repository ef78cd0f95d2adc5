"""An agent whose model has the chat template of another family: it answers and learns, or says at once why it cannot."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.worlds.agent_process import agent_process
from tests.worlds.tiny_gguf import write_tiny_model

TEMPLATES = Path(__file__).parents[1] / "engine" / "templates"
SYSTEM, QUESTION = {"role": "system", "content": "Answer briefly."}, {"role": "user", "content": "Who runs the mill?"}
ANSWER = {"role": "assistant", "content": "Ilka."}
START_S = 60
SMALL = ("learning.prompts_per_step=1", "learning.group_size=2", "learning.max_tokens=96")


def model(folder: Path, template: str, control_tokens: tuple[str, ...]) -> str:
    path = folder / "tiny.gguf"
    write_tiny_model(path, prompt_form=None, chat_template=template, control_tokens=control_tokens, context_length=2048)
    return str(path)


async def ended(*words: str) -> tuple[int | None, str, str]:
    """`edge-agent WORDS`: exit code, stdout and stderr."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "edge.cli", *words, stdout=pipe, stderr=pipe)
    out, err = await asyncio.wait_for(process.communicate(), START_S)
    return process.returncode, out.decode(), err.decode()


def running_agent(folder: Path, path: str) -> AbstractContextManager[str]:
    """An agent that learns from a file of questions."""
    tasks = folder / "questions.csv"
    tasks.write_text("question,answer\nWho runs the mill?,Ilka\nWho rows the ferry?,Mia\n")
    settings = [word for setting in ("model.context_tokens=2048", *SMALL) for word in ("--set", setting)]
    return agent_process(folder / "state", "--model", path, "--tasks", str(tasks), *settings)


@pytest.mark.parametrize(
    ("family", "control_tokens", "begun_by_the_model"),
    [("mistral", ("<s>", "</s>"), 400), ("smolvlm", ("<s>", "<|im_end|>"), 200)],
)
async def test_a_model_of_another_family_answers_and_learns(
    family: str, control_tokens: tuple[str, ...], begun_by_the_model: int, tmp_path: Path
) -> None:
    """A template that wants the user's turn first refuses a conversation that the model begins: nothing is put before it."""
    path = model(tmp_path, (TEMPLATES / f"{family}.jinja").read_text(encoding="utf-8"), control_tokens)

    with running_agent(tmp_path, path) as url:
        await answers_and_learns(url, begun_by_the_model)


async def answers_and_learns(url: str, begun_by_the_model: int) -> None:
    async with aiohttp.ClientSession(url) as client:

        async def chat(*messages: Any) -> int:
            body = {"model": "edge-local", "messages": messages, "max_tokens": 4}
            async with client.post("/v1/chat/completions", json=body) as response:
                return response.status

        assert await chat(SYSTEM, QUESTION) == 200
        assert await chat(SYSTEM, QUESTION, ANSWER, QUESTION) == 200
        assert await chat(QUESTION, QUESTION) == await chat(QUESTION, SYSTEM, QUESTION) == 200
        assert await chat(ANSWER, QUESTION) == begun_by_the_model
        async with asyncio.timeout(START_S):
            while True:
                async with client.get("/api/steps") as response:
                    if (await response.json())["steps"]:
                        break
                await asyncio.sleep(0.2)


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('this is a base model') }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    ],
    ids=["refuses", "does not end"],
)
async def test_an_unusable_template_is_one_line_at_the_start_and_in_doctor(template: str, tmp_path: Path) -> None:
    path, state = model(tmp_path, template, ("<s>", "</s>")), ("--state", str(tmp_path / "state"))
    code, out, _ = await ended("doctor", "--json", "--model", path, *state)
    (found,) = [check for check in json.loads(out)["checks"] if check["name"] == "model"]
    assert (code, found["state"]) == (1, "fail")
    assert "chat template" in found["text"] and path in found["text"] and found["hint"]
    for command in (("run", "--port", "0"), ("ask", "Who runs the mill?")):
        code, out, err = await ended(*command, "--model", path, *state)
        assert code == 1 and "OpenAI-compatible at" not in out
        assert "chat template" in err and "Traceback" not in err
