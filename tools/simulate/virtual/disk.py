"""A disk that forgets what was not synced, under the production commit logic.

A crash loses what was not synced; one in the middle of a sync leaves either all or nothing of the batch, as the seed says.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from coordinator.ledger.accounts import CallRow, CallState
from coordinator.ledger.stores.buffered import Batch, RowsFile
from coordinator.ledger.stores.group_commit import Done, GroupCommitStore
from coordinator.ledger.stores.memory import MemoryTables
from tools.simulate.virtual.loop import is_alive


class DiskError(Exception):
    """The disk did not take a batch, or does not say whether it did."""


class DiskTables(MemoryTables):
    """The rows that are durable, and the number of the last process run."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: dict[str, int] = {}
        self._put: Mapping[str, Callable[[Any], None]] = {
            "budget": self.put_budget,
            "call": self.put_call,
            "attempt": self.put_attempt,
            "step": self.put_step,
            "task_state": self.put_task,
            "price": self.put_price,
            "price_member": self.put_price_member,
            "device": self.put_device,
            "set_limits": self.put_set_limits,
        }

    def call_keys(self) -> Iterable[tuple[str, str, str, int, str, str]]:
        """Device, key, task, step, prompt id and cache key of every call."""
        return [(row.device, row.key, row.task, row.step, row.prompt_id, row.cache_key) for row in self.calls.values()]

    def group_calls(self, device: str, task: str, step: int, prompt_id: str) -> Sequence[CallRow]:
        """A prompt group's running or answered calls."""
        rows = (row for row in self.step_calls(device, task, step) if row.prompt_id == prompt_id)
        return [row for row in rows if row.state is CallState.DISPATCHED or _is_answer(row)]

    def cached_calls(self, cache_key: str, limit: int) -> Sequence[CallRow]:
        """The latest answered calls under a cache key, newest first."""
        rows = [row for row in self.calls.values() if cache_key and row.cache_key == cache_key and _is_answer(row)]
        return sorted(rows, key=lambda row: (row.updated_ms, row.device, row.key), reverse=True)[:limit]

    def write(self, batch: Batch) -> None:
        """Take a batch."""
        for table, rows in batch.rows.items():
            for row in rows:
                self._put[table](row)
        for entry in batch.journal:
            self.append_journal(entry)
        self.numbers |= batch.numbers
        self.keep()


def _is_answer(row: CallRow) -> bool:
    return row.state is CallState.COMPLETED and row.result is not None and not row.source_key


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
        self.unsure: set[int] = set()
        self._loop = loop
        self._rng = rng
        self._syncing: Batch | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def rows(self) -> RowsFile:
        """The rows that are durable."""
        return self.tables

    def sync(self, batch: Batch, done: Done) -> None:
        """Make a batch durable, and tell its writer, which dies with its host."""
        if is_alive():
            task = self._loop.create_task(self._sync_and_tell(batch, done), name="ledger writer")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _sync_and_tell(self, batch: Batch, done: Done) -> None:
        error: DiskError | None = None
        try:
            await self._sync(batch)
        except DiskError as failed:
            error = failed
        done(error)

    async def _sync(self, batch: Batch) -> None:
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

    def _keep(self, batch: Batch) -> None:
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
