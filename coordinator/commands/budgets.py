"""What may be spent and what was, of a running coordinator or of the ledger in a state folder; and how limits are changed there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.commands.admin_client import AdminClient, running_coordinator
from coordinator.config import BudgetsConfig, LimitConfig, ServerConfig
from coordinator.ledger.accounts import AS_CONFIGURED, UNITS, amount_text, scope_of
from coordinator.ledger.budgets import (
    SCOPES,
    SETTINGS,
    has_ended,
    limits_in_ledger,
    overlaid,
    rows_held_to_next,
    rows_with_set,
    settings_set,
)
from coordinator.ledger.opening import in_ledger, open_rows
from coordinator.ledger.tables import BUDGET, SET_LIMITS, SHARED_DUAL, TASK
from coordinator.ledger.transitions import task_as_seen
from coordinator.service.admin_api import MOST_LIMIT, budget_record, shared_dual_record, task_record
from edge.core.clock import SystemClock
from edge.core.errors import UsageError
from edge.core.formatting import counted
from edge.core.periods import PERIODS
from edge.rpc.v1 import admin_pb2


@dataclass(frozen=True, slots=True)
class Spending:
    """What may be spent, and what was."""

    limits: BudgetsConfig
    """Those that hold."""
    budgets: Sequence[admin_pb2.BudgetRecord]
    tasks: Sequence[admin_pb2.TaskRecord]
    shared_duals: Sequence[admin_pb2.SharedDualRecord]
    """Each λ that several tasks or devices share."""
    settings_set: Mapping[str, Sequence[str]]
    """By scope the settings among the limits that were set at run time."""
    configured: bool
    """The limits are a configuration's, not only what the ledger remembers of one."""

    def to_json(self) -> dict[str, Any]:
        """As one JSON object."""
        return {
            "limits": self.limits.model_dump(),
            "set": {scope: list(names) for scope, names in self.settings_set.items()},
            "budgets": [_budget_json(row) for row in self.budgets],
            "tasks": [_task_json(row) for row in self.tasks],
            "shared_duals": [{"key": row.key, "dual": row.dual, "updates": row.updates} for row in self.shared_duals],
        }

    def lines(self, now: float) -> Iterator[str]:
        """For people: what was spent in the windows of now, in seconds since the epoch."""
        recorded = {scope_of(row.key) for row in self.budgets}
        for scope in SCOPES:
            none = "no limit" if self.configured or scope in recorded else "as configured"
            yield f"limit of {scope}: {limit_text(getattr(self.limits, scope), none, self.settings_set.get(scope, ()))}"
        used = [row for row in self.budgets if not (row.key.startswith(("step[", "share/")) or has_ended(row.key, now))]
        for row in used:
            yield f"used by {row.key}: " + ", ".join(_used_text(row, unit) for unit in UNITS)
        if not used:
            yield "nothing was spent yet in the windows of now" if self.budgets else "nothing was spent yet"
        for shared in self.shared_duals:
            yield f"shared λ of {shared.key}: {shared.dual:.4f} after {counted(shared.updates, 'step')}"
        for task in self.tasks:
            calls = amount_text("calls", task.charged.calls)
            yield f"{task.device} {task.task}: λ {task.dual:.4f}, τ {task.target_rate:g}, next step {task.next_step}, {calls}"


def spending_of(config: ServerConfig, configured: bool) -> Spending:
    """As a running coordinator reports it, or where none runs, from the ledger of its state folder; not `configured`: by the limits that
    the ledger remembers. Raises CoordinatorError, StateError.
    """
    with running_coordinator(config) as client:
        if client is not None:
            return _reported(client)
    with open_rows(config) as rows:
        budgets, shared = list(rows.all(BUDGET)), {row.key: row for row in rows.all(SHARED_DUAL)}
        tasks = [task_as_seen(row, shared.get(row.shared_dual)) for row in rows.all(TASK)]
        was_set = tuple(rows.all(SET_LIMITS))
    limits, now = overlaid(config.budgets if configured else limits_in_ledger(budgets), was_set), SystemClock().now()
    shown = rows_held_to_next(budgets, limits, now) if configured else rows_with_set(budgets, was_set, now)
    return Spending(
        limits,
        list(map(budget_record, shown)),
        list(map(task_record, tasks)),
        list(map(shared_dual_record, shared.values())),
        settings_set(was_set),
        configured,
    )


