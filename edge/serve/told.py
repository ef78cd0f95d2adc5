"""What is told of an answer beside its text: the `edge` object and the headers. Knows which field is said where; knows nothing of sockets.

A field that the agent tells of answers is one field of AnswerNote and, where a header shall have it, one line of _HEADERS.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edge.serve.ports import AnswerNote, Standing

_HEADERS = {
    "x-edge-source": "source",
    "x-edge-answer-id": "id",
    "x-edge-adapter-version": "adapter_version",
    "x-edge-task": "task",
    "x-edge-help-log-odds": "help_log_odds",
    "x-edge-dual": "dual",
    "x-edge-assist-rate": "assist_rate",
    "x-edge-target-rate": "target_rate",
    "x-edge-calls-left": "calls_left",
    "x-edge-tokens-left": "tokens_left",
    "x-edge-spend-left-uusd": "spend_left_uusd",
}
HEADER_NAMES = tuple(_HEADERS)


def edge_body(note: AnswerNote, ignored: Sequence[str]) -> dict[str, Any]:
    """The `edge` object: the note without what the body says elsewhere, and the parameters that had no effect."""
    return {**note.to_json(), "ignored_parameters": list(ignored)}


def edge_headers(note: AnswerNote | Standing, answer_id: str = "") -> dict[str, str]:
    """The same as response headers, for clients that drop unknown fields; of a stream what is known before it begins."""
    known: Mapping[str, Any] = {"id": answer_id, **note.to_json()}
    pairs = {name: _shown(known.get(field)) for name, field in _HEADERS.items()}
    return {name: value for name, value in pairs.items() if value}


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4f}" if isinstance(value, float) else str(value)
