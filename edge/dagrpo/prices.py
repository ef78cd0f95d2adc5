"""Which price of help to tell for a wanted rate.

A model that was trained with prices in its prompts asks less the more help costs. Its rates at a few prices, measured on held-out items,
make a curve; what lies between two of them is taken for a straight line.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from edge.dagrpo.numbers import require_non_negative, require_share


def price_for_rate(rates: Mapping[float, float], target_rate: float) -> float:
    """The lowest price at which the model asks no more often than `target_rate`; `rates` are the measured rates by price.

    Where a rate rises with the price, which is chance, neighbours are averaged until none does. Beyond the measured prices nothing is
    known: the lowest or the highest of them is the answer there. Raises ValueError without a rate, and on impossible prices or shares.
    """
    target = require_share("target_rate", target_rate)
    curve = falling_rates(rates)
    if target >= curve[0][1]:
        return curve[0][0]
    for (low, before), (high, after) in pairwise(curve):
        if target >= after:
            return min(high, low + (high - low) * (before - target) / (before - after))
    return curve[-1][0]


def falling_rates(rates: Mapping[float, float]) -> list[tuple[float, float]]:
    """(price, rate) from the lowest price on, the nearest rates (least squares) that never rise: pools of neighbours have their mean."""
    if not rates:
        raise ValueError("no rate was measured at any price")
    measured = sorted((require_non_negative("price", price), require_share("rate", rate)) for price, rate in rates.items())
    pools: list[tuple[float, int]] = []
    for _, rate in measured:
        total, count = rate, 1
        while pools and pools[-1][0] / pools[-1][1] < total / count:
            before, members = pools.pop()
            total, count = total + before, count + members
        pools.append((total, count))
    pooled = [total / count for total, count in pools for _ in range(count)]
    return [(price, rate) for (price, _), rate in zip(measured, pooled, strict=True)]
