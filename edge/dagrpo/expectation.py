"""The policy gradient of a prompt whose possible answers are few: its expectation over all of them, in place of samples.

A response asks with probability q = σ(z + b), else it is one of the answers y, drawn with p(y). With rewards R(y), the cloud's R_c, and λ

    J = (1 - q) Σ p(y) R(y) + q (R_c - λ),   V = Σ p(y) R(y)
    ∇J = (1 - q) Σ p(y) (R(y) - V) ∇ log p(y) + q (1 - q) (R_c - λ - V) ∇z

All of it is known but R_c, which is known where one of the G sampled responses asked, with probability s = 1 - (1 - q)^G: the samples
decide whether the cloud is asked, and are what Ĵ_c and all measurements count, as without this. The estimate c + (R_c - c)/s where R_c is
known, and c where not, is unbiased for any c that does not depend on this prompt's samples, as the mean R_c of the other prompts.

Axis name: `_A` runs over the answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def answer_value(logprobs_A: Sequence[float], rewards_A: Sequence[float]) -> float:
    """V: the expected reward of a response that does not ask."""
    return math.fsum(math.exp(logprob) * reward for logprob, reward in zip(logprobs_A, rewards_A, strict=True))


def answer_weights(logprobs_A: Sequence[float], rewards_A: Sequence[float], ask: float) -> list[float]:
    """(1 - q) p(y) (R(y) - V): what multiplies ∇ log p(y) of each answer; `ask` is q."""
    value = answer_value(logprobs_A, rewards_A)
    pairs = zip(logprobs_A, rewards_A, strict=True)
    return [(1.0 - ask) * math.exp(logprob) * (reward - value) for logprob, reward in pairs]


def ask_weight(ask: float, assisted: float, dual: float, value: float) -> float:
    """q (1 - q) (R_c - λ - V): what multiplies ∇z. `assisted` is R_c or its estimate, `value` V."""
    return ask * (1.0 - ask) * (assisted - dual - value)


def assisted_reward(known: float | None, ask: float, group_size: int, elsewhere: float) -> float:
    """An unbiased estimate of R_c from G samples: `known` where one of them asked, else None; `elsewhere` is c."""
    if known is None:
        return elsewhere
    seen = -math.expm1(group_size * math.log1p(-ask)) if ask < 1.0 else 1.0
    return elsewhere + (known - elsewhere) / seen
