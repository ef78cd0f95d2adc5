"""What several tasks share of a budget is told once, and what each has used stands with it."""

from __future__ import annotations

from pathlib import Path

from edge.budget.dial import HelpDial
from edge.budget.overview import Held, Overview, TaskBudget
from edge.budget.quota import Circumstances, quota_of
from edge.cli.budget import budget_lines
from edge.cloud.client import KnownBudget
from edge.rpc.client import BudgetSnapshot
from edge.state.folder import StateFolder
from edge.state.reader import OfTask, used_by_task


def task(name: str, calls: int, limit: int | None, *, at: float = 7.0, used: int = 0, away: str = "") -> TaskBudget:
    snapshot = HelpDial(None, name).snapshot()
    known = KnownBudget(BudgetSnapshot(1, 0.5, 0.3, calls, limit, 90, None, 1500, None), at)
    return TaskBudget(quota_of(name, known, snapshot, Circumstances(away=away)), snapshot, OfTask(used, 10 * used, 100 * used))


def overview(*tasks: TaskBudget) -> Overview:
    return Overview("agent", "math", None, False, "", 0, 0, tasks, Held(None, None, "", "the model decides"))


def test_what_the_whole_device_has_used_is_told_once_and_each_tasks_own_use_with_the_task() -> None:
    both = overview(task("math", 50, 60, used=47), task("code", 50, 60, used=3)).to_json()
    assert (both["device"]["calls"], both["device"]["calls_limit"], both["device"]["calls_left"]) == (50, 60, 10)
    assert [one["used"]["calls"] for one in both["tasks"]] == [47, 3]
    lines = budget_lines(both)
    assert lines[:7] == [
        "target   the model decides", "",
        "device   this device in all", "calls    50 of 60", "tokens   90 (unlimited)", "spend    0.0015 USD (unlimited)", "state    ok",
    ]  # fmt: skip
    assert [line for line in lines if "50 of" in line] == ["calls    50 of 60"]
    assert lines[lines.index("task     code") + 1] == "used     3 calls, 30 tokens, 0.0003 USD by this task alone"
    assert sum(line.startswith("state") for line in lines) == 1


def test_a_tasks_own_limit_stands_with_the_task() -> None:
    own = overview(task("math", 12, 20), task("code", 3, 5)).to_json()
    assert set(own["device"]) == {
        "tokens",
        "tokens_limit",
        "tokens_left",
        "tokens_period",
        "spend_uusd",
        "spend_limit_uusd",
        "spend_left_uusd",
        "spend_period",
        "as_of",
    }
    lines = budget_lines(own)
    assert lines[lines.index("task     math") + 1] == "calls    12 of 20"
    assert lines[lines.index("task     code") + 1] == "calls    3 of 5"


def test_without_limits_the_devices_total_is_what_was_told_last() -> None:
    device = overview(task("math", 50, None, at=9.0), task("code", 48, None, at=8.0)).device
    assert device is not None and (device["calls"], device["as_of"]) == (50, 9.0)


def test_states_that_differ_stand_with_their_tasks_and_a_reason_is_told() -> None:
    lines = budget_lines(overview(task("math", 62, 60, at=9.0), task("code", 62, 60, away="nobody there")).to_json())
    assert "calls    62 of 60" in lines
    assert "state    used up: answers come from this device" in lines
    assert "state    offline: offline (nobody there); answers come from this device" in lines
    assert overview().device is None


def test_a_tasks_own_use_is_counted_from_answers_and_learning(tmp_path: Path) -> None:
    with StateFolder(tmp_path / "state") as state:
        paid = {"task": "math", "call_state": "completed", "charged_uusd": 70, "cloud_tokens": 20}
        for number, record in enumerate([paid, paid, {**paid, "cached": True, "charged_uusd": 0}, {"task": "qa"}]):
            state.put_request(f"r{number}", float(number), record)
        with state.database as database:
            database.execute("INSERT INTO learning_spend VALUES ('k', '', 1.0, 'math', 5, 50, 1, 0)")
            database.execute("INSERT INTO learning_spend VALUES ('l', '', 1.0, 'code', 5, 50, 0, 0)")
        assert used_by_task(state.rows) == {"math": OfTask(3, 45, 190), "qa": OfTask(), "code": OfTask(0, 5, 50)}


def test_a_device_total_that_was_reported_at_different_times_is_still_one() -> None:
    device = overview(task("chat", 14, 60, at=9.0, used=2), task("math", 12, 60, at=8.0, used=12)).device
    assert device is not None and (device["calls"], device["as_of"]) == (14, 9.0)
    own = overview(task("chat", 14, 20, at=9.0, used=14), task("math", 12, 20, at=8.0, used=12)).device
    assert own is not None and "calls" not in own, "the same limit for each task is no total"
