"""Which limits hold for whom, now. Knows scopes, windows and limits set at run time; knows nothing of how a hold is taken.

Limits come from the configuration. What `budget set` sets is in the ledger and takes precedence, setting by setting, at every process that
shares the ledger, until it is set back to `config`: replicas may have been started with different files, and reading one again must not
undo what an operator decided.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from coordinator.config import BudgetsConfig, LimitConfig, TaskConfig
from coordinator.ledger.accounts import (
    AmountLimits,
    BudgetRow,
    BudgetTerms,
    SetLimits,
    TaskRow,
    budget_key,
    limits_version,
    scope_of,
)
from coordinator.ledger.fairness import PPM
from edge.core.errors import BudgetExhausted
from edge.core.periods import PERIODS, period_end
from edge.core.units import BUDGET_UNITS
from edge.rpc.client import BudgetSnapshot

log = logging.getLogger(__name__)
SCOPES = ("user", "device_task", "device", "fleet_task", "fleet")
SETTINGS = {unit.ledger: unit.limit for unit in BUDGET_UNITS}
"""What the limit of a unit is called in the configuration."""
_WINDOW_FORMATS = {"total": "", "month": "%Y-%m", "week": "%G-W%V", "day": "%Y-%m-%d", "hour": "%Y-%m-%dT%H"}
MOST_KNOWN_TERMS = 10_000
"""Of how many devices, tasks and users the budgets stay known within an hour; no window is shorter."""
_WINDOW_BY_LABEL_CHARS = {
    len(label): window for window, label in zip(PERIODS, ("", "2026-10", "2026-W41", "2026-10-07", "2026-10-07T12"), strict=True)
}


def window_label(window: str, now: float) -> str:
    """The name of the window that `now` (seconds since the epoch) lies in, in UTC: `2026-10`, `2026-10-07`, "" for total."""
    pattern = _WINDOW_FORMATS[window]
    return datetime.fromtimestamp(now, UTC).strftime(pattern) if pattern else ""


class BudgetBook:
    """The limits that hold now: the configured ones, overlaid with what was set at run time; and the share of the fleet's that is divided
    into floors. What changes them does so for the calls that follow."""

    def __init__(self, configured: BudgetsConfig, fairness_floor: float = 0.0) -> None:
        self.rows: tuple[SetLimits, ...] = ()
        self.version = 0
        """Which limits set at run time these are."""
        self._known: dict[tuple[str, str, str], tuple[BudgetTerms, ...]] = {}
        self._known_hour = -1
        self.replace_configured(configured, fairness_floor)

    def take_limits(self, rows: Sequence[SetLimits]) -> bool:
        """Take what a ledger reports as set at run time; False when it is known, or older than what is."""
        if limits_version(rows) <= self.version:
            return False
        self.rows = tuple(rows)
        self.version = limits_version(rows)
        self.limits = overlaid(self._configured, rows)
        self._known.clear()
        return True

    def replace_configured(self, configured: BudgetsConfig, fairness_floor: float) -> None:
        """Hold later calls to these limits, where nothing else was set, and divide this share of the fleet's among the devices, in steps of
        a millionth."""
        self._configured = configured
        self._floor_ppm = round(fairness_floor * PPM)
        self.limits = overlaid(configured, self.rows)
        self._known.clear()

    def terms(self, device: str, task: str, now: float, user: str = "") -> tuple[BudgetTerms, ...]:
        """The budgets a call of this device and task must fit into, narrowest first; that of its `user` last, where it names one."""
        hour = int(now // 3600)
        if hour != self._known_hour or len(self._known) >= MOST_KNOWN_TERMS:
            self._known.clear()
            self._known_hour = hour
        known = self._known.get((device, task, user))
        if known is None:
            known = self._known[device, task, user] = self._terms(device, task, now, user)
        return known

    def _terms(self, device: str, task: str, now: float, user: str) -> tuple[BudgetTerms, ...]:
        of_user = (_terms("user", self.limits.user, now, device=device, user=user),) if user else ()
        return (
            _terms("device_task", self.limits.device_task, now, device=device, task=task),
            _terms("device", self.limits.device, now, device=device),
            _terms("fleet_task", self.limits.fleet_task, now, task=task),
            _terms("fleet", self.limits.fleet, now, floor_ppm=self._floor_ppm),
            *of_user,
        )


def _terms(
    scope: str, limit: LimitConfig, now: float, *, device: str = "", task: str = "", user: str = "", floor_ppm: int = 0
) -> BudgetTerms:
    key = budget_key(scope, device, task, window_label(limit.window, now), user=user)
    return BudgetTerms(key, limits_of(limit), floor_ppm)


def limits_of(limit: LimitConfig) -> AmountLimits:
    """A scope's limits as the ledger has them."""
    return AmountLimits(*(getattr(limit, name) for name in SETTINGS.values()))


