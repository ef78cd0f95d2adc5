"""Subscribers to new versions of budgets. Knows subscribers and what each has not seen yet; knows nothing of rows or sockets.

A subscriber that is slow misses nothing that matters: a pair that changed again while it was waiting is reported once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

from coordinator.ledger.accounts import AmountLimits, BudgetRow

DeviceTask = tuple[str, str]
EVERYTHING: DeviceTask = ("", "")
_SHARED, _OF_TASK = "fleet", "fleet_task[task:"
_NO_LIMITS = AmountLimits()


def seen_by_others(row: BudgetRow) -> tuple[DeviceTask, ...]:
    """Who else is concerned when a device uses a budget, as a pair without a device: all devices of the task it is for, or
    all devices (EVERYTHING). Nobody where it is one device's, or limits nothing."""
    if not row.key.startswith(_SHARED) or row.limits == _NO_LIMITS:
        return ()
    task = row.key[len(_OF_TASK) : row.key.rindex("]")] if row.key.startswith(_OF_TASK) else ""
    return (("", task),)


class ChangeFeed:
    """Passes changed (device, task) pairs to all who read `changes`. Belongs to one event loop."""

    def __init__(self) -> None:
        self._readers: dict[asyncio.Event, dict[DeviceTask, None]] = {}  # what wakes a reader, and what it has not got yet
        self._closed = False

    def publish(self, changed: Iterable[DeviceTask]) -> None:
        """Notify every reader."""
        pairs = dict.fromkeys(changed)
        for woken, pending in self._readers.items() if pairs else ():
            pending.update(pairs)
            woken.set()

    def close(self) -> None:
        """End every iteration."""
        self._closed = True
        for woken in self._readers:
            woken.set()

    async def changes(self) -> AsyncIterator[DeviceTask]:
        """Pairs as they change, from the first `__anext__` on, until the feed is closed."""
        woken = asyncio.Event()
        pending = self._readers[woken] = {}
        try:
            while not self._closed:
                await woken.wait()
                woken.clear()  # before the pairs are taken: what comes meanwhile wakes it again
                while pending:
                    yield pending.popitem()[0]
        finally:
            del self._readers[woken]
