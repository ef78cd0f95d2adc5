"""Anthropic's Messages API: the provider, its JSON, what its failures mean, and OpenAI's tools translated into it and back. How requests
travel is in `http`.

Fields and events that we do not read are skipped, so that additions pass; what we read must have its type. What that API has no word for
is NotTranslatable, so that it is refused before it is sent rather than left out.

A stream may report an error after it has begun: then the model was perhaps at work, and money follows. Whether status 529 (overloaded) is
such a doubt or a refusal is the operator's setting, since the API promises neither.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from coordinator.config import UpstreamConfig
from coordinator.providers.http import ApiKey, HttpLimits, HttpReply, HttpUpstream, SseLines, endpoint_url
from coordinator.providers.provider import (
    ProviderDelta,
    ProviderError,
    ProviderRequest,
    ProviderResult,
    bound_of_request,
    short_word,
)
from edge.core.types import TokenUsage
from edge.rpc.openai_fields import SAMPLING

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
            message = _message_decoder.decode(data)
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
                        text = answer.add(_event_decoder.decode(data))
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


_MOST_TOKENS = 2**53
_HOTTEST = 1.0
MAY_BE_REPLACED = {"temperature": ""}
"""The fields of a request that may be left out where a model does not take them."""
_CHOICES = {"auto": "auto", "none": "none", "required": "any"}
_NO_PARAMETERS = {"type": "object", "properties": {}}
_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
}
ERROR_WORDS = frozenset(
    {
        "invalid_request_error",
        "authentication_error",
        "billing_error",
        "permission_error",
        "not_found_error",
        "request_too_large",
        "rate_limit_error",
        "timeout_error",
        "api_error",
        "overloaded_error",
    }
)


class AnthropicWireError(ValueError):
    """Well-formed JSON that is no message; `word` is the upstream's own word for an error that it reports in a stream."""

    def __init__(self, message: str, word: str = "") -> None:
        super().__init__(message)
        self.word = word


class AnthropicUsage(msgspec.Struct):
    """Tokens as billed; None where an event does not report them. Input tokens exclude those read from and written to a prompt cache."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None

    def updated(self, later: AnthropicUsage | None) -> AnthropicUsage:
        """This with a later event's numbers; counts of a stream are totals so far."""
        if later is None:
            return self
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(later), strict=True)
        return AnthropicUsage(*(old if new is None else new for old, new in pairs))


class Content(msgspec.Struct):
    """A block of an answer: text, or a call of a tool with its input as JSON."""

    type: str = ""
    text: str | None = None
    id: str = ""
    name: str = ""
    input: msgspec.Raw = msgspec.Raw(b"")


class Delta(msgspec.Struct):
    """What an event changes: text of a block, or how the message ended."""

    type: str = ""
    text: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class Failure(msgspec.Struct):
    """What went wrong, in the upstream's word."""

    type: str = ""


class AnthropicMessage(msgspec.Struct):
    """A whole answer, or what a stream begins with."""

    id: str | None = None
    content: list[Content] | None = None
    stop_reason: str | None = None
    usage: AnthropicUsage | None = None


class AnthropicEvent(msgspec.Struct):
    """One event of a stream."""

    type: str
    index: int = 0
    content_block: Content | None = None
    message: AnthropicMessage | None = None
    delta: Delta | None = None
    usage: AnthropicUsage | None = None
    error: Failure | None = None


