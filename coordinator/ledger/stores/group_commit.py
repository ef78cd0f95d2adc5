"""Group commit on one event loop: operations run at once over rows in memory, and are answered by the commit that holds what they saw.

One batch is written while the next one gathers. When a commit fails, everything that ran on top of it fails too, and the rows are loaded
anew. Where the file refuses a row, each operation runs again by itself, so that only the one that wrote it fails.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from coordinator.ledger.stores.buffered import BufferedTables, CallKeys, CommitBatch, RowSource
from coordinator.ledger.stores.changes import ChangeFeed
from coordinator.ledger.stores.store import LedgerStore, NoAnswer, PendingOperation
from coordinator.ledger.stores.trouble import Writability, not_written
from coordinator.ledger.transitions import Ledger
from edge.core.errors import CoordinatorError

log = logging.getLogger(__name__)
CROWD, GATHER_S = 4, 0.002
"""After a commit of CROWD operations or more, the next one waits GATHER_S for others: a commit of many costs no more than one of few."""
T = TypeVar("T")
Done = Callable[[Exception | None], None]


class RowsRefused(Exception):
    """The file refuses a row for its content; the message names the rule. Nothing of the batch happened."""


class ReadFailed(NoAnswer):
    """The file cannot be read."""


class RowsFile(RowSource, Protocol):
    """The rows of the last commit, with what identifies the calls among them."""

    def call_keys(self) -> Iterable[tuple[str, str, str, int, str, str]]:
        """Device, key, task, step, prompt id and cache key of every call."""
        ...


class LedgerDisk(Protocol):
    """Where the rows lie."""

    def rows(self) -> RowsFile:
        """The rows of the last commit, to be asked for again after a failed one. They and this raise ReadFailed."""
        ...

    def sync(self, batch: CommitBatch, done: Done) -> None:
        """Write a batch as one durable transaction, then call `done` once, later, on the loop: with None, or with why it may not have
        happened. RowsRefused: for its content."""
        ...


class GroupCommitStore(LedgerStore):
    """LedgerStore over a LedgerDisk that nobody else writes. Belongs to one event loop."""

    def __init__(self, disk: LedgerDisk, epoch: int, where: str = "the disk") -> None:
        self.feed = ChangeFeed()
        self.commits = 0
        self.operations = 0
        self._disk = disk
        self._epoch = epoch
        self._where = where
        self.writability = Writability()
        self._loop = asyncio.get_running_loop()
        self._tables: BufferedTables | None = None
        self._ledger: Ledger | None = None
        self._call_keys: CallKeys | None = None
        self._gathering: list[PendingOperation] = []
        self._batch: CommitBatch | None = None
        self._under_way: list[PendingOperation] = []
        self._flush_comes = False
        self._one_by_one: deque[PendingOperation] = deque()
        self._last_commit = 0
        self._settled = asyncio.Event()
        self._closed = False

    async def begin(self, now: float) -> None:
        """Note the new epoch and sweep what earlier ones left, in one commit. Raises the disk's errors."""
        ledger, tables = self._loaded()
        self.recovered = ledger.recover(now)
        tables.keep()
        batch = tables.take()
        batch.numbers = {"epoch": self._epoch, "stopped_cleanly": 0}
        begun: asyncio.Future[Exception | None] = self._loop.create_future()
        self._disk.sync(batch, begun.set_result)
        error = await begun
        if error is not None:
            raise error
        tables.committed()

    async def transact(self, work: Callable[[Ledger], T]) -> T:
        """Run one transaction now, and answer when what it wrote or read is durable."""
        if self._closed:
            raise not_written("the ledger is closed")
        waiter = PendingOperation(work)
        if self._one_by_one:  # it must not overtake those that came before it
            self._one_by_one.append(waiter)
        else:
            self._run(waiter)
            if not self._has_to_wait(waiter):
                self.operations += 1
                if waiter.error is not None:
                    raise waiter.error
                now: T = waiter.value
                return now
        waiter.future = self._loop.create_future()
        later: T = await waiter.future
        return later

    async def stop(self) -> None:
        """Take nothing new, and wait until what was taken is written or refused."""
        self._closed = True
        self.feed.close()
        while self._batch is not None or self._gathering or self._one_by_one:
            self._settled.clear()
            await self._settled.wait()

    # running -------------------------------------------------------------------------------------------------------------------

    def _loaded(self) -> tuple[Ledger, BufferedTables]:
        """The transitions and their rows, loaded anew after a failure. Raises ReadFailed."""
        if self._tables is None or self._ledger is None:
            rows = self._disk.rows()
            self._call_keys = self._call_keys or _call_keys(rows)
            self._tables = BufferedTables(rows, self._call_keys)
            self._ledger = Ledger(self._tables, self._epoch)
        return self._ledger, self._tables

    def _run(self, waiter: PendingOperation) -> None:
        """Run an operation, or refuse it where the rows cannot be read."""
        try:
            waiter.run(*self._loaded())
        except ReadFailed as error:
            self.writability.failed(f"{self._where}: {error}")
            waiter.fail(not_written())

    def _has_to_wait(self, waiter: PendingOperation) -> bool:
        """An outcome waits for the next commit where rows gather for it, else for the one under way, else for none."""
        # Also one that only read: it may have seen rows that are not durable yet, and must not be known before them.
        if self._tables is not None and self._tables.waiting:
            self._gathering.append(waiter)
            if self._batch is None and not self._flush_comes:
                self._flush_soon()
        elif self._batch is not None:
            self._under_way.append(waiter)
        else:
            return False
        return True

    # committing ----------------------------------------------------------------------------------------------------------------

    def _flush_soon(self) -> None:
        """Commit what gathers. Where the last operations came together, so will the next, and these are given a moment to."""
        self._flush_comes = True
        if self._last_commit >= CROWD and not self._closed:
            self._loop.call_later(GATHER_S, self._flush)
        else:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_comes = False
        if self._tables is not None and self._batch is None and self._tables.waiting:
            self._batch, self._under_way, self._gathering = self._tables.take(), self._gathering, []
            self._disk.sync(self._batch, self._synced)

    def _synced(self, error: Exception | None) -> None:
        """The commit under way is over: release everybody who waits for it."""
        batch, waiters = self._batch, self._under_way
        self._batch, self._under_way = None, []
        if error is not None:
            self._failed(waiters, error)
        else:
            assert batch is not None
            assert self._tables is not None
            self._tables.committed()
            self.commits += 1
            self.operations += len(waiters)
            self._last_commit = len(waiters)
            self.writability.wrote()
            self.feed.publish(sorted(batch.changed))
            for waiter in waiters:
                waiter.release()
        self._go_on()

    def _failed(self, waiters: list[PendingOperation], error: Exception) -> None:
        """The commit did not happen, as far as anybody knows; nor then did what ran on top of it."""
        waiters = waiters + self._gathering
        self._gathering = []
        self._tables = self._ledger = None  # the rows in memory hold what did not happen
        self._last_commit = 0
        if not isinstance(error, RowsRefused):
            self.writability.failed(f"{self._where}: {error}")
            waiters += self._one_by_one
            self._one_by_one.clear()
            for waiter in waiters:
                waiter.fail(not_written())
                waiter.release()
        elif len(waiters) == 1:
            log.error("the ledger refused an inconsistent change: %s", error)
            waiters[0].fail(CoordinatorError("the ledger refused an inconsistent change"))
            waiters[0].release()
        else:  # before those that wait already, in the order in which they came
            self._one_by_one.extendleft(reversed(waiters))

    def _go_on(self) -> None:
        """The next commit: of the next operation that runs by itself, or of what gathered meanwhile."""
        while self._one_by_one and self._batch is None:
            waiter = self._one_by_one.popleft()
            self._run(waiter)
            if self._has_to_wait(waiter):
                self._flush()
            else:
                waiter.release()
        if self._gathering and self._batch is None and not self._flush_comes:
            self._flush_soon()
        self._settled.set()


def _call_keys(rows: RowsFile) -> CallKeys:
    keys = CallKeys()
    for about in rows.call_keys():
        keys.add_call(*about)
    return keys
