"""The calendar's periods in UTC, as budgets count in them; weeks begin on Monday."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Literal, get_args

Period = Literal["total", "month", "week", "day", "hour"]
PERIODS: tuple[Period, ...] = get_args(Period)
PERIOD_WORDS = {"total": "in all", "month": "a month", "week": "a week", "day": "a day", "hour": "an hour"}
HOUR_S, DAY_S, WEEK_S = 3600.0, 86400.0, 604800.0


def period_began(period: str, at: float) -> float:
    """When the period that `at` lies in began, in seconds since the epoch; 0 for `total`. Raises ValueError for another period."""
    hour = datetime.fromtimestamp(at, UTC).replace(minute=0, second=0, microsecond=0)
    midnight = hour.replace(hour=0)
    began = {
        "hour": hour,
        "day": midnight,
        "week": midnight - timedelta(days=midnight.weekday()),
        "month": midnight.replace(day=1),
    }
    if period == "total":
        return 0.0
    if period not in began:
        raise ValueError(f"{period!r} is no period; known: {', '.join(PERIODS)}")
    return began[period].timestamp()


def period_end(period: str, at: float) -> float:
    """When the period that `at` lies in ends and the next one begins, in seconds since the epoch; infinite for `total`.

    Raises ValueError for another period.
    """
    if period == "total":
        return math.inf
    began = period_began(period, at)
    if period == "month":
        return (datetime.fromtimestamp(began, UTC) + timedelta(days=32)).replace(day=1).timestamp()
    return began + _LENGTHS_S[period]


_LENGTHS_S = {"hour": HOUR_S, "day": DAY_S, "week": WEEK_S}
