"""Any server that speaks OpenAI's chat completions (OpenAI, DeepSeek, vLLM, llama.cpp server, LiteLLM), and its JSON, whole or as the
events of a stream. How requests travel and what a failure means is in `http`.

Fields that we do not read are skipped, so that every dialect passes; what we read must have its type.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Annotated, Any

import msgspec

from coordinator.config import UpstreamConfig
from coordinator.providers.http import ApiKey, HttpLimits, HttpReply, HttpUpstream, SseLines, endpoint_url
from coordinator.providers.provider import (
    ProviderDelta,
    ProviderError,
    ProviderRequest,
    ProviderResult,
    bound_of_request,
    openai_parts,
    short_word,
)
from coordinator.providers.reported import reported_error
from edge.core.types import TokenUsage

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
        return result_of(_decoded(answer, request, _wanted(reply, JSON)), whole=True)

    async def stream(self, request: ProviderRequest) -> AsyncGenerator[ProviderDelta, None]:
        """Complete once, piece by piece. Raises ProviderError."""
        body = request_body(request, self._tokens_field, streamed=True)
        reply = await self._http.post(body, request)
        lines, answer = SseLines(), OpenAIAnswer()
        unreadable: _Unreadable | None = None
        try:
            chunk = await reply.visible_piece()
            if chunk.startswith(b"{"):  # no event begins so: the server does not stream, its answer comes in one piece
                result = result_of(_decoded(chunk + await reply.whole(), request, _wanted(reply, JSON)), whole=True)
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
        yield ProviderDelta("", result_of(answer, whole=False))

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
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        message, usage = "the upstream's answer is not what it should be", usage_of(usage_in(data))
        raise _Unreadable(message, kind="garbage", executed=True, usage=usage, hint=hint) from error


def _garbage(message: str, answer: OpenAIAnswer) -> ProviderError:
    return ProviderError(message, kind="garbage", executed=True, usage=usage_of(answer.usage))


MAY_BE_REPLACED = {
    "temperature": "",
    "stream": "",
    "stream_options": "",
    "max_tokens": "max_completion_tokens",
    "max_completion_tokens": "max_tokens",
}
"""The fields of a request that may be left out, or sent by another name, where a model does not take them. Without `stream` an answer comes
in one piece; without `stream_options` a stream may not report its usage, and is charged at its hold."""


Tokens = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class OpenAIUsage(msgspec.Struct):
    """Tokens billed."""

    prompt_tokens: Tokens
    completion_tokens: Tokens
    total_tokens: Tokens = 0
    """Some count tokens of reasoning here alone; they are billed as output."""


class Text(msgspec.Struct):
    """A message, or a piece of one."""

    content: Any = None
    """A text or a list of parts."""
    tool_calls: list[dict[str, Any]] | None = None
    """Kept as they come, with what we do not know of them."""
    refusal: str | None = None

    def add(self, piece: Text) -> str:
        """Take in a piece; returns the text it brings."""
        text = piece.text() or ""
        self.content = (self.content or "") + text
        if (refusal := piece.refused()) is not None:
            self.refusal = (self.refusal or "") + refusal
        for call in piece.tool_calls or ():
            self.tool_calls = self.tool_calls or []
            _add_call(self.tool_calls, call)
        return text

    def text(self) -> str | None:
        """The text of its content, None without any. Parts of other kinds, such as a model's thoughts, are no answer."""
        return self._joined("text", "output_text")

    def refused(self) -> str | None:
        """Its refusal, also where that is a part of its content; None without any."""
        return self.refusal if self.refusal is not None else self._joined("refusal")

    def _joined(self, *kinds: str) -> str | None:
        """The parts of these kinds, each in a field called as the first of them; a bare text is a part of the kind `text`."""
        content = self.content if isinstance(self.content, list) else [self.content]
        parts = ({"text": part} if isinstance(part, str) else part for part in content)
        found = [part.get(kinds[0]) for part in parts if isinstance(part, dict) and part.get("type", "text") in kinds]
        texts = [text for text in found if isinstance(text, str)]
        return "".join(texts) if texts else None

    def beyond_text(self) -> str:
        """JSON text of what there is other than the content, "" for nothing."""
        calls = [{name: value for name, value in call.items() if name != "index"} for call in self.tool_calls or ()]
        parts = {"tool_calls": calls, "refusal": self.refused()}
        found = {name: value for name, value in parts.items() if value}
        return _encoder.encode(found).decode() if found else ""


class OpenAIChoice(msgspec.Struct):
    """One alternative; we ask for one only."""

    index: int = 0
    message: Text | None = None
    delta: Text | None = None
    finish_reason: str | None = None


