"""Any server that speaks OpenAI's chat completions (OpenAI, DeepSeek, vLLM, llama.cpp server, LiteLLM). How requests travel and what a
failure means is in `http`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping

import msgspec

from coordinator.config import UpstreamConfig
from coordinator.providers.http import ApiKey, HttpLimits, HttpReply, HttpUpstream, SseLines, endpoint_url
from coordinator.providers.openai_wire import (
    MAY_BE_REPLACED,
    OpenAIAnswer,
    WireError,
    decode_answer,
    request_body,
    result_of,
    usage_in,
    usage_of,
)
from coordinator.providers.provider import ProviderDelta, ProviderError, ProviderRequest, ProviderResult, bound_of_request
from coordinator.providers.reported import reported_error

JSON, EVENTS = "application/json", "text/event-stream"
UNREADABLE = "its JSON cannot be read"
NO_STREAM = "the upstream's answer is no stream of events"


class OpenAICompatibleProvider:
    """CloudProvider over HTTP. Raises ConfigError at once for a base URL that cannot be used."""

    def __init__(
        self, config: UpstreamConfig, name: str, *, limits: HttpLimits | None = None, environ: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self._tokens_field = config.tokens_field
        self._http = HttpUpstream(
            name,
            endpoint_url(config.base_url or "", "/chat/completions", allow_plaintext=config.allow_plaintext),
            key=ApiKey(config.key_name) if config.key_name else None,
            limits=limits or HttpLimits(),
            environ=environ,
            replaceable=MAY_BE_REPLACED,
        )

    async def start(self) -> None:
        """Open the connection pool. Raises ConfigError when the key's variable is not set. Safe to call twice."""
        await self._http.start()

    def input_token_bound(self, request: ProviderRequest) -> int:
        """A bound by bytes."""
        return bound_of_request(request)

    def why_not_openai(self, openai_json: str) -> str:
        """It asks everything, as it is."""
        return ""

    async def complete(self, request: ProviderRequest) -> ProviderResult:
        """Complete once. Raises ProviderError."""
        body = request_body(request, self._tokens_field, streamed=False)
        reply = await self._http.post(body, request)
        try:
            answer = await reply.whole()
        finally:
            reply.close()
        return _finished(_decoded(answer, request, _wanted(reply, JSON)), whole=True)

    async def stream(self, request: ProviderRequest) -> AsyncGenerator[ProviderDelta, None]:
        """Complete once, piece by piece. Raises ProviderError."""
        body = request_body(request, self._tokens_field, streamed=True)
        reply = await self._http.post(body, request)
        lines, answer = SseLines(), OpenAIAnswer()
        unreadable: _Unreadable | None = None
        try:
            chunk = await reply.visible_piece()
            if chunk.startswith(b"{"):  # no event begins so: the server does not stream, its answer comes in one piece
                result = _finished(_decoded(chunk + await reply.whole(), request, _wanted(reply, JSON)), whole=True)
                yield ProviderDelta(result.text)
                yield ProviderDelta("", result)
                return
            while chunk:
                for data in lines.feed(chunk):
                    try:
                        text = answer.add(_decoded(data, request, so_far=answer))
                    except _Unreadable as error:  # the rest of the stream reports what it costs
                        unreadable, answer.usage = unreadable or error, usage_in(data) or answer.usage
                    if unreadable is None and text:
                        yield ProviderDelta(text)
                chunk = b"" if lines.done else await reply.piece()
        finally:
            reply.close()
        if unreadable is not None:
            unreadable.usage = usage_of(answer.usage)
            raise unreadable
        if answer == OpenAIAnswer() and reply.media_type != EVENTS:
            raise ProviderError(NO_STREAM, kind="garbage", executed=True, hint=_wanted(reply, EVENTS))
        yield ProviderDelta("", _finished(answer, whole=False))

    async def aclose(self) -> None:
        """Close the connection pool. Safe to call twice."""
        await self._http.aclose()


class _Unreadable(ProviderError):
    """An answer, or an event of one, that is no JSON or has other types."""


def _wanted(reply: HttpReply, media_type: str) -> str:
    """What came instead of what was asked for."""
    return UNREADABLE if reply.media_type == media_type else f"it answered {reply.media_type}, {media_type} was wanted"


def _decoded(data: bytes, request: ProviderRequest, hint: str = UNREADABLE, so_far: OpenAIAnswer | None = None) -> OpenAIAnswer:
    """An answer or an event of one. Raises ProviderError, where the upstream reports an error in its own words."""
    reported = reported_error(data)
    if reported is not None:
        words = reported.words(request)
        raise _garbage(f"the upstream reported an error in its answer{words and f': {words}'}", so_far or OpenAIAnswer())
    try:
        return decode_answer(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        message, usage = "the upstream's answer is not what it should be", usage_of(usage_in(data))
        raise _Unreadable(message, kind="garbage", executed=True, usage=usage, hint=hint) from error


def _finished(answer: OpenAIAnswer, *, whole: bool) -> ProviderResult:
    try:
        return result_of(answer, whole=whole)
    except WireError as error:
        raise _garbage(str(error), answer) from error


def _garbage(message: str, answer: OpenAIAnswer) -> ProviderError:
    return ProviderError(message, kind="garbage", executed=True, usage=usage_of(answer.usage))
