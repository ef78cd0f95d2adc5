"""The pace of a period's budget: its rate, learning's daily share, and the expected remaining cost."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from coordinator.ledger.budgets import window_label
from edge.budget.dial import Dials
from edge.budget.pace import Pace, expected_demand, period_budget
from edge.cloud.client import KnownBudget
from edge.core.periods import DAY_S, HOUR_S, PERIODS, WEEK_S, period_end
from edge.rpc.client import BudgetSnapshot
from edge.state.folder import StateFolder
from edge.testing.clock import ManualClock

MONDAY = datetime(2024, 1, 1, tzinfo=UTC).timestamp()
MONTH_ENDS = datetime(2024, 2, 1, tzinfo=UTC).timestamp()


def spent(uusd: int, limit: int | None = 1_000_000, period: str = "month", as_of: float = MONDAY) -> KnownBudget:
    budget = BudgetSnapshot(1, 0.5, 0.3, 0, None, 0, None, uusd, limit, spend_period=period if limit is not None else "")
    return KnownBudget(budget, as_of)


@pytest.mark.parametrize("period", PERIODS[1:])
def test_a_period_ends_where_the_ledger_begins_another_window(period: str) -> None:
    for hours in range(0, 24 * 400, 7):
        at = MONDAY + hours * HOUR_S + 0.5
        end = period_end(period, at)
        assert end > at
        assert window_label(period, end - 0.001) == window_label(period, at) != window_label(period, end)


def test_a_week_repeats_and_the_level_of_the_last_day_counts() -> None:
    first = int(MONDAY // HOUR_S)
    by_hour = {first + hour: 10.0 if hour // 24 % 7 < 5 else 2.0 for hour in range(24 * 14)}
    now = MONDAY + 14 * DAY_S
    week = 24 * (5 * 10.0 + 2 * 2.0)
    assert expected_demand(by_hour, first, now, now + WEEK_S) == pytest.approx(week)
    assert expected_demand(by_hour, first, now, now + 2 * WEEK_S + DAY_S) == pytest.approx(2 * week + 240.0)
    assert expected_demand(by_hour, first, now + HOUR_S / 2, now + HOUR_S) == pytest.approx(5.0, rel=0.05)
    assert expected_demand({first: 6.0}, first, MONDAY + DAY_S / 2, MONTH_ENDS) is None, "before a day nothing is known"
    assert expected_demand({first: 48.0}, first, MONDAY + 2 * DAY_S, MONDAY + 3 * DAY_S) == pytest.approx(24.0)
    quiet = {hour: (demand / 4 if hour >= first + 24 * 13 else demand) for hour, demand in by_hour.items()}
    assert expected_demand(quiet, first, now, now + WEEK_S) < 0.75 * week


def test_period_that_ended_since_the_report_has_restarted() -> None:
    old = period_budget("spend", spent(900_000), MONTH_ENDS + 5.0)
    assert old is not None and old.left == 1_000_000
    assert period_budget("spend", spent(5, period="total"), MONDAY) is None
    assert period_budget("spend", spent(5, limit=None), MONDAY) is None
    assert period_budget("tokens", spent(5), MONDAY) is None and period_budget("spend", None, MONDAY) is None


def asked(state: StateFolder, at: float, charged: int = 0, chars: int = 100, **more: object) -> None:
    record = {
        "prompt": "x",
        "question_chars": chars,
        "charged_uusd": charged,
        "cloud_tokens": charged // 2,
        "might_ask": True,
        **more,
    }
    with state.database as database:
        database.execute("INSERT INTO requests VALUES (?, ?, ?)", (f"{at}-{chars}", at, json.dumps(record)))


def test_rate_is_remaining_budget_over_expected_cost(state: StateFolder) -> None:
    clock = ManualClock(MONDAY)
    known = spent(100_000)
    pace = Pace("spend", state, lambda: known, clock)
    assert pace.rate() is None, "nothing was asked yet"
    for hour in range(24 * 10):
        asked(state, MONDAY + hour * HOUR_S + 60, charged=2000 if hour % 3 == 0 else 0)
    clock.advance(10 * DAY_S)
    expected = 21 * 24 * 2000  # as many questions, each a call of mean cost
    assert pace.rate() == pytest.approx(900_000 / expected, rel=0.02)
    assert Dials(state, 0.9, clock, pace.rate).of("math").target_rate == pace.rate()
    chosen = Dials(state, 0.9, clock, pace.rate)
    chosen.set(0.1)
    assert chosen.of("math").target_rate == 0.1, "a setting of the user is kept"


def test_learning_may_use_half_of_a_days_share_and_its_use_is_subtracted(state: StateFolder) -> None:
    clock = ManualClock(MONDAY + DAY_S / 2)
    pace = Pace("spend", state, lambda: spent(0, limit=3_100_000), clock)
    assert pace.learning_limits().spend_uusd == pytest.approx(50_000, rel=0.05)
    assert Pace("tokens", state, lambda: spent(0), clock).learning_limits().spend_uusd is None


def test_cloud_without_a_price_is_paced_by_tokens_and_cached_answers_have_no_cost(state: StateFolder) -> None:
    clock = ManualClock(MONDAY)
    budget = BudgetSnapshot(1, 0.5, 0.3, 0, None, 10_000, 100_000, 0, None, tokens_period="month")
    pace = Pace("tokens", state, lambda: KnownBudget(budget, MONDAY), clock)
    for hour in range(24 * 10):
        asked(state, MONDAY + hour * HOUR_S + 60, cloud_tokens=200)
        asked(state, MONDAY + hour * HOUR_S + 90, cloud_tokens=5000, cached=True)
    clock.advance(10 * DAY_S)
    cost = pace.call_cost()
    assert cost is not None and cost.mean == 200.0
    assert pace.rate() == pytest.approx(90_000 / (21 * 48 * 200), rel=0.02)
    assert Pace("spend", state, lambda: spent(0), clock).call_cost() is None, "nothing was paid"
    with state.database as database:
        values = ("k", "2024-01-10", MONDAY + 9.5 * DAY_S, "math", 100)
        database.execute("INSERT INTO learning_spend VALUES (?, ?, ?, ?, 400, 0, 1, ?)", values)
    assert pace.call_cost().mean == pytest.approx((199 * 200 + 400) / 200)  # type: ignore[union-attr]
