"""A CloudProvider that plays a script: answers, delays, failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path

from coordinator.providers.provider import (
    ProviderDelta,
    ProviderError,
    ProviderRequest,
    ProviderResult,
    bound_of_request,
    pieces_of,
)
from edge.core.types import TokenUsage
from edge.rpc.cassette import RecordedAnswer, answer_digest, append_answer

USUAL_USAGE = TokenUsage(20, 10)


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    """Answer with `text` after `delay_s`. `usage` None: the upstream does not report it."""

    text: str = "<answer>\\boxed{42}</answer>"
    usage: TokenUsage | None = USUAL_USAGE
    finish: str = "stop"
    delay_s: float = 0.0
    beyond_text: str = ""


@dataclass(frozen=True, slots=True)
class ScriptedFailure:
    """Fail without reporting whether the call was executed."""


Act = ScriptedAnswer | ScriptedFailure
Script = Callable[[ProviderRequest], Act]


def always(act: Act) -> Script:
    """The same act for every request."""
    return lambda request: act


def in_turn(*acts: Act) -> Script:
    """One act after the other; the last one for all that follow. Raises ValueError without any."""
    if not acts:
        raise ValueError("a script needs at least one act")
    position = iter(range(len(acts) - 1))
    return lambda request: acts[next(position, -1)]


class ScriptedProvider:
    """CloudProvider with a script. `requests` lists the received requests in order."""

    def __init__(self, script: Script | None = None, *, name: str = "scripted") -> None:
        self.name = name
        self.requests: list[ProviderRequest] = []
        self._script = script or always(ScriptedAnswer())

    async def start(self) -> None:
        """Nothing to start."""

    def input_token_bound(self, request: ProviderRequest) -> int:
        """A bound by bytes."""
        return bound_of_request(request)

    def why_not_openai(self, openai_json: str) -> str:
        """A script may answer anything."""
        return ""

    async def complete(self, request: ProviderRequest) -> ProviderResult:
        """Play one act. Raises ProviderError."""
        return await self._play(request, self._next(request))

    async def stream(self, request: ProviderRequest) -> AsyncGenerator[ProviderDelta, None]:
        """Run one act and stream its text word by word. Raises ProviderError."""
        result = await self._play(request, self._next(request))
        for piece in pieces_of(result.text):
            yield ProviderDelta(piece)
        yield ProviderDelta("", result)

    async def aclose(self) -> None:
        """Nothing to close."""

    def _next(self, request: ProviderRequest) -> Act:
        self.requests.append(request)
        return self._script(request)

    async def _play(self, request: ProviderRequest, act: Act) -> ProviderResult:
        if isinstance(act, ScriptedFailure):
            raise ProviderError("the script failed", kind="http_500", executed=None)
        await asyncio.sleep(min(act.delay_s, request.deadline_s))
        if act.delay_s > request.deadline_s:
            raise ProviderError("the script did not answer in time", kind="deadline", executed=None)
        return ProviderResult(act.text, act.usage, "scripted", act.finish, act.beyond_text)


async def record(cassette: Path, request: ProviderRequest, source: ScriptedProvider) -> ProviderResult:
    """Put what the source answers onto a cassette."""
    result = await source.complete(request)
    content = (request.messages, request.model, request.max_output_tokens, request.temperature, request.openai_json)
    answer = RecordedAnswer(result.text, result.usage, result.upstream_id, result.finish, beyond_text=result.beyond_text)
    append_answer(cassette, answer_digest(*content), answer)
    return result
