"""Cassettes: answers of another provider, recorded once and replayed without keys, network or cost. The file format is
edge.rpc.cassette: a cassette can be read by people and kept in a repository.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

from coordinator.providers.provider import (
    CloudProvider,
    ProviderDelta,
    ProviderError,
    ProviderRequest,
    ProviderResult,
    bound_of_request,
    pieces_of,
    why_not_openai,
)
from edge.rpc.cassette import RecordedAnswer, answer_digest, append_answer, open_for_recording, read_cassette


def request_digest(request: ProviderRequest) -> str:
    """What a recorded answer is found by."""
    return answer_digest(request.messages, request.model, request.max_output_tokens, request.temperature, request.openai_json)


class RecordedProvider:
    """CloudProvider over a cassette: replays what is recorded; asks `source` for the rest and records it, or without one refuses."""

    def __init__(self, cassette: Path, source: CloudProvider | None = None, *, name: str = "recorded") -> None:
        self.name = name
        self._cassette = cassette
        self._source = source
        self._results: dict[str, ProviderResult] | None = None

    async def start(self) -> None:
        """Read the cassette. Raises ConfigError naming FILE:LINE of a bad line. Safe to call twice."""
        if self._results is None:
            self._results = _read_results(self._cassette, recording=self._source is not None)
        if self._source is not None:
            await self._source.start()

    def input_token_bound(self, request: ProviderRequest) -> int:
        """The recorded usage where there is one, else the source's bound, else one by bytes."""
        known = (self._results or {}).get(request_digest(request))
        if known is not None and known.usage is not None:
            return known.usage.input_tokens
        if self._source is not None:
            return self._source.input_token_bound(request)
        return bound_of_request(request)

    def why_not_openai(self, openai_json: str) -> str:
        """Why its source cannot ask this; without a source it can play what was recorded."""
        return "" if self._source is None else why_not_openai(self._source, openai_json)

    async def complete(self, request: ProviderRequest) -> ProviderResult:
        """Replay, or ask and record. Raises ProviderError (`not_recorded`, not executed) when neither is possible."""
        await self.start()
        digest = request_digest(request)
        known = self._recorded(digest)
        if known is not None:
            return known
        if self._source is None:
            raise ProviderError("the cassette holds no answer to this request", kind="not_recorded", executed=False)
        return self._record(request, await self._source.complete(request))

    async def stream(self, request: ProviderRequest) -> AsyncGenerator[ProviderDelta, None]:
        """The same, word by word."""
        result = await self.complete(request)
        for piece in pieces_of(result.text):
            yield ProviderDelta(piece)
        yield ProviderDelta("", result)

    async def aclose(self) -> None:
        """Close the source."""
        if self._source is not None:
            await self._source.aclose()

    def _recorded(self, digest: str) -> ProviderResult | None:
        return None if self._results is None else self._results.get(digest)

    def _record(self, request: ProviderRequest, result: ProviderResult) -> ProviderResult:
        assert self._results is not None
        digest = request_digest(request)
        self._results[digest] = result
        answer = RecordedAnswer(
            result.text,
            result.usage,
            result.upstream_id,
            result.finish,
            model=request.model,
            max_output_tokens=request.max_output_tokens,
            beyond_text=result.beyond_text,
        )
        append_answer(self._cassette, digest, answer)
        return result


def _read_results(path: Path, *, recording: bool) -> dict[str, ProviderResult]:
    answers = open_for_recording(path) if recording else read_cassette(path)
    return {digest: _result_of(one) for digest, one in answers.items()}


def _result_of(one: RecordedAnswer) -> ProviderResult:
    return ProviderResult(one.text, one.usage, one.upstream_id, one.finish, one.beyond_text)
