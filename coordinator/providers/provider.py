"""The role of a cloud provider: completes a conversation once. Knows nothing of budgets, devices or gRPC.

Contract (tests/contracts/test_cloud_provider.py):
- Every failure is a ProviderError that says whether the upstream executed the request: `executed` is False only when that is certain,
  None when it may have been, True when it was. Money follows it: False is refunded, None and True are charged.
- The total deadline holds whatever the upstream does (silence, slow bytes, endless bodies).
- A provider sends a request once and never repeats it; a stream that was not executed has brought no text.
- Cancelling the awaiting task stops waiting and leaks nothing.
- Prompts, answers and keys reach no log and no error message.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

from edge.core.errors import EdgeError
from edge.core.types import Message, TokenUsage


@dataclass(frozen=True, slots=True)
class ProviderRequest:
    """One completion. `model` is the upstream's own name; `deadline_s` seconds from now for everything together.

    `idempotency_key` is the billing key (call and attempt); upstreams that know such keys will not execute it twice. `trace_headers` go
    along over HTTP; they say which trace the request belongs to and nothing else.
    """

    messages: tuple[Message, ...]
    model: str
    max_output_tokens: int
    temperature: float
    deadline_s: float
    idempotency_key: str
    trace_headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ProviderResult:
    """The upstream's answer. `usage` is None when it did not say (then the hold is charged); `finish` "stop", "length" or its own word."""

    text: str
    usage: TokenUsage | None
    upstream_id: str
    finish: str


@dataclass(frozen=True, slots=True)
class ProviderDelta:
    """A piece of a streamed answer; the last one carries the whole result (its text is all pieces joined)."""

    text: str
    result: ProviderResult | None = None


MAX_WORD_CHARS = 200
_TOKENS_OF_A_TURN = 16
_TOKENS_OF_A_TEMPLATE = 256


def short_word(text: str) -> str:
    """An upstream's own id or word, cut to what is worth keeping: the journal keeps it for ever."""
    return "".join(char if char.isprintable() else "?" for char in text[:MAX_WORD_CHARS])


def bound_by_bytes(messages: Sequence[Message], template_tokens: int = _TOKENS_OF_A_TEMPLATE) -> int:
    """An upper bound of a prompt's tokens: no tokenizer makes more tokens than bytes; templates add some to each turn."""
    texts = (turn.content.encode("utf-8", "replace") for turn in messages)
    return sum(len(text) + _TOKENS_OF_A_TURN for text in texts) + template_tokens


class ProviderError(EdgeError):
    """The upstream gave no usable answer.

    `executed`: False definitely not, None perhaps, True yes (then `usage` where known). `retry_after_s` where the upstream said so.
    `kind` is a short stable word for logs and metrics, such as "refused", "deadline", "http_500", "garbage".
    """

    def __init__(
        self,
        message: str,
        *,
        kind: str,
        executed: bool | None,
        retry_after_s: float | None = None,
        usage: TokenUsage | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.kind = kind
        self.executed = executed
        self.retry_after_s = retry_after_s
        self.usage = usage


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