def set_limits(config: ServerConfig, scope: str, changes: dict[str, Any]) -> BudgetsConfig:
    """Change limits of a scope, by a running coordinator or in the ledger where none runs; returns those that hold now."""
    with running_coordinator(config) as client:
        if client is not None:
            units = {unit: _limit_change(changes[name]) for unit, name in SETTINGS.items() if name in changes}
            client.ask("SetBudget", admin_pb2.SetBudgetRequest(scope=scope, window=changes.get("window", ""), **units))
            return _reported(client).limits
    return overlaid(config.budgets, in_ledger(config, lambda store: store.set_limits(scope, changes, SystemClock().now())))


def changes_given(scope: str, amounts: Mapping[str, str | None], window: str | None) -> dict[str, Any]:
    """The settings of a scope that a person asks for: amounts by unit, each a number, `none` or `config`. Raises UsageError."""
    if scope not in SCOPES:
        raise UsageError(f"unknown scope {scope!r}; known: {', '.join(SCOPES)}")
    given = {SETTINGS[unit]: text for unit, text in amounts.items() if text is not None}
    changes: dict[str, Any] = {name: _amount_given(name, text) for name, text in given.items()}
    if window is not None:
        if window not in (*PERIODS, "config"):
            raise UsageError(f"unknown window {window!r}; known: {', '.join(PERIODS)}, config")
        changes["window"] = AS_CONFIGURED if window == "config" else window
    if not changes:
        raise UsageError("nothing to set", hint="give --calls, --tokens, --spend-uusd or --window")
    return changes


def _amount_given(name: str, text: str) -> int | str | None:
    if text in ("none", "config"):
        return None if text == "none" else AS_CONFIGURED
    if not (text.isascii() and text.isdigit() and int(text) <= MOST_LIMIT):
        raise UsageError(f"{name} must be a whole number up to {MOST_LIMIT}, `none` or `config`, not {text!r}")
    return int(text)


def limit_text(limits: LimitConfig, none: str = "no limit", was_set: Sequence[str] = ()) -> str:
    """The limits of a scope in a line; `was_set`: the settings among them that were set at run time."""
    given = [(unit, getattr(limits, name)) for unit, name in SETTINGS.items()]
    amounts = [amount_text(unit, value) for unit, value in given if value is not None]
    names = [name.removesuffix("_limit").removesuffix("_limit_uusd") for name in was_set]
    text = f"{', '.join(amounts)} ({limits.window})" if amounts else "no limit" if was_set else none
    return text + (f"; by `budget set`: {', '.join(names)}" if names else "")


def _reported(client: AdminClient) -> Spending:
    replies = list(client.pages("ListBudgets", admin_pb2.ListBudgetsRequest(include_steps=True)))
    pages = list(client.pages("ListTasks", admin_pb2.ListTasksRequest()))
    scopes = replies[0].scopes
    return Spending(
        BudgetsConfig.model_validate({scope.scope: _scope_settings(scope) for scope in scopes}),
        [record for reply in replies for record in reply.budgets],
        [record for page in pages for record in page.tasks],
        [record for page in pages for record in page.shared_duals],
        {scope.scope: tuple(scope.set) for scope in scopes if scope.set},
        configured=True,
    )


def _limit_change(value: int | str | None) -> admin_pb2.LimitChange:
    if isinstance(value, str):
        return admin_pb2.LimitChange(configured=True)
    return admin_pb2.LimitChange(unlimited=True) if value is None else admin_pb2.LimitChange(value=value)


def _scope_settings(scope: admin_pb2.ScopeLimits) -> dict[str, Any]:
    return {"window": scope.window, **{name: _limit(scope.limits, unit) for unit, name in SETTINGS.items()}}


def _limit(limits: admin_pb2.UnitLimits, unit: str) -> int | None:
    return int(getattr(limits, unit)) if limits.HasField(unit) else None


def _budget_json(row: admin_pb2.BudgetRecord) -> dict[str, Any]:
    def of(unit: str) -> dict[str, Any]:
        committed, reserved = getattr(row.committed, unit), getattr(row.reserved, unit)
        return {"committed": committed, "reserved": reserved, "limits": _limit(row.limits, unit)}

    return {"key": row.key, **{unit: of(unit) for unit in UNITS}}


def _task_json(row: admin_pb2.TaskRecord) -> dict[str, Any]:
    return {
        "device": row.device,
        "task": row.task,
        "dual": row.dual,
        "target_rate": row.target_rate,
        "next_step": row.next_step,
        "spend_uusd": row.charged.uusd,
        "calls": row.charged.calls,
        "tokens": row.charged.tokens,
    }


def _used_text(row: admin_pb2.BudgetRecord, unit: str) -> str:
    used, limit = getattr(row.committed, unit) + getattr(row.reserved, unit), _limit(row.limits, unit)
    return f"{'micro-USD' if unit == 'uusd' else unit} {used}" + ("" if limit is None else f" of {limit}")
