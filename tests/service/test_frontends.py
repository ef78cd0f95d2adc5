"""LangChain and the OpenAI Agents SDK, unchanged, with a running agent: answers, streams, forms, tools and errors."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from edge.core.tool_calls import HERMES
from edge.core.types import Message, Sampling
from edge.testing.coordinator import ScriptedTerms
from tests.worlds.agent import HELP, World, local_answer
from tests.worlds.environments import environment
from tests.worlds.openai_agent import Served
from tests.worlds.served_agent import in_a_thread

pytestmark = pytest.mark.long  # installs the front ends in an environment of their own
FOLDER = Path(__file__).with_name("frontends")
TIMEOUT_S = 240
LOCAL, CLOUD = "\\boxed{2}", "\\boxed{5}"
CALL = f'{HERMES.mark}{{"name": "weather", "arguments": {{"city": "Bern"}}}}\n</tool_call>'


def scripted(messages: Sequence[Message], sampling: Sampling, seed: int) -> str:
    """Asks for the weather until it is told, and for help with 4 + 1; answers the rest, in a form where one is required."""
    text = messages[-1].content
    if "sunny in Bern" in text:
        return "It is sunny."
    if "weather" in text:
        return CALL
    if sampling.grammar:
        return '<think>\nStep 1: add\n</think>\n<answer>{"sum": 2, "text": "two"}'
    return HELP if "4 + 1" in text and not sampling.suppress_help else local_answer(2)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    world = World(tmp_path / "state", script=scripted, terms=ScriptedTerms(), calls=HERMES, context_tokens=2048)
    with in_a_thread(Served(world).open) as served:
        yield served


def found_by(script: str, url: str) -> dict[str, Any]:
    python = environment("frontends", FOLDER / "requirements.txt") / "bin" / "python"
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(python), script, url], env=environ, cwd=FOLDER, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_langchain(url: str) -> None:
    found = found_by("ask_by_langchain.py", url)
    assert (found["local"], found["cloud"], found["by_messages"]) == (LOCAL, CLOUD, LOCAL)
    assert found["streamed"] == LOCAL and found["usage"] > 0
    assert found["form"] == {"sum": 2, "text": "two"}
    assert found["calls"] == [["weather", {"city": "Bern"}]]
    assert found["after_calls"] == "It is sunny."
    assert found["too_long"] == "OpenAIContextOverflowError", "LangChain knows it by its words"
    assert (found["unknown_model"], found["no_server"]) == ("OpenAIModelNotFoundError", "OpenAIConnectionError")


def test_agents_sdk(url: str) -> None:
    found = found_by("ask_by_agents.py", url)
    assert found == {
        "OpenAIChatCompletionsModel": "It is sunny.",
        "OpenAIResponsesModel": "It is sunny.",
        "asked_for": ["Bern"] * 2,
    }
