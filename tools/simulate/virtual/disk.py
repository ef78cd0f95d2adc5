"""A disk that forgets what was not synced, under the production commit logic.

A crash loses what was not synced; one in the middle of a sync leaves either all or nothing of the batch, as the seed says.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from tempfile import TemporaryDirectory

from coordinator.ledger.stores.buffered import CommitBatch
from coordinator.ledger.stores.group_commit import Done, GroupCommitStore, RowsFile
from coordinator.ledger.stores.memory import MemoryRows
from tools.simulate.virtual.loop import is_alive


def scratch_folder() -> TemporaryDirectory[str]:
    """A real folder for what agents keep next to their database; in memory where the system has such a place."""
    memory = Path("/dev/shm")
    return TemporaryDirectory(prefix="simulate-", dir=memory if memory.is_dir() else None)


class DiskError(Exception):
    """The disk did not take a batch, or does not say whether it did."""


class Disk:
    """What survives a crash. `condition` is "ok" or what is wrong with it:

    - "full": nothing is taken; "locked": neither, but it says so only after `busy_s`, and takes it when the lock is gone by then;
    - "eio": a sync fails and what it wrote is gone; "unsure": it fails, and what it wrote stays;
    - "flaky": every other sync, at random, is one of these two; "stalled": a sync takes `stall_s`, else one of the times in `sync_s`.

    `unsure` has the numbers of the journal entries that stayed although writing them failed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, rng: random.Random) -> None:
        self.tables = MemoryRows()
        self.durable_at: list[float] = []
        self.condition = "ok"
        self.stall_s = 1.0
        self.sync_s = (0.0005, 0.005)
        self.busy_s = 0.2
        self.unsure: set[int] = set()
        self._loop = loop
        self._rng = rng
        self._syncing: CommitBatch | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def rows(self) -> RowsFile:
        """The rows that are durable."""
        return self.tables

    def sync(self, batch: CommitBatch, done: Done) -> None:
        """Make a batch durable, and notify its writer, which dies with its host."""
        if is_alive():
            task = self._loop.create_task(self._sync_and_report(batch, done), name="ledger writer")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _sync_and_report(self, batch: CommitBatch, done: Done) -> None:
        error: DiskError | None = None
        try:
            await self._sync(batch)
        except DiskError as failed:
            error = failed
        done(error)

    async def _sync(self, batch: CommitBatch) -> None:
        if self.condition == "locked":
            await asyncio.sleep(self.busy_s)
        self._require_not("full", "no space left on the disk")
        self._require_not("locked", "the database is locked")
        self._syncing = batch
        await asyncio.sleep(self.stall_s if self.condition == "stalled" else self._rng.uniform(*self.sync_s))
        self._syncing = None
        self._require_not("full", "no space left on the disk")
        ending = self.condition if self.condition != "flaky" else self._rng.choice(["ok", "ok", "eio", "unsure"])
        if ending == "eio":
            raise DiskError("input/output error")
        first = len(self.durable_at) + 1
        self._keep(batch)
        if ending == "unsure":
            self.unsure |= set(range(first, len(self.durable_at) + 1))
            raise DiskError("the disk reported an error after it had written")

    def crash(self) -> None:
        """Lose what was not synced."""
        if self._syncing is not None and self._rng.random() < 0.5:
            self._keep(self._syncing)
        self._syncing = None

    def _require_not(self, condition: str, why: str) -> None:
        if self.condition == condition:
            raise DiskError(why)

    def _keep(self, batch: CommitBatch) -> None:
        self.tables.write(batch)
        self.durable_at += [self._loop.time()] * (len(self.tables.journal) - len(self.durable_at))


class DiskStore(GroupCommitStore):
    """LedgerStore on a Disk; make it with `open`. It dies with the host that opens it."""

    @classmethod
    async def open(cls, disk: Disk, now: float) -> DiskStore:
        """Start a new epoch and sweep what the last one left. Raises DiskError."""
        store = cls(disk, disk.tables.numbers.get("epoch", 0) + 1)
        await store.begin(now)
        return store

    async def aclose(self) -> None:
        """Finish what is queued. Safe to call twice."""
        await self.stop()
