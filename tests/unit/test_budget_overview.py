"""A budget shared by several tasks is reported once, with the use of each task."""

from __future__ import annotations

from typing import Any

import pytest

from edge.budget.dial import HelpDial
from edge.budget.known import budget_at_rest
from edge.budget.limits import BudgetLimits, set_limits
from edge.budget.overview import Held, Overview, TaskBudget
from edge.budget.quota import Circumstances, quota_of
from edge.cli.budget import budget_lines
from edge.cloud.client import KnownBudget
from edge.rpc.client import BudgetSnapshot
from edge.state.folder import StateFolder
from edge.state.usage import OfTask, used_by_task


def task(name: str, calls: int, limit: int | None, *, at: float = 7.0, used: int = 0, away: str = "") -> TaskBudget:
    snapshot = HelpDial(None, name).snapshot()
    known = KnownBudget(BudgetSnapshot(1, 0.5, 0.3, calls, limit, 90, None, 1500, None), at)
    return TaskBudget(quota_of(name, known, snapshot, Circumstances(away=away)), snapshot, OfTask(used, 10 * used, 100 * used))


def overview(*tasks: TaskBudget) -> Overview:
    return Overview("agent", "math", None, False, "", 0, 0, tasks, Held(None, None, "", "the model decides"))


def test_device_use_is_reported_once_and_task_use_with_each_task() -> None:
    both = overview(task("math", 50, 60, used=47), task("code", 50, 60, used=3)).to_json()
    assert (both["device"]["calls"], both["device"]["calls_limit"], both["device"]["calls_left"]) == (50, 60, 10)
    assert [one["used"]["calls"] for one in both["tasks"]] == [47, 3]
    assert [line for line in budget_lines(both) if "50 of" in line] == ["calls    50 of 60"]


def test_limit_of_a_task_is_shown_with_the_task() -> None:
    own = overview(task("math", 12, 20), task("code", 3, 5)).to_json()
    assert "calls_limit" not in own["device"] and own["device"]["tokens"] == 90
    lines = budget_lines(own)
    assert [lines[lines.index(f"task     {name}") + 1] for name in ("math", "code")] == ["calls    12 of 20", "calls    3 of 5"]


def test_use_of_a_task_is_counted_from_answers_and_learning(state: StateFolder) -> None:
    paid = {"task": "math", "call_state": "completed", "charged_uusd": 70, "cloud_tokens": 20}
    for number, record in enumerate([paid, paid, {**paid, "cached": True, "charged_uusd": 0}, {"task": "qa"}]):
        state.put_request(f"r{number}", float(number), record)
    with state.database as database:
        database.execute("INSERT INTO learning_spend VALUES ('k', '', 1.0, 'math', 5, 50, 1, 0)")
        database.execute("INSERT INTO learning_spend VALUES ('l', '', 1.0, 'code', 5, 50, 0, 0)")
    assert used_by_task(state) == {"math": OfTask(3, 45, 190), "qa": OfTask(), "code": OfTask(0, 5, 50)}


NOON = 1_790_000_000.0  # 2026-09-21


AT_REST = {
    "never reported": (None, BudgetLimits(20, period="month"), None, (3, 20, "month")),
    "no limit": (None, BudgetLimits(), None, None),
    "as reported": ((12, 20, "total", NOON), BudgetLimits(20), None, (12, 20, "total")),
    "a new month": ((12, 20, "month", NOON - 40 * 86_400.0), BudgetLimits(20, period="month"), None, (3, 20, "month")),
    "of another configuration": ((12, 20, "total", NOON), BudgetLimits(), None, (12, 20, "total")),
    "a new period": ((12, 20, "total", NOON), BudgetLimits(), {"calls_limit": 50, "period": "day"}, (0, 50, "day")),
    "set at rest": ((12, 20, "total", NOON), BudgetLimits(), {"calls_limit": 50}, (12, 50, "total")),
    "taken off": ((12, 20, "total", NOON), BudgetLimits(), {"calls_limit": None}, (5, None, "")),
    "of another coordinator": ((12, 20, "month", NOON), None, None, (12, 20, "month")),
}


@pytest.mark.parametrize(("reported", "configured", "set_here", "calls"), AT_REST.values(), ids=AT_REST)
def test_idle_folder_shows_the_limit_of_the_next_agent(
    state: StateFolder, reported: Any, configured: BudgetLimits | None, set_here: Any, calls: Any
) -> None:
    paid = {"task": "math", "call_state": "completed", "charged_uusd": 70, "cloud_tokens": 20}
    for number, days_ago in enumerate([0, 0, 3, 40, 41]):
        state.put_request(f"r{number}", NOON - 60.0 - days_ago * 86_400.0, paid)
    if set_here is not None:
        set_limits(state, set_here)
    known = None
    if reported is not None:
        used, limit, period, at = reported
        known = KnownBudget(BudgetSnapshot(1, 0.5, 0.3, used, limit, 90, None, 1500, None, calls_period=period), at)
    found = budget_at_rest(state, known, configured, NOON)
    budget = found and found.budget
    assert (budget and (budget.calls, budget.calls_limit, budget.calls_period)) == calls
