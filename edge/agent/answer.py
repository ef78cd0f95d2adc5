"""Answering one person. Knows the order local -> ask -> cloud -> fallback and records each answer; knows nothing of HTTP or gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from edge.agent.events import Source
from edge.config.schema import Mode
from edge.core.types import Message


@dataclass(frozen=True, slots=True)
class AnswerRecord:
    """What `edge-agent why ID` explains.

    text: all that was streamed, think part included. final: the answer part for a person (last boxed or answer tags stripped).
    source: local, cloud, or local-fallback (asked, but could not or might not; continued locally). reason: one line that says why.
    help_log_odds (nats) at the first decision, None when none was reached. dual λ and `*_left` as last told by the coordinator, None
    when unknown or unlimited. latency_s from the request to the last token. local_text is y^θ, cloud_text y^c.
    """

    id: str
    source: Source
    text: str
    final: str
    help_log_odds: float | None
    dual: float | None
    calls_left: int | None
    tokens_left: int | None
    spend_left_uusd: int | None
    adapter_version: int
    reason: str
    latency_s: float
    local_text: str
    cloud_text: str
    model: str = ""
    cloud_model: str = ""
    cloud_tokens: int = 0
    charged_uusd: int = 0
    created_at: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """A JSON object with every field."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class AnswerDelta:
    """A piece of streamed text; the last one carries the record. `source` says where the piece comes from."""

    text: str
    source: Source = "local"
    record: AnswerRecord | None = None


class Answerer:
    """Streams answers; any number at once."""

    def stream(
        self,
        messages: Sequence[Message],
        *,
        mode: Mode | None = None,
        request_id: str | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        seed: int = 0,
    ) -> AsyncIterator[AnswerDelta]:
        """Answer a conversation whose last message is the user's. Raises CoordinatorError only in mode cloud-only."""
        raise NotImplementedError

    async def answer(self, messages: Sequence[Message], *, mode: Mode | None = None, request_id: str | None = None) -> AnswerRecord:
        """The whole answer at once."""
        raise NotImplementedError
