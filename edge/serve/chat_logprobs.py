"""What a chat request may ask beside an answer: log-probabilities of its tokens, several answers. Knows fields and shapes only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edge.core.types import ScoredToken
from edge.serve.fields import bad, boolean, integer
from edge.serve.ports import Mode

MOST_CHOICES = 8
_MOST_ALTERNATIVES = 20


def top_logprobs_of(value: Mapping[str, Any]) -> int | None:
    """How many alternatives to each token are asked for, None for no log-probabilities. Raises RequestProblem."""
    wanted, alternatives = boolean(value, "logprobs"), integer(value, "top_logprobs", 0, _MOST_ALTERNATIVES)
    if alternatives and not wanted:
        raise bad("top_logprobs", "only together with logprobs: true")
    return (alternatives or 0) if wanted else None


def choices_of(value: Mapping[str, Any], mode: Mode | None) -> int:
    """How many answers are asked for. Raises RequestProblem.

    Several answers come from this machine and none of them asks for help: a request makes one cloud call at most.
    """
    choices = integer(value, "n", 1, MOST_CHOICES) or 1
    if choices > 1 and mode == "cloud-only":
        raise bad("n", "only 1 with the model edge-cloud: a request makes one cloud call at most", "unsupported_value")
    return choices


def logprobs_body(tokens: Sequence[ScoredToken]) -> dict[str, Any]:
    """The tokens of the content in the form of the chat API; the first of a text, which nothing predicts, cannot be among them."""
    return {"content": [_entry(token) for token in tokens], "refusal": None}


def _entry(token: ScoredToken) -> dict[str, Any]:
    alternatives = [_chance(chance.piece, chance.logprob) for chance in token.top]
    return {**_chance(token.piece, token.logprob), "top_logprobs": alternatives}


def _chance(piece: bytes, logprob: float | None) -> dict[str, Any]:
    return {"token": piece.decode("utf-8", "replace"), "bytes": list(piece), "logprob": logprob}
