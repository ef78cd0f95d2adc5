"""Spans of time and how much of an interval they cover."""

from __future__ import annotations

import math
from collections.abc import Iterable

from tools.simulate.fleet.scenario import DAY_S, HOUR_S

Span = tuple[float, float]
"""From when until when, in virtual seconds."""
ENDLESS: Span = (-DAY_S, 1e9)
"""Longer than any scenario."""


def united(spans: Iterable[Span], begins: float, ends: float) -> list[Span]:
    """What of this interval lies in any of the spans: in the order of time, none touching another."""
    whole: list[Span] = []
    for first, last in sorted((max(begins, first), min(ends, last)) for first, last in spans):
        if first >= last:
            continue
        if whole and first <= whole[-1][1]:
            whole[-1] = whole[-1][0], max(whole[-1][1], last)
        else:
            whole.append((first, last))
    return whole


def covered_s(spans: Iterable[Span], begins: float, ends: float) -> float:
    """Seconds of this interval that lie in any of the spans."""
    return sum(last - first for first, last in united(spans, begins, ends))


def hours_of_a_day(hours: tuple[float, float]) -> float:
    """How long these hours (from, until) of a day last: over midnight where `until` comes first; from 0 to 24 is all of it, and where both
    are the same it is nothing."""
    first, last = hours
    return 0.0 if first == last else (last - first) % 24.0 or 24.0


def daily(hours: tuple[float, float], starts_at_h: float, begins: float, ends: float) -> list[Span]:
    """These hours of every day of the local clock, which shows `starts_at_h` at second 0, as far as they meet the interval."""
    lasts_s, first_s = hours_of_a_day(hours) * HOUR_S, (hours[0] - starts_at_h) * HOUR_S
    days = range(math.floor((begins - first_s) / DAY_S) - 1, math.ceil((ends - first_s) / DAY_S) + 1)
    each = [(first_s + day * DAY_S, first_s + day * DAY_S + lasts_s) for day in days] if lasts_s else []
    return [(first, last) for first, last in each if first < ends and last > begins]
