"""The DA-GRPO objective on log-probabilities, as pure torch functions. Knows equations and shapes; knows no model or batch.

With Â_i the dual advantage of response i of a prompt, w the prompt's weight (1/(G-1)) and P the number of prompts of the batch,

    loss = -(1/P) Σ_prompts w Σ_i Â_i Σ_t ρ_it log π_θ(y_it)          ∇ loss = -(1/P) Σ ∇R_λ when every ρ is 1

where ρ_it = min(π_θ(y_it) / μ(y_it), C) without gradient corrects the sampler's log-probabilities μ.

Axes: N tokens of all rows in a flat list, D model width, V vocabulary, R rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class TokenScores(NamedTuple):
    """Per token: log π of the sampled token (nats, differentiable) and the entropy of the distribution (nats, detached)."""

    logprobs_N: Tensor
    entropy_N: Tensor


def token_scores(hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, chunk_elements: int = 1 << 20) -> TokenScores:
    """log softmax(W h)[target] and its entropy, never holding more than about `chunk_elements` logits at once.

    The backward pass computes the logits of a chunk again, so memory does not grow with N x V. Only `hidden_ND` receives a
    gradient; the output projection is frozen. Logits are float32, or rounded to the projection's own dtype; autocast is not used.
    """
    rows = max(1, chunk_elements // weight_VD.shape[0])
    logprobs_N, entropy_N = _ChunkedLogSoftmax.apply(  # type: ignore[no-untyped-call]
        hidden_ND, weight_VD, targets_N, rows
    )
    return TokenScores(logprobs_N, entropy_N)


def importance_weights(logprobs_N: Tensor, behaviour_N: Tensor, cap: float) -> Tensor:
    """ρ = min(π_θ / μ, C) per token, detached (truncated importance sampling)."""
    return torch.exp(logprobs_N.detach() - behaviour_N).clamp_max(cap)


def sequence_mask_weights(logprobs_N: Tensor, behaviour_N: Tensor, row_N: Tensor, cap: float) -> Tensor:
    """1 for every token of a response whose ratio Π_t π_θ/μ is at most C, else 0; detached. `row_N` is each token's response."""
    log_ratio_N = logprobs_N.detach() - behaviour_N
    rows = int(row_N.max()) + 1 if len(row_N) else 0
    log_ratio_R = torch.zeros(rows, dtype=log_ratio_N.dtype, device=log_ratio_N.device).index_add_(0, row_N, log_ratio_N)
    return (log_ratio_R <= torch.log(torch.tensor(cap))).to(log_ratio_N.dtype)[row_N]


def policy_loss(logprobs_N: Tensor, coefficients_N: Tensor, weights_N: Tensor) -> Tensor:
    """-Σ_t coefficient_t ρ_t log π_t, where a token's coefficient is Â_i w / P of its response."""
    return -(coefficients_N * weights_N * logprobs_N).sum()


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
    log_ratio_N = (scores.logprobs_N.detach() - behaviour_N).double()
    ratio_N = log_ratio_N.exp()
    return MismatchSums(
        tokens=len(behaviour_N),
        abs_diff=float(log_ratio_N.abs().sum()),
        kl=float((torch.expm1(log_ratio_N) - log_ratio_N).sum()),
        ratio=float(ratio_N.sum()),
        ratio_squared=float(ratio_N.square().sum()),
        clipped=int((ratio_N > cap).sum()),
        entropy=float(scores.entropy_N.double().sum()),
    )


class _ChunkedLogSoftmax(torch.autograd.Function):
    """log-probabilities of targets with the logits made anew in the backward pass: ∂ log p / ∂ logits = onehot - softmax."""

    @staticmethod
    def forward(ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        logprobs_N = torch.empty(len(targets_N), device=hidden_ND.device)
        entropy_N = torch.empty_like(logprobs_N)
        normaliser_N = torch.empty_like(logprobs_N)
        for part in _parts(len(targets_N), rows):
            logits = _logits(hidden_ND[part], weight_VD)
            normaliser_N[part] = torch.logsumexp(logits, dim=-1)
            logprobs_N[part] = logits.gather(-1, targets_N[part, None]).squeeze(-1) - normaliser_N[part]
            probs = (logits - normaliser_N[part, None]).exp_()
            entropy_N[part] = normaliser_N[part] - torch.linalg.vecdot(probs, logits)
        ctx.save_for_backward(hidden_ND, weight_VD, targets_N, normaliser_N)
        ctx.rows = rows
        ctx.mark_non_differentiable(entropy_N)
        return logprobs_N, entropy_N

    @staticmethod
    def backward(ctx: Any, grad_N: Tensor, _entropy: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        hidden_ND, weight_VD, targets_N, normaliser_N = ctx.saved_tensors
        grad_ND = torch.empty_like(hidden_ND)
        for part in _parts(len(targets_N), ctx.rows):
            slope = (_logits(hidden_ND[part], weight_VD) - normaliser_N[part, None]).exp_()
            slope.mul_(-grad_N[part, None])
            slope.scatter_add_(-1, targets_N[part, None], grad_N[part, None])
            with torch.autocast(slope.device.type, enabled=False):
                grad_ND[part] = (slope.to(weight_VD.dtype) @ weight_VD).to(grad_ND.dtype)
        return grad_ND, None, None, None


def _parts(total: int, rows: int) -> list[slice]:
    return [slice(start, min(start + rows, total)) for start in range(0, total, rows)]


def _logits(hidden_ND: Tensor, weight_VD: Tensor) -> Tensor:
    with torch.autocast(hidden_ND.device.type, enabled=False):
        return (hidden_ND.to(weight_VD.dtype) @ weight_VD.T).float()
