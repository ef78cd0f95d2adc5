"""From groups with advantages to padded micro-batches.

Axes: R rows (responses), T tokens, P prompt tokens, N tokens of all rows in a flat list.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from edge.core.types import FORCED, AllowedTokens, BiasedDecision, Demonstration, KeptAnswer, TrainingGroup, TrainingSample, Turn
from edge.dagrpo.advantages import has_signal
from edge.training.learner import prompt_budget

Item = TypeVar("Item")


class Reference(NamedTuple):
    """What a model holds of the places of N tokens: its K likeliest tokens there, -1 where fewer are allowed, and their log-probabilities
    (nats)."""

    ids_NK: Tensor
    logprobs_NK: Tensor


@dataclass(frozen=True, slots=True)
class Row:
    """One response to learn from. `coefficient` = Â · w / P is what multiplies Σ_t ρ_t log π_t in the objective.

    `off_policy`: not the sampler's; its ρ_t is edge.training.loss.shaped_weights. `imitated`: learned in full, ρ_t = 1. `reference`: the
    model is held to these probabilities at its learned tokens; the tokens themselves are not learned.
    """

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    behaviour_logprobs: tuple[float, ...]
    coefficient: float
    off_policy: bool = False
    imitated: bool = False
    biased: tuple[BiasedDecision, ...] = ()
    allowed: AllowedTokens | None = None
    reference: Reference | None = None

    @property
    def learned(self) -> Sequence[int]:
        """The places of the tokens that the model chose; what a form forced has no gradient."""
        if self.allowed is None:
            return range(len(self.token_ids))
        return [place for place, drawn_from in enumerate(self.allowed.places) if drawn_from != FORCED]


@dataclass(frozen=True, slots=True)
class Bundle:
    """Prompts that are computed together, and micro-batches of responses to them.

    `chunks` hold pairs of a row and the index of its prompt in `prompts`; within a chunk lengths are close.
    """

    prompts: tuple[tuple[int, ...], ...]
    chunks: tuple[tuple[tuple[int, Row], ...], ...]


class Padded(NamedTuple):
    """Right-padded ids [R, T] with a mask that is true where a token is real."""

    ids_RT: Tensor
    mask_RT: Tensor


class BiasedTargets(NamedTuple):
    """The M targets that were drawn with a help bias: their places among the N, the bias (nats), and the ids [M, H] that have it, -1 where
    there are fewer."""

    place_M: Tensor
    bias_M: Tensor
    help_ids_MH: Tensor


class AllowedTargets(NamedTuple):
    """What each of the N targets was drawn from: sets of tokens [K, V], true for those that were excluded, and the set of each target."""

    excluded_KV: Tensor
    set_N: Tensor


class Targets(NamedTuple):
    """What the rows of a chunk are scored on, flat over their learned tokens in row order.

    `off_policy_N`: which tokens are not the sampler's; None where all are. `imitated_N`: which of those are learned in full. `biased`: None
    where no token had a help bias. `learned_N`: where the targets lie among all tokens of the rows; None: all of them are. `allowed`: None
    where nothing was excluded. `reference`: None but for rows that have one; these do not mix with others.
    """

    ids_N: Tensor
    behaviour_N: Tensor
    coefficients_N: Tensor
    row_N: Tensor
    off_policy_N: Tensor | None = None
    imitated_N: Tensor | None = None
    biased: BiasedTargets | None = None
    learned_N: Tensor | None = None
    allowed: AllowedTargets | None = None
    reference: Reference | None = None


def imitated_rows(demonstrations: Sequence[Demonstration], update: int, rows: int) -> list[Row]:
    """Rows whose loss is the mean negative log-likelihood (nats) of demonstrations, each at its prompt and at variants of it.

    There are as many variants as make about this many rows, at least one where there are any; those of the next update follow them.
    """
    wordings = max(2, rows // len(demonstrations))
    pairs = [(one, prompt) for one in demonstrations for prompt in (one.prompt_ids, *_taken(one.variants, update, wordings - 1))]
    return [_imitated(prompt, one.turn, 1.0 / len(pairs)) for one, prompt in pairs]


def kept_rows(kept: Sequence[KeptAnswer]) -> list[Row]:
    """Rows of kept answers, still without a reference."""
    return [_imitated(one.prompt_ids, one.turn, 0.0) for one in kept]


def next_rows(rows: Sequence[Row], update: int, most: int, coefficient: float) -> list[Row]:
    """The next `most` rows with this coefficient; each update goes on where the one before ended, and begins again."""
    return [replace(row, coefficient=coefficient) for row in _taken(rows, update, most)]


def _imitated(prompt_ids: tuple[int, ...], turn: Turn, share: float) -> Row:
    ids = turn.token_ids
    return Row(prompt_ids, ids, (0.0,) * len(ids), share, off_policy=True, imitated=True, allowed=turn.allowed)


def _taken(some: Sequence[Item], update: int, most: int) -> list[Item]:
    """This many of them, those of the next update after them; at the end it begins again."""
    return [some[(update * most + place) % len(some)] for place in range(min(most, len(some)))]


def is_live(group: TrainingGroup) -> bool:
    """Whether any response of the group has a gradient."""
    return any(_has_gradient(sample) for sample in group.samples)


def live_rows(groups: Sequence[TrainingGroup]) -> list[Row]:
    """The responses that carry gradient, averaged over *all* prompts given: dropped groups still count in the mean.

    Raises ValueError on a sample whose log-probabilities do not match its tokens or that is not finite.
    """
    rows: list[Row] = []
    for group in groups:
        if not group.prompt_ids:
            raise ValueError("a prompt has at least one token")
        for sample in group.samples:
            if len(sample.behaviour_logprobs) != len(sample.token_ids):
                tokens, logprobs = len(sample.token_ids), len(sample.behaviour_logprobs)
                raise ValueError(f"{tokens} tokens with {logprobs} behaviour log-probabilities")
            if not math.isfinite(sample.advantage) or not all(map(math.isfinite, sample.behaviour_logprobs)):
                raise ValueError("advantages and behaviour log-probabilities must be finite")
            if _has_gradient(sample):
                coefficient = sample.advantage * group.group_weight / len(groups)
                rows.append(
                    Row(
                        group.prompt_ids,
                        sample.token_ids,
                        sample.behaviour_logprobs,
                        coefficient,
                        off_policy=sample.off_policy or sample.imitated,
                        imitated=sample.imitated,
                        biased=sample.biased,
                        allowed=sample.allowed,
                    )
                )
    return rows


def shared_bundles(rows: Iterable[Row], tokens_per_slice: int) -> list[Bundle]:
    """Bundles whose prompts fit their part of the budget together; each prompt appears once. Longest prompts first."""
    by_prompt: dict[tuple[int, ...], list[Row]] = {}
    for row in rows:
        by_prompt.setdefault(row.prompt_ids, []).append(row)
    bundles: list[Bundle] = []
    for prompts in _fill(sorted(by_prompt, key=len, reverse=True), len, prompt_budget(tokens_per_slice)):
        entries = [(index, row) for index, prompt in enumerate(prompts) for row in by_prompt[prompt]]
        entries.sort(key=response_length, reverse=True)
        bundles.append(Bundle(prompts, tuple(_fill(entries, response_length, tokens_per_slice))))
    return bundles


def plain_chunks(rows: Iterable[Row], tokens_per_slice: int) -> list[tuple[Row, ...]]:
    """Micro-batches of whole rows, prompt and response."""
    ordered = sorted(rows, key=whole_length, reverse=True)
    return list(_fill(ordered, whole_length, tokens_per_slice))


def response_length(entry: tuple[int, Row]) -> int:
    """Tokens of the response of a bundle's entry."""
    return len(entry[1].token_ids)


