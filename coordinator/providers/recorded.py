"""Cassettes: answers that were recorded once (`edge-agent eval --record`) and are replayed without keys, network or cost. The file format
is edge.rpc.cassette: a cassette can be read by people and kept in a repository.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

from coordinator.config import UpstreamConfig
from coordinator.providers.provider import (
    ProviderDelta,
    ProviderError,
    ProviderRequest,
    ProviderResult,
    bound_of_request,
    pieces_of,
)
from edge.rpc.cassette import RecordedAnswer, answer_digest, read_cassette


class RecordedProvider:
    """CloudProvider over a cassette: what is not on it is refused."""

    def __init__(self, config: UpstreamConfig, name: str) -> None:
        self.name = name
        self._cassette = Path(config.path or "")
        self._answers: dict[str, RecordedAnswer] | None = None

    async def start(self) -> None:
        """Read the cassette. Raises ConfigError naming FILE:LINE of a bad line. Safe to call twice."""
        if self._answers is None:
            self._answers = read_cassette(self._cassette)

    def input_token_bound(self, request: ProviderRequest) -> int:
        """The recorded usage where there is one, else a bound by bytes."""
        known = self._answer(request)
        return bound_of_request(request) if known is None or known.usage is None else known.usage.input_tokens

    def why_not_openai(self, openai_json: str) -> str:
        """It can play whatever was recorded."""
        return ""

    async def complete(self, request: ProviderRequest) -> ProviderResult:
        """Replay. Raises ProviderError (`not_recorded`, not executed)."""
        await self.start()
        known = self._answer(request)
        if known is None:
            raise ProviderError("the cassette holds no answer to this request", kind="not_recorded", executed=False)
        return ProviderResult(known.text, known.usage, known.upstream_id, known.finish, known.beyond_text)

    async def stream(self, request: ProviderRequest) -> AsyncGenerator[ProviderDelta, None]:
        """The same, word by word."""
        result = await self.complete(request)
        for piece in pieces_of(result.text):
            yield ProviderDelta(piece)
        yield ProviderDelta("", result)

    async def aclose(self) -> None:
        """Nothing is open."""

    def _answer(self, request: ProviderRequest) -> RecordedAnswer | None:
        content = (request.messages, request.model, request.max_output_tokens, request.temperature, request.openai_json)
        return (self._answers or {}).get(answer_digest(*content))
