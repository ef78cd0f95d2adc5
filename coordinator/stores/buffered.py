"""The ledger's rows between its transactions and a SQLite file: rows once read stay known, rows written wait for the commit.

Knows which rows are known, which the running operation tries, and which wait to be written; knows nothing of threads, commits or meaning.
Sound only where nobody else writes the file, which its lock ensures. What a budget may hold is decided here, and once more by the database
when the row is written. An answer about many rows is the file's, with the rows that wait laid over it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar

from coordinator.accounts import (
    STEP_PREFIX,
    Amount,
    AttemptRow,
    BudgetRow,
    CallRow,
    CallState,
    DeviceRow,
    PriceMember,
    PriceRow,
    SetLimits,
    StepRow,
    TaskRow,
)
from coordinator.journal import JournalEntry
from coordinator.stores.changes import EVERYTHING, moves_others, shuts_or_lets_in, told_to_others
from coordinator.stores.sqlite_tables import SqliteTables
from edge.core.errors import CoordinatorError

Row = TypeVar("Row")
MOST_KNOWN = 20_000
"""Rows of one table that stay known between commits."""


class Rows(Generic[Row]):
    """The rows of one table by key: known (None: known not to be there), tried by the operation that runs, waiting to be written."""

    def __init__(
        self, read: Callable[..., Row | None], key_of: Callable[[Row], tuple[Any, ...]], keep: Callable[[Row | None], bool]
    ) -> None:
        """`read` asks the file by the parts of a key; `keep` says which rows stay known."""
        self._read = read
        self._key_of = key_of
        self._keep = keep
        self._known: dict[tuple[Any, ...], Row | None] = {}
        self._tried: dict[tuple[Any, ...], Row] = {}
        self._waiting: dict[tuple[Any, ...], Row] = {}

    def get(self, *key: Any) -> Row | None:
        """A row."""
        for rows in (self._tried, self._waiting, self._known):
            if key in rows:
                return rows[key]
        row = self._read(*key)
        if self._keep(row):
            self._known[key] = row
        return row

    def put(self, row: Row) -> None:
        """Try a row."""
        self._tried[self._key_of(row)] = row

    @property
    def is_written(self) -> bool:
        """Whether the file has every row that was kept."""
        return not self._waiting

    def unwritten(self) -> dict[tuple[Any, ...], Row]:
        """The rows that the file does not have yet, as the operation that runs sees them."""
        return self._waiting | self._tried

    def over(self, found: Iterable[Row], wanted: Callable[[Row], bool]) -> list[Row]:
        """What the file found, with the rows that it does not have yet laid over it; sorted by key."""
        rows, unwritten = {self._key_of(row): row for row in found}, self.unwritten()
        rows |= unwritten
        return [rows[key] for key in sorted(rows) if key not in unwritten or wanted(rows[key])]

    def end_operation(self, *, kept: bool) -> None:
        """What was tried waits to be written, or is forgotten."""
        if self._tried:
            if kept:
                self._waiting |= self._tried
            self._tried = {}

    def take(self) -> Iterable[Row]:
        """The rows to be written now; the file has them from here on."""
        written, self._waiting = self._waiting, {}
        if len(self._known) > MOST_KNOWN:
            self._known.clear()
        for key, row in written.items():
            if self._keep(row):
                self._known[key] = row
            else:
                self._known.pop(key, None)
        return written.values()


def _always(row: object) -> bool:
    return True


def _never(row: object) -> bool:
    return False


def _while_open(row: CallRow | AttemptRow | None) -> bool:
    """A call is asked for again when it ends; after that it would only fill memory."""
    return row is not None and row.state is CallState.DISPATCHED


class BufferedTables:
    """The ledger's `Tables` over one SQLite connection; to be made anew when a commit failed."""

    def __init__(self, file: SqliteTables) -> None:
        self.file = file
        self._budgets: Rows[BudgetRow] = Rows(file.budget, lambda row: (row.key,), _always)
        self._calls: Rows[CallRow] = Rows(file.call, lambda row: (row.device, row.key), _while_open)
        self._attempts: Rows[AttemptRow] = Rows(file.attempt, lambda row: (row.device, row.key, row.number), _while_open)
        self._steps: Rows[StepRow] = Rows(file.step, lambda row: (row.device, row.task, row.step), _always)
        self._tasks: Rows[TaskRow] = Rows(file.task, lambda row: (row.device, row.task), _always)
        self._prices: Rows[PriceRow] = Rows(file.price, lambda row: (row.key,), _always)
        self._members: Rows[PriceMember] = Rows(file.price_member, lambda row: (row.price, row.device), _always)
        self._devices: Rows[DeviceRow] = Rows(file.device, lambda row: (row.device,), _always)
        self._limits: Rows[SetLimits] = Rows(lambda scope: None, lambda row: (row.scope,), _never)
        self._tables: dict[str, Rows[Any]] = {
            "budget": self._budgets,
            "call": self._calls,
            "attempt": self._attempts,
            "step": self._steps,
            "task_state": self._tasks,
            "price": self._prices,
            "price_member": self._members,
            "device": self._devices,
            "set_limits": self._limits,
        }
        self._stored_limits: dict[tuple[Any, ...], SetLimits] | None = None
        self._head = file.journal_head()
        self._waiting_entries: list[JournalEntry] = []
        self._tried_entries: list[JournalEntry] = []
        self._unwritten_groups: set[tuple[str, str, int, str]] = set()
        self._unwritten_cache_keys: Counter[str] = Counter()
        self._tried_changes: set[tuple[str, str]] = set()
        self._changed: set[tuple[str, str]] = set()

    def keep(self) -> None:
        """The operation that ran succeeded: what it changed waits to be written."""
        self._end_operation(kept=True)
        if self._tried_entries:
            self._head = (self._tried_entries[-1].seq, self._tried_entries[-1].hash)
            self._waiting_entries += self._tried_entries
            self._tried_entries = []
        self._changed |= self._tried_changes
        self._tried_changes.clear()

    def roll_back(self) -> None:
        """The operation that ran failed: nothing of it happened."""
        self._end_operation(kept=False)
        self._tried_entries = []
        self._tried_changes.clear()

    def _end_operation(self, *, kept: bool) -> None:
        for rows in self._tables.values():
            rows.end_operation(kept=kept)

    @property
    def is_written(self) -> bool:
        """Whether the file has everything that was kept."""
        return not self._waiting_entries and all(rows.is_written for rows in self._tables.values())

    def write(self) -> set[tuple[str, str]]:
        """Write what was kept, inside the caller's transaction; the (device, task) pairs that have a new version. Raises sqlite3.Error."""
        if not self._limits.is_written:
            self._stored_limits = None
        for table, rows in self._tables.items():
            self.file.put_all(table, rows.take())
        self.file.append_all(self._waiting_entries)
        self._waiting_entries = []
        self._unwritten_groups.clear()
        self._unwritten_cache_keys.clear()
        changed, self._changed = self._changed, set()
        return changed

    # rows ----------------------------------------------------------------------------------------------------------------------

    def call(self, device: str, key: str) -> CallRow | None:
        """A call by its key."""
        return self._calls.get(device, key)

    def group_call(self, device: str, task: str, step: int, prompt_id: str) -> CallRow | None:
        """A prompt group's running or answered call."""
        group = (device, task, step, prompt_id)
        found = self.file.group_calls(*group)
        if group in self._unwritten_groups:
            found = self._calls.over(found, lambda row: _group_of(row) == group and _stands_for_group(row))
        return found[0] if found else None

    def cached_call(self, cache_key: str) -> CallRow | None:
        """The latest answered call under a cache key."""
        superseded = self._unwritten_cache_keys[cache_key]
        found = self.file.cached_calls(cache_key, 1 + superseded)
        if superseded:
            found = self._calls.over(found, lambda row: row.cache_key == cache_key and _is_answer(row))
        return max(found, key=lambda row: (row.updated_ms, row.device, row.key), default=None)

    def step_calls(self, device: str, task: str, step: int) -> Sequence[CallRow]:
        """All calls of a step."""
        found = self.file.step_calls(device, task, step)
        return self._calls.over(found, lambda row: (row.device, row.task, row.step) == (device, task, step))

    def put_call(self, row: CallRow) -> None:
        """Write a call."""
        self._calls.put(row)
        self._unwritten_groups.add(_group_of(row))
        self._unwritten_cache_keys[row.cache_key] += 1

    def attempt(self, device: str, key: str, number: int) -> AttemptRow | None:
        """One attempt."""
        return self._attempts.get(device, key, number)

    def put_attempt(self, row: AttemptRow) -> None:
        """Write an attempt."""
        self._attempts.put(row)

    def expired_attempts(self, lease_until_ms: int) -> Sequence[AttemptRow]:
        """Open attempts whose lease ended."""
        found = self.file.expired_attempts(lease_until_ms)
        return _by_lease(self._attempts.over(found, lambda row: _while_open(row) and row.lease_ms <= lease_until_ms))

    def orphaned_attempts(self, epoch: int) -> Sequence[AttemptRow]:
        """Open attempts of earlier process runs; one process owns the file."""
        found = self.file.orphaned_attempts(epoch)
        return _by_lease(self._attempts.over(found, lambda row: _while_open(row) and row.epoch != epoch))

    def budget(self, key: str) -> BudgetRow | None:
        """A budget."""
        return self._budgets.get(key)

    def budgets_under(self, prefix: str) -> Sequence[BudgetRow]:
        """Budgets whose key begins with this."""
        return self._budgets.over(self.file.budgets_under(prefix), lambda row: row.key.startswith(prefix))

    def put_budget(self, row: BudgetRow) -> None:
        """Write a budget."""
        self._tried_changes.update(told_to_others(row))
        self._budgets.put(row)

    def hold(self, key: str, amount: Amount, from_aside: Amount) -> bool:
        """Reserve if it fits."""
        row = self._budgets.get(key)
        held = None if row is None else _consistent(row.held, amount, from_aside)
        if held is None or held.limits.units_exceeded(held.used.plus(held.set_aside)):
            return False
        self.put_budget(held)
        return True

    def resolve(self, key: str, hold: Amount, charge: Amount, to_aside: Amount) -> None:
        """Turn a hold into a charge."""
        row = self._budgets.get(key)
        if row is not None:
            self.put_budget(_consistent(row.resolved, hold, charge, to_aside))

    def step(self, device: str, task: str, step: int) -> StepRow | None:
        """A step."""
        return self._steps.get(device, task, step)

    def put_step(self, row: StepRow) -> None:
        """Write a step."""
        self._steps.put(row)

    def task(self, device: str, task: str) -> TaskRow | None:
        """A task."""
        return self._tasks.get(device, task)

    def put_task(self, row: TaskRow) -> None:
        """Write a task."""
        self._tried_changes.add((row.device, row.task))
        self._tasks.put(row)

    def price(self, key: str) -> PriceRow | None:
        """A shared λ."""
        return self._prices.get(key)

    def put_price(self, row: PriceRow) -> None:
        """Write a shared λ."""
        if moves_others(self._prices.get(row.key), row):
            self._tried_changes.add(EVERYTHING)
        self._prices.put(row)

    def price_member(self, price: str, device: str) -> PriceMember | None:
        """A device's part in a fleet's price."""
        return self._members.get(price, device)

    def put_price_member(self, row: PriceMember) -> None:
        """Write a device's part in a fleet's price."""
        self._members.put(row)

    def idle_price_members(self, seen_ms: int) -> Sequence[PriceMember]:
        """Members last seen before this time."""
        found = self.file.idle_price_members(seen_ms)
        return self._members.over(found, lambda row: row.units > 0 and row.seen_ms < seen_ms)

    def device(self, device: str) -> DeviceRow | None:
        """A registered device."""
        return self._devices.get(device)

    def put_device(self, row: DeviceRow) -> None:
        """Write a device."""
        if shuts_or_lets_in(self._devices.get(row.device), row):
            self._tried_changes.add((row.device, ""))
        self._devices.put(row)

    def set_limits(self) -> Sequence[SetLimits]:
        """What was set at run time; a few rows that every hold asks for."""
        if self._stored_limits is None:
            self._stored_limits = {(row.scope,): row for row in self.file.set_limits()}
        rows = self._stored_limits | self._limits.unwritten()
        return [rows[key] for key in sorted(rows)]

    def put_set_limits(self, row: SetLimits) -> None:
        """Write what was set for a scope."""
        self._tried_changes.add(EVERYTHING)
        self._limits.put(row)

    def results_before(self, updated_ms: int) -> Sequence[CallRow]:
        """Answered calls last changed before this time."""
        found = self.file.results_before(updated_ms)
        return self._calls.over(found, lambda row: row.result is not None and row.updated_ms < updated_ms)

    def all_budgets(self) -> Iterable[BudgetRow]:
        """All budgets."""
        return self._budgets.over(self.file.all_budgets(), _always)

    def all_calls(self) -> Iterable[CallRow]:
        """All calls."""
        return self._calls.over(self.file.all_calls(), _always)

    def budgets_after(self, key: str, limit: int, *, with_steps: bool) -> Sequence[BudgetRow]:
        """A page of budgets."""
        found = self.file.budgets_after(key, limit, with_steps=with_steps)
        return self._budgets.over(found, lambda row: row.key > key and (with_steps or not row.key.startswith(STEP_PREFIX)))[
            :limit
        ]

    def calls_after(self, device: str, key: str, limit: int, *, only_device: str) -> Sequence[CallRow]:
        """A page of calls."""
        found = self.file.calls_after(device, key, limit, only_device=only_device)
        page = self._calls.over(found, lambda row: (row.device, row.key) > (device, key) and only_device in ("", row.device))
        return page[:limit]

    def all_attempts(self) -> Iterable[AttemptRow]:
        """All attempts."""
        return self._attempts.over(self.file.all_attempts(), _always)

    def all_steps(self) -> Iterable[StepRow]:
        """All steps."""
        return self._steps.over(self.file.all_steps(), _always)

    def all_tasks(self) -> Iterable[TaskRow]:
        """All tasks."""
        return self._tasks.over(self.file.all_tasks(), _always)

    def all_prices(self) -> Iterable[PriceRow]:
        """All shared λ."""
        return self._prices.over(self.file.all_prices(), _always)

    def all_price_members(self) -> Iterable[PriceMember]:
        """All members of fleets' prices."""
        return self._members.over(self.file.all_price_members(), _always)

    def all_devices(self) -> Iterable[DeviceRow]:
        """All devices."""
        return self._devices.over(self.file.all_devices(), _always)

    def journal_after(self, seq: int, limit: int | None = None) -> Iterable[JournalEntry]:
        """Entries after this one."""
        unwritten = (entry for entry in (*self._waiting_entries, *self._tried_entries) if entry.seq > seq)
        return islice((*self.file.journal_after(seq, limit), *unwritten), limit)

    def journal_head(self) -> tuple[int, str]:
        """The last entry's number and hash."""
        return (self._tried_entries[-1].seq, self._tried_entries[-1].hash) if self._tried_entries else self._head

    def append_journal(self, entry: JournalEntry) -> None:
        """Append an entry."""
        self._tried_entries.append(entry)


def _consistent(change: Callable[..., BudgetRow], *amounts: Amount) -> BudgetRow:
    """The changed row. Raises CoordinatorError when an amount would be negative, which the file would refuse as well."""
    try:
        return change(*amounts)
    except ValueError as error:
        raise CoordinatorError("the ledger refused an inconsistent change") from error


def _group_of(row: CallRow) -> tuple[str, str, int, str]:
    return row.device, row.task, row.step, row.prompt_id


def _is_answer(row: CallRow) -> bool:
    """An answer that may be given again: not itself a copy, and its text is still there."""
    return row.state is CallState.COMPLETED and row.result is not None and row.source_key == ""


def _stands_for_group(row: CallRow) -> bool:
    return row.step >= 0 and (row.state is CallState.DISPATCHED or _is_answer(row))


def _by_lease(rows: list[AttemptRow]) -> list[AttemptRow]:
    return sorted(rows, key=lambda row: (row.lease_ms, row.device, row.key))
