"""Anthropic's Messages API and what its failures mean. How requests travel is in `http`.

A stream may report an error after it has begun: then the model was perhaps at work, and money follows. Whether status 529 (overloaded) is
such a doubt or a refusal is the operator's setting, since the API promises neither.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping

import msgspec

from coordinator.config import UpstreamConfig
from coordinator.providers.anthropic_wire import (
    MAY_BE_REPLACED,
    AnthropicUsage,
    AnthropicWireError,
    MessageStream,
    NotTranslatable,
    cost_in,
    decode_event,
    decode_message,
    request_body,
    result_of,
    translated,
    usage_of,
)
from coordinator.providers.http import ApiKey, HttpLimits, HttpReply, HttpUpstream, SseLines, endpoint_url
from coordinator.providers.provider import ProviderDelta, ProviderError, ProviderRequest, ProviderResult, bound_of_request

API_VERSION = "2023-06-01"
DEFAULT_BASE_URL = "https://api.anthropic.com/v1"
NOT_AS_IT_SHOULD_BE = "the upstream's answer is not what it should be"
_SYSTEM_PREAMBLE_TOKENS = 1024
_NOT_READ = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class AnthropicProvider:
    """CloudProvider over the Messages API. Raises ConfigError at once for a base URL that cannot be used."""

    def __init__(
        self, config: UpstreamConfig, name: str, *, limits: HttpLimits | None = None, environ: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self._overloaded_is_refusal = config.overloaded_is_refusal
        self._http = HttpUpstream(
            name,
            endpoint_url(config.base_url or DEFAULT_BASE_URL, "/messages", allow_plaintext=config.allow_plaintext),
            key=ApiKey(config.key_name, "x-api-key", "") if config.key_name else None,
            headers={"anthropic-version": API_VERSION},
            limits=limits or HttpLimits(),
            environ=environ,
            replaceable=MAY_BE_REPLACED,
        )

    async def start(self) -> None:
        """Open the connection pool. Raises ConfigError when the key's variable is not set. Safe to call twice."""
        await self._http.start()

    def input_token_bound(self, request: ProviderRequest) -> int:
        """A bound by bytes, with room for what the API puts before a prompt."""
        return bound_of_request(request, _SYSTEM_PREAMBLE_TOKENS)

    def why_not_openai(self, openai_json: str) -> str:
        """What of it this API has no word for."""
        try:
            translated(openai_json)
        except NotTranslatable as error:
            return str(error)
        return ""

    async def complete(self, request: ProviderRequest) -> ProviderResult:
        """Complete once. Raises ProviderError."""
        reply = await self._ask(request, streamed=False)
        try:
            data = await reply.whole()
        finally:
            reply.close()
        try:
            message = decode_message(data)
        except _NOT_READ as error:
            raise _garbage(NOT_AS_IT_SHOULD_BE, cost_in(data).usage) from error
        try:
            return result_of(message)
        except AnthropicWireError as error:
            raise _garbage(str(error), message.usage) from error

    async def stream(self, request: ProviderRequest) -> AsyncGenerator[ProviderDelta, None]:
        """Complete once, piece by piece. Raises ProviderError."""
        reply = await self._ask(request, streamed=True)
        lines, answer = SseLines(), MessageStream()
        unreadable: Exception | None = None
        try:
            while not answer.done and (chunk := await reply.piece()):
                for data in lines.feed(chunk):
                    try:
                        text = answer.add(decode_event(data))
                    except _NOT_READ as error:  # the rest of the stream reports what it costs
                        unreadable, text = unreadable or error, answer.add(cost_in(data))
                    if unreadable is None and text:
                        yield ProviderDelta(text)
            if unreadable is not None:
                raise AnthropicWireError(NOT_AS_IT_SHOULD_BE) from unreadable
            result = answer.result()
        except AnthropicWireError as error:
            raise _stream_error(error, answer) from error
        finally:
            reply.close()
        yield ProviderDelta("", result)

    async def aclose(self) -> None:
        """Close the connection pool. Safe to call twice."""
        await self._http.aclose()

    async def _ask(self, request: ProviderRequest, *, streamed: bool) -> HttpReply:
        try:
            body = request_body(request, streamed=streamed)
        except NotTranslatable as error:
            raise ProviderError(str(error), kind="bad_request", executed=False) from error
        try:
            return await self._http.post(body, request)
        except ProviderError as error:
            if error.kind == "http_529" and self._overloaded_is_refusal:
                error.executed = False
            raise


def _stream_error(error: AnthropicWireError, answer: MessageStream) -> ProviderError:
    """An error that the upstream reports in a stream leaves open how much was billed; a stream that is no message was executed, and costs
    what it said at its end."""
    if error.word:
        return ProviderError(f"{error} ({error.word})", kind=error.word, executed=None)
    return _garbage(str(error), answer.message.usage if answer.counted else None)


def _garbage(message: str, usage: AnthropicUsage | None) -> ProviderError:
    return ProviderError(message, kind="garbage", executed=True, usage=usage_of(usage))
