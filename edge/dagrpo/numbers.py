"""Argument checks for the equations."""

from __future__ import annotations

import math
from collections.abc import Sequence


def require_finite(name: str, value: float) -> float:
    """The value as a float. Raises ValueError when it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, not {value!r}")
    return float(value)


def require_share(name: str, value: float) -> float:
    """The value as a float in [0, 1]. Raises ValueError otherwise."""
    number = require_finite(name, value)
    if not 0.0 <= number <= 1.0:
        raise ValueError(f"{name} must lie in [0, 1], not {value!r}")
    return number


def require_non_negative(name: str, value: float) -> float:
    """The value as a float >= 0. Raises ValueError otherwise."""
    number = require_finite(name, value)
    if number < 0.0:
        raise ValueError(f"{name} must not be negative, not {value!r}")
    return number


def require_values(name: str, values: Sequence[float]) -> list[float]:
    """The values as floats. Raises ValueError when there are none or one is not finite."""
    if len(values) == 0:
        raise ValueError(f"{name} must not be empty")
    return [require_finite(f"{name}[{index}]", value) for index, value in enumerate(values)]
