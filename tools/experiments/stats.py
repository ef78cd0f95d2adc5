"""Means with 95 % intervals over few seeds and many items.

A result depends on the seed of a run and on the drawn items, and every seed gets the same items. So the variance of a mean over seeds is
the variance between seeds / S plus that of the items, from leaving one item or group of items out of all seeds at a time (jackknife); its
degrees of freedom are Welch and Satterthwaite's. The interaction of seed and item is in both parts, so the interval is conservative. Unlike
a bootstrap over three seeds, t accounts for their small number, and nothing is sampled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over `seeds` seeds and half the width of its 95 % interval (None: one seed and no items, so nothing is known of chance)."""

    mean: float
    half: float | None
    seeds: int

    @property
    def low(self) -> float:
        """The interval's lower end."""
        return self.mean - (self.half or 0.0)

    @property
    def high(self) -> float:
        """The interval's upper end."""
        return self.mean + (self.half or 0.0)


def over_seeds(values_S: Sequence[float]) -> Estimate:
    """Mean of one value a seed with Student's interval. Raises ValueError of none."""
    if not values_S:
        raise ValueError("a mean of no seeds")
    mean = math.fsum(values_S) / len(values_S)
    if len(values_S) == 1:
        return Estimate(mean, None, 1)
    df = len(values_S) - 1
    return Estimate(mean, t_quantile(df) * math.sqrt(_variance(values_S) / len(values_S)), len(values_S))


def estimate(whole_S: Sequence[float | None], without_K_S: Sequence[Sequence[float | None]]) -> Estimate | None:
    """Mean of one value a seed; `without_K_S`: the same worked out again without each item or group of items.

    None where a seed has no value; left-out parts without which there is none are skipped.
    """
    known_S = _known(whole_S)
    if not known_S or len(known_S) < len(whole_S):
        return None
    means_K = [math.fsum(known) / len(known) for values in without_K_S if len(known := _known(values)) == len(values)]
    between = _variance(known_S) / len(known_S) if len(known_S) > 1 else 0.0
    items = _deleted(means_K, len(without_K_S))
    variance, mean = between + items, math.fsum(known_S) / len(known_S)
    if variance == 0.0:
        return Estimate(mean, 0.0, len(known_S))
    parts = [(between, len(known_S) - 1), (items, len(without_K_S) - 1)]
    df = variance**2 / math.fsum(part**2 / of for part, of in parts if part)
    return Estimate(mean, t_quantile(df) * math.sqrt(variance), len(known_S))


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


@lru_cache(maxsize=10_000)
def t_quantile(df: float) -> float:
    """How many standard errors hold the middle 95 % of Student's t with `df` degrees of freedom, which need not be whole.

    Raises ValueError for df that are not positive.
    """
    if not df > 0.0:
        raise ValueError(f"degrees of freedom must be positive, not {df}")
    low, high = 0.0, 1.0
    while _middle(high, df) < _CONFIDENCE:
        high *= 2.0
    while low < (half := 0.5 * (low + high)) < high:
        low, high = (half, high) if _middle(half, df) < _CONFIDENCE else (low, half)
    return 0.5 * (low + high)


def _deleted(without: Sequence[float], count: int) -> float:
    """The jackknife's variance from the values without each of `count` parts."""
    if len(without) < 2:
        return 0.0
    centre = math.fsum(without) / len(without)
    return (count - 1) / count * math.fsum((value - centre) ** 2 for value in without)


def _variance(values: Sequence[float]) -> float:
    """With Bessel's correction."""
    centre = math.fsum(values) / len(values)
    return math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1)


def _middle(t: float, df: float) -> float:
    """P(|T| <= t) = 1 - I_x(df/2, 1/2) at x = df / (df + t²)."""
    return 1.0 - _incomplete_beta(0.5 * df, 0.5, df / (df + t * t))


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function, by its continued fraction where that converges fast."""
    if x <= 0.0 or x >= 1.0:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - _incomplete_beta(b, a, 1.0 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    return front * _continued_fraction(a, b, x)


def _continued_fraction(a: float, b: float, x: float) -> float:
    """Lentz's method; a few dozen terms suffice on the side where it is used."""
    tiny = 1e-300
    c, d = 1.0, 1.0 / (1.0 - (a + b) * x / (a + 1.0) or tiny)
    value = d
    for m in range(1, 500):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 / (1.0 + term * d or tiny)
            c = 1.0 + term / c or tiny
            value *= c * d
        if abs(c * d - 1.0) < 1e-14:
            break
    return value
