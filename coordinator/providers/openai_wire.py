"""OpenAI's chat-completions JSON, whole or as the events of a stream. Knows the fields that we read; knows nothing of HTTP.

Fields that we do not read are skipped, so that every dialect passes; what we read must have its type.
"""

from __future__ import annotations

import msgspec

from coordinator.providers.provider import ProviderRequest, ProviderResult, short_word
from edge.core.types import TokenUsage

_MOST_TOKENS = 2**53


class WireError(ValueError):
    """An answer that is well-formed JSON but not a completion."""


class Usage(msgspec.Struct):
    """Tokens billed."""

    prompt_tokens: int = -1
    completion_tokens: int = -1


class Text(msgspec.Struct):
    """A message, or a piece of one."""

    content: str | None = None


class Choice(msgspec.Struct):
    """One alternative; we ask for one only."""

    index: int = 0
    message: Text | None = None
    delta: Text | None = None
    finish_reason: str | None = None


class Answer(msgspec.Struct):
    """A whole answer, or one event of a stream; `add` puts events together."""

    id: str | None = None
    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: msgspec.Raw | None = None

    def add(self, event: Answer) -> str:
        """Take in an event of a stream; returns the text it brings. Raises WireError when the event reports an error."""
        if event.error is not None and bytes(event.error) != b"null":
            raise WireError("the upstream reported an error in its stream")
        self.id = self.id or event.id
        self.usage = event.usage or self.usage
        piece = next((choice for choice in event.choices or () if choice.index == 0), None)
        if piece is None:
            return ""
        whole = self._whole()
        whole.finish_reason = piece.finish_reason or whole.finish_reason
        text = (piece.delta.content if piece.delta else None) or ""
        assert whole.message is not None
        whole.message.content = (whole.message.content or "") + text
        return text

    def _whole(self) -> Choice:
        if not self.choices:
            self.choices = [Choice(message=Text())]
        return self.choices[0]


_decoder = msgspec.json.Decoder(Answer)
_encoder = msgspec.json.Encoder()


def request_body(request: ProviderRequest, tokens_field: str, *, streamed: bool) -> bytes:
    """The JSON to send."""
    body: dict[str, object] = {
        "model": request.model,
        "messages": [{"role": turn.role, "content": turn.content} for turn in request.messages],
        tokens_field: request.max_output_tokens,
        "temperature": request.temperature,
        "stream": streamed,
    }
    if streamed:
        body["stream_options"] = {"include_usage": True}
    return _encoder.encode(body)


def decode_answer(data: bytes | bytearray) -> Answer:
    """JSON to values. Raises msgspec.MsgspecError."""
    return _decoder.decode(data)


def usage_of(answer: Answer) -> TokenUsage | None:
    """The usage an upstream reported, None when it is missing or makes no sense."""
    usage = answer.usage
    if usage is None or not (0 <= usage.prompt_tokens <= _MOST_TOKENS and 0 <= usage.completion_tokens <= _MOST_TOKENS):
        return None
    return TokenUsage(usage.prompt_tokens, usage.completion_tokens)


def result_of(answer: Answer) -> ProviderResult:
    """A finished answer. Raises WireError when it holds no text or does not say that it is finished."""
    choice = answer.choices[0] if answer.choices else None
    if choice is None or choice.message is None or choice.message.content is None:
        raise WireError("the upstream's answer holds no text")
    if not choice.finish_reason:
        raise WireError("the upstream's answer is not finished")
    usage = usage_of(answer)
    if not choice.message.content and usage is None:  # how proxies end a stream whose own upstream broke off
        raise WireError("the upstream's answer is empty and says nothing of its cost")
    return ProviderResult(choice.message.content, usage, short_word(answer.id or ""), short_word(choice.finish_reason))
