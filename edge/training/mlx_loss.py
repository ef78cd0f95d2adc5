"""The objective of edge/training/loss.py on MLX arrays.

Axes: N tokens of all rows in a flat list, D model width, V vocabulary, R rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from edge.training.loss import SHAPING, MismatchSums
from edge.training.settings import Importance

Logits = Callable[[Any], Any]
"""From hidden states [N, D] to logits [N, V] in float32."""


class FlatBiased(NamedTuple):
    """edge.training.batching.BiasedTargets on MLX."""

    place_M: mx.array
    bias_M: mx.array
    help_ids_MH: mx.array


class FlatTargets(NamedTuple):
    """What the rows of a micro-batch are scored on, flat over tokens in row order.

    `off_policy_N`: which tokens are not the sampler's; None where all are. `biased`: None where no token had a help bias.
    """

    ids_N: mx.array
    behaviour_N: mx.array
    coefficients_N: mx.array
    row_N: mx.array
    off_policy_N: mx.array | None = None
    biased: FlatBiased | None = None


def token_scores(
    logits: Logits, hidden_ND: mx.array, ids_N: mx.array, vocab_size: int, chunk_elements: int
) -> tuple[mx.array, mx.array]:
    """log softmax(logits)[target] and the distribution's entropy, both [N] in nats; the entropy carries no gradient.

    About `chunk_elements` logits are held at once; the backward pass computes a chunk's logits again.
    """
    rows = max(1, chunk_elements // vocab_size)
    chunk = mx.checkpoint(lambda hidden, ids: _scores_of_chunk(logits(hidden), ids))
    parts = [chunk(hidden_ND[start : start + rows], ids_N[start : start + rows]) for start in range(0, len(ids_N), rows)]
    logprobs_N, entropy_N = (mx.concatenate(list(column)) for column in zip(*parts, strict=True))
    return logprobs_N, mx.stop_gradient(entropy_N)


def _scores_of_chunk(logits_NV: mx.array, ids_N: mx.array) -> tuple[mx.array, mx.array]:
    normaliser_N = mx.logsumexp(logits_NV, axis=-1)
    columns_N1 = mx.stop_gradient(ids_N)[:, None]  # a checkpoint differentiates by all of its arguments
    chosen_N = mx.take_along_axis(logits_NV, columns_N1, axis=-1)[:, 0]
    probs_NV = mx.exp(logits_NV - normaliser_N[:, None])
    return chosen_N - normaliser_N, normaliser_N - (probs_NV * logits_NV).sum(axis=-1)


def with_help_bias(logprobs_N: mx.array, logits: Logits, hidden_ND: mx.array, ids_N: mx.array, biased: FlatBiased) -> mx.array:
    """log π_b from log π (edge.training.loss.with_help_bias)."""
    logits_MV = logits(hidden_ND[biased.place_M])
    known_MH = biased.help_ids_MH >= 0
    chosen_MH = mx.take_along_axis(logits_MV, mx.maximum(biased.help_ids_MH, 0), axis=-1)
    log_help_M = mx.logsumexp(mx.where(known_MH, chosen_MH, -mx.inf), axis=-1) - mx.logsumexp(logits_MV, axis=-1)
    help_M = mx.minimum(mx.exp(log_help_M), 1.0 - 1e-6)
    asks_M = (biased.help_ids_MH == ids_N[biased.place_M][:, None]).any(axis=-1)
    change_M = mx.where(asks_M, biased.bias_M, 0.0) - mx.log1p(mx.expm1(biased.bias_M) * help_M)
    return logprobs_N.at[biased.place_M].add(change_M)


def weights_of(kind: Importance, logprobs_N: mx.array, targets: FlatTargets, rows: int, cap: float) -> mx.array:
    """ρ per token, without gradient: `importance_of` the sampler's tokens, f'(π) π of others (edge.training.loss.shaped_weights)."""
    own_N = importance_of(kind, logprobs_N, targets, rows, cap)
    if targets.off_policy_N is None:
        return own_N
    probs_N = mx.exp(mx.stop_gradient(logprobs_N))
    return mx.where(targets.off_policy_N, SHAPING * probs_N / mx.square(probs_N + SHAPING), own_N)


def importance_of(kind: Importance, logprobs_N: mx.array, targets: FlatTargets, rows: int, cap: float) -> mx.array:
    """ρ per token, without gradient: min(π_θ/μ, C); or 1 where the response's Π π_θ/μ is at most C, else 0; or 1."""
    log_ratio_N = mx.stop_gradient(logprobs_N) - targets.behaviour_N
    if kind == "none":
        return mx.ones_like(log_ratio_N)
    if kind == "token":
        return mx.minimum(mx.exp(log_ratio_N), cap)
    log_ratio_R = mx.zeros(rows).at[targets.row_N].add(log_ratio_N)
    return (log_ratio_R <= math.log(cap)).astype(mx.float32)[targets.row_N]


def policy_loss(logprobs_N: mx.array, coefficients_N: mx.array, weights_N: mx.array) -> mx.array:
    """-Σ_t coefficient_t ρ_t log π_t, where a token's coefficient is Â_i w / P of its response."""
    return -(coefficients_N * weights_N * logprobs_N).sum()


def mismatch_sums(logprobs_N: mx.array, entropy_N: mx.array, targets: FlatTargets, cap: float) -> MismatchSums:
    """Compare trainer and sampler on the sampler's tokens; KL(μ‖π) by the estimator ρ - 1 - log ρ, which is never negative."""
    own_N = slice(None) if targets.off_policy_N is None else ~np.array(targets.off_policy_N)
    log_ratio_N = np.array(logprobs_N).astype(np.float64)[own_N] - np.array(targets.behaviour_N)[own_N]
    with np.errstate(over="ignore"):
        ratio_N = np.exp(log_ratio_N)
        return MismatchSums(
            tokens=len(log_ratio_N),
            abs_diff=float(np.abs(log_ratio_N).sum()),
            kl=float((np.expm1(log_ratio_N) - log_ratio_N).sum()),
            ratio=float(ratio_N.sum()),
            ratio_squared=float(np.square(ratio_N).sum()),
            clipped=int((ratio_N > cap).sum()),
            entropy=float(np.array(entropy_N).astype(np.float64)[own_N].sum()),
        )
