"""Group-relative advantages.

Axis names: `_G` runs over the G responses of one prompt. The policy gradient of one prompt is estimator_weight(G) Σ_i Â_i ∇ log π(y_i).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

from edge.dagrpo.numbers import require_finite, require_non_negative, require_share, require_values

_ROUNDING = 1e-8


class AdvantageScale(StrEnum):
    """What advantages are divided by. With anything but NONE, λ is no longer in units of reward."""

    NONE = "none"
    GROUP = "group"
    BATCH = "batch"


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean; exactly the common value when all are equal, so that a group without signal centres to exact zeros."""
    first = values[0]
    return first + math.fsum(value - first for value in values) / len(values)


def centred(values_G: Sequence[float]) -> list[float]:
    """v_i - mean_g v_g."""
    average = mean(values_G)
    return [value - average for value in values_G]


def dual_advantages(
    rewards: Sequence[float], costs: Sequence[float], dual: float, free_rewards: Sequence[float] = ()
) -> list[float]:
    """Â_i = (r_i - mean r) - λ (c_i - mean c), the two advantages of DA-GRPO joined by λ. Shape [G + number of free rewards].

    Equals the centred advantage of the shaped reward r - λc. `free_rewards` are of responses that were not sampled with the group and cost
    nothing: they are measured against the group, whose means they do not enter, and come last. Raises ValueError on empty or unequal
    lengths, non-finite numbers, a cost outside [0, 1] or a negative λ.
    """
    rewards_G = require_values("rewards", rewards)
    costs_G = [require_share(f"costs[{index}]", cost) for index, cost in enumerate(costs)]
    dual = require_non_negative("dual", dual)
    if len(rewards_G) != len(costs_G):
        raise ValueError(f"rewards and costs must be equally long, not {len(rewards_G)} and {len(costs_G)}")
    free = [require_finite(f"free_rewards[{index}]", reward) for index, reward in enumerate(free_rewards)]
    mean_reward, mean_cost = mean(rewards_G), mean(costs_G)
    judged = zip([*rewards_G, *free], [*costs_G, *[0.0] * len(free)], strict=True)
    return [(reward - mean_reward) - dual * (cost - mean_cost) for reward, cost in judged]


def estimator_weight(group_size: int) -> float:
    """1/(G-1): makes the group estimator unbiased for the policy gradient. Raises ValueError when G < 2."""
    if group_size < 2:
        raise ValueError(f"a group needs at least two responses for a baseline, not {group_size}")
    return 1.0 / (group_size - 1)


def standard_deviation(values: Sequence[float]) -> float:
    """Sample standard deviation (Bessel's correction); 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    return math.sqrt(math.fsum(value * value for value in centred(values)) / (len(values) - 1))


def scale_advantages(
    groups: Sequence[Sequence[float]], scale: AdvantageScale = AdvantageScale.NONE, epsilon: float = 1e-4
) -> list[list[float]]:
    """Divide the advantages of a batch of groups [B][G] by nothing, by each group's or by the batch's standard deviation + ε."""
    if scale is AdvantageScale.NONE:
        return [list(group) for group in groups]
    if scale is AdvantageScale.GROUP:
        return [_divided(group, standard_deviation(group) + epsilon) for group in groups]
    batch = [value for group in groups for value in group]
    return [_divided(group, standard_deviation(batch) + epsilon) for group in groups]


def has_signal(advantages: Sequence[float]) -> bool:
    """Whether any advantage is more than the rounding of a zero; what has none has no gradient and is dropped."""
    return any(abs(advantage) > _ROUNDING for advantage in advantages)


def _divided(values: Sequence[float], divisor: float) -> list[float]:
    return [value / divisor for value in values]
