"""TRL's completions as responses of the agent: token ids, ends and step limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from edge.core.types import FinishReason, LocalResponse
from edge.inference.decisions import opens_step


@dataclass(frozen=True, slots=True)
class Completion:
    """One response as TRL sampled it: the place of its prompt in the run, its ids with the one that ended it, and its text."""

    position: int
    token_ids: tuple[int, ...]
    text: str
    ended: bool


@dataclass(frozen=True, slots=True)
class Reader:
    """From TRL's ids to text: `decode` leaves control tokens out, `ends` are the ids that end a response."""

    decode: Callable[[Sequence[int]], str]
    ends: frozenset[int]

    def read(self, position: int, token_ids: Sequence[int]) -> Completion:
        """One completion."""
        ids = tuple(token_ids)
        return Completion(position, ids, self.decode(ids), bool(ids) and ids[-1] in self.ends)


def reader_of(tokenizer: Any, ends: Iterable[int]) -> Reader:
    """From ids to text with a transformers tokenizer; some models have more than one id that ends a response."""

    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    return Reader(decode, frozenset(map(int, ends)))


def as_response(completion: Completion, max_steps: int) -> LocalResponse:
    """The response with the reason for its end: one that went beyond the step limit counts as stopped there, which the agent's engine
    does, and one without an end as cut off; both are format violations. Its log-probabilities are TRL's and not told."""
    finish = FinishReason.EOS if completion.ended else FinishReason.LENGTH
    if opens_step(completion.text, max_steps + 1) is not None:
        finish = FinishReason.STEP_LIMIT
    silent = (0.0,) * len(completion.token_ids)
    return LocalResponse(completion.text, completion.token_ids, silent, finish)
