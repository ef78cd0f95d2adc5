"""The baselines' equations: GRPO, GVPO, GAPG."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from edge.dagrpo.advantages import centred, standard_deviation
from edge.dagrpo.numbers import require_finite, require_non_negative, require_values

_ROUNDING = 1e-9
"""τ/(1-τ) times a count may fall short of a whole number by less."""


def grpo_advantages(rewards: Sequence[float], epsilon: float = 1e-4) -> list[float]:
    """A_i = (r_i - mean r) / (std r + ε), std with Bessel's correction (DeepSeekMath). Shape [G]."""
    rewards_G = require_values("rewards", rewards)
    divisor = standard_deviation(rewards_G) + epsilon
    return [value / divisor for value in centred(rewards_G)]


def gvpo_weights(rewards: Sequence[float], log_ratios: Sequence[float], beta: float = 0.1) -> list[float]:
    """w_i = (r_i - mean r) - β(ℓ_i - mean ℓ), ℓ_i = log π_θ(y_i) - log π_θ'(y_i) summed over tokens (Zhang et al. 2025). Shape [G].

    The gradient of one prompt is -β/(G-1) Σ_i w_i ∇ log π_θ(y_i), with w held constant.
    """
    rewards_G, log_ratios_G = require_values("rewards", rewards), require_values("log_ratios", log_ratios)
    if len(rewards_G) != len(log_ratios_G):
        raise ValueError(f"rewards and log_ratios must be equally long, not {len(rewards_G)} and {len(log_ratios_G)}")
    require_non_negative("beta", beta)
    pairs = zip(centred(rewards_G), centred(log_ratios_G), strict=True)
    return [reward - beta * log_ratio for reward, log_ratio in pairs]


def gapg_advantages(rewards: Sequence[float]) -> list[float]:
    """A_i = r_i - mean r, unscaled; the estimator's weight is 1/(G-1) (Fang et al. 2025). Shape [G]."""
    return centred(require_values("rewards", rewards))


@dataclass(frozen=True, slots=True)
class PromptOutcome:
    """What decides whether GAPG keeps a prompt: some local response was right, and whether the cloud's was."""

    any_local_correct: bool
    cloud_correct: bool


def gapg_kept_prompts(outcomes: Sequence[PromptOutcome], calls_per_local: float, rng: random.Random) -> list[int]:
    """Indices kept by GAPG's filter: all of D1 and at most floor(ρ|D1|) random ones of D2, in ascending order.

    D1: prompts with a locally correct response; D2: none locally correct but the cloud is. ρ = calls_per_local (3/7 for 30 %).
    """
    require_non_negative("calls_per_local", calls_per_local)
    solved = [index for index, outcome in enumerate(outcomes) if outcome.any_local_correct]
    cloud_only = [i for i, outcome in enumerate(outcomes) if not outcome.any_local_correct and outcome.cloud_correct]
    quota = min(len(cloud_only), math.floor(calls_per_local * len(solved) + _ROUNDING))
    return sorted(solved + rng.sample(cloud_only, quota))


def calls_per_local(target_rate: float) -> float:
    """ρ for a share of queries: τ/(1-τ). Raises ValueError unless 0 <= τ < 1."""
    if not 0.0 <= require_finite("target_rate", target_rate) < 1.0:
        raise ValueError(f"target_rate must lie in [0, 1), not {target_rate!r}")
    return target_rate / (1.0 - target_rate)
