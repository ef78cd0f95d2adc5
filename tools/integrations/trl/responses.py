"""TRL's completions as the responses of prompt groups. Knows token ids, ends and step limits; knows nothing of rewards.

TRL has sampled when its reward functions are called, so the rollout that scores them gets an engine that hands out what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from edge.core.rng import derive_seed
from edge.core.types import FinishReason, LocalResponse, Message, PromptGroup, Sampling
from edge.core.worker import Priority
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


class SampledAlready:
    """The part of an inference backend that a rollout uses: prompt groups. A group is found by the seeds that would have drawn it."""

    def __init__(self, seed: int, step: int, groups: Sequence[Sequence[LocalResponse]]) -> None:
        self._groups = {_group_seed(seed, step, index): tuple(group) for index, group in enumerate(groups)}

    async def sample_group(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        seeds: Sequence[int],
        priority: Priority = Priority.ROLLOUT,
    ) -> PromptGroup:
        """The group that was sampled for these seeds."""
        return PromptGroup((), self._groups[seeds[0]])


def _group_seed(seed: int, step: int, index: int) -> int:
    """The first seed of a group, as edge.learning.rollout draws it."""
    return derive_seed(seed, "rollout", step, index, 0)