def snapshot(
    task: TaskRow | None, terms: TaskConfig, budgets: Sequence[BudgetRow], asked: Sequence[BudgetTerms]
) -> BudgetSnapshot:
    """What a device receives: per unit the budget with the least left of what is asked now, or its own total where nothing is limited."""
    calls, calls_limit, calls_period = _tightest("calls", budgets, asked)
    tokens, tokens_limit, tokens_period = _tightest("tokens", budgets, asked)
    spend, spend_limit, spend_period = _tightest("uusd", budgets, asked)
    return BudgetSnapshot(
        version=task.version if task else 0,
        dual=task.dual if task else terms.dual_init,
        target_rate=task.target_rate if task else terms.target_rate,
        calls=calls,
        calls_limit=calls_limit,
        tokens=tokens,
        tokens_limit=tokens_limit,
        spend_uusd=spend,
        spend_limit_uusd=spend_limit,
        calls_period=calls_period,
        tokens_period=tokens_period,
        spend_period=spend_period,
    )


_OF_UNIT: dict[str, Callable[[Any], Any]] = {unit: attrgetter(unit) for unit in SETTINGS}


def _tightest(unit: str, budgets: Sequence[BudgetRow], asked: Sequence[BudgetTerms]) -> tuple[int, int | None, str]:
    """Used, limit and period of the budget with the least left; the limit may lie below what is used where it was lowered since."""
    amount = _OF_UNIT[unit]
    tightest: tuple[int, int, int, str] | None = None
    for row, terms in zip(budgets, asked, strict=True):
        limit = amount(terms.limits)
        if limit is not None:
            spent = amount(row.committed) + amount(row.reserved)
            left = limit - spent if limit > spent else 0
            if tightest is None or left < tightest[0]:
                tightest = (left, spent, limit, terms.key)
    if tightest is not None:
        return *tightest[1:3], _period_of(tightest[3])
    own = budgets[min(1, len(budgets) - 1)]
    return amount(own.committed) + amount(own.reserved), None, ""


@lru_cache(maxsize=4096)
def _period_of(key: str) -> str:
    """The window that a budget's key counts in, by the length of its label."""
    return _WINDOW_BY_LABEL_CHARS.get(len(_window_of(key)), "total")


def limits_in_ledger(rows: Sequence[BudgetRow]) -> BudgetsConfig:
    """The limits that the ledger's rows were last held to, for who has no configuration at hand; no limit for a scope without a row."""
    found = {scope: [row for row in rows if scope_of(row.key) == scope] for scope in SCOPES}
    return BudgetsConfig.model_validate({scope: _asked(mine[-1]) for scope, mine in found.items() if mine})


def _window_of(key: str) -> str:
    return key.removeprefix("fleet").rpartition("]")[2].removeprefix("@")


def has_ended(key: str, now: float) -> bool:
    """Whether the window that a budget's key belongs to is over."""
    return _window_of(key) != window_label(_period_of(key), now)


def fits_again_in_s(refusal: BudgetExhausted, now: float) -> float | None:
    """Seconds until the window of a budget that has no room for a call is over. None where none is, as of a step's credit, and for a call
    that needs more than the whole limit."""
    about = refusal.metadata
    key = about.get("budget", "")
    if scope_of(key) not in SCOPES or int(about.get("needed", 0)) > int(about.get("limit", 0)):
        return None
    end = opens_at(key, now)
    return None if end is None else end - now


def opens_at(key: str, now: float) -> float | None:
    """When the present window of a budget's key is over, in seconds since the epoch; None for one that never ends."""
    end = period_end(_period_of(key), now)
    return end if math.isfinite(end) else None


def _asked(row: BudgetRow) -> dict[str, Any]:
    """A row's limits as configuration; the length of its window's label gives the window."""
    return {"window": _period_of(row.key), **{name: getattr(row.asked, unit) for unit, name in SETTINGS.items()}}


def overlaid(configured: BudgetsConfig, rows: Sequence[SetLimits]) -> BudgetsConfig:
    """The configured limits with what was set at run time."""
    base = configured.model_dump()
    for row in rows:
        base[row.scope] = {**base[row.scope], **dict(row.changes)}
    return BudgetsConfig.model_validate(base)


def held_to_next(row: BudgetRow, limit: LimitConfig, now: float) -> BudgetRow:
    """The row with the limits that its next hold would be held to; as it is where its window is another than the limit's is now."""
    if _window_of(row.key) != window_label(limit.window, now):
        return row
    asked = limits_of(limit)
    return replace(row, asked=asked, limits=asked.at_least(row.used))


def rows_held_to_next(rows: Sequence[BudgetRow], limits: BudgetsConfig, now: float) -> list[BudgetRow]:
    """The rows with the limits that the next holds would be held to; a step's credit and a share as they are."""
    scopes = {scope: getattr(limits, scope) for scope in SCOPES}
    return [held_to_next(row, scopes[scope_of(row.key)], now) if scope_of(row.key) in scopes else row for row in rows]


def rows_with_set(rows: Sequence[BudgetRow], was_set: Sequence[SetLimits], now: float) -> list[BudgetRow]:
    """The same where no configuration is at hand: what each row was last held to, with what was set since."""
    changes = {row.scope: dict(row.changes) for row in was_set if row.changes}
    return [
        held_to_next(row, LimitConfig.model_validate({**_asked(row), **changes[scope_of(row.key)]}), now)
        if scope_of(row.key) in changes
        else row
        for row in rows
    ]


def settings_set(rows: Sequence[SetLimits]) -> dict[str, tuple[str, ...]]:
    """The settings of each scope that were set at run time."""
    return {row.scope: tuple(name for name, _ in row.changes) for row in rows if row.changes}