def whole_length(row: Row) -> int:
    """Tokens of prompt and response."""
    return len(row.prompt_ids) + len(row.token_ids)


def pad_right(sequences: Sequence[Sequence[int]], device: torch.device) -> Padded:
    """Right-pad with id 0 to the longest sequence."""
    longest = max(map(len, sequences))
    ids_RT = torch.tensor([[*sequence, *[0] * (longest - len(sequence))] for sequence in sequences], dtype=torch.long)
    lengths_R = torch.tensor([len(sequence) for sequence in sequences])
    return Padded(ids_RT.to(device), (torch.arange(longest) < lengths_R[:, None]).to(device))


def targets_of(rows: Sequence[Row], device: torch.device) -> Targets:
    """The learned tokens of the rows, flat, with what the loss needs for each."""
    lengths = torch.tensor([len(row.learned) for row in rows])
    ids = torch.tensor([row.token_ids[place] for row in rows for place in row.learned], dtype=torch.long)
    behaviour = torch.tensor([row.behaviour_logprobs[place] for row in rows for place in row.learned], dtype=torch.float32)
    coefficients = torch.tensor([row.coefficient for row in rows], dtype=torch.float32).repeat_interleave(lengths)
    row_N = torch.arange(len(rows)).repeat_interleave(lengths)
    ids_N, behaviour_N, coefficients_N, row_N = (tensor.to(device) for tensor in (ids, behaviour, coefficients, row_N))
    targets = Targets(ids_N, behaviour_N, coefficients_N, row_N, biased=biased_targets(rows, device))
    if any(row.allowed for row in rows):
        starts = itertools.accumulate((len(row.token_ids) for row in rows), initial=0)
        learned = [start + place for start, row in zip(starts, rows, strict=False) for place in row.learned]
        targets = targets._replace(learned_N=torch.tensor(learned, device=device), allowed=allowed_targets(rows, device))
    if not any(row.off_policy for row in rows):
        return targets
    if references := [row.reference for row in rows if row.reference]:
        ids_NK, logprobs_NK = (torch.cat(parts).to(device) for parts in zip(*references, strict=True))
        targets = targets._replace(reference=Reference(ids_NK, logprobs_NK))
    off_policy, imitated = (
        torch.tensor(marks).repeat_interleave(lengths).to(device)
        for marks in ([row.off_policy for row in rows], [row.imitated for row in rows])
    )
    return targets._replace(off_policy_N=off_policy, imitated_N=imitated if any(row.imitated for row in rows) else None)


