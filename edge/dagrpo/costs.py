"""What a call is expected to cost, and the target rate that a budget leaves: with them λ acts on tokens or money as it does on calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import StatisticsError, linear_regression

from edge.dagrpo.advantages import mean
from edge.dagrpo.numbers import require_non_negative, require_share

LEAST_WEIGHT = 0.1
"""No call counts for less than a tenth of a mean one, however short its question is."""


def budget_rate(left: float, demand: float) -> float:
    """τ = min(1, B / K): the target rate at which what is left of a budget lasts until its period ends.

    Let k(q) be the expected cost of a call for question q, a(q) whether q asks, and m the mean of k. What is wanted is the largest reward
    of the questions q still to come that keeps Σ k(q) a(q) <= B, the budget's rest. Its Lagrangian Σ r(q) - μ Σ k(q) a(q) charges an
    asking response λ w(q) with λ = μ m and the weight w = k / m, whose mean is 1: λ stays what a mean call counts, in units of reward.
    Divided by K = Σ k(q), what the questions to come would cost if all of them asked, the constraint reads

        Ĵ_w = Σ w(q) a(q) / Σ w(q)  <=  B / K = τ,

    so a budget is a target of the cost-weighted assist rate, and λ ← [λ + η (Ĵ_w - τ)]₊ is Algorithm 1's rule. With k = 1 for every
    question, w is 1 and Ĵ_w the assist rate. B and K change with every call and every forecast, and τ with them: what was spent too
    fast or too slowly so far is made good by the rest. Where nothing is expected any more, everything may ask. Raises ValueError on a
    negative or non-finite argument.
    """
    rest, whole = require_non_negative("left", left), require_non_negative("demand", demand)
    return 1.0 if rest >= whole else rest / whole


@dataclass(frozen=True, slots=True)
class CallCost:
    """The expected cost k of a call by the characters of its question: a straight line, base + slope · characters. `mean` is that of the
    calls it was fitted to."""

    base: float
    slope: float
    mean: float

    def expected(self, chars: int) -> float:
        """k of a question so long."""
        return max(LEAST_WEIGHT * self.mean, self.base + self.slope * chars)

    def weight(self, chars: int) -> float:
        """w = k / m: in calls of mean cost."""
        return self.expected(chars) / self.mean


def fitted_call_cost(calls: Sequence[tuple[int, int]]) -> CallCost | None:
    """The least-squares line through (characters, cost) of past calls; its mean where the line would fall or all questions are equally
    long. None without calls, or where they cost nothing."""
    if not calls or not any(cost for _, cost in calls):
        return None
    average = mean([float(cost) for _, cost in calls])
    try:
        slope, base = linear_regression([chars for chars, _ in calls], [cost for _, cost in calls])
    except StatisticsError:  # one call, or one length
        return CallCost(average, 0.0, average)
    return CallCost(base, slope, average) if slope > 0.0 else CallCost(average, 0.0, average)


def weighted_rate(rates: Sequence[float], weights: Sequence[float]) -> float:
    """Ĵ_w = Σ w J / Σ w over groups, of their rates J and weights w > 0; always in [0, 1]. Raises ValueError on other rates and weights."""
    shares = [require_share("rate", rate) for rate in rates]
    whole = sum(require_non_negative("weight", weight) for weight in weights)
    if not whole > 0.0:
        raise ValueError("weighted_rate needs a weight above 0")
    return min(1.0, sum(weight * share for weight, share in zip(weights, shares, strict=True)) / whole)
