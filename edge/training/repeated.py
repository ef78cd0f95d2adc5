"""Several updates of one batch. Knows what each response's log-probability was and is; knows nothing of models or optimisers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edge.core.types import TrainingGroup
from edge.dagrpo.baselines import gvpo_weights
from edge.training.batching import Row

Response = tuple[tuple[int, ...], tuple[int, ...]]


class SequenceLogprobs:
    """log π (nats, summed over tokens) of responses, by prompt and tokens."""

    def __init__(self) -> None:
        self._known: dict[Response, float] = {}

    def add(self, rows: Sequence[Row], logprobs_R: Sequence[float]) -> None:
        """Note one micro-batch."""
        self._known.update({(row.prompt_ids, row.token_ids): logprob for row, logprob in zip(rows, logprobs_R, strict=True)})

    def of(self, prompt_ids: tuple[int, ...], token_ids: tuple[int, ...]) -> float:
        """0 for the empty response."""
        return self._known[prompt_ids, token_ids] if token_ids else 0.0


def all_rows(groups: Sequence[TrainingGroup]) -> list[Row]:
    """Every response once, with or without an advantage; empty ones have nothing to score."""
    rows = (Row(group.prompt_ids, one.token_ids, one.behaviour_logprobs, 0.0) for group in groups for one in group.samples)
    return list({(row.prompt_ids, row.token_ids): row for row in rows if row.token_ids}.values())


def held_back(
    groups: Sequence[TrainingGroup], before: SequenceLogprobs, now: SequenceLogprobs, beta: float
) -> list[TrainingGroup]:
    """The groups with GVPO's weights: A_i - β(ℓ_i - mean ℓ), ℓ_i what log π gained from `before` to `now`."""
    return [_held_back(group, before, now, beta) for group in groups]


def _held_back(group: TrainingGroup, before: SequenceLogprobs, now: SequenceLogprobs, beta: float) -> TrainingGroup:
    prompt = group.prompt_ids
    gained_G = [now.of(prompt, one.token_ids) - before.of(prompt, one.token_ids) for one in group.samples]
    weights_G = gvpo_weights([one.advantage for one in group.samples], gained_G, beta)
    samples = tuple(replace(one, advantage=weight) for one, weight in zip(group.samples, weights_G, strict=True))
    return replace(group, samples=samples)
