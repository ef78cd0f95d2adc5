"""A disk that forgets what was not synced, and a ledger store on it. Knows batches, syncs, failures and crashes; knows nothing of
gRPC, providers or what the rows mean.

The store runs the real transitions of the ledger over the rows of the memory store, in batches as the SQLite store does: a savepoint per
operation, one sync, and only then are the callers told. A crash takes back what was not synced; one in the middle of a sync leaves either
all or nothing of the batch, as the seed says.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from coordinator.ledger import Ledger
from coordinator.stores.changes import ChangeFeed
from coordinator.stores.memory import MemoryTables
from coordinator.stores.reach import NOTHING, Reach
from coordinator.stores.transactions import TransactingStore
from edge.core.errors import CoordinatorUnavailable
from tools.simulate.virtual.loop import is_alive

T = TypeVar("T")
MAX_BATCH = 16


class DiskError(Exception):
    """The disk did not take a batch, or does not say whether it did."""


class DiskTables(MemoryTables):
    """Memory rows with savepoints and the number of the process run."""

    epoch = 0

    def next_epoch(self) -> int:
        """Begin another process run; undone with its transaction."""
        self.epoch += 1
        self._undo.append(lambda last=self.epoch - 1: setattr(self, "epoch", last))  # type: ignore[misc]
        return self.epoch

    def savepoint(self) -> int:
        """A place to come back to."""
        return len(self._undo)

    def roll_back_to(self, savepoint: int) -> None:
        """Undo what happened since."""
        while len(self._undo) > savepoint:
            self._undo.pop()()


class Disk:
    """What survives a crash. `condition` is "ok" or what is wrong with it:

    - "full": nothing is taken; "locked": neither, but it says so only after `busy_s`, and takes it when the lock is gone by then;
    - "eio": a sync fails and what it wrote is gone; "unsure": it fails, and what it wrote stays;
    - "flaky": every other sync, at random, is one of these two; "stalled": a sync takes `stall_s`, else one of the times in `sync_s`.

    `unsure` has the numbers of the journal entries that stayed although writing them failed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, rng: random.Random) -> None:
        self.tables = DiskTables()
        self.durable_at: list[float] = []
        self.condition = "ok"
        self.stall_s = 1.0
        self.sync_s = (0.0005, 0.005)
        self.busy_s = 0.2
        self.failed_syncs = 0
        self.unsure: set[int] = set()
        self._loop = loop
        self._rng = rng
        self._syncing = False

    async def sync(self) -> None:
        """Make what is in the tables durable. Raises DiskError; then the batch is to be taken back, unless it was kept all the same."""
        if not is_alive():
            await self._loop.create_future()
        if self.condition == "locked":
            await asyncio.sleep(self.busy_s)
        self._require_not("full", "no space left on the disk")
        self._require_not("locked", "the database is locked")
        self._syncing = True
        await asyncio.sleep(self.stall_s if self.condition == "stalled" else self._rng.uniform(*self.sync_s))
        self._syncing = False
        self._require_not("full", "no space left on the disk")
        ending = self.condition if self.condition != "flaky" else self._rng.choice(["ok", "ok", "eio", "unsure"])
        if ending == "eio":
            self._take_back("input/output error")
        first = len(self.durable_at) + 1
        self._keep()
        if ending == "unsure":
            self.failed_syncs += 1
            self.unsure |= set(range(first, len(self.durable_at) + 1))
            raise DiskError("the disk reported an error after it had written")

    def crash(self) -> None:
        """Lose what was not synced."""
        if self._syncing and self._rng.random() < 0.5:
            self._keep()
        else:
            self.tables.roll_back()
        self._syncing = False

    def _require_not(self, condition: str, why: str) -> None:
        if self.condition == condition:
            self._take_back(why)

    def _take_back(self, why: str) -> NoReturn:
        self.failed_syncs += 1
        self.tables.roll_back()
        raise DiskError(why)

    def _keep(self) -> None:
        self.tables.keep()
        while len(self.durable_at) < len(self.tables.journal):
            self.durable_at.append(self._loop.time())


@dataclass(slots=True)
class _Job:
    work: Callable[[Ledger], Any]
    future: asyncio.Future[Any]
    value: Any = None
    error: Exception | None = None


class DiskStore(TransactingStore):
    """LedgerStore on a Disk; make it with `open`. Its writer is a task of the host that opens it, and dies with it."""

    def __init__(self, disk: Disk, epoch: int) -> None:
        self.feed = ChangeFeed()
        self._disk = disk
        self._ledger = Ledger(disk.tables, epoch)
        self._jobs: list[_Job] = []
        self._wake = asyncio.Event()
        self._writer = asyncio.create_task(self._serve(), name="ledger writer")

    @classmethod
    async def open(cls, disk: Disk, now: float) -> DiskStore:
        """Start a new epoch and sweep what the last one left. Raises DiskError."""
        epoch = disk.tables.next_epoch()
        Ledger(disk.tables, epoch).recover(now)
        await disk.sync()
        return cls(disk, epoch)

    async def transact(self, work: Callable[[Ledger], T], reach: Reach = NOTHING) -> T:
        """Run one transaction and wait until it is durable."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.append(_Job(work, future))
        self._wake.set()
        return await future

    async def aclose(self) -> None:
        """Stop the writer. Safe to call twice."""
        self.feed.close()
        self._writer.cancel()
        await asyncio.wait([self._writer])

    async def _serve(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._jobs:
                batch, self._jobs = self._jobs[:MAX_BATCH], self._jobs[MAX_BATCH:]
                await self._commit(batch)

    async def _commit(self, batch: list[_Job]) -> None:
        for job in batch:
            self._run(job)
        try:
            await self._disk.sync()
        except DiskError as error:
            for job in batch:
                job.error = CoordinatorUnavailable(
                    f"the ledger cannot be written: {error}", reason="LEDGER_UNAVAILABLE", retry_after_s=1.0
                )
        else:
            self.feed.publish(sorted(self._disk.tables.changed))
        self._disk.tables.changed.clear()
        for job in batch:
            _deliver(job)

    def _run(self, job: _Job) -> None:
        tables = self._disk.tables
        savepoint = tables.savepoint()
        try:
            job.value = job.work(self._ledger)
        except Exception as error:  # the refusal belongs to whoever awaits it
            job.error = error
            tables.roll_back_to(savepoint)


def _deliver(job: _Job) -> None:
    if job.future.done():
        return
    if job.error is not None:
        job.future.set_exception(job.error)
    else:
        job.future.set_result(job.value)
