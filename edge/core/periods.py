"""The calendar's periods in UTC, as budgets count in them; weeks begin on Monday."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Literal, get_args

Period = Literal["total", "month", "week", "day", "hour"]
PERIODS: tuple[Period, ...] = get_args(Period)
HOUR_S, DAY_S, WEEK_S = 3600.0, 86400.0, 604800.0


def period_end(period: str, at: float) -> float:
    """When the period that `at` lies in ends and the next one begins, in seconds since the epoch; infinite for `total`.

    Raises ValueError for another period.
    """
    moment = datetime.fromtimestamp(at, UTC).replace(minute=0, second=0, microsecond=0)
    if period == "total":
        return math.inf
    if period == "hour":
        return (moment + timedelta(hours=1)).timestamp()
    midnight = moment.replace(hour=0)
    if period == "day":
        return (midnight + timedelta(days=1)).timestamp()
    if period == "week":
        return (midnight + timedelta(days=7 - midnight.weekday())).timestamp()
    if period == "month":
        return (midnight.replace(day=1) + timedelta(days=32)).replace(day=1).timestamp()
    raise ValueError(f"{period!r} is no period; known: {', '.join(PERIODS)}")
