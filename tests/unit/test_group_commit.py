"""Group commit: no reply precedes the commit of what it saw, and a failed commit fails everything on top of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from coordinator.ledger.accounts import InProgress, Reserved
from coordinator.ledger.stores.buffered import CallKeys, CommitBatch
from coordinator.ledger.stores.group_commit import Done, GroupCommitStore, ReadFailed, RowsFile, RowsRefused
from coordinator.ledger.stores.memory import MemoryRows
from coordinator.ledger.tables import CALL
from coordinator.ledger.verify import verify
from edge.core.errors import CoordinatorError, CoordinatorUnavailable
from tests.worlds.ledger_requests import NOW, ROOMY, reserve_request, settlement


class HeldDisk:
    """A disk whose commits end when the test decides."""

    def __init__(self) -> None:
        self.tables = MemoryRows()
        self.under_way: list[tuple[CommitBatch, Done]] = []
        self.unreadable = False

    def rows(self) -> RowsFile:
        if self.unreadable:
            raise ReadFailed("input/output error")
        return self.tables

    def sync(self, batch: CommitBatch, done: Done) -> None:
        assert not self.under_way, "one commit at a time"
        self.under_way.append((batch, done))

    async def end(self, error: Exception | None = None, *, written: bool | None = None) -> None:
        """End the commit under way, once there is one."""
        while not self.under_way:
            await asyncio.sleep(0)
        batch, done = self.under_way.pop()
        if written if written is not None else error is None:
            self.tables.write(batch)
        done(error)
        await asyncio.sleep(0)


@pytest.fixture
def disk() -> HeldDisk:
    return HeldDisk()


@pytest.fixture
async def store(disk: HeldDisk) -> GroupCommitStore:
    store = GroupCommitStore(disk, 1)
    beginning = asyncio.create_task(store.begin(NOW))
    await disk.end()
    await beginning
    return store


def started(work: Awaitable[object]) -> asyncio.Task[object]:
    async def run() -> object:
        return await work

    return asyncio.create_task(run())


async def steps() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_an_answer_waits_for_its_commit_and_the_next_batch_gathers_meanwhile(
    disk: HeldDisk, store: GroupCommitStore
) -> None:
    first = started(store.reserve(reserve_request("a")))
    await steps()
    second = started(store.reserve(reserve_request("b")))
    third = started(store.reserve(reserve_request("c")))
    await steps()
    assert [first.done(), second.done(), len(disk.under_way)] == [False, False, 1]
    await disk.end()
    assert [first.done(), second.done()] == [True, False]
    await disk.end()
    await asyncio.gather(second, third)
    assert store.commits == 2
    assert verify(disk.tables).ok


async def test_a_read_and_a_refusal_wait_for_the_commit_of_what_they_saw(disk: HeldDisk, store: GroupCommitStore) -> None:
    begun = [
        started(store.reserve(reserve_request("a"))),
        started(store.reserve(reserve_request("a"))),
        started(store.get_budget("d1", "math", [ROOMY])),
        started(store.reserve(reserve_request("a", fingerprint="other"))),
    ]
    await steps()
    assert not any(task.done() for task in begun)
    await disk.end()
    results = await asyncio.gather(*begun, return_exceptions=True)
    assert results[1] == InProgress("a")
    assert isinstance(results[3], CoordinatorError)
    assert await store.get_budget("d1", "math", [ROOMY]) == results[2], "durable state is returned immediately"


async def test_operations_on_top_of_a_failed_commit_fail_with_it_and_leave_nothing(
    disk: HeldDisk, store: GroupCommitStore
) -> None:
    first = started(store.reserve(reserve_request("a")))
    await steps()
    second = started(store.settle(settlement("a")))
    third = started(store.reserve(reserve_request("a")))
    await steps()
    await disk.end(OSError("no space left"))
    for task in (first, second, third):
        with pytest.raises(CoordinatorUnavailable, match="cannot be written") as failed:
            await task
        assert failed.value.reason == "LEDGER_UNAVAILABLE"
    again = started(store.reserve(reserve_request("a")))
    await disk.end()
    assert await again == Reserved(1, "d1|a|1")
    assert verify(disk.tables).ok


async def test_rows_are_reloaded_after_a_commit_that_failed_but_was_written(disk: HeldDisk, store: GroupCommitStore) -> None:
    first = started(store.reserve(reserve_request("a")))
    await disk.end(OSError("input/output error"), written=True)
    with pytest.raises(CoordinatorUnavailable):
        await first
    assert await store.reserve(reserve_request("a")) == InProgress("a")


async def test_after_a_refused_row_each_operation_runs_alone(disk: HeldDisk, store: GroupCommitStore) -> None:
    begun = [started(store.reserve(reserve_request(key))) for key in ("a", "bad", "b")]
    await steps()
    late = started(store.reserve(reserve_request("c")))
    await disk.end(RowsRefused("a rule"))
    for _ in range(4):
        while not disk.under_way:
            await asyncio.sleep(0)
        refused = any(row.key == "bad" for row in disk.under_way[0][0].rows[CALL])
        await disk.end(RowsRefused("a rule") if refused else None)
    results = await asyncio.gather(*begun, late, return_exceptions=True)
    assert [isinstance(each, Reserved) for each in results] == [True, False, True, True]
    assert isinstance(results[1], CoordinatorError)
    assert verify(disk.tables).ok


async def test_cancelled_caller_undoes_nothing_and_close_waits_for_accepted_work(disk: HeldDisk, store: GroupCommitStore) -> None:
    leaving = started(store.reserve(reserve_request("a")))
    await steps()
    leaving.cancel()
    stopping = started(store.stop())
    await steps()
    assert not stopping.done()
    await disk.end()
    await stopping
    assert ("d1", "a") in disk.tables.rows[CALL]
    with pytest.raises(CoordinatorUnavailable, match="closed"):
        await store.reserve(reserve_request("b"))


async def test_calls_are_refused_until_the_rows_can_be_reloaded(disk: HeldDisk, store: GroupCommitStore) -> None:
    first = started(store.reserve(reserve_request("a")))
    disk.unreadable = True
    await disk.end(OSError("input/output error"))
    with pytest.raises(CoordinatorUnavailable):
        await first
    with pytest.raises(CoordinatorUnavailable):
        await store.get_budget("d1", "math", [ROOMY])
    disk.unreadable = False
    assert (await store.get_budget("d1", "math", [ROOMY])).task is None


async def test_changes_are_published_once_durable(disk: HeldDisk, store: GroupCommitStore) -> None:
    changes = store.changes()
    heard = started(anext(changes))
    await steps()
    reserving = started(store.reserve(reserve_request("a")))
    await steps()
    assert not heard.done()
    await disk.end()
    assert await heard in {("d1", "math"), ("", "")}
    await reserving


def test_missing_key_is_certainly_new() -> None:
    keys = CallKeys(1 << 12)
    there = [("d", f"k{number}") for number in range(200)]
    for key in there:
        keys.add(key)
    assert all(key in keys for key in there)
    assert sum(("d", f"other{number}") in keys for number in range(1000)) < 200
