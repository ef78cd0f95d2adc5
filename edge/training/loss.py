"""The DA-GRPO objective on log-probabilities, as pure torch functions.

With Â_i the dual advantage of response i of a prompt, w the prompt's weight (1/(G-1)) and P the number of prompts of the batch,

    loss = -(1/P) Σ_prompts w Σ_i Â_i Σ_t ρ_it log π_θ(y_it)          ∇ loss = -(1/P) Σ ∇R_λ when every ρ is 1

where ρ_it = min(π_θ(y_it) / μ(y_it), C) without gradient corrects the sampler's log-probabilities μ. Of a response that somebody else
wrote, μ is not known; its ρ_it is `shaped_weights`.

Axes: N tokens of all rows in a flat list, D model width, V vocabulary, R rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from edge.training.batching import AllowedTargets, BiasedTargets, Reference

EXCLUDED = -1e30
"""Added to the logit of an excluded token. Finite, so that blocks of the vocabulary in which a target allows nothing leave sums that are
numbers; they weigh nothing once the target's own block is taken."""
FEW = 1024
"""Allowed tokens for which their rows of the projection are taken alone."""
SHAPING = 0.1
"""γ of `shaped_weights`, as its authors chose it."""


class TokenScores(NamedTuple):
    """Per token: log π of the sampled token (nats, differentiable) and the entropy of the distribution (nats, detached)."""

    logprobs_N: Tensor
    entropy_N: Tensor


class Projection(Protocol):
    """A frozen output projection whose rows can be had in blocks, so that a large one need not be in memory."""

    @property
    def rows(self) -> int:
        """V."""
        ...

    def block(self, start: int, stop: int, dtype: torch.dtype | None = None) -> Tensor:
        """Rows start..stop-1 [stop - start, D], in the projection's own type unless given."""
        ...

    def gather(self, ids: Tensor) -> Tensor:
        """The rows `ids` [N, D], float32."""
        ...


@dataclass(frozen=True, slots=True)
class DenseProjection:
    """A projection [V, D] in memory."""

    weight_VD: Tensor

    @property
    def rows(self) -> int:
        """V."""
        return int(self.weight_VD.shape[0])

    def block(self, start: int, stop: int, dtype: torch.dtype | None = None) -> Tensor:
        """Some rows; a view of them where the type is the weight's own."""
        return self.weight_VD[start:stop].to(dtype or self.weight_VD.dtype)

    def gather(self, ids: Tensor) -> Tensor:
        """Some rows by number."""
        return self.weight_VD[ids].float()


@dataclass(frozen=True, slots=True)
class CopiedProjection:
    """A projection whose rows are made in main memory, for hidden states on another device."""

    source: Projection
    device: torch.device

    @property
    def rows(self) -> int:
        """V."""
        return self.source.rows

    def block(self, start: int, stop: int, dtype: torch.dtype | None = None) -> Tensor:
        """Some rows, copied."""
        return self.source.block(start, stop, dtype).to(self.device)

    def gather(self, ids: Tensor) -> Tensor:
        """Some rows by number, copied."""
        return self.source.gather(ids).to(self.device)


