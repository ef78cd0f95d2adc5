"""An agent behind OpenAI's API, with a scripted model and a cloud that can call tools; and the official client of it."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import openai

from edge.core.clock import SystemClock
from edge.rpc.client import CloudCall, CloudDelta
from edge.serve.endpoint import build_app
from edge.serve.running_agent import AgentAnswers, RunningAgent
from edge.serve.server import serving
from edge.testing.coordinator import ScriptedCoordinatorClient
from tests.worlds.agent import HELP, World, local_answer

QUESTION: Any = [{"role": "user", "content": "What is 4 + 1?"}]
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Bern"}'}}
TOOL_CALLS = json.dumps({"finish_reason": "tool_calls", "tool_calls": [CALL]})
TOKEN = "a-token-of-enough-letters"


class CallsTools:
    """The scripted coordinator, whose cloud LLM calls the tools it is given."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.sent: list[CloudCall] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    async def stream_complete(self, call: CloudCall, deadline_s: float) -> AsyncIterator[CloudDelta]:
        self.sent.append(call)
        tools = "tools" in json.loads(call.openai_json or "{}")
        async for delta in self.client.stream_complete(call, deadline_s):
            if delta.completion is not None and tools:
                delta = replace(delta, completion=replace(delta.completion, openai_json=TOOL_CALLS))
            yield delta if delta.completion is not None or not tools else replace(delta, text="")


def scripted(messages: Any, sampling: Any, seed: int) -> str:
    """Asks for help with 4 + 1, answers the rest, and writes a form where one is required."""
    text = messages[-1].content
    if sampling.grammar:
        thought = "hard" if "4 + 1" in text else "add"
        return f'<think>\nStep 1: {thought}\n</think>\n<answer>{{"sum": 2, "text": "</answer>"}}'
    return HELP if "4 + 1" in text and not sampling.suppress_help else local_answer(2)


class Served:
    """A served agent, with the calls its cloud received."""

    def __init__(self, world: World, token: str = "") -> None:
        self.world = world
        self.cloud = CallsTools(ScriptedCoordinatorClient(lambda call: local_answer(5), terms=world.terms))
        world.client = self.cloud  # type: ignore[assignment]
        self._token = token

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        async with self.world.agent() as agent:
            self.agent = agent
            app = build_app(AgentAnswers(agent), RunningAgent(agent), SystemClock(), token=self._token, context_tokens=1024)
            async with serving(app, "127.0.0.1", 0) as url:
                yield url

    def idle(self) -> bool:
        """Whether no request is being served, within some seconds."""
        pause = threading.Event()
        return any(not self.agent.precedence.busy or pause.wait(0.01) for _ in range(1000))


def client_of(url: str, key: str = "none", **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, **options)


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(**{"model": "edge", "messages": QUESTION, **fields})
