"""OpenAI's chat-completions JSON, whole or as the events of a stream, and the errors that an upstream reports in it.

Fields that we do not read are skipped, so that every dialect passes; what we read must have its type. An upstream's words for an error go
into a log and to a device, so what may be private stays out: secrets, words that look like keys or ids, and a message that quotes the
prompt. Then the error's code or type is reported alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec

from coordinator.providers.provider import ProviderRequest, ProviderResult, openai_parts, short_word
from edge.core.secret_forms import CUT, without_secrets
from edge.core.types import TokenUsage

_MAY_REPORT = b"error"
_KEY_LIKE = re.compile(r"(?=\S*\d)[^\s,;:()]{8,}|(?:sk|pk|key|token)[-_][^\s,;:()]{3,}|[^\s,;:()]{24,}")
_WORD = re.compile(r"[A-Za-z][A-Za-z_.-]{1,39}|[1-5]\d\d")
_QUOTED_CHARS = 16
"""A message that has so many characters in a row from the prompt quotes it."""


class WireError(ValueError):
    """An answer that is well-formed JSON but not a completion."""


Tokens = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class Usage(msgspec.Struct):
    """Tokens billed."""

    prompt_tokens: Tokens
    completion_tokens: Tokens


class Text(msgspec.Struct):
    """A message, or a piece of one. Calls of tools are kept as they come, with what we do not know of them."""

    content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    refusal: str | None = None

    def add(self, piece: Text) -> str:
        """Take in a piece; returns the text it brings."""
        text = piece.content or ""
        self.content = (self.content or "") + text
        if piece.refusal is not None:
            self.refusal = (self.refusal or "") + piece.refusal
        for call in piece.tool_calls or ():
            self.tool_calls = self.tool_calls or []
            _add_call(self.tool_calls, call)
        return text

    def beyond_text(self) -> str:
        """JSON text of what there is besides the content, "" for nothing."""
        calls = [{name: value for name, value in call.items() if name != "index"} for call in self.tool_calls or ()]
        parts = {"tool_calls": calls, "refusal": self.refusal}
        found = {name: value for name, value in parts.items() if value}
        return _encoder.encode(found).decode() if found else ""


class Choice(msgspec.Struct):
    """One alternative; we ask for one only."""

    index: int = 0
    message: Text | None = None
    delta: Text | None = None
    finish_reason: str | None = None


class Answer(msgspec.Struct):
    """A whole answer, or one event of a stream; `add` puts events together. `usage` as it came: what makes no sense in it must not cost
    the answer."""

    id: str | None = None
    choices: list[Choice] | None = None
    usage: dict[str, Any] | None = None

    def add(self, event: Answer) -> str:
        """Take in an event of a stream; returns the text it brings."""
        self.id = self.id or event.id
        self.usage = event.usage or self.usage
        piece = next((choice for choice in event.choices or () if choice.index == 0), None)
        if piece is None:
            return ""
        if not self.choices:
            self.choices = [Choice(message=Text())]
        whole = self.choices[0]
        whole.finish_reason = piece.finish_reason or whole.finish_reason
        assert whole.message is not None
        return whole.message.add(piece.delta or Text())


def _add_call(calls: list[dict[str, Any]], piece: dict[str, Any]) -> None:
    """Take in a piece of a call. Servers say by `index` which it belongs to; some leave that out, some give all calls the same."""
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
    """The texts that grow are joined; of anything else the first that says something stands."""
    for name, value in piece.items():
        before = known.get(name)
        if isinstance(before, dict) and isinstance(value, dict):
            _merge(before, value)
        elif name in _GROWING and isinstance(before, str) and isinstance(value, str):
            known[name] = before + value
        elif before in (None, ""):
            known[name] = value


_GROWING = frozenset({"arguments", "input"})
_decoder = msgspec.json.Decoder(Answer)
_encoder = msgspec.json.Encoder()


def request_body(request: ProviderRequest, tokens_field: str, *, streamed: bool) -> bytes:
    """The JSON to send; OpenAI's fields byte for byte as the client sent them."""
    body: dict[str, object] = {
        "model": request.model,
        "messages": [{"role": turn.role, "content": turn.content} for turn in request.messages],
        tokens_field: request.max_output_tokens,
        "temperature": request.temperature,
        "stream": streamed,
    }
    if streamed:
        body["stream_options"] = {"include_usage": True}
    return _encoder.encode({**body, **openai_parts(request)})