def token_scores(
    hidden_ND: Tensor,
    projection: Projection | Tensor,
    targets_N: Tensor,
    chunk_elements: int = 1 << 20,
    dtype: torch.dtype | None = None,
    allowed: AllowedTargets | None = None,
) -> TokenScores:
    """log softmax(W h)[target] over the allowed tokens and its entropy, never holding more than about `chunk_elements` logits at once.

    The vocabulary is taken block by block, each block of W once forward and once backward, so memory grows neither with N x V nor, where
    W stays in a file, with V x D. Only `hidden_ND` receives a gradient; the output projection is frozen. Products are taken in `dtype`
    (None: the projection's own; autocast is not used). Where that is narrower than float32 the target's own logit, whose rounding alone
    would not average out, is computed in float32 separately. A target that was drawn from few tokens needs the rows of these alone.
    """
    if isinstance(projection, Tensor):
        projection = DenseProjection(projection.detach())
    if allowed is None:
        return _over_all(hidden_ND, projection, targets_N, [], chunk_elements, dtype)
    excluded_KV = allowed.excluded_KV[:, : projection.rows]
    few_K = [size <= FEW for size in (~excluded_KV).sum(-1).tolist()]
    order_N = (allowed.set_N + len(few_K) * ~torch.tensor(few_K, device=targets_N.device)[allowed.set_N]).argsort(stable=True)
    hidden_ND, targets_N = hidden_ND.index_select(0, order_N), targets_N[order_N]
    counts = allowed.set_N.bincount(minlength=len(few_K)).tolist()
    parts, start = list[TokenScores](), 0
    for excluded_V, count in ((excluded_KV[index], counts[index]) for index, few in enumerate(few_K) if few and counts[index]):
        here = slice(start, start + count)
        parts.append(_over_few(hidden_ND[here], projection, targets_N[here], (~excluded_V).nonzero().flatten()))
        start += count
    if start < len(targets_N):
        many = [(excluded_KV[index], counts[index]) for index, few in enumerate(few_K) if not few and counts[index]]
        parts.append(_over_all(hidden_ND[start:], projection, targets_N[start:], many, chunk_elements, dtype))
    back_N = order_N.argsort()
    return TokenScores(*(torch.cat(of_parts).index_select(0, back_N) for of_parts in zip(*parts, strict=True)))