class MessageStream:
    """Puts the events of a stream together. `done` once the message has stopped; `counted` once it has said what it cost."""

    def __init__(self) -> None:
        self.done = self.counted = False
        self.message = AnthropicMessage(content=[], usage=AnthropicUsage())
        self._texts: list[str] = []
        self._calls: dict[int, tuple[Content, list[str]]] = {}

    def add(self, event: AnthropicEvent) -> str:
        """Take in an event; returns the text it brings. Raises AnthropicWireError when the upstream reports an error."""
        match event.type:
            case "error":
                word = event.error.type if event.error else ""
                raise AnthropicWireError("the upstream reported an error in its stream", word if word in ERROR_WORDS else "")
            case "message_start" if event.message is not None:
                self.message.id = event.message.id
                self._count(event.message.usage)
            case "content_block_delta" if event.delta is not None and event.delta.type == "text_delta":
                self._texts.append(event.delta.text or "")
                return self._texts[-1]
            case "content_block_start" if event.content_block is not None and event.content_block.type == "tool_use":
                self._calls[event.index] = (event.content_block, [])
            case "content_block_delta" if event.delta is not None and event.index in self._calls:
                self._calls[event.index][1].append(event.delta.partial_json or "")
            case "message_delta":
                self.message.stop_reason = event.delta.stop_reason if event.delta else None
                self.counted = event.usage is not None
                self._count(event.usage)
            case "message_stop":
                self.done = True
        return ""

    def result(self) -> ProviderResult:
        """The whole. Raises AnthropicWireError when it is not marked as finished."""
        calls = [Content(block.type, None, block.id, block.name, _raw(pieces)) for block, pieces in self._calls.values()]
        self.message.content = [Content("text", "".join(self._texts)), *calls]
        return result_of(self.message)

    def _count(self, usage: AnthropicUsage | None) -> None:
        self.message.usage = (self.message.usage or AnthropicUsage()).updated(usage)


class _CostAlone(msgspec.Struct):
    type: str = ""
    usage: AnthropicUsage | None = None


_message_decoder = msgspec.json.Decoder(AnthropicMessage)
_cost_decoder = msgspec.json.Decoder(_CostAlone)
_event_decoder = msgspec.json.Decoder(AnthropicEvent)
_encoder = msgspec.json.Encoder()


def request_body(request: ProviderRequest, *, streamed: bool) -> dict[str, object]:
    """What to send. System turns go into the field of their own; temperatures above 1, which this API does not know, are sent as 1.

    Raises NotTranslatable for a conversation of system turns alone, and when OpenAI's fields hold what this API has no word for.
    """
    system = "\n\n".join(turn.content for turn in request.messages if turn.role == "system")
    turns = [{"role": turn.role, "content": turn.content} for turn in request.messages if turn.role != "system"]
    body: dict[str, object] = {
        "model": request.model,
        "max_tokens": request.max_output_tokens,
        "stream": streamed,
    }
    if request.temperature is not None:
        body["temperature"] = min(_HOTTEST, request.temperature)
    fields = translated(request.openai_json) if request.openai_json else {}
    if "messages" not in fields:
        fields |= conversation(turns, system)
    return {**body, **fields}


def cost_in(data: bytes) -> AnthropicEvent:
    """The type and usage of a message or an event whose other fields cannot be read."""
    try:
        found = _cost_decoder.decode(data)
    except _NOT_READ:
        found = _CostAlone()
    return AnthropicEvent(found.type, usage=found.usage)


def usage_of(usage: AnthropicUsage | None) -> TokenUsage | None:
    """What is billed; None when it is missing or makes no sense.

    Tokens read from a prompt cache count in full and tokens written to one twice: a write costs up to twice the input price, and a charge
    must never be below the bill. We ask for no caching; something between us and the model may.
    """
    if usage is None or usage.input_tokens is None or usage.output_tokens is None:
        return None
    given, written, read = usage.input_tokens, usage.cache_creation_input_tokens or 0, usage.cache_read_input_tokens or 0
    if not all(0 <= count <= _MOST_TOKENS for count in (given, written, read, usage.output_tokens)):
        return None
    return TokenUsage(given + 2 * written + read, usage.output_tokens)


def result_of(message: AnthropicMessage) -> ProviderResult:
    """A finished answer; its text may be empty. Raises AnthropicWireError when it is none."""
    if message.content is None:
        raise AnthropicWireError("the upstream's answer holds no content")
    if not message.stop_reason:
        raise AnthropicWireError("the upstream's answer is not finished")
    text = "".join(block.text or "" for block in message.content if block.type == "text")
    finish = _FINISH.get(message.stop_reason, message.stop_reason)
    words = (short_word(message.id or ""), short_word(finish))
    return ProviderResult(text, usage_of(message.usage), *words, _beyond_text(message.content))


def _beyond_text(content: list[Content]) -> str:
    """The calls of tools in OpenAI's form."""
    calls: list[dict[str, Any]] = [
        tool_call(block.id, block.name, bytes(block.input).decode()) for block in content if block.type == "tool_use"
    ]
    return _encoder.encode({"tool_calls": calls}).decode() if calls else ""


def _raw(pieces: list[str]) -> msgspec.Raw:
    return msgspec.Raw("".join(pieces).encode("utf-8", "replace"))


