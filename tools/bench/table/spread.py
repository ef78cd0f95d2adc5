"""Samples of one quantity with their median and quartiles. Knows arithmetic; knows nothing of what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Spread:
    """At least one finite sample of one quantity, in the order in which they were taken."""

    samples: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raises ValueError without samples."""
        if not self.samples:
            raise ValueError("a spread needs at least one sample")

    @property
    def median(self) -> float:
        """The middle sample, or the mean of the two in the middle."""
        return statistics.median(self.samples)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The first and third quartile, interpolated between samples."""
        if len(self.samples) == 1:
            return self.samples[0], self.samples[0]
        first, _, third = statistics.quantiles(self.samples, n=4, method="inclusive")
        return first, third

    def to_json(self) -> dict[str, Any]:
        """Every sample, the median and the quartiles."""
        first, third = self.quartiles
        return {"median": self.median, "q1": first, "q3": third, "n": len(self.samples), "samples": list(self.samples)}


def spread(samples: Iterable[float]) -> Spread:
    """The spread of some samples. Raises ValueError without any."""
    return Spread(tuple(float(sample) for sample in samples))


def times(mine: Spread, other: Spread) -> float:
    """How many times the median of `mine` is contained in the median of `other`: 4.0 is four times faster, for seconds."""
    return other.median / mine.median
