"""What an entry of the journal has of a row: all that `verify` rebuilds it from. Reals are written as `float.hex()`, amounts and limits as
[calls, tokens, uusd]; what is as it is by default is mostly left out.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import fields

from coordinator.ledger.accounts import AttemptRow, BudgetRow, CallRow, CallState, StepRow, TaskRow

_DEFAULTS: dict[type[Struct], dict[str, Any]] = {
    kind: {field.name: field.default for field in fields(kind)} for kind in (StepRow, TaskRow)
}


def call_data(call: CallRow) -> dict[str, Any]:
    """A call that is reserved, or answered at once."""
    data = {**call.content(), "cache_key": call.cache_key}
    return {**data, **answer_data(call)} if call.state is CallState.COMPLETED else data


def answer_data(call: CallRow) -> dict[str, Any]:
    """An answer, by its digest."""
    tokens = {"input_tokens": call.input_tokens, "output_tokens": call.output_tokens}
    return {**tokens, "result_sha256": call.result_sha256, "finish": call.finish}


def attempt_data(attempt: AttemptRow) -> dict[str, Any]:
    """An attempt and what it holds."""
    hold = {"attempt": attempt.number, "hold": attempt.hold, "budgets": attempt.budgets}
    return {**hold, "epoch": attempt.epoch, "lease_ms": attempt.lease_ms}


def limits_data(row: BudgetRow) -> dict[str, Any]:
    """A budget's limits, and its floors where it is shared fairly."""
    data = {"budget": row.key, "asked": row.asked, "limits": row.limits}
    if row.floor_ppm == 0 and row.members == 0:
        return data
    return {**data, "floor_ppm": row.floor_ppm, "members": row.members, "floor": row.floor, "set_aside": row.set_aside}


def task_data(row: TaskRow) -> dict[str, Any]:
    """A task at its first contact."""
    return _data(row, "device task dual target_rate", "shared_dual")


def open_data(row: StepRow) -> dict[str, Any]:
    """A step that is opened, and the rule of λ."""
    names = "device task step planned_prompts group_size call_credit dual target_rate dual_lr"
    return _data(row, names, "shared_dual dual_proportional dual_window dual_ceiling")


def close_data(row: StepRow) -> dict[str, Any]:
    """A step that is closed. `dual_before` is the λ it was opened with, unless others move it too."""
    names = "device task step total_units help_units dual_after assist_rate discrepancies"
    return _data(row, f"{names} {'dual_before round_units' if row.shared_dual else ''}", "own_rate uncalled_units")


def _data(row: Struct, names: str, unless_default: str) -> dict[str, Any]:
    defaults = _DEFAULTS[type(row)]
    others = [name for name in unless_default.split() if getattr(row, name) != defaults[name]]
    values = {name: getattr(row, name) for name in (*names.split(), *others)}
    return {name: value.hex() if isinstance(value, float) else value for name, value in values.items()}