def _over_all(
    hidden_ND: Tensor,
    projection: Projection,
    targets_N: Tensor,
    excluded: Sequence[tuple[Tensor, int]],
    chunk_elements: int,
    dtype: torch.dtype | None,
) -> TokenScores:
    columns = max(1, chunk_elements // max(1, len(targets_N)))
    return TokenScores(
        *_ChunkedLogSoftmax.apply(hidden_ND, projection, targets_N, columns, dtype, excluded)  # type: ignore[no-untyped-call]
    )


def _over_few(hidden_ND: Tensor, projection: Projection, targets_N: Tensor, ids_A: Tensor) -> TokenScores:
    """Of targets among the A tokens `ids_A`, which are in rising order."""
    with torch.autocast(hidden_ND.device.type, enabled=False):
        logprobs_NA = (hidden_ND.float() @ projection.gather(ids_A).T).log_softmax(-1)
        place_N1 = torch.searchsorted(ids_A, targets_N)[:, None]
        entropy_N = -(logprobs_NA.detach().exp() * logprobs_NA.detach()).sum(-1)
        return TokenScores(logprobs_NA.gather(-1, place_N1).squeeze(-1), entropy_N)


def with_help_bias(
    logprobs_N: Tensor, hidden_ND: Tensor, projection: Projection | Tensor, targets_N: Tensor, biased: BiasedTargets
) -> Tensor:
    """log π_b from log π: at the biased targets, `bias` b is added to the logits of the help tokens H before the softmax, so that

        log π_b(y) = log π(y) + b [y ∈ H] - log(1 + (e^b - 1) π(H))

    and the gradient is that of the biased policy. Only the logits of H are computed; the normaliser follows from log π(y).
    """
    if isinstance(projection, Tensor):
        projection = DenseProjection(projection.detach())
    with torch.autocast(hidden_ND.device.type, enabled=False):
        hidden_MD, chosen_M = hidden_ND[biased.place_M].float(), targets_N[biased.place_M]
        normaliser_M = torch.linalg.vecdot(hidden_MD, projection.gather(chosen_M)) - logprobs_N[biased.place_M]
        known_MH = biased.help_ids_MH >= 0
        rows_MHD = projection.gather(biased.help_ids_MH.clamp_min(0).flatten()).view(*known_MH.shape, -1)
        logits_MH = torch.linalg.vecdot(hidden_MD[:, None], rows_MHD).masked_fill(~known_MH, -torch.inf)
        # Rounding can bring π(H) to 1 and more, where e^b - 1 near -1 would leave the logarithm nothing finite.
        help_M = (logits_MH.logsumexp(-1) - normaliser_M).exp().clamp_max(1.0 - 1e-6)
        chosen_help_M = (biased.help_ids_MH == chosen_M[:, None]).any(-1)
        change_M = torch.where(chosen_help_M, biased.bias_M, 0.0) - torch.log1p(torch.expm1(biased.bias_M) * help_M)
        return logprobs_N.index_add(0, biased.place_M, change_M)


def likeliest(
    hidden_ND: Tensor, projection: Projection, count: int, allowed: AllowedTargets | None, chunk_elements: int
) -> Tensor:
    """The ids [N, K] of the `count` tokens with the greatest logits among the allowed ones; -1 where there are fewer."""
    weight_VD, size = projection.block(0, projection.rows), max(1, chunk_elements // projection.rows)
    found = []
    with torch.autocast(hidden_ND.device.type, enabled=False):
        for start in range(0, len(hidden_ND), size):
            here = slice(start, start + size)
            logits_NV = (hidden_ND[here].to(weight_VD.dtype) @ weight_VD.T).float()
            if allowed is not None:
                logits_NV.masked_fill_(allowed.excluded_KV[:, : projection.rows][allowed.set_N[here]], EXCLUDED)
            best = logits_NV.topk(min(count, projection.rows), dim=-1)
            found.append(best.indices.masked_fill(best.values <= EXCLUDED, -1))
    return torch.cat(found)


def logprobs_of(ids_NK: Tensor, logprobs_N: Tensor, hidden_ND: Tensor, projection: Projection, targets_N: Tensor) -> Tensor:
    """log π (nats) of several tokens at each place, -inf for an id of -1. The normaliser follows from log π of the target."""
    with torch.autocast(hidden_ND.device.type, enabled=False):
        hidden_ND = hidden_ND.float()
        normaliser_N = torch.linalg.vecdot(hidden_ND, projection.gather(targets_N)) - logprobs_N
        rows_NKD = projection.gather(ids_NK.clamp_min(0).flatten()).view(*ids_NK.shape, -1)
        logits_NK = torch.linalg.vecdot(hidden_ND[:, None], rows_NKD)
        return torch.where(ids_NK < 0, -torch.inf, logits_NK - normaliser_N[:, None])


NO_REST = 1e-6
"""Probability below which what lies outside the likeliest tokens is rounding."""


def divergence(logprobs_NK: Tensor, reference: Reference) -> Tensor:
    """KL(p ‖ π) [N] in nats, over the K likeliest tokens of the reference p and all others as one."""
    known_NK = reference.ids_NK >= 0
    p_NK = reference.logprobs_NK.exp()
    differences_NK = torch.where(known_NK, reference.logprobs_NK - logprobs_NK.masked_fill(~known_NK, 0.0), 0.0)
    rest_p_N, rest_N = ((1.0 - probs_NK.sum(-1)).clamp_min(NO_REST) for probs_NK in (p_NK, logprobs_NK.exp()))
    return (p_NK * differences_NK).sum(-1) + rest_p_N * (rest_p_N.log() - rest_N.log())


def importance_weights(logprobs_N: Tensor, behaviour_N: Tensor, cap: float) -> Tensor:
    """ρ = min(π_θ / μ, C) per token, detached (truncated importance sampling)."""
    return torch.exp(logprobs_N.detach() - behaviour_N).clamp_max(cap)


def shaped_weights(logprobs_N: Tensor) -> Tensor:
    """ρ = γπ/(π + γ)² per token of a response whose author's probabilities are not known; detached, at most 1/4.

    μ is taken for 1 and the objective Â Σ_t f(π_t), f(π) = π/(π + γ), whose gradient is Â Σ_t f'(π_t) π_t ∇ log π_t (policy shaping, Yan
    et al. 2025, "Learning to Reason under Off-Policy Guidance"). Tokens that the model is sure of, or holds for impossible, move
    little; what lies between is learned. ρ = 1 would be plain imitation, and ρ = π would leave out most of what the model has to learn.
    """
    probs_N = logprobs_N.detach().exp()
    return SHAPING * probs_N / (probs_N + SHAPING) ** 2


def policy_loss(logprobs_N: Tensor, coefficients_N: Tensor, weights_N: Tensor) -> Tensor:
    """-Σ_t coefficient_t ρ_t log π_t, where a token's coefficient is Â_i w / P of its response."""
    return -(coefficients_N * weights_N * logprobs_N).sum()


def clipped_loss(logprobs_N: Tensor, behaviour_N: Tensor, coefficients_N: Tensor, clip: float) -> Tensor:
    """-Σ_t min(ρ_t a_t, clip(ρ_t, 1 - ε, 1 + ε) a_t), ρ = π_θ/μ with gradient, a = Â_i w / P of the token's response (GRPO)."""
    ratio_N = torch.exp(logprobs_N - behaviour_N)
    return -torch.minimum(ratio_N * coefficients_N, ratio_N.clamp(1.0 - clip, 1.0 + clip) * coefficients_N).sum()


class MismatchSums(NamedTuple):
    """Sums over tokens from which the comparison of sampler and trainer is made; they add up over micro-batches."""

    tokens: int
    abs_diff: float
    kl: float
    ratio: float
    ratio_squared: float
    clipped: int
    entropy: float

    def __add__(self, other: tuple[Any, ...]) -> MismatchSums:  # type: ignore[override]
        return MismatchSums(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    @property
    def effective_sample_share(self) -> float:
        """(Σρ)² / (N Σρ²) of the untruncated token ratios, in 0..1; 0 without tokens."""
        scale = self.tokens * self.ratio_squared
        return self.ratio**2 / scale if scale > 0 else 0.0

    def per_token(self, total: float) -> float:
        """A sum as a mean over tokens; 0 without tokens."""
        return total / self.tokens if self.tokens else 0.0


NO_TOKENS = MismatchSums(0, 0.0, 0.0, 0.0, 0.0, 0, 0.0)


def mismatch_sums(scores: TokenScores, behaviour_N: Tensor, cap: float) -> MismatchSums:
    """Compare trainer and sampler token by token; KL(μ‖π) by the estimator ρ - 1 - log ρ, which is never negative."""
    log_ratio_N = (scores.logprobs_N.detach() - behaviour_N).cpu().double()  # Metal has no float64
    ratio_N = log_ratio_N.exp()
    return MismatchSums(
        tokens=len(behaviour_N),
        abs_diff=float(log_ratio_N.abs().sum()),
        kl=float((torch.expm1(log_ratio_N) - log_ratio_N).sum()),
        ratio=float(ratio_N.sum()),
        ratio_squared=float(ratio_N.square().sum()),
        clipped=int((ratio_N > cap).sum()),
        entropy=float(scores.entropy_N.cpu().double().sum()),
    )


class _ChunkedLogSoftmax(torch.autograd.Function):
    """log-probabilities of targets y and their gradient ∂ log p_y / ∂h = (1 - p_y) W_y - Σ_{v≠y} p_v W_v, in one walk over the vocabulary.

    What follows in the loss only multiplies that gradient with a number per token, so no logits are kept or made again. Kept for each
    token is the greatest logit so far, and Σ exp(logit - greatest), Σ exp(logit - greatest)·logit and Σ_{v≠y} exp(logit - greatest)·W_v,
    rescaled whenever a block brings a greater one. The target's own share stays out of the last sum: that of a likely target nearly
    cancels W_y, and products may be taken in a narrow type. `excluded`: which of the V tokens as many of the following targets exclude.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        projection: Projection,
        targets_N: Tensor,
        columns: int,
        dtype: torch.dtype | None,
        excluded: Sequence[tuple[Tensor, int]],
    ) -> tuple[Tensor, Tensor]:
        ctx.input_dtype = hidden_ND.dtype
        with torch.autocast(hidden_ND.device.type, enabled=False):
            exact_N, own_ND = None, projection.gather(targets_N)
            if dtype not in (None, torch.float32):
                exact_N = torch.linalg.vecdot(hidden_ND.float(), own_ND)
            greatest_N = torch.full((len(targets_N),), -torch.inf, device=hidden_ND.device)
            total_N, weighted_N, target_N = (torch.zeros_like(greatest_N) for _ in range(3))
            others_ND = torch.zeros(hidden_ND.shape, device=hidden_ND.device) if ctx.needs_input_grad[0] else None
            for start, weight_CD in _blocks(projection, columns, dtype):
                hidden_ND = hidden_ND.to(weight_CD.dtype)
                inside_N, place_N = _within(targets_N, start, len(weight_CD))
                logits_NC = _with_targets((hidden_ND @ weight_CD.T).float(), inside_N, place_N, exact_N)
                row = 0
                for excluded_V, count in excluded:
                    logits_NC[row : row + count].add_(excluded_V[start : start + len(weight_CD)].float() * EXCLUDED)
                    row += count
                # Online softmax: sums are relative to the greatest logit so far, so that exp never overflows. A greater one in this block
                # shrinks the earlier sums; in the first block the factor is exp(-inf) = 0, and the sums are 0 anyway.
                before_N, greatest_N = greatest_N, torch.maximum(greatest_N, logits_NC.amax(-1))
                shrink_N = (before_N - greatest_N).exp()
                target_N = torch.where(inside_N, logits_NC.gather(-1, place_N[:, None]).squeeze(-1), target_N)
                if others_ND is None:
                    exp_NC = (logits_NC - greatest_N[:, None]).exp_()
                    weighted_N = weighted_N * shrink_N + torch.linalg.vecdot(exp_NC, logits_NC)
                    total_N = total_N * shrink_N + exp_NC.sum(-1)
                else:
                    exp_NC = logits_NC.sub_(greatest_N[:, None]).exp_()
                    total_N = total_N * shrink_N + exp_NC.sum(-1)
                    # The target's own row is left out here and added exactly at the end: the two would nearly cancel in a narrow type.
                    exp_NC = _with_targets(exp_NC, inside_N, place_N, torch.zeros_like(target_N))
                    others_ND.mul_(shrink_N[:, None]).add_(exp_NC.to(weight_CD.dtype) @ weight_CD)
            normaliser_N = greatest_N + total_N.log()
            if others_ND is not None:
                others_ND.div_(total_N[:, None])
                # Σ p_v logit_v = h · Σ p_v W_v, so the entropy needs no walk of its own.
                logprob_N = target_N - normaliser_N
                weighted_N = torch.linalg.vecdot(hidden_ND.float(), others_ND) + logprob_N.exp() * target_N
                # 1 - p_y by expm1: for a likely target the plain difference would keep no digits.
                missing_N = -torch.expm1(logprob_N)
                ctx.save_for_backward(own_ND.mul_(missing_N[:, None]).sub_(others_ND))
            else:
                weighted_N = weighted_N / total_N
        entropy_N = normaliser_N - weighted_N
        ctx.mark_non_differentiable(entropy_N)
        return target_N - normaliser_N, entropy_N

    @staticmethod
    def backward(ctx: Any, grad_N: Tensor, _entropy: Tensor) -> tuple[Tensor, None, None, None, None, None]:  # type: ignore[override]
        (slope_ND,) = ctx.saved_tensors
        return (grad_N[:, None] * slope_ND).to(ctx.input_dtype), None, None, None, None, None


def _blocks(projection: Projection, columns: int, dtype: torch.dtype | None) -> Iterator[tuple[int, Tensor]]:
    for start in range(0, projection.rows, columns):
        yield start, projection.block(start, min(start + columns, projection.rows), dtype)


def _with_targets(logits_NC: Tensor, inside_N: Tensor, place_N: Tensor, exact_N: Tensor | None) -> Tensor:
    """The logits, those of targets exchanged for `exact_N`, in place."""
    if exact_N is None:
        return logits_NC
    place_N1 = place_N[:, None]
    rounded_N1 = logits_NC.gather(-1, place_N1)
    return logits_NC.scatter_(-1, place_N1, torch.where(inside_N[:, None], exact_N[:, None], rounded_N1))


def _within(targets_N: Tensor, start: int, count: int) -> tuple[Tensor, Tensor]:
    """Which targets lie in a block, and where (0 for the others)."""
    inside_N = (targets_N >= start) & (targets_N < start + count)
    return inside_N, torch.where(inside_N, targets_N - start, 0)
