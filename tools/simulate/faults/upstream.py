"""A cloud LLM that misbehaves, with a log of its own.

It is outside of the coordinator and lives on when that one dies. Its log is one of the three that the checker reads.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from coordinator.providers.provider import ProviderDelta, ProviderError, ProviderRequest, ProviderResult
from edge.core.types import TokenUsage
from tools.simulate.virtual.loop import is_alive

INPUT_BOUND, MAX_OUTPUT_TOKENS = 40, 8
"""The most tokens of each call."""
ACTS = (
    "answer",
    "lose_reply",
    "never_arrive",
    "refuse",
    "reject",
    "break_after",
    "garbage",
    "no_usage",
    "overstate",
    "understate",
)


@dataclass(frozen=True, slots=True)
class UpstreamEvent:
    """One line of the upstream's log. `what` is received, executed, answered or garbage; `usage` what it used or reports (None: not
    reported)."""

    at: float
    key: str
    what: str
    copy: bool = False
    usage: tuple[int, int] | None = None
    text: str = ""


@dataclass(slots=True)
class UpstreamMood:
    """Share of each act but answering, the share of requests delivered twice, and the longest time an answer takes in seconds."""

    acts: dict[str, float]
    duplicate: float = 0.0
    slow_s: float = 0.5


class SimulatedUpstream:
    """A CloudProvider and its server. An idempotency key that was executed is not executed again."""

    name = "simulated"

    def __init__(self, loop: asyncio.AbstractEventLoop, rng: random.Random, mood: UpstreamMood) -> None:
        self.log: list[UpstreamEvent] = []
        self.mood = mood
        self._loop = loop
        self._rng = rng
        self._outside = contextvars.Context()
        self._answers: dict[str, ProviderResult] = {}

    async def start(self) -> None:
        """Nothing to start."""

    async def aclose(self) -> None:
        """Nothing to close."""

    def input_token_bound(self, request: ProviderRequest) -> int:
        """The same for all."""
        return INPUT_BOUND

    async def complete(self, request: ProviderRequest) -> ProviderResult:
        """Ask over the network; the reply may never come. Raises ProviderError."""
        reply: asyncio.Future[ProviderResult] = self._loop.create_future()
        self._send(request, reply)
        try:
            async with asyncio.timeout(request.deadline_s):
                return await reply
        except TimeoutError:
            raise ProviderError("no answer in time", kind="deadline", executed=None) from None

    async def stream(self, request: ProviderRequest) -> AsyncGenerator[ProviderDelta, None]:
        """The answer in two pieces. Raises ProviderError."""
        result = await self.complete(request)
        middle = len(result.text) // 2
        yield ProviderDelta(result.text[:middle])
        await asyncio.sleep(0.01)
        yield ProviderDelta(result.text[middle:])
        yield ProviderDelta("", result)

    def _send(self, request: ProviderRequest, reply: asyncio.Future[ProviderResult]) -> None:
        if not is_alive():
            return
        act = self._choose()
        if act == "never_arrive":
            return
        if act == "refuse":
            error = ProviderError("the connection was refused", kind="refused", executed=False)
            self._later(0.01, _end, reply, error)
            return
        copies = 2 if self._rng.random() < self.mood.duplicate else 1
        for copy in range(copies):
            delay_s = self._rng.uniform(0.001, 0.05) + copy * self._rng.uniform(0.0, 1.0)
            self._later(delay_s, self._receive, request, reply, act, copy > 0)

    def _choose(self) -> str:
        draw = self._rng.random()
        for act, share in self.mood.acts.items():
            if draw < share:
                return act
            draw -= share
        return "answer"

    def _receive(self, request: ProviderRequest, reply: asyncio.Future[ProviderResult], act: str, copy: bool) -> None:
        key = request.idempotency_key
        self._note(key, "received", copy)
        if act == "reject":
            self._later(0.01, _end, reply, ProviderError("rejected", kind="http_400", executed=False))
        elif key in self._answers:
            self._reply(key, reply, act)
        else:
            self._later(self._rng.uniform(0.01, self.mood.slow_s), self._execute, request, reply, act)

    def _execute(self, request: ProviderRequest, reply: asyncio.Future[ProviderResult], act: str) -> None:
        key = request.idempotency_key
        if key not in self._answers:
            used = TokenUsage(self._rng.randint(5, INPUT_BOUND), self._rng.randint(1, request.max_output_tokens))
            text = f"answer {len(self._answers)} to {request.messages[-1].content} for {key.split('|')[0]}"
            self._answers[key] = ProviderResult(text, used, f"up-{len(self._answers)}", "stop")
            self._note(key, "executed", usage=(used.input_tokens, used.output_tokens), text=text)
        self._reply(key, reply, act)

    def _reply(self, key: str, reply: asyncio.Future[ProviderResult], act: str) -> None:
        result = self._answers[key]
        assert result.usage is not None
        if act == "lose_reply":
            return
        if act == "break_after":
            self._later(0.01, _end, reply, ProviderError("the connection broke", kind="cut", executed=None))
            return
        reported = _reported_usage(act, result.usage)
        self._note(
            key,
            "garbage" if act == "garbage" else "answered",
            usage=(reported.input_tokens, reported.output_tokens) if reported else None,
        )
        if act == "garbage":
            self._later(0.01, _end, reply, ProviderError("no answer in it", kind="garbage", executed=True, usage=reported))
        else:
            self._later(0.01, _end, reply, ProviderResult(result.text, reported, result.upstream_id, "stop"))

    def _note(self, key: str, what: str, copy: bool = False, usage: tuple[int, int] | None = None, text: str = "") -> None:
        self.log.append(UpstreamEvent(self._loop.time(), key, what, copy, usage, text))

    def _later(self, delay_s: float, do: Any, *args: Any) -> None:
        self._loop.call_later(delay_s, do, *args, context=self._outside)


def _reported_usage(act: str, used: TokenUsage) -> TokenUsage | None:
    if act == "no_usage":
        return None
    if act == "overstate":
        return TokenUsage(used.input_tokens * 10, used.output_tokens * 10)
    if act == "understate":
        return TokenUsage(1, 1)
    return used


def _end(reply: asyncio.Future[ProviderResult], how: ProviderResult | ProviderError) -> None:
    if reply.done():
        return
    if isinstance(how, ProviderError):
        reply.set_exception(how)
    else:
        reply.set_result(how)
