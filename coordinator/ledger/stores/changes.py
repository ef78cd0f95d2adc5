"""Who is told that a budget has a new version. Knows subscribers and what each has not seen yet; knows nothing of rows or sockets.

A subscriber that is slow misses nothing that matters: a pair that changed again while it was waiting to be told is told once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from coordinator.ledger.accounts import Limits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coordinator.ledger.accounts import BudgetRow, DeviceRow, PriceRow

DeviceTask = tuple[str, str]
EVERYTHING: DeviceTask = ("", "")
_SHARED, _OF_TASK = "fleet", "fleet_task[task:"
_NO_LIMITS = Limits()


def moves_others(known: PriceRow | None, row: PriceRow) -> bool:
    """Whether a shared λ that is written gives tasks a new version that are not written themselves."""
    return known is not None and known.updates != row.updates


def told_to_others(row: BudgetRow) -> tuple[DeviceTask, ...]:
    """Whom the use of a budget concerns besides the device that used it, as a pair without a device: all devices of the task it is for, or
    all devices (EVERYTHING). Nobody where it is one device's, or limits nothing."""
    if not row.key.startswith(_SHARED) or row.limits == _NO_LIMITS:
        return ()
    task = row.key[len(_OF_TASK) : row.key.rindex("]")] if row.key.startswith(_OF_TASK) else ""
    return (("", task),)


def shuts_or_lets_in(known: DeviceRow | None, row: DeviceRow) -> bool:
    """Whether a device that is written is disabled from now on, or no longer; told as a pair without a task."""
    return (known is not None and known.disabled) != row.disabled


class _Subscriber:
    """What one reader has not been told yet; belongs to the reader's loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.pending: dict[DeviceTask, None] = {}
        self.woken = asyncio.Event()

    def add(self, changed: Iterable[DeviceTask]) -> None:
        self.pending.update(dict.fromkeys(changed))
        self.woken.set()


class ChangeFeed:
    """Hands changed (device, task) pairs to all who read `changes`. `publish` may be called from any thread."""

    def __init__(self) -> None:
        self._subscribers: dict[int, _Subscriber] = {}
        self._closed = False

    def publish(self, changed: Iterable[DeviceTask]) -> None:
        """Tell every subscriber."""
        pairs = tuple(changed)
        if not pairs:
            return
        for subscriber in tuple(self._subscribers.values()):
            _in_loop_of(subscriber, lambda subscriber=subscriber: subscriber.add(pairs))  # type: ignore[misc]

    def close(self) -> None:
        """End every iteration."""
        self._closed = True
        for subscriber in tuple(self._subscribers.values()):
            _in_loop_of(subscriber, subscriber.woken.set)

    async def changes(self) -> AsyncIterator[DeviceTask]:
        """Pairs as they change, from the first `__anext__` on, until the feed is closed."""
        with self._subscribed() as mine:
            while not self._closed:
                await mine.woken.wait()
                mine.woken.clear()
                while mine.pending:
                    yield mine.pending.popitem()[0]

    @contextmanager
    def _subscribed(self) -> Iterator[_Subscriber]:
        subscriber = _Subscriber()
        self._subscribers[id(subscriber)] = subscriber
        try:
            yield subscriber
        finally:
            del self._subscribers[id(subscriber)]


def _in_loop_of(subscriber: _Subscriber, do: Callable[[], None]) -> None:
    """At once in its own loop, soon from another thread."""
    if asyncio._get_running_loop() is subscriber.loop:
        do()
        return
    with suppress(RuntimeError):  # its loop is closed: nobody reads any more
        subscriber.loop.call_soon_threadsafe(do)
