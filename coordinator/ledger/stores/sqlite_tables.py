"""The ledger's rows as SQLite tables. Knows the statements; knows nothing of transactions, threads or meaning."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from coordinator.ledger.accounts import (
    STEP_PREFIX,
    AttemptRow,
    BudgetRow,
    CallRow,
    DeviceRow,
    PriceMember,
    PriceRow,
    SetLimits,
    StepRow,
    TaskRow,
)
from coordinator.ledger.journal import GENESIS, JournalEntry
from coordinator.ledger.stores.rows import (
    attempt_of,
    attempt_values,
    budget_of,
    budget_values,
    call_of,
    call_values,
    device_of,
    device_values,
    member_values,
    price_of,
    price_values,
    set_limits_of,
    set_limits_values,
    step_of,
    step_values,
    task_of,
    task_values,
)

_BUDGETS_AFTER = """
SELECT * FROM budget WHERE key > ?1 AND (?2 OR substr(key, 1, length(?3)) <> ?3) ORDER BY key LIMIT ?4
"""
_GROUP_CALLS = """
SELECT * FROM call INDEXED BY call_by_step WHERE device = ? AND task = ? AND step = ? AND prompt_id = ?
  AND (state = 'dispatched' OR (state = 'completed' AND result IS NOT NULL AND source_key = ''))
