"""The ledger's rows in memory over a file: rows once read stay known, rows written wait for the commit that holds them.

Sound only where nobody else writes the file, which its lock ensures. What a budget may hold is decided here, and once more by the database
when the row is written. An answer about many rows is the file's, with the rows that it may not have yet laid over it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from coordinator.ledger.accounts import (
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
from coordinator.ledger.journal import JournalEntry
from coordinator.ledger.stores.changes import EVERYTHING, DeviceTask, moves_others, shuts_or_lets_in, told_to_others
from coordinator.ledger.transitions import ReadTables
from edge.core.errors import CoordinatorError

Row = TypeVar("Row")
Group = tuple[str, str, int, str]
MOST_KNOWN = 20_000
"""Rows of one table that stay known between commits."""


_NOT_KNOWN: Any = object()


class Rows(Generic[Row]):
    """The rows of one table by key, as the operation that runs sees them; None: known not to be there.

    A row that is put is tried until its operation ends, then waits for the next commit, then is under way with it.
    """

    def __init__(
        self, read: Callable[..., Row | None], key_of: Callable[[Row], tuple[Any, ...]], keep: Callable[[Row | None], bool]
    ) -> None:
        """`read` asks the file by the parts of a key; `keep` says which rows stay known."""
        self._read = read
        self._key_of = key_of
        self._keep = keep
        self._seen: dict[tuple[Any, ...], Row | None] = {}
        self._before: dict[tuple[Any, ...], Row | None] = {}
        self._waiting: dict[tuple[Any, ...], Row] = {}
        self._under_way: dict[tuple[Any, ...], Row] = {}

    def get(self, *key: Any) -> Row | None:
        """A row."""
        row = self._seen.get(key, _NOT_KNOWN)
        if row is _NOT_KNOWN:
            row = self._read(*key)
            if self._keep(row):
                self._seen[key] = row
        return row  # type: ignore[no-any-return]

    def put(self, row: Row) -> None:
        """Try a row."""
        self.put_at(self._key_of(row), row)

    def put_at(self, key: tuple[Any, ...], row: Row) -> None:
        """Try a row, whose key this is."""
        if key not in self._before:
            self._before[key] = self._seen.get(key, _NOT_KNOWN)
        self._seen[key] = row

    def take_back(self, key: tuple[Any, ...]) -> None:
        """The running operation did not put this row."""
        before = self._before.pop(key, _NOT_KNOWN)
        if before is _NOT_KNOWN:
            self._seen.pop(key, None)
        else:
            self._seen[key] = before

    @property
    def waiting(self) -> bool:
        """Whether a kept row waits for the next commit."""
        return bool(self._waiting)

    def unwritten(self) -> dict[tuple[Any, ...], Row]:
        """The rows that the file may not have yet, as the operation that runs sees them."""
        tried: dict[tuple[Any, ...], Any] = {key: self._seen[key] for key in self._before}
        return self._under_way | self._waiting | tried

    def over(self, found: Iterable[Row], wanted: Callable[[Row], bool]) -> list[Row]:
        """What the file found, with the rows that it may not have yet laid over it; sorted by key."""
        rows, unwritten = {self._key_of(row): row for row in found}, self.unwritten()
        rows |= unwritten
        return [rows[key] for key in sorted(rows) if key not in unwritten or wanted(rows[key])]

    def keep(self) -> None:
        """What was tried waits for the next commit."""
        for key in self._before:
            self._waiting[key] = self._seen[key]  # type: ignore[assignment]
        self._before.clear()

    def roll_back(self) -> None:
        """What was tried is forgotten."""
        for key in tuple(self._before):
            self.take_back(key)

    def take(self) -> Collection[Row]:
        """The rows of the next commit, which is under way from here on."""
        self._under_way, self._waiting = self._waiting, {}
        return self._under_way.values()

    def committed(self) -> None:
        """The file has what was under way."""
        for key, row in self._under_way.items():
            if key not in self._waiting and key not in self._before and not self._keep(row):
                self._seen.pop(key, None)
        self._under_way = {}
        if len(self._seen) > MOST_KNOWN:
            self._seen = {key: self._seen[key] for key in (*self._waiting, *self._before)}


def _always(row: object) -> bool:
    return True


def _never(row: object) -> bool:
    return False


def _while_open(row: CallRow | AttemptRow | None) -> bool:
    """A call is asked for again when it ends; after that it would only fill memory."""
    return row is not None and row.state is CallState.DISPATCHED


class CallKeys:
    """What may be in the file's calls: keys, prompt groups and cache keys. What is not among them is not there, and need not be asked for.

    A Bloom filter with two positions a key: some are taken for there that are not. Calls are never deleted, so nothing ever leaves it.
    """

    def __init__(self, bits: int = 1 << 23) -> None:
        self._mask = bits - 1
        self._bits = bytearray(bits >> 3)

    def add(self, key: Hashable) -> None:
        """It may be there from now on."""
        first = hash(key)
        for place in (first & self._mask, (first >> 32) & self._mask):
            self._bits[place >> 3] |= 1 << (place & 7)

    def __contains__(self, key: Hashable) -> bool:
        first = hash(key)
        low, high = first & self._mask, (first >> 32) & self._mask
        return bool(self._bits[low >> 3] & (1 << (low & 7)) and self._bits[high >> 3] & (1 << (high & 7)))

    def add_call(self, device: str, key: str, group: Group, cache_key: str) -> None:
        """A call, by all that it is asked for."""
        self.add((device, key))
        self.add(group)
        if cache_key:
            self.add(cache_key)


@dataclass(slots=True)
class Batch:
    """What one commit writes: whole rows by table, journal entries, numbers kept beside the ledger; and the (device, task) pairs that have
    a new version with it."""

    rows: dict[str, Collection[Any]]
    journal: Sequence[JournalEntry]
    changed: set[DeviceTask]
    numbers: dict[str, int] = field(default_factory=dict)


class RowsFile(ReadTables, Protocol):
    """The rows of the last commit."""

    def call_keys(self) -> Iterable[tuple[str, str, str, int, str, str]]:
        """Device, key, task, step, prompt id and cache key of every call."""
        ...

    def group_calls(self, device: str, task: str, step: int, prompt_id: str) -> Sequence[CallRow]:
        """All calls of a prompt group that stand for it."""
        ...

    def cached_calls(self, cache_key: str, limit: int) -> Sequence[CallRow]:
        """The latest answered calls under a cache key, newest first."""
        ...


class BufferedTables:
    """The ledger's `Tables` over a file; to be made anew when a commit failed."""

    def __init__(self, file: RowsFile, keys: CallKeys | None = None) -> None:
        """`keys`: those of the file's calls; None: ask the file."""
        self.file = file
        self._keys = call_keys(file) if keys is None else keys
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
        self._tried: set[str] = set()
        self._stored_limits: list[SetLimits] | None = None
        self._head = self._kept_head = file.journal_head()
        self._tried_entries: list[JournalEntry] = []
        self._waiting_entries: list[JournalEntry] = []
        self._entries_under_way: list[JournalEntry] = []
        self._groups: list[set[Group]] = [set(), set()]
        self._cache_keys: list[Counter[str]] = [Counter(), Counter()]
        self._tried_changes: set[DeviceTask] = set()
        self._changed: set[DeviceTask] = set()

    def keep(self) -> None:
        """The operation that ran succeeded: what it changed waits for the next commit."""
        for table in self._tried:
            self._tables[table].keep()
        self._tried.clear()
        if self._tried_entries:
            self._kept_head = self._head
            self._waiting_entries += self._tried_entries
            self._tried_entries = []
        self._changed |= self._tried_changes
        self._tried_changes.clear()

    def roll_back(self) -> None:
        """The operation that ran failed: nothing of it happened."""
        for table in self._tried:
            self._tables[table].roll_back()
        self._tried.clear()
        self._head = self._kept_head
        self._tried_entries = []
        self._tried_changes.clear()
        self._stored_limits = None

    @property
    def waiting(self) -> bool:
        """Whether anything that was kept waits for the next commit."""
        return bool(self._waiting_entries) or any(rows.waiting for rows in self._tables.values())

    def take(self) -> Batch:
        """The next commit, which is under way from here on until `committed`."""
        rows = {table: rows.take() for table, rows in self._tables.items()}
        self._changed.update((row.device, row.task) for row in rows["task_state"])
        for row in rows["budget"]:
            self._changed.update(told_to_others(row))
        self._entries_under_way, self._waiting_entries = self._waiting_entries, []
        self._groups = [set(), self._groups[0]]
        self._cache_keys = [Counter(), self._cache_keys[0]]
        changed, self._changed = self._changed, set()
        return Batch({table: some for table, some in rows.items() if some}, self._entries_under_way, changed)

    def committed(self) -> None:
        """The file has what was under way."""
        for rows in self._tables.values():
            rows.committed()
        self._entries_under_way = []
        self._groups[1] = set()
        self._cache_keys[1] = Counter()

    # rows ----------------------------------------------------------------------------------------------------------------------

    def call(self, device: str, key: str) -> CallRow | None:
        """A call by its key."""
        return self._calls.get(device, key) if (device, key) in self._keys else None

    def group_call(self, device: str, task: str, step: int, prompt_id: str) -> CallRow | None:
        """A prompt group's running or answered call."""
        group = (device, task, step, prompt_id)
        if group not in self._keys:
            return None
        found = self.file.group_calls(*group)
        if group in self._groups[0] or group in self._groups[1]:
            found = self._calls.over(found, lambda row: _group_of(row) == group and _stands_for_group(row))
        return found[0] if found else None

    def cached_call(self, cache_key: str) -> CallRow | None:
        """The latest answered call under a cache key."""
        if cache_key not in self._keys:
            return None
        superseded = self._cache_keys[0][cache_key] + self._cache_keys[1][cache_key]
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
        self._tried.add("call")
        group = _group_of(row)
        self._keys.add_call(row.device, row.key, group, row.cache_key)
        self._groups[0].add(group)
        if row.cache_key:
            self._cache_keys[0][row.cache_key] += 1

    def attempt(self, device: str, key: str, number: int) -> AttemptRow | None:
        """One attempt."""
        return self._attempts.get(device, key, number)

    def put_attempt(self, row: AttemptRow) -> None:
        """Write an attempt."""
        self._attempts.put(row)
        self._tried.add("attempt")

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
        self._budgets.put_at((row.key,), row)
        self._tried.add("budget")

    def hold(self, key: str, amount: Amount, from_aside: Amount) -> bool:
        """Reserve if it fits."""
        row = self._budgets.get(key)
        if row is None:
            return False
        try:
            held = row.held(amount, from_aside)
        except ValueError as error:
            raise _inconsistent() from error
        if held.within_limits:
            self.put_budget(held)
            return True
        return False

    def resolve(self, key: str, hold: Amount, charge: Amount, to_aside: Amount) -> None:
        """Turn a hold into a charge."""
        row = self._budgets.get(key)
        if row is None:
            return
        try:
            self.put_budget(row.resolved(hold, charge, to_aside))
        except ValueError as error:
            raise _inconsistent() from error

    def step(self, device: str, task: str, step: int) -> StepRow | None:
        """A step."""
        return self._steps.get(device, task, step)

    def put_step(self, row: StepRow) -> None:
        """Write a step."""
        self._steps.put(row)
        self._tried.add("step")

    def task(self, device: str, task: str) -> TaskRow | None:
        """A task."""
        return self._tasks.get(device, task)

    def put_task(self, row: TaskRow) -> None:
        """Write a task."""
        self._tasks.put(row)
        self._tried.add("task_state")

    def price(self, key: str) -> PriceRow | None:
        """A shared λ."""
        return self._prices.get(key)

    def put_price(self, row: PriceRow) -> None:
        """Write a shared λ."""
        if moves_others(self._prices.get(row.key), row):
            self._tried_changes.add(EVERYTHING)
        self._prices.put(row)
        self._tried.add("price")

    def price_member(self, price: str, device: str) -> PriceMember | None:
        """A device's part in a fleet's price."""
        return self._members.get(price, device)

    def put_price_member(self, row: PriceMember) -> None:
        """Write a device's part in a fleet's price."""
        self._members.put(row)
        self._tried.add("price_member")

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
        self._tried.add("device")

    def set_limits(self) -> Sequence[SetLimits]:
        """What was set at run time; a few rows that every hold asks for."""
        if self._stored_limits is None:
            self._stored_limits = self._limits.over(self.file.set_limits(), _always)
        return self._stored_limits

    def put_set_limits(self, row: SetLimits) -> None:
        """Write what was set for a scope."""
        self._tried_changes.add(EVERYTHING)
        self._limits.put(row)
        self._tried.add("set_limits")
        self._stored_limits = None

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
        unwritten = (*self._entries_under_way, *self._waiting_entries, *self._tried_entries)
        first = unwritten[0].seq if unwritten else None
        written = (entry for entry in self.file.journal_after(seq, limit) if first is None or entry.seq < first)
        return islice((*written, *(entry for entry in unwritten if entry.seq > seq)), limit)

    def journal_head(self) -> tuple[int, str]:
        """The last entry's number and hash."""
        return self._head

    def append_journal(self, entry: JournalEntry) -> None:
        """Append an entry."""
        self._tried_entries.append(entry)
        self._head = (entry.seq, entry.hash)


def call_keys(file: RowsFile) -> CallKeys:
    """Those of all calls of a file."""
    keys = CallKeys()
    for device, key, task, step, prompt_id, cache_key in file.call_keys():
        keys.add_call(device, key, (device, task, step, prompt_id), cache_key)
    return keys


def _inconsistent() -> CoordinatorError:
    """An amount would be negative, which the file would refuse as well."""
    return CoordinatorError("the ledger refused an inconsistent change")


def _group_of(row: CallRow) -> Group:
    return row.device, row.task, row.step, row.prompt_id


def _is_answer(row: CallRow) -> bool:
    """An answer that may be given again: not itself a copy, and its text is still there."""
    return row.state is CallState.COMPLETED and row.result is not None and row.source_key == ""


def _stands_for_group(row: CallRow) -> bool:
    return row.step >= 0 and (row.state is CallState.DISPATCHED or _is_answer(row))


def _by_lease(rows: list[AttemptRow]) -> list[AttemptRow]:
    return sorted(rows, key=lambda row: (row.lease_ms, row.device, row.key))
