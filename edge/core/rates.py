"""Rates as people write them, for options, configuration, the chat, HTTP bodies and the page."""

from __future__ import annotations

import math


def rate_words(rate: float) -> str:
    """`15 %`."""
    return f"{100 * rate:.3g} %"


def rate_of(value: object) -> float:
    """The share in [0, 1] that `30%`, `30 %`, `0.3` or a number means. Raises ValueError, which states what to write instead."""
    if isinstance(value, str):
        text = value.strip()
        try:
            number = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
        except ValueError:
            number = math.nan
    elif isinstance(value, int | float) and not isinstance(value, bool):
        number = float(value)
    else:
        number = math.nan
    if 0.0 <= number <= 1.0:
        return number
    shown = value if isinstance(value, int | float) else repr(value)
    if math.isnan(number) and isinstance(value, str):
        raise ValueError(f"must be a share such as 30 % or 0.3, not {shown}")
    bare = 2.0 <= number <= 100.0 and "%" not in str(value)
    raise ValueError(f"must lie in [0, 1], not {shown}" + (f"; write {number:g} % or {number / 100:g}" if bare else ""))
