"""The ledger's rows as a transaction sees them: in memory, over what is stored. Rows once read stay known, rows written wait for the commit
that holds them.

Sound only where nobody else writes what is stored meanwhile. What a budget may hold is decided here, and once more by the database when the
row is written. An answer about many rows is the source's, with the rows that it may not have yet laid over it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from coordinator.ledger.accounts import Amount, AttemptRow, CallRow, CallState, SetLimits
from coordinator.ledger.journal import JournalEntry
from coordinator.ledger.stores.changes import EVERYTHING, DeviceTask, seen_by_others
from coordinator.ledger.tables import (
    ATTEMPT,
    BUDGET,
    CACHED_CALLS,
    CALL,
    DEVICE,
    DUAL_MEMBER,
    GROUP_CALLS,
    SET_LIMITS,
    SHARED_DUAL,
    STEP,
    TASK,
    Question,
    Table,
)
from edge.core.errors import CoordinatorError

Row = TypeVar("Row")
MOST_KNOWN = 20_000
"""Rows of one table that stay known between commits."""


class RowSource(Protocol):
    """The rows of the last commit."""

    def get(self, table: Table[Row], *key: Any) -> Row | None:
        """A row by its key."""
        ...

    def ask(self, question: Question[Row], *parameters: Any) -> Iterable[Row]:
        """The rows that a question finds, in any order."""
        ...

    def all(self, table: Table[Row]) -> Iterable[Row]:
        """All rows of a table, sorted by key."""
        ...

    def journal_after(self, seq: int, limit: int | None = None) -> Iterable[JournalEntry]:
        """Entries with a sequence number above this one, in order, at most `limit` of them."""
        ...

    def journal_head(self) -> tuple[int, str]:
        """Sequence number and hash of the last entry; (0, GENESIS) for an empty journal."""
        ...


_NOT_KNOWN: Any = object()
_Undo = list[tuple["Rows[Any]", tuple[Any, ...], Any]]


class Rows(Generic[Row]):
    """The rows of one table by key, as the operation that runs sees them; None: known not to be there.

    A row that is put is tried until its operation ends, then waits for the next commit, then is under way with it. Between operations
    nothing is tried.
    """

    def __init__(
        self,
        table: Table[Row],
        read: Callable[..., Any],
        tried: _Undo,
        stays: Callable[[Row], bool] | None = None,
    ) -> None:
        """`read` asks the source by the parts of a key; `tried` notes what each put row was before, for the operation that runs; `stays`
        says which rows stay known (None: all)."""
        self.table = table
        self._key_of = table.key_of
        self._read = read
        self._tried = tried
        self._stays = stays
        self.seen: dict[tuple[Any, ...], Row | None] = {}
        self.waiting: dict[tuple[Any, ...], Row] = {}
        """Kept rows that wait for the next commit."""
        self._under_way: dict[tuple[Any, ...], Row] = {}

    def get(self, *key: Any) -> Row | None:
        """A row."""
        row = self.seen.get(key, _NOT_KNOWN)
        if row is _NOT_KNOWN:
            row = self._read(*key)
            if self._stays is None or (row is not None and self._stays(row)):
                self.seen[key] = row
        return row  # type: ignore[no-any-return]

    def put(self, row: Row) -> None:
        """Try a row: insert it, or replace the one of its key."""
        key = self._key_of(row)
        self._tried.append((self, key, self.seen.get(key, _NOT_KNOWN)))
        self.seen[key] = row

    def over(self, found: Iterable[Row], wanted: Callable[..., bool], *parameters: Any) -> list[Row]:
        """What the source found, with the rows that it may not have yet laid over it; sorted by key."""
        rows = {self._key_of(row): row for row in found}
        tried: dict[tuple[Any, ...], Any] = {key: self.seen[key] for rows, key, _ in self._tried if rows is self}
        for newer in (self._under_way, self.waiting, tried):  # oldest first: each knows better than those before it
            for key, row in newer.items():
                if wanted(row, *parameters):
                    rows[key] = row
                else:  # the source found it, and it is no answer any more
                    rows.pop(key, None)
        return [rows[key] for key in sorted(rows)]

    def take(self) -> Collection[Row]:
        """The rows of the next commit, which is under way from here on."""
        self._under_way, self.waiting = self.waiting, {}
        return self._under_way.values()

    def committed(self) -> None:
        """The source has what was under way."""
        if self._stays is not None:
            for key, row in self._under_way.items():
                if key not in self.waiting and not self._stays(row):  # one that waits was changed since, and only memory has it
                    self.seen.pop(key, None)
        self._under_way = {}
        if len(self.seen) > MOST_KNOWN:  # what waits must stay: the source would answer with the row before it
            self.seen = dict(self.waiting)


def _is_open(row: CallRow | AttemptRow) -> bool:
    """A call is asked for again when it ends; after that it would only fill memory."""
    return row.state is CallState.DISPATCHED


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

    def add_call(self, device: str, key: str, task: str, step: int, prompt_id: str, cache_key: str) -> None:
        """A call, by all that it is asked for."""
        self.add((device, key))
        self.add((device, task, step, prompt_id))
        if cache_key:
            self.add(cache_key)


@dataclass(slots=True)
class CommitBatch:
    """What one commit writes."""

    rows: dict[Table[Any], Collection[Any]]
    """Whole rows by table."""
    journal: Sequence[JournalEntry]
    changed: set[DeviceTask]
    """(device, task) pairs that have a new version with it."""
    numbers: dict[str, int] = field(default_factory=dict)
    """Kept with the ledger."""


class BufferedTables:
    """The ledger's tables for the transitions: rows by key (`get`, `put`), questions, the journal. Made anew when a commit failed."""

    def __init__(self, source: RowSource, keys: CallKeys | None = None) -> None:
        """`keys`: those of the source's calls; None: ask the source for each."""
        self.source = source
        self._keys = keys
        self._tried: _Undo = []

        def rows(table: Table[Row], stays: Callable[[Row], bool] | None = None) -> Rows[Row]:
            return Rows(table, partial(source.get, table), self._tried, stays)

        self.budgets = rows(BUDGET)
        self.calls = Rows(CALL, self._stored_call, self._tried, _is_open)
        self.attempts = rows(ATTEMPT, _is_open)
        self.steps = rows(STEP)
        self.tasks = rows(TASK)
        self.shared_duals = rows(SHARED_DUAL)
        self.dual_members = rows(DUAL_MEMBER)
        self.devices = rows(DEVICE)
        self.limits = rows(SET_LIMITS)
        of_calls: tuple[Rows[Any], ...] = (self.budgets, self.calls, self.attempts)
        of_steps: tuple[Rows[Any], ...] = (self.steps, self.tasks, self.shared_duals, self.dual_members)
        self._tables = {rows.table: rows for rows in (*of_calls, *of_steps, self.devices, self.limits)}
        self._stored_limits: list[SetLimits] | None = None
        self.waiting = False
        """Whether anything that was kept waits for the next commit."""
        self._head = self._kept_head = source.journal_head()
        self._tried_entries: list[JournalEntry] = []
        self._waiting_entries: list[JournalEntry] = []
        self._entries_under_way: list[JournalEntry] = []
        self._tried_changes: set[DeviceTask] = set()
        self._changed: set[DeviceTask] = set()

    # transactions --------------------------------------------------------------------------------------------------------------

    def keep(self) -> None:
        """The operation that ran succeeded: what it changed waits for the next commit."""
        self.waiting = self.waiting or bool(self._tried or self._tried_entries)
        for rows, key, _ in self._tried:
            rows.waiting[key] = rows.seen[key]
        self._tried.clear()
        self._kept_head = self._head
        self._waiting_entries += self._tried_entries
        self._tried_entries = []
        self._changed |= self._tried_changes
        self._tried_changes.clear()

    def roll_back(self) -> None:
        """The operation that ran failed: nothing of it happened."""
        for rows, key, before in reversed(self._tried):
            if before is _NOT_KNOWN:
                del rows.seen[key]
            else:
                rows.seen[key] = before
        self._tried.clear()
        self._head = self._kept_head
        self._tried_entries = []
        self._tried_changes.clear()
        self._stored_limits = None

    def take(self) -> CommitBatch:
        """The next commit, which is under way from here on until `committed`."""
        self.waiting = False
        taken = {table: rows.take() for table, rows in self._tables.items() if rows.waiting}
        self._changed.update((row.device, row.task) for row in taken.get(TASK, ()))
        for row in taken.get(BUDGET, ()):
            self._changed.update(seen_by_others(row))
        self._entries_under_way, self._waiting_entries = self._waiting_entries, []
        changed, self._changed = self._changed, set()
        return CommitBatch(taken, self._entries_under_way, changed)

    def committed(self) -> None:
        """The source has what was under way."""
        for rows in self._tables.values():
            rows.committed()
        self._entries_under_way = []

    # questions -----------------------------------------------------------------------------------------------------------------

    def ask(self, question: Question[Row], *parameters: Any) -> list[Row]:
        """The rows that a question finds, sorted by key; a question with a limit may give more than that."""
        return self._tables[question.table].over(self.source.ask(question, *parameters), question.wanted, *parameters)

    def all(self, table: Table[Row]) -> list[Row]:
        """All rows of a table, sorted by key."""
        return self._tables[table].over(self.source.all(table), lambda row: True)

    def group_call(self, device: str, task: str, step: int, prompt_id: str) -> CallRow | None:
        """A prompt group's call that is DISPATCHED, or COMPLETED with its text and not itself a copy."""
        group = (device, task, step, prompt_id)
        found = self.ask(GROUP_CALLS, *group) if self._keys is None or group in self._keys else ()
        return found[0] if found else None

    def cached_call(self, cache_key: str) -> CallRow | None:
        """The latest COMPLETED call under a cache key that still has its text and is not itself a copy."""
        found = self.ask(CACHED_CALLS, cache_key) if self._keys is None or cache_key in self._keys else ()
        return max(found, key=lambda row: (row.updated_ms, row.device, row.key), default=None)

    def set_limits(self) -> Sequence[SetLimits]:
        """What was set at run time; a few rows that every hold asks for."""
        if self._stored_limits is None:
            self._stored_limits = self.all(SET_LIMITS)
        return self._stored_limits

    def _stored_call(self, device: str, key: str) -> CallRow | None:
        return self.source.get(CALL, device, key) if self._keys is None or (device, key) in self._keys else None

    # changes -------------------------------------------------------------------------------------------------------------------

    def hold(self, key: str, amount: Amount, from_aside: Amount) -> bool:
        """Add to `reserved` and take `from_aside` from `set_aside` if committed + reserved + set_aside is then within the limits; False
        (and no change) if not."""
        row = self.budgets.get(key)
        try:
            held = None if row is None else row.held(amount, from_aside)
        except ValueError as error:
            raise _inconsistent() from error
        if held is not None:
            self.budgets.put(held)
        return held is not None

    def resolve(self, key: str, hold: Amount, charge: Amount, to_aside: Amount) -> None:
        """Take `hold` from `reserved`, add `charge` (never more) to `committed` and `to_aside` to `set_aside`."""
        row = self.budgets.get(key)
        if row is None:
            return
        try:
            self.budgets.put(row.resolved(hold, charge, to_aside))
        except ValueError as error:
            raise _inconsistent() from error

    def put_new_call(self, row: CallRow) -> None:
        """Put a call that runs or is answered from now on, so that it is found by all that it is asked for."""
        if self._keys is not None:
            self._keys.add_call(row.device, row.key, row.task, row.step, row.prompt_id, row.cache_key)
        self.calls.put(row)

    def put_limits(self, row: SetLimits) -> None:
        """Set limits of a scope, which concerns everybody."""
        self.limits.put(row)
        self._stored_limits = None
        self.note_change(EVERYTHING)

    def note_change(self, changed: DeviceTask) -> None:
        """Report that budgets have another version, in addition to those whose task is written (see `LedgerStore.changes`)."""
        self._tried_changes.add(changed)

    # the journal ---------------------------------------------------------------------------------------------------------------

    def journal_after(self, seq: int, limit: int | None = None) -> Iterable[JournalEntry]:
        """Entries with a sequence number above this one, in order, at most `limit` of them."""
        unwritten = (*self._entries_under_way, *self._waiting_entries, *self._tried_entries)
        first = unwritten[0].seq if unwritten else None
        written = (entry for entry in self.source.journal_after(seq, limit) if first is None or entry.seq < first)
        return islice((*written, *(entry for entry in unwritten if entry.seq > seq)), limit)

    def journal_head(self) -> tuple[int, str]:
        """The last entry's number and hash."""
        return self._head

    def append_journal(self, entry: JournalEntry) -> None:
        """Append an entry."""
        self._tried_entries.append(entry)
        self._head = (entry.seq, entry.hash)


def _inconsistent() -> CoordinatorError:
    """An amount would be negative, which the database would refuse as well."""
    return CoordinatorError("the ledger refused an inconsistent change")
