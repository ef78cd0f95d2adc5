"""Chance for many devices at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.core.rng import Name, derive_seed

Floats = NDArray[Any]
Ints = NDArray[Any]
Bools = NDArray[Any]
"""Arrays of these; which width they have is the business of who makes them."""
EPOCH_BITS = 32


class Draws:
    """One stream of chance; equal seeds and names give equal draws. Arrays are float32 where not said otherwise."""

    def __init__(self, seed: int, *names: Name) -> None:
        self._rng = np.random.Generator(np.random.SFC64(derive_seed(seed, "vectorised", *names)))

    def uniforms(self, count: int) -> Floats:
        """On [0, 1)."""
        return self._rng.random(count, np.float32)

    def normals(self, count: int) -> Floats:
        """Standard normal."""
        return self._rng.standard_normal(count, np.float32)

    def exponentials(self, count: int, mean: float) -> Floats:
        """Exponential with this mean; nothing is drawn where it is 0."""
        if mean <= 0.0:
            return np.zeros(count, np.float32)
        return np.float32(mean) * self._rng.standard_exponential(count, np.float32)

    def log_normals(self, count: int, median: float, sigma: float) -> Floats:
        """Log-normal with this median and this standard deviation of the logarithm."""
        if sigma <= 0.0:
            return np.full(count, median, np.float32)
        return np.exp(np.float32(sigma) * self.normals(count)) * np.float32(median)

    def within_unit(self, count: int, mean: float, spread: float) -> Floats:
        """Normal, drawn again beyond [0, 1]; the mean itself where nothing is spread."""
        if spread <= 0.0:
            return np.full(count, mean, np.float32)
        values = np.float32(mean) + np.float32(spread) * self.normals(count)
        while (beyond := np.flatnonzero((values < 0.0) | (values > 1.0))).size:
            values[beyond] = np.float32(mean) + np.float32(spread) * self.normals(beyond.size)
        return values

    def failures(self, count: int, share: float) -> Ints:
        """How often something of this probability happens before it does not."""
        if share <= 0.0:
            return np.zeros(count, np.int64)
        return self._rng.geometric(1.0 - min(share, 0.999), count) - 1

    def arrivals(self, devices: int, rate_per_s: float, begins: float, ends: float) -> tuple[Ints, Floats]:
        """Poisson arrivals at each of so many devices between two times: (device, second as float64), by device and then by time."""
        if devices == 0 or rate_per_s <= 0.0:
            return np.zeros(0, np.int64), np.zeros(0)
        count = int(self._rng.poisson(devices * rate_per_s * (ends - begins)))
        who = self._rng.integers(0, devices, count, np.uint64)
        when = self._rng.integers(0, 2**EPOCH_BITS, count, np.uint64)
        keys = np.sort((who << np.uint64(EPOCH_BITS)) | when)
        share = (keys & np.uint64(2**EPOCH_BITS - 1)).astype(np.float64) * 2.0**-EPOCH_BITS
        return (keys >> np.uint64(EPOCH_BITS)).astype(np.int64), begins + (ends - begins) * share
