"""Which watchers a budget change notifies, and the content of the notification."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, aclosing
from dataclasses import replace

import pytest

from coordinator.service.budget_watch import NOTIFIED_AT_ONCE, BudgetNotifier, versions
from edge.core.errors import CoordinatorUnavailable
from edge.rpc.client import BudgetSnapshot

BUDGET = BudgetSnapshot(1, 0.5, 0.3, 0, None, 0, None, 0, None)


class Ledger:
    """A budget that the test changes, and how often it was read."""

    def __init__(self, notifier: BudgetNotifier) -> None:
        self.notifier, self.budget, self.reads = notifier, BUDGET, 0

    def change(self, device: str = "d", task: str = "math") -> None:
        self.budget = replace(self.budget, version=self.budget.version + 1)
        self.notifier.notify(device, task)

    async def read(self) -> BudgetSnapshot:
        self.reads += 1
        return self.budget


async def test_a_slow_reader_gets_only_the_newest_version() -> None:
    ledger = Ledger(BudgetNotifier())
    async with aclosing(versions(ledger.notifier, "d", "math", ledger.read, 60.0)) as seen:
        assert (await anext(seen)).version == 1
        for _ in range(100):
            ledger.change()
        assert (await anext(seen)).version == 101
        ledger.change()
        assert (await anext(seen)).version == 102
    assert ledger.reads == 3 and ledger.notifier.watchers == 0


async def test_idle_budget_sends_heartbeats_that_reveal_changes_elsewhere() -> None:
    ledger = Ledger(BudgetNotifier())
    async with aclosing(versions(ledger.notifier, "d", "math", ledger.read, 0.01)) as seen:
        assert (await anext(seen)).version == 1
        assert await anext(seen) is None
        ledger.change(device="another")
        while (budget := await anext(seen)) is None or budget.version == 1:
            pass
        assert budget.version == 2


async def test_only_the_watchers_of_the_device_and_task_are_woken() -> None:
    notifier = BudgetNotifier()
    with (
        notifier.watching("d", "math") as mine,
        notifier.watching("d", "code") as other,
        notifier.watching("e", "math") as foreign,
    ):
        notifier.notify("d", "math")
        assert (mine.is_set(), other.is_set(), foreign.is_set()) == (True, False, False)
        notifier.notify("d")
        assert other.is_set() and not foreign.is_set()
        notifier.notify_all()
        assert foreign.is_set()


async def test_changes_for_many_are_notified_immediately_and_then_once_per_pause() -> None:
    notifier = BudgetNotifier(shared_pause_s=0.05)
    with notifier.watching("d", "math") as mine, notifier.watching("e", "code") as other:
        notifier.notify_shared("math")
        assert mine.is_set() and not other.is_set()
        mine.clear()
        for _ in range(100):
            notifier.notify_shared("math")
            notifier.notify_shared()
        assert not mine.is_set() and not other.is_set()
        async with asyncio.timeout(60.0):
            await other.wait()
        assert mine.is_set()
        mine.clear()
        notifier.notify_shared()
        assert not mine.is_set(), "the pause restarts with each round"
        await asyncio.wait_for(mine.wait(), 5.0)


async def test_changes_for_very_many_are_notified_in_small_groups_until_all_are_reached() -> None:
    notifier, count = BudgetNotifier(shared_pause_s=0.0), 3 * NOTIFIED_AT_ONCE
    with ExitStack() as held:
        changes = [held.enter_context(notifier.watching(f"d{number}", "math")) for number in range(count)]
        notifier.notify_shared("math")
        assert sum(changed.is_set() for changed in changes) == NOTIFIED_AT_ONCE
        for changed in changes:
            changed.clear()
        notifier.notify_shared()  # those already notified get this change, too
        for changed in changes:
            await asyncio.wait_for(changed.wait(), 10.0)


async def test_a_watch_ends_with_draining_at_the_stop() -> None:
    ledger = Ledger(BudgetNotifier())
    seen = versions(ledger.notifier, "d", "math", ledger.read, 60.0)
    await anext(seen)
    ledger.notifier.stop()
    with pytest.raises(CoordinatorUnavailable) as caught:
        await anext(seen)
    assert caught.value.reason == "DRAINING" and ledger.notifier.watchers == 0
