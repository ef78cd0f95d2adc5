"""Which limits hold for whom, now. Knows scopes, windows and limits set at run time; knows nothing of how a hold is taken.

Limits come from the configuration; `budget set` writes others to `limits.json` in the state folder, which a running coordinator
reads again.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from coordinator.accounts import BudgetRow, BudgetTerms, Limits, TaskRow, budget_key
from coordinator.config import BudgetsConfig, LimitConfig, TaskConfig
from coordinator.fairness import PPM
from edge.core.errors import StateError
from edge.rpc.client import BudgetSnapshot

LIMITS_FILE = "limits.json"
SCOPES = ("device_task", "device", "fleet_task", "fleet")
WINDOWS = ("total", "month", "week", "day", "hour")
_WINDOW_FORMATS = {"total": "", "month": "%Y-%m", "week": "%G-W%V", "day": "%Y-%m-%d", "hour": "%Y-%m-%dT%H"}
_WINDOW_BY_LABEL_CHARS = {
    len(label): window for window, label in zip(WINDOWS, ("", "2026-10", "2026-W41", "2026-10-07", "2026-10-07T12"), strict=True)
}


def window_label(window: str, now: float) -> str:
    """The name of the window that `now` (seconds since the epoch) lies in, in UTC: `2026-10`, `2026-10-07`, "" for total."""
    return _label_of_hour(window, int(now // 3600))


@lru_cache(maxsize=256)
def _label_of_hour(window: str, hour: int) -> str:
    """No window is shorter than an hour."""
    pattern = _WINDOW_FORMATS[window]
    return datetime.fromtimestamp(3600 * hour, UTC).strftime(pattern) if pattern else ""


class BudgetBook:
    """The limits that hold now, and the share of the fleet's that is divided into floors. `replace_limits` and `replace_floor` change them
    for the calls that follow."""

    def __init__(self, limits: BudgetsConfig, fairness_floor: float = 0.0) -> None:
        self.limits = limits
        self.replace_floor(fairness_floor)

    def replace_floor(self, fairness_floor: float) -> None:
        """Divide this share of the fleet's limits among the devices, in steps of a millionth."""
        self._floor_ppm = round(fairness_floor * PPM)

    def replace_limits(self, limits: BudgetsConfig) -> None:
        """Hold later calls to these limits."""
        self.limits = limits

    def terms(self, device: str, task: str, now: float) -> tuple[BudgetTerms, ...]:
        """The budgets a call of this device and task must fit into, narrowest first."""
        return (
            _terms("device_task", self.limits.device_task, now, device=device, task=task),
            _terms("device", self.limits.device, now, device=device),
            _terms("fleet_task", self.limits.fleet_task, now, task=task),
            replace(_terms("fleet", self.limits.fleet, now), floor_ppm=self._floor_ppm),
        )


def _terms(scope: str, limit: LimitConfig, now: float, *, device: str = "", task: str = "") -> BudgetTerms:
    limits = Limits(limit.calls_limit, limit.tokens_limit, limit.spend_limit_uusd)
    return BudgetTerms(budget_key(scope, device, task, window_label(limit.window, now)), limits)


@dataclass(frozen=True, slots=True)
class _Meter:
    used: int
    limit: int | None


def snapshot(task: TaskRow | None, terms: TaskConfig, budgets: Sequence[BudgetRow]) -> BudgetSnapshot:
    """What a device is told: per unit the budget with the least left, or its own total where nothing is limited."""
    calls = _tightest([_Meter(row.used.calls, row.limits.calls) for row in budgets])
    tokens = _tightest([_Meter(row.used.tokens, row.limits.tokens) for row in budgets])
    spend = _tightest([_Meter(row.used.uusd, row.limits.uusd) for row in budgets])
    return BudgetSnapshot(
        version=task.version if task else 0,
        dual=task.dual if task else terms.dual_init,
        target_rate=task.target_rate if task else terms.target_rate,
        calls=calls.used,
        calls_limit=calls.limit,
        tokens=tokens.used,
        tokens_limit=tokens.limit,
        spend_uusd=spend.used,
        spend_limit_uusd=spend.limit,
    )


def _tightest(meters: Sequence[_Meter]) -> _Meter:
    limited = [meter for meter in meters if meter.limit is not None]
    return min(limited, key=lambda meter: (meter.limit or 0) - meter.used) if limited else meters[min(1, len(meters) - 1)]


def limits_in_ledger(rows: Sequence[BudgetRow]) -> BudgetsConfig:
    """The limits that the ledger's rows were last held to, for who has no configuration at hand; no limit for a scope without a row."""
    found = {scope: [row for row in rows if _scope_of(row.key) == scope] for scope in SCOPES}
    return BudgetsConfig.model_validate({scope: _asked(mine[-1]) for scope, mine in found.items() if mine})


def _scope_of(key: str) -> str:
    return key.split("@")[0].split("[")[0]


def _asked(row: BudgetRow) -> dict[str, Any]:
    """A row's limits as configuration; the length of its window's label tells the window."""
    label = row.key.removeprefix("fleet").rpartition("]")[2].removeprefix("@")
    window = _WINDOW_BY_LABEL_CHARS.get(len(label), "total")
    amounts = {"calls_limit": row.asked.calls, "tokens_limit": row.asked.tokens, "spend_limit_uusd": row.asked.uusd}
    return {"window": window, **amounts}


def load_limits(state_dir: Path, configured: BudgetsConfig) -> BudgetsConfig:
    """The configured limits with what `budget set` has changed. Raises StateError when the file is damaged."""
    path = state_dir / LIMITS_FILE
    if not path.exists():
        return configured
    try:
        changes = json.loads(path.read_text(encoding="utf-8"))
        return BudgetsConfig.model_validate(_overlay(configured, changes))
    except (OSError, ValueError, AttributeError, TypeError, ValidationError) as error:
        raise StateError(f"{path} cannot be read", hint="delete it to return to the configured limits") from error


def save_limits(state_dir: Path, scope: str, changes: dict[str, Any]) -> None:
    """Add changed limits of one scope to what was set before; the file is replaced whole. Raises StateError when it is damaged."""
    load_limits(state_dir, BudgetsConfig())
    path = state_dir / LIMITS_FILE
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    known[scope] = {**known.get(scope, {}), **changes}
    state_dir.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=state_dir, prefix=LIMITS_FILE)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        json.dump(known, stream, indent=1, sort_keys=True)
        stream.flush()
        os.fsync(stream.fileno())
    Path(temporary).replace(path)


def _overlay(configured: BudgetsConfig, changes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    base = configured.model_dump()
    for scope, limits in changes.items():
        base[scope] = {**base.get(scope, {}), **limits}
    return base