class OpenAIAnswer(msgspec.Struct):
    """A whole answer, or one event of a stream; `add` puts events together."""

    id: Any = None
    """As it came, like `usage`: what makes no sense in them must not cost the answer."""
    choices: list[OpenAIChoice] | None = None
    usage: Any = None

    def add(self, event: OpenAIAnswer) -> str:
        """Take in an event of a stream; returns the text it brings."""
        self.id = self.id or event.id
        self.usage = event.usage or self.usage
        piece = next((choice for choice in event.choices or () if choice.index == 0), None)
        if piece is None:
            return ""
        if not self.choices:
            self.choices = [OpenAIChoice(message=Text())]
        whole = self.choices[0]
        whole.finish_reason = piece.finish_reason or whole.finish_reason
        assert whole.message is not None
        return whole.message.add(piece.delta or Text())


def _add_call(calls: list[dict[str, Any]], piece: dict[str, Any]) -> None:
    """Take in a piece of a call. Servers name by `index` the call it belongs to; some leave that out, some give all calls the same."""
    index = piece.get("index", len(calls) - 1 if "id" not in piece else len(calls))
    known = next((call for call in reversed(calls) if call["index"] == index), None)
    if known is None or _begins_another(known, piece):
        calls.append({"type": "function", **piece, "index": index})
        return
    _merge(known, piece)


def _begins_another(known: dict[str, Any], piece: dict[str, Any]) -> bool:
    """With an id and a name of its own; an id alone proves nothing, since some servers make a new one up for each piece."""
    named = isinstance(piece.get("function"), dict) and piece["function"].get("name")
    return bool(named and piece.get("id") and known.get("id") and piece["id"] != known["id"])


def _merge(known: dict[str, Any], piece: dict[str, Any]) -> None:
    """The texts that grow are joined; of anything else the first that is not empty stays."""
    for name, value in piece.items():
        before = known.get(name)
        if isinstance(before, dict) and isinstance(value, dict):
            _merge(before, value)
        elif name in _GROWING and isinstance(before, str) and isinstance(value, str):
            known[name] = before + value
        elif before in (None, ""):
            known[name] = value


_GROWING = frozenset({"arguments", "input"})


class _UsageAlone(msgspec.Struct):
    usage: Any = None


_decoder = msgspec.json.Decoder(OpenAIAnswer)
_usage_decoder = msgspec.json.Decoder(_UsageAlone)
_encoder = msgspec.json.Encoder()


def request_body(request: ProviderRequest, tokens_field: str, *, streamed: bool) -> dict[str, object]:
    """What to send; OpenAI's fields byte for byte as the client sent them."""
    body: dict[str, object] = {
        "model": request.model,
        "messages": [{"role": turn.role, "content": turn.content} for turn in request.messages],
        tokens_field: request.max_output_tokens,
        "stream": streamed,
    }
    if request.temperature is not None:
        body["temperature"] = request.temperature
    if streamed:
        body["stream_options"] = {"include_usage": True}
    return {**body, **openai_parts(request)}


def usage_in(data: bytes | bytearray) -> Any:
    """The usage as it came in JSON whose other fields cannot be read, None without any."""
    try:
        return _usage_decoder.decode(data).usage
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def usage_of(reported: Any) -> TokenUsage | None:
    """The usage an upstream reported, None when it is missing or makes no sense. Some write numbers as text."""
    try:
        usage = msgspec.convert(reported, OpenAIUsage, strict=False)
    except msgspec.ValidationError:
        return None
    return TokenUsage(usage.prompt_tokens, max(usage.completion_tokens, usage.total_tokens - usage.prompt_tokens))


def result_of(answer: OpenAIAnswer, *, whole: bool) -> ProviderResult:
    """A finished answer. Raises ProviderError when it holds neither text nor calls of tools, or is a stream that is not marked as finished.

    `whole`: it came in one piece, which cannot break off unnoticed if it has its usage; without text it is a model that has used up its
    tokens by reasoning.
    """
    choice = answer.choices[0] if answer.choices else None
    message = choice.message if choice is not None else None
    text = message.text() if message is not None else None
    beyond_text = message.beyond_text() if message is not None else ""
    usage = usage_of(answer.usage)
    ran_out = whole and message is not None and choice is not None and choice.finish_reason == "length" and usage is not None
    if choice is None or (text is None and not beyond_text and not ran_out):
        raise _garbage("the upstream's answer holds no text", answer)
    if not choice.finish_reason and not (whole and usage is not None):
        raise _garbage("the upstream's answer is not finished", answer)
    if not (text or beyond_text) and usage is None:  # how proxies end a stream whose own upstream broke off
        raise _garbage("the upstream's answer is empty and reports no usage", answer)
    words = (short_word(answer.id if isinstance(answer.id, str) else ""), short_word(choice.finish_reason or "stop"))
    return ProviderResult(text or "", usage, *words, beyond_text)
