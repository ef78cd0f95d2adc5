"""The target rate of a budget: how often may be asked so that a period's tokens or money last (`learning.control.dual_unit`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from edge.budget.daily import DailyLimits
from edge.cloud.client import KnownBudget
from edge.core.clock import Clock, day_began
from edge.core.periods import DAY_S, HOUR_S, period_end
from edge.core.units import BY_WORD
from edge.dagrpo.costs import CallCost, budget_rate, fitted_call_cost
from edge.state.reader import StateReader

DualUnit = Literal["calls", "tokens", "spend"]
"""What λ acts on."""
Unit = Literal["tokens", "spend"]
LEARNING_SHARE = 0.5
"""Most of a day's even part of the budget that learning may use; the rest is people's."""
WEEK_H, DAY_H = 168, 24
_HISTORY_H = WEEK_H + DAY_H
_CALLS = 200
"""How many of the latest calls are read to estimate what one costs."""
_CALLS_S = 30 * DAY_S
"""No call longer ago counts."""
_FORECAST_S = 300.0
"""Seconds for which a forecast is used again."""


def expected_demand(by_hour: Mapping[int, float], first_hour: int, now: float, until: float) -> float | None:
    """What is expected from `now` to `until`, from what was seen in each hour since the epoch; None before a day was seen.

    As a week earlier, times how the last day compares with the same day a week earlier (drawn halfway to 1 by half a mean day, so that few
    questions decide little); in the first eight days as much an hour as on the mean so far.
    """
    hour = int(now // HOUR_S)
    seen_h = now / HOUR_S - first_hour
    if seen_h < DAY_H:
        return None
    if seen_h < _HISTORY_H:
        return sum(by_hour.values()) / seen_h * (until - now) / HOUR_S
    week = [by_hour.get(hour - WEEK_H + step, 0.0) for step in range(WEEK_H)]
    steadying = sum(week) / 14.0
    last_day, day_before = sum(week[-DAY_H:]), sum(by_hour.get(hour - WEEK_H - step, 0.0) for step in range(1, DAY_H + 1))
    level = (last_day + steadying) / (day_before + steadying) if steadying else 1.0
    left_h = (until - now) / HOUR_S
    begun = now / HOUR_S - hour
    weeks, rest_h = divmod(left_h + begun, WEEK_H)
    whole = int(rest_h)
    rest = sum(week[:whole]) + (rest_h - whole) * week[whole] - begun * week[0]
    return max(0.0, level * (weeks * sum(week) + rest))


@dataclass(frozen=True, slots=True)
class PeriodBudget:
    """A budget that renews: what is left of `limit` in its unit (tokens or micro-USD) until `ends` (seconds since the epoch)."""

    unit: Unit
    limit: int
    left: int
    period: str
    ends: float


def period_budget(unit: Unit, known: KnownBudget | None, now: float) -> PeriodBudget | None:
    """The budget of a unit as it is now; None without a limit, and for one that never renews. A period that has ended since the budget
    was reported has begun again."""
    if known is None:
        return None
    budget = known.budget
    names = BY_WORD[unit]
    used, limit, period = (getattr(budget, name) for name in (names.name, names.limit, names.period))
    if limit is None or period in ("", "total"):
        return None
    if now >= period_end(period, known.as_of):
        used = 0
    return PeriodBudget(unit, limit, max(0, limit - used), period, period_end(period, now))


@dataclass(slots=True)
class Pace:
    """What a budget's unit costs and leaves. `known`: the budget as the coordinator reported it last."""

    unit: Unit
    state: StateReader
    known: Callable[[], KnownBudget | None]
    clock: Clock
    _forecast: tuple[float, float, float | None, float] | None = field(default=None, init=False)

    def rate(self) -> float | None:
        """τ for people's questions and for learning (edge.dagrpo.costs.budget_rate): what learning is expected to use comes off first.

        None where no budget renews, in the first day of questions, and before a call has shown what one costs.
        """
        now = self.clock.now()
        budget = self.budget()
        if budget is None:
            return None
        demand, learning = self._expected(now, budget.ends)
        if demand is None:
            return None
        return budget_rate(budget.left - min(learning, LEARNING_SHARE * budget.left), demand)

    def budget(self) -> PeriodBudget | None:
        """What is left of the budget that is kept to; None where none renews."""
        return period_budget(self.unit, self.known(), self.clock.now())

    def learning_limits(self) -> DailyLimits:
        """What learning may use today: half of what the budget, spread evenly over the days left, has for this one."""
        now, budget = self.clock.now(), self.budget()
        if budget is None:
            return DailyLimits()
        today = day_began(now)
        used = sum(self._of(tokens, spend) for _, tokens, spend in self.state.rows(_LEARNING_BY_HOUR, (today,)))
        days_left = max(1.0, (budget.ends - today) / DAY_S)
        share = int(LEARNING_SHARE * (budget.left + used) / days_left)
        return DailyLimits(tokens=share) if self.unit == "tokens" else DailyLimits(spend_uusd=share)

    def call_cost(self, until: float = math.inf) -> CallCost | None:
        """What a call costs by its question's length, from the last calls up to a time; None before the first one that cost anything."""
        until = min(until, self.clock.now())
        last = sorted(self.state.rows(_CALLS_BY_COST[self.unit], (until - _CALLS_S, until)), reverse=True)[:_CALLS]
        return fitted_call_cost([(int(chars or 0), int(cost)) for _, chars, cost in last])

    def _of(self, tokens: int, spend_uusd: int) -> int:
        return tokens if self.unit == "tokens" else spend_uusd

    def _expected(self, now: float, until: float) -> tuple[float | None, float]:
        """What people's questions would cost if all of them asked, and what learning is expected to use, from now to `until`."""
        known = self._forecast
        if known is not None and known[1] == until and 0.0 <= now - known[0] < _FORECAST_S:
            return known[2], known[3]
        since = ((now // HOUR_S - _HISTORY_H) * HOUR_S,)
        cost, asked = self.call_cost(now), self.state.rows(_QUESTIONS_BY_HOUR, since)
        demand = None
        if cost is not None and asked:
            by_hour = {hour: count * cost.expected(int(chars or 0) // count) for hour, count, chars in asked}
            demand = expected_demand(by_hour, min(by_hour), now, until)
        used = {hour: float(self._of(tokens, spend)) for hour, tokens, spend in self.state.rows(_LEARNING_BY_HOUR, since)}
        learning = (expected_demand(used, min(used), now, until) if used else None) or 0.0
        self._forecast = now, until, demand, learning
        return demand, learning


_QUESTIONS_BY_HOUR = """
SELECT CAST(created_at / 3600 AS INTEGER), count(*),
    sum(coalesce(nullif(json_extract(record, '$.question_chars'), 0), length(json_extract(record, '$.prompt'))))
FROM requests WHERE created_at >= ? AND coalesce(json_extract(record, '$.might_ask'), 1) GROUP BY 1
"""
_LEARNING_BY_HOUR = """
SELECT CAST(at / 3600 AS INTEGER), sum(tokens), sum(spend_uusd) FROM learning_spend WHERE at >= ? GROUP BY 1
"""


def _calls_by_cost(answers: str, learning: str) -> str:
    """The last calls of answers and of learning that cost anything in one unit: when, the question's characters, the cost. A cached
    answer was paid for before."""
    return f"""
SELECT * FROM (
    SELECT created_at, coalesce(nullif(json_extract(record, '$.question_chars'), 0), length(json_extract(record, '$.prompt'))),
        json_extract(record, '$.{answers}') AS cost
    FROM requests WHERE created_at BETWEEN ?1 AND ?2 AND cost > 0 AND NOT coalesce(json_extract(record, '$.cached'), 0)
    ORDER BY created_at DESC LIMIT {_CALLS}
) UNION ALL SELECT * FROM (
    SELECT at, chars, {learning} AS cost FROM learning_spend WHERE at BETWEEN ?1 AND ?2 AND cost > 0 ORDER BY at DESC LIMIT {_CALLS}
)
"""  # noqa: S608 - of constants


_CALLS_BY_COST: dict[Unit, str] = {
    "tokens": _calls_by_cost("cloud_tokens", "tokens"),
    "spend": _calls_by_cost("charged_uusd", "spend_uusd"),
}
