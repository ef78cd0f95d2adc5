"""OpenAI's chat-completions JSON, whole or as the events of a stream.

Fields that we do not read are skipped, so that every dialect passes; what we read must have its type.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from coordinator.providers.provider import ProviderRequest, ProviderResult, openai_parts, short_word
from edge.core.types import TokenUsage

MAY_BE_REPLACED = {
    "temperature": "",
    "stream": "",
    "stream_options": "",
    "max_tokens": "max_completion_tokens",
    "max_completion_tokens": "max_tokens",
}
"""The fields of a request that may be left out, or sent by another name, where a model does not take them. Without `stream` an answer comes
in one piece; without `stream_options` a stream may not report its usage, and is charged at its hold."""


class WireError(ValueError):
    """An answer that is well-formed JSON but not a completion."""


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


def decode_answer(data: bytes | bytearray) -> OpenAIAnswer:
    """JSON to values. Raises msgspec.MsgspecError."""
    return _decoder.decode(data)


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
    """A finished answer. Raises WireError when it holds neither text nor calls of tools, or is a stream that is not marked as finished.

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
        raise WireError("the upstream's answer holds no text")
    if not choice.finish_reason and not (whole and usage is not None):
        raise WireError("the upstream's answer is not finished")
    if not (text or beyond_text) and usage is None:  # how proxies end a stream whose own upstream broke off
        raise WireError("the upstream's answer is empty and reports no usage")
    words = (short_word(answer.id if isinstance(answer.id, str) else ""), short_word(choice.finish_reason or "stop"))
    return ProviderResult(text or "", usage, *words, beyond_text)
