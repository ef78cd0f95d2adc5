"""A ledger store in memory: for tests, the simulator, and keyless trials. Forgets all at exit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from coordinator.ledger.journal import GENESIS, JournalEntry
from coordinator.ledger.stores.buffered import BufferedTables, CommitBatch
from coordinator.ledger.stores.changes import ChangeFeed
from coordinator.ledger.stores.store import LedgerStore
from coordinator.ledger.stores.trouble import Writability, not_written
from coordinator.ledger.tables import (
    ATTEMPT,
    CACHED_CALLS,
    CALL,
    EXPIRED_ATTEMPTS,
    GROUP_CALLS,
    ORPHANED_ATTEMPTS,
    STEP_CALLS,
    TABLES,
    Question,
    RowBucket,
    Table,
)
from coordinator.ledger.transitions import Ledger

T = TypeVar("T")
Row = TypeVar("Row")
_BUCKETS: dict[Table[Any], set[Any]] = {
    CALL: {question.bucket for question in (CACHED_CALLS, GROUP_CALLS, STEP_CALLS)},
    ATTEMPT: {question.bucket for question in (EXPIRED_ATTEMPTS, ORPHANED_ATTEMPTS)},
}


class MemoryRows:
    """RowSource in dictionaries, with an index for each bucket that questions look into."""

    def __init__(self) -> None:
        self.rows: dict[Table[Any], dict[tuple[Any, ...], Any]] = {table: {} for table in TABLES}
        self.journal: list[JournalEntry] = []
        self.numbers: dict[str, int] = {}
        self._index: dict[tuple[RowBucket[Any], Any], dict[tuple[Any, ...], None]] = defaultdict(dict)

    def get(self, table: Table[Row], *key: Any) -> Row | None:
        """A row by its key."""
        return self.rows[table].get(key)

    def ask(self, question: Question[Row], *parameters: Any) -> Iterable[Row]:
        """The rows that a question finds."""
        rows = self.rows[question.table]
        bucket = question.bucket
        keys = rows if bucket is None else self._index.get((bucket, parameters[: bucket.size]), ())
        return [row for row in map(rows.__getitem__, keys) if question.wanted(row, *parameters)]

    def all(self, table: Table[Row]) -> Iterable[Row]:
        """All rows of a table, sorted by key."""
        return [row for _, row in sorted(self.rows[table].items())]

    def call_keys(self) -> Iterable[tuple[str, str, str, int, str, str]]:
        """Device, key, task, step, prompt id and cache key of every call."""
        return [(row.device, row.key, row.task, row.step, row.prompt_id, row.cache_key) for row in self.rows[CALL].values()]

    def journal_after(self, seq: int, limit: int | None = None) -> Iterable[JournalEntry]:
        """Entries after this one."""
        return self.journal[seq:] if limit is None else self.journal[seq : seq + limit]

    def journal_head(self) -> tuple[int, str]:
        """The last entry's number and hash."""
        return (self.journal[-1].seq, self.journal[-1].hash) if self.journal else (0, GENESIS)

    def write(self, batch: CommitBatch) -> None:
        """Take a batch."""
        for table, rows in batch.rows.items():
            for row in rows:
                self._put(table, row)
        self.journal += batch.journal
        self.numbers |= batch.numbers

    def _put(self, table: Table[Any], row: Any) -> None:
        key = table.key_of(row)
        before = self.rows[table].get(key)
        for bucket in _BUCKETS.get(table, ()):
            if before is not None and (old := bucket.of(before)) is not None:
                self._index[bucket, old].pop(key, None)
            if (new := bucket.of(row)) is not None:
                self._index[bucket, new][key] = None
        self.rows[table][key] = row


class MemoryLedgerStore(LedgerStore):
    """LedgerStore over MemoryRows. `reopen` plays a restart; `break_down` and `heal` a disk that cannot be written."""

    def __init__(self, now: float = 0.0) -> None:
        self.tables = MemoryRows()
        self.feed, self.writability = ChangeFeed(), Writability()
        self._epoch = 0
        self._broken = False
        self.reopen(now)

    def reopen(self, now: float) -> None:
        """Start a new epoch and sweep what the last one left."""
        self._epoch += 1
        self._buffered = BufferedTables(self.tables)
        self._ledger = Ledger(self._buffered, self._epoch)
        self.recovered = self._run(lambda ledger: ledger.recover(now))

    def break_down(self) -> None:
        """From now on every transaction fails with LEDGER_UNAVAILABLE."""
        self._broken = True

    def heal(self) -> None:
        """Transactions work again."""
        self._broken = False

    async def transact(self, work: Callable[[Ledger], T]) -> T:
        """Run one transaction."""
        if self._broken:
            raise not_written()
        return self._run(work)

    def _run(self, work: Callable[[Ledger], T]) -> T:
        try:
            result = work(self._ledger)
        except BaseException:
            self._buffered.roll_back()
            raise
        self._buffered.keep()
        batch = self._buffered.take()
        self.tables.write(batch)
        self._buffered.committed()
        self.feed.publish(batch.changed)
        return result

    async def aclose(self) -> None:
        """End the iterations over `changes`."""
        self.feed.close()