def decode_answer(data: bytes | bytearray) -> Answer:
    """JSON to values. Raises msgspec.MsgspecError."""
    return _decoder.decode(data)


def usage_of(answer: Answer) -> TokenUsage | None:
    """The usage an upstream reported, None when it is missing or makes no sense. Some write numbers as text."""
    try:
        usage = msgspec.convert(answer.usage, Usage, strict=False)
    except msgspec.ValidationError:
        return None
    return TokenUsage(usage.prompt_tokens, usage.completion_tokens)


def result_of(answer: Answer) -> ProviderResult:
    """A finished answer. Raises WireError when it holds neither text nor calls of tools, or does not say that it is finished."""
    choice = answer.choices[0] if answer.choices else None
    message = choice.message if choice is not None else None
    beyond_text = message.beyond_text() if message is not None else ""
    if choice is None or message is None or (message.content is None and not beyond_text):
        raise WireError("the upstream's answer holds no text")
    if not choice.finish_reason:
        raise WireError("the upstream's answer is not finished")
    usage = usage_of(answer)
    if not (message.content or beyond_text) and usage is None:  # how proxies end a stream whose own upstream broke off
        raise WireError("the upstream's answer is empty and says nothing of its cost")
    words = (short_word(answer.id or ""), short_word(choice.finish_reason))
    return ProviderResult(message.content or "", usage, *words, beyond_text)


class _Report(msgspec.Struct):
    error: Any = None
    object: Any = None
    message: Any = None
    code: Any = None
    type: Any = None


_report_decoder = msgspec.json.Decoder(_Report)


def reported_error(data: bytes | bytearray, prompts: Iterable[str]) -> str | None:
    """The upstream's words for an error that this JSON reports ("": it has none that may be repeated); None where it reports none."""
    error = _error_in(data)
    if error is None:
        return None
    word, message = _word_of(error), _message(error.get("message"), prompts)
    return f"{word}: {message}" if word and message else word or message


def error_word(body: bytes) -> str:
    """The code or type of the error that a body reports, "" where it has none; never its free text, which may repeat a prompt."""
    return _word_of(_error_in(body) or {})


def _error_in(data: bytes | bytearray) -> dict[str, Any] | None:
    """The error that JSON reports, by its fields' names; None where it reports none."""
    if _MAY_REPORT not in data:
        return None
    try:
        report = _report_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if report.object == "error":
        return {"message": report.message, "code": report.code, "type": report.type}
    if report.error is None or isinstance(report.error, dict):
        return report.error
    return {"message": report.error}


def _word_of(error: dict[str, Any]) -> str:
    names = [str(error.get(name)) for name in ("code", "type") if isinstance(error.get(name), str | int)]
    return next((name for name in names if _WORD.fullmatch(name)), "")


def _message(message: Any, prompts: Iterable[str]) -> str:
    if not isinstance(message, str):
        return ""
    line = " ".join(message.split())
    if any(_quotes(line, " ".join(prompt.split())) for prompt in prompts):
        return ""
    return short_word(_KEY_LIKE.sub(CUT, without_secrets(line)))


def _quotes(line: str, prompt: str) -> bool:
    """Whether a line has a part of a prompt; all of a short one."""
    length = min(_QUOTED_CHARS, len(prompt))
    return length > 0 and any(line[start : start + length] in prompt for start in range(len(line) - length + 1))