"""
_CACHED_CALLS = """
SELECT * FROM call WHERE cache_key = ? AND state = 'completed' AND result IS NOT NULL AND source_key = '' AND cache_key <> ''
ORDER BY updated_ms DESC, device DESC, key DESC LIMIT ?
"""

ROWS_PER_STATEMENT = 32


class SqliteTables:
    """Rows read over one connection, and whole rows written."""

    def __init__(self, connection: sqlite3.Connection, failed: Callable[[sqlite3.Error], Exception] | None = None) -> None:
        """`failed` makes of an error what is raised in its place, and every answer is then fetched at once."""
        self.connection = connection
        self._failed = failed

    def call(self, device: str, key: str) -> CallRow | None:
        """A call by its key."""
        return _call(self._one("SELECT * FROM call WHERE device = ? AND key = ?", device, key))

    def call_keys(self) -> Iterable[tuple[str, str, str, int, str, str]]:
        """Device, key, task, step, prompt id and cache key of every call."""
        return self._all("SELECT device, key, task, step, prompt_id, cache_key FROM call")

    def group_calls(self, device: str, task: str, step: int, prompt_id: str) -> Sequence[CallRow]:
        """A prompt group's running or answered calls."""
        return [call_of(row) for row in self._all(_GROUP_CALLS, device, task, step, prompt_id)]

    def cached_calls(self, cache_key: str, limit: int) -> Sequence[CallRow]:
        """The latest answered calls under a cache key, newest first."""
        return [call_of(row) for row in self._all(_CACHED_CALLS, cache_key, limit)]

    def step_calls(self, device: str, task: str, step: int) -> Sequence[CallRow]:
        """All calls of a step."""
        rows = self._all(
            "SELECT * FROM call INDEXED BY call_by_step WHERE device = ? AND task = ? AND step = ?", device, task, step
        )
        return [call_of(row) for row in rows]

    def attempt(self, device: str, key: str, number: int) -> AttemptRow | None:
        """One attempt."""
        row = self._one("SELECT * FROM attempt WHERE device = ? AND key = ? AND number = ?", device, key, number)
        return None if row is None else attempt_of(row)

    def expired_attempts(self, lease_until_ms: int) -> Sequence[AttemptRow]:
        """Open attempts whose lease ended."""
        return self._open_attempts("lease_ms <= ?", lease_until_ms)

    def orphaned_attempts(self, epoch: int) -> Sequence[AttemptRow]:
        """Open attempts of earlier process runs; one process owns the file."""
        return self._open_attempts("epoch <> ?", epoch)

    def _open_attempts(self, condition: str, value: int) -> Sequence[AttemptRow]:
        sql = f"SELECT * FROM attempt WHERE state = 'dispatched' AND {condition} ORDER BY lease_ms, device, key"  # noqa: S608
        return [attempt_of(row) for row in self._all(sql, value)]

    def budget(self, key: str) -> BudgetRow | None:
        """A budget."""
        row = self._one("SELECT * FROM budget WHERE key = ?", key)
        return None if row is None else budget_of(row)

    def budgets_under(self, prefix: str) -> Sequence[BudgetRow]:
        """Budgets whose key begins with this."""
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        return [budget_of(row) for row in self._all("SELECT * FROM budget WHERE key >= ? AND key < ? ORDER BY key", prefix, end)]

    def step(self, device: str, task: str, step: int) -> StepRow | None:
        """A step."""
        row = self._one("SELECT * FROM step WHERE device = ? AND task = ? AND step = ?", device, task, step)
        return None if row is None else step_of(row)

    def task(self, device: str, task: str) -> TaskRow | None:
        """A task."""
        row = self._one("SELECT * FROM task_state WHERE device = ? AND task = ?", device, task)
        return None if row is None else task_of(row)

    def price(self, key: str) -> PriceRow | None:
        """A shared λ."""
        row = self._one("SELECT * FROM price WHERE key = ?", key)
        return None if row is None else price_of(row)

    def price_member(self, price: str, device: str) -> PriceMember | None:
        """A device's part in a fleet's price."""
        row = self._one("SELECT * FROM price_member WHERE price = ? AND device = ?", price, device)
        return None if row is None else PriceMember(*row)

    def idle_price_members(self, seen_ms: int) -> Sequence[PriceMember]:
        """Members last seen before this time."""
        sql = "SELECT * FROM price_member INDEXED BY price_member_seen WHERE units > 0 AND seen_ms < ? ORDER BY price, device"
        return [PriceMember(*row) for row in self._all(sql, seen_ms)]

    def device(self, device: str) -> DeviceRow | None:
        """A registered device."""
        row = self._one("SELECT * FROM device WHERE device = ?", device)
        return None if row is None else device_of(row)

    def set_limits(self) -> Sequence[SetLimits]:
        """What was set at run time."""
        return [set_limits_of(row) for row in self._all("SELECT * FROM set_limits ORDER BY scope")]

    def results_before(self, updated_ms: int) -> Sequence[CallRow]:
        """Answered calls last changed before this time."""
        rows = self._all(
            "SELECT * FROM call INDEXED BY call_with_result WHERE result IS NOT NULL AND updated_ms < ? ORDER BY device, key",
            updated_ms,
        )
        return [call_of(row) for row in rows]

    def all_budgets(self) -> Iterable[BudgetRow]:
        """All budgets."""
        return map(budget_of, self._all("SELECT * FROM budget ORDER BY key"))

    def all_calls(self) -> Iterable[CallRow]:
        """All calls."""
        return map(call_of, self._all("SELECT * FROM call ORDER BY device, key"))

    def budgets_after(self, key: str, limit: int, *, with_steps: bool) -> Sequence[BudgetRow]:
        """A page of budgets."""
        rows = self._all(_BUDGETS_AFTER, key, with_steps, STEP_PREFIX, limit)
        return [budget_of(row) for row in rows]

    def calls_after(self, device: str, key: str, limit: int, *, only_device: str) -> Sequence[CallRow]:
        """A page of calls."""
        condition = "device = ?4" if only_device else "?4 = ''"
        sql = f"SELECT * FROM call WHERE (device, key) > (?1, ?2) AND {condition} ORDER BY device, key LIMIT ?3"  # noqa: S608
        rows = self._all(sql, device, key, limit, only_device)
        return [call_of(row) for row in rows]

    def all_attempts(self) -> Iterable[AttemptRow]:
        """All attempts."""
        return map(attempt_of, self._all("SELECT * FROM attempt ORDER BY device, key, number"))

    def all_steps(self) -> Iterable[StepRow]:
        """All steps."""
        return map(step_of, self._all("SELECT * FROM step ORDER BY device, task, step"))

    def all_tasks(self) -> Iterable[TaskRow]:
        """All tasks."""
        return map(task_of, self._all("SELECT * FROM task_state ORDER BY device, task"))

    def all_prices(self) -> Iterable[PriceRow]:
        """All shared λ."""
        return map(price_of, self._all("SELECT * FROM price ORDER BY key"))

    def all_price_members(self) -> Iterable[PriceMember]:
        """All members of fleets' prices."""
        return (PriceMember(*row) for row in self._all("SELECT * FROM price_member ORDER BY price, device"))

    def all_devices(self) -> Iterable[DeviceRow]:
        """All devices."""
        return map(device_of, self._all("SELECT * FROM device ORDER BY device"))

    def journal_after(self, seq: int, limit: int | None = None) -> Iterable[JournalEntry]:
        """Entries after this one."""
        rows = self._all("SELECT * FROM journal WHERE seq > ? ORDER BY seq LIMIT ?", seq, -1 if limit is None else limit)
        return (JournalEntry(*row) for row in rows)

    def journal_head(self) -> tuple[int, str]:
        """The last entry's number and hash."""
        return self._one("SELECT seq, hash FROM journal ORDER BY seq DESC LIMIT 1") or (0, GENESIS)

    def meta(self, name: str) -> int:
        """A number kept beside the ledger; 0 when it was never set."""
        row = self._one("SELECT value FROM meta WHERE name = ?", name)
        return 0 if row is None else int(row[0])

    def put_meta(self, name: str, value: int) -> None:
        """Keep a number beside the ledger."""
        self.connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))

    def _one(self, sql: str, *values: Any) -> Any:
        try:
            return self.connection.execute(sql, values).fetchone()
        except sqlite3.Error as error:
            if self._failed is None:
                raise
            raise self._failed(error) from error

    def _all(self, sql: str, *values: Any) -> Iterable[Any]:
        if self._failed is None:
            return self.connection.execute(sql, values)
        try:
            return self.connection.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def put_all(self, table: str, rows: Iterable[Any]) -> None:
        """Insert or replace whole rows of this table."""
        self._write(f"INSERT OR REPLACE INTO {table}", [_VALUES[table](row) for row in rows])

    def append_all(self, entries: Iterable[JournalEntry]) -> None:
        """Append to the journal."""
        self._write(
            "INSERT INTO journal", [(each.seq, each.at_ms, each.kind, each.body, each.previous, each.hash) for each in entries]
        )

    def _write(self, insert: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Many rows a statement: each statement hands the interpreter's lock to the event loop and has to get it back."""
        for first in range(0, len(rows), ROWS_PER_STATEMENT):
            some = rows[first : first + ROWS_PER_STATEMENT]
            marks = f"({', '.join('?' * len(some[0]))})"
            values = tuple(chain.from_iterable(some))
            self.connection.execute(f"{insert} VALUES {', '.join([marks] * len(some))}", values)


_VALUES: Mapping[str, Callable[[Any], tuple[Any, ...]]] = {
    "budget": budget_values,
    "call": call_values,
    "attempt": attempt_values,
    "step": step_values,
    "task_state": task_values,
    "price": price_values,
    "price_member": member_values,
    "device": device_values,
    "set_limits": set_limits_values,
}


def _call(row: Sequence[Any] | None) -> CallRow | None:
    return None if row is None else call_of(row)