def biased_targets(rows: Sequence[Row], device: torch.device) -> BiasedTargets | None:
    """Where in the rows a help bias was, flat like `targets_of`."""
    starts = itertools.accumulate((len(row.learned) for row in rows), initial=0)
    biased = [(start + row.learned.index(one.place), one) for start, row in zip(starts, rows, strict=False) for one in row.biased]
    if not biased:
        return None
    most = max(len(one.help_ids) for _, one in biased)
    return BiasedTargets(
        torch.tensor([place for place, _ in biased], device=device),
        torch.tensor([one.bias for _, one in biased], dtype=torch.float32, device=device),
        torch.tensor([[*one.help_ids, *[-1] * (most - len(one.help_ids))] for _, one in biased], device=device),
    )


def allowed_targets(rows: Sequence[Row], device: torch.device) -> AllowedTargets:
    """The sets that the learned tokens of the rows were drawn from, each once; the first one excludes nothing."""
    size = max(len(bits) for row in rows if row.allowed for bits in row.allowed.sets) * 8
    known: dict[bytes, int] = {b"\xff" * (size // 8): 0}
    set_N = [
        known.setdefault(row.allowed.sets[row.allowed.places[place]], len(known)) if row.allowed else 0
        for row in rows
        for place in row.learned
    ]
    bits_KV = np.unpackbits(np.frombuffer(b"".join(known), dtype=np.uint8).reshape(len(known), -1), axis=1, bitorder="little")
    return AllowedTargets(torch.from_numpy(bits_KV == 0).to(device), torch.tensor(set_N, device=device))


def _has_gradient(sample: TrainingSample) -> bool:
    return bool(sample.token_ids) and has_signal([sample.advantage])


def _fill(ordered: Sequence[Item], length: Callable[[Item], int], budget: int) -> Iterator[tuple[Item, ...]]:
    """Cut a list sorted by falling length so that each part's count times its longest stays within the budget."""
    start = 0
    while start < len(ordered):
        count = max(1, budget // max(1, length(ordered[start])))
        yield tuple(ordered[start : start + count])
        start += count
