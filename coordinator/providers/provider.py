"""The role of a cloud provider: completes a conversation once.

Contract (tests/contracts/test_cloud_provider.py):
- Every failure is a ProviderError that says whether the upstream executed the request: `executed` is False only when that is certain,
  None when it may have been, True when it was. Money follows it: False is refunded, None and True are charged.
- The total deadline holds whatever the upstream does (silence, slow bytes, endless bodies).
- A provider never repeats a request that was perhaps executed. One that was refused for a field that its model does not take may be sent
  again without that field; what it costs at most stays the same. A stream that was not executed has brought no text.
- Cancelling the awaiting task stops waiting and leaks nothing.
- Prompts, answers and keys reach no log and no error message.
- One that can ask more than plain messages has `why_not_openai(openai_json)`: why it cannot ask just this, in one line, or "" when it
  can; without it no such request reaches it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from edge.core.errors import EdgeError
from edge.core.types import Message, TokenUsage
from edge.rpc.openai_fields import CANNOT_FOLLOW, SAMPLING


@dataclass(frozen=True, slots=True)
class ProviderRequest:
    """One completion."""

    messages: tuple[Message, ...]
    model: str
    """The upstream's own name."""
    max_output_tokens: int
    temperature: float | None
    """None is the upstream's own."""
    deadline_s: float
    """Seconds from now for everything together."""
    idempotency_key: str
    """The billing key (call and attempt); upstreams that know such keys will not execute it twice."""
    trace_headers: tuple[tuple[str, str], ...] = ()
    """Go along over HTTP; they name the trace of the request and nothing else."""
    openai_json: str = ""
    """A checked one of edge.rpc.openai_fields; its messages, where there are any, are sent instead of `messages`."""


@dataclass(frozen=True, slots=True)
class ProviderResult:
    """The upstream's answer."""

    text: str
    usage: TokenUsage | None
    """None when not reported; then the hold is charged."""
    upstream_id: str
    finish: str
    """Usually "stop", "length" or "tool_calls"; else its own word."""
    beyond_text: str = ""
    """JSON text of an object with the message's `tool_calls` and `refusal`, in OpenAI's form; "" without them."""


@dataclass(frozen=True, slots=True)
class ProviderDelta:
    """A piece of a streamed answer."""

    text: str
    result: ProviderResult | None = None
    """The last piece carries it; its text is all pieces joined."""


MAX_WORD_CHARS = 200
_TOKENS_OF_A_TURN = 16
_TOKENS_OF_A_TEMPLATE = 256
_TOKENS_OF_TOOLS = 1024
_parts_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def short_word(text: str) -> str:
    """An upstream's own id or word, cut to what is worth keeping: the journal keeps it for ever."""
    word = text[:MAX_WORD_CHARS]
    return word if word.isprintable() else "".join(char if char.isprintable() else "?" for char in word)


def pieces_of(text: str) -> list[str]:
    """A text cut after each space, as a stream would bring it; the joined pieces are the text."""
    words = text.split(" ")
    return [word + " " for word in words[:-1]] + ([words[-1]] if words[-1] else [])


def bound_by_bytes(messages: Sequence[Message], template_tokens: int = _TOKENS_OF_A_TEMPLATE) -> int:
    """An upper bound of a prompt's tokens: no tokenizer makes more tokens than bytes; templates add some to each turn."""
    texts = (turn.content.encode("utf-8", "replace") for turn in messages)
    return sum(len(text) + _TOKENS_OF_A_TURN for text in texts) + template_tokens


def openai_parts(request: ProviderRequest) -> dict[str, msgspec.Raw]:
    """The fields of `openai_json` by name, each the very bytes that the client sent; {} without any."""
    return _parts_decoder.decode(request.openai_json) if request.openai_json else {}


def bound_of_request(request: ProviderRequest, template_tokens: int = _TOKENS_OF_A_TEMPLATE) -> int:
    """An upper bound of a request's tokens, OpenAI's fields included.

    JSON is never shorter than its content, and the names around a message outweigh its template. Tools are put into the prompt anew,
    perhaps indented: they count twice, and so much more for the instructions that go with them.
    """
    parts = openai_parts(request)
    if not parts:
        return bound_by_bytes(request.messages, template_tokens)
    messages = parts.pop("messages", None)
    turns = len(messages) + template_tokens if messages else bound_by_bytes(request.messages, template_tokens)
    in_prompt = [len(part) for name, part in parts.items() if name not in SAMPLING]
    return turns + 2 * sum(in_prompt) + (_TOKENS_OF_TOOLS if in_prompt or messages else 0)


class ProviderError(EdgeError):
    """The upstream gave no usable answer.

    `executed`: False definitely not, None perhaps, True yes (then `usage` where known). `retry_after_s` where the upstream said so.
    `kind` is a short stable word for logs and metrics, such as "refused", "deadline", "http_500", "garbage". `words` are the upstream's
    own, as far as they may be repeated; the message has them, too.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: str,
        executed: bool | None,
        retry_after_s: float | None = None,
        usage: TokenUsage | None = None,
        words: str = "",
        hint: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.kind = kind
        self.words = words
        self.executed = executed
        self.retry_after_s = retry_after_s
        self.usage = usage


def why_not_openai(provider: object, openai_json: str) -> str:
    """Why a provider cannot ask what these fields mean, in one line; "" when it can."""
    check = getattr(provider, "why_not_openai", None)
    if check is not None:
        return str(check(openai_json))
    wanted = [name for name in json.loads(openai_json) if name != "messages"]
    return "this upstream cannot call tools" if not wanted or "tools" in wanted else f"{CANNOT_FOLLOW}{' and '.join(wanted)}"


class CloudProvider(Protocol):
    """Completes conversations."""

    @property
    def name(self) -> str:
        """A name for logs and metrics."""
        ...

    async def start(self) -> None:
        """Get ready (load a model, open a connection pool). Raises ModelFileError or ConfigError. Safe to call twice."""
        ...

    def input_token_bound(self, request: ProviderRequest) -> int:
        """An upper bound of the input tokens the upstream will bill for this request; never below the truth."""
        ...

    async def complete(self, request: ProviderRequest) -> ProviderResult:
        """Complete once. Raises ProviderError."""
        ...

    def stream(self, request: ProviderRequest) -> AsyncGenerator[ProviderDelta, None]:
        """Complete once, piece by piece. Raises ProviderError."""
        ...

    async def aclose(self) -> None:
        """Stop and release everything. Safe to call twice."""
        ...