class NotTranslatable(ValueError):
    """A request that the Messages API has no word for; the message is one line for whoever asked."""


def translated(openai_json: str) -> dict[str, Any]:
    """The body's `system`, `messages`, `tools`, `tool_choice` and sampling, as far as a checked `openai_json` gives them. Raises
    NotTranslatable."""
    fields = json.loads(openai_json)
    if strange := [name for name in fields if name in SAMPLING and name not in ("top_p", "top_k", "stop")]:
        raise NotTranslatable(f"Anthropic's API takes no {strange[0]}")
    if (fields.get("response_format") or {"type": "text"}) != {"type": "text"}:
        raise NotTranslatable("Anthropic's API takes no response_format")
    body = _conversation(fields["messages"]) if "messages" in fields else {}
    if tools := fields.get("tools"):
        body |= {"tools": [_tool(each) for each in tools], "tool_choice": _choice(fields)}
    body |= {name: fields[name] for name in ("top_p", "top_k") if name in fields}
    if stop := fields.get("stop"):
        body["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    return body


def tool_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """A call of a tool in OpenAI's form. `arguments` is JSON text; the model may have left it unfinished."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments or "{}"}}


def _conversation(messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """System turns go into a field of their own; turns of one side that follow each other become one, as results of tools must."""
    system = "\n\n".join(_text(turn) for turn in messages if turn["role"] in ("system", "developer"))
    turns: list[dict[str, Any]] = []
    for turn in messages:
        role = "assistant" if turn["role"] == "assistant" else "user"
        blocks = [] if turn["role"] in ("system", "developer") else list(_blocks(turn))
        if blocks and turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    return conversation(turns, system)


def conversation(turns: Sequence[Mapping[str, Any]], system: str) -> dict[str, Any]:
    """The body's `messages` and, where there is one, `system`. Raises NotTranslatable without a turn."""
    if not turns:
        raise NotTranslatable("a conversation needs a turn other than the system's")
    return {"messages": turns, **({"system": system} if system else {})}


def _blocks(turn: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    text = _text(turn)
    if turn["role"] == "tool":
        yield {"type": "tool_result", "tool_use_id": _word(turn, "tool_call_id"), "content": text}
        return
    if text.strip():  # the API refuses a block without text
        yield {"type": "text", "text": text}
    for call in turn.get("tool_calls") or ():
        function = _function(call)
        yield {"type": "tool_use", "id": _word(call, "id"), "name": _word(function, "name"), "input": _arguments(function)}


def _text(turn: Mapping[str, Any]) -> str:
    content = turn.get("content") or turn.get("refusal") or ""
    return content if isinstance(content, str) else "".join(part.get("text") or part.get("refusal") or "" for part in content)


def _arguments(function: Mapping[str, Any]) -> dict[str, Any]:
    try:
        found = json.loads(function.get("arguments") or "{}")
    except (TypeError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise NotTranslatable("Anthropic's API takes the arguments of a tool as a JSON object only")
    return found


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = _function(tool)
    about = {"description": function["description"]} if function.get("description") else {}
    return {"name": _word(function, "name"), **about, "input_schema": function.get("parameters") or _NO_PARAMETERS}


def _choice(fields: Mapping[str, Any]) -> dict[str, Any]:
    wish = fields.get("tool_choice") or "auto"
    if isinstance(wish, dict) and wish.get("type") == "function":
        choice: dict[str, Any] = {"type": "tool", "name": _word(_function(wish), "name")}
    elif isinstance(wish, str) and wish in _CHOICES:
        choice = {"type": _CHOICES[wish]}
    else:
        raise NotTranslatable("Anthropic's API takes as tool_choice auto, none, required or one function")
    one_only = fields.get("parallel_tool_calls") is False and choice["type"] != "none"
    return {**choice, **({"disable_parallel_tool_use": True} if one_only else {})}


def _function(holder: Mapping[str, Any]) -> Mapping[str, Any]:
    function = holder.get("function")
    if not isinstance(function, dict):
        raise NotTranslatable("Anthropic's API takes tools that are functions only")
    return function


def _word(holder: Mapping[str, Any], name: str) -> str:
    word = holder.get(name)
    if not (isinstance(word, str) and word):
        raise NotTranslatable(f"a tool, or a call or result of one, has no {name}")
    return word
