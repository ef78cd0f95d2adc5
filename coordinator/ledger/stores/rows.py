"""Rows as flat tuples in the order of the tables' columns, and back. Knows the columns; knows nothing of any database.

Reals are text as `float.hex()`, several with a space between, states are their words, flags 0 or 1, lists JSON text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from coordinator.ledger.accounts import (
    Amount,
    AttemptRow,
    BudgetRow,
    CallRow,
    CallState,
    DeviceRow,
    Limits,
    PriceMember,
    PriceRow,
    SetLimits,
    StepRow,
    TaskRow,
)


def limit_units(limits: Limits) -> tuple[int | None, int | None, int | None]:
    """Limits as (calls, tokens, uusd)."""
    return limits.calls, limits.tokens, limits.uusd


def budget_of(row: Sequence[Any]) -> BudgetRow:
    """A budget from its columns."""
    balances = (Limits(*row[1:4]), Limits(*row[4:7]), Amount(*row[7:10]), Amount(*row[10:13]))
    return BudgetRow(row[0], *balances, row[13], row[14], Amount(*row[15:21:2]), Amount(*row[16:21:2]))


def call_of(row: Sequence[Any]) -> CallRow:
    """A call from its columns."""
    values: tuple[Any, ...] = (*row[:8], CallState(row[8]), row[9], Amount(*row[10:13]), *row[13:])
    return CallRow(*values)


def call_values(row: CallRow) -> tuple[Any, ...]:
    """A call's columns."""
    head = (row.device, row.key, row.fingerprint, row.task, row.step, row.prompt_id, row.model, row.help_units)
    answer = (row.input_tokens, row.output_tokens, row.result, row.result_sha256, row.finish, row.upstream_id)
    tail = (row.reason, row.source_key, row.cache_key, row.updated_ms, row.beyond_text)
    return (*head, str(row.state), row.attempts, *row.charged.units, *answer, *tail)


def attempt_of(row: Sequence[Any]) -> AttemptRow:
    """An attempt from its columns."""
    amounts = (Amount(*row[4:7]), Amount(*row[7:10]))
    values: tuple[Any, ...] = (*row[:3], CallState(row[3]), *amounts, tuple(json.loads(row[10])), row[11], row[12])
    return AttemptRow(*values)


@lru_cache(maxsize=4096)
def _list_text(texts: tuple[str, ...]) -> str:
    return json.dumps(texts)


def attempt_values(row: AttemptRow) -> tuple[Any, ...]:
    """An attempt's columns."""
    amounts = (*row.hold.units, *row.charged.units)
    return (row.device, row.key, row.number, str(row.state), *amounts, _list_text(row.budgets), row.epoch, row.lease_ms)


def step_of(row: Sequence[Any]) -> StepRow:
    """A step from its columns. Raises ValueError on what only a foreign hand can have written."""
    opened: tuple[Any, ...] = (*row[:5], *map(float.fromhex, row[5:8]), row[8])
    closed: tuple[Any, ...] = (_flag(row[9]), row[10], row[11], *map(float.fromhex, row[12:14]), tuple(json.loads(row[14])))
    shared: tuple[Any, ...] = (row[15], float.fromhex(row[16]), row[17])
    rule: tuple[Any, ...] = (float.fromhex(row[18]), row[19], float.fromhex(row[20]))
    own: tuple[Any, ...] = (float.fromhex(row[21]) if row[21] else None,)
    return StepRow(*opened, *closed, *shared, *rule, *own)


def _flag(value: int) -> bool:
    """0 or 1 as a bool. Raises ValueError on anything else, which only a foreign hand can have written."""
    if value not in (0, 1):
        raise ValueError(f"a flag is 0 or 1, not {value}")
    return value == 1


def step_values(row: StepRow) -> tuple[Any, ...]:
    """A step's columns."""
    head = (row.device, row.task, row.step, row.planned_prompts, row.group_size)
    opened = (row.dual.hex(), row.target_rate.hex(), row.dual_lr.hex(), row.call_credit)
    closed = (int(row.closed), row.total_units, row.help_units, row.dual_after.hex(), row.assist_rate.hex())
    shared = (row.price, row.dual_before.hex(), row.round_units)
    rule = (row.dual_proportional.hex(), row.dual_window, row.dual_ceiling.hex())
    own = "" if row.own_rate is None else row.own_rate.hex()
    return (*head, *opened, *closed, json.dumps(row.discrepancies), *shared, *rule, own)


def task_of(row: Sequence[Any]) -> TaskRow:
    """A task from its columns."""
    reals = (float.fromhex(row[2]), float.fromhex(row[3]))
    return TaskRow(row[0], row[1], *reals, row[4], row[5], Amount(*row[6:9]), row[9], _reals_of(row[10]))


def _reals_of(text: str) -> tuple[float, ...]:
    return tuple(map(float.fromhex, text.split()))


def _reals_text(reals: Sequence[float]) -> str:
    return " ".join(value.hex() for value in reals)


def budget_values(row: BudgetRow) -> tuple[Any, ...]:
    """A budget's columns."""
    balances = (*limit_units(row.asked), *limit_units(row.limits), *row.committed.units, *row.reserved.units)
    floors = zip(row.floor.units, row.set_aside.units, strict=True)
    return (row.key, *balances, row.floor_ppm, row.members, *(value for pair in floors for value in pair))


def task_values(row: TaskRow) -> tuple[Any, ...]:
    """A task's columns."""
    reals = (row.dual.hex(), row.target_rate.hex())
    return (row.device, row.task, *reals, row.next_step, row.version, *row.charged.units, row.price, _reals_text(row.recent))


def price_of(row: Sequence[Any]) -> PriceRow:
    """A shared λ from its columns."""
    return PriceRow(row[0], float.fromhex(row[1]), row[2], row[3], _reals_of(row[4]))


def price_values(row: PriceRow) -> tuple[Any, ...]:
    """A shared λ's columns."""
    return (row.key, row.dual.hex(), row.updates, row.units, _reals_text(row.recent))


def member_values(row: PriceMember) -> tuple[Any, ...]:
    """The columns of a device's part in a fleet's price."""
    return (row.price, row.device, row.units, row.seen_ms)


def device_of(row: Sequence[Any]) -> DeviceRow:
    """A device from its columns."""
    return DeviceRow(row[0], row[1], tuple(json.loads(row[2])), row[3], row[4], _flag(row[5]))


def device_values(row: DeviceRow) -> tuple[Any, ...]:
    """A device's columns."""
    times = (row.first_seen_ms, row.last_seen_ms)
    return (row.device, row.agent_version, json.dumps(row.tasks), *times, int(row.disabled))


def set_limits_of(row: Sequence[Any]) -> SetLimits:
    """What was set for a scope, from its columns."""
    return SetLimits(row[0], tuple((name, value) for name, value in json.loads(row[1])), row[2])


def set_limits_values(row: SetLimits) -> tuple[Any, ...]:
    """The columns of what was set for a scope."""
    return (row.scope, json.dumps(row.changes), row.version)
