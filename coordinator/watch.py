"""Who watches which budget. Knows watchers and when to wake them; knows nothing of gRPC or of what a budget is made of.

A change rings for the device and task it concerns, whichever replica wrote it. What concerns many devices, such as what others spend of
a shared budget, rings for them at once too, but then for what follows within a second only once, at its end. A watcher that is slow is
rung once for many changes, and then reads the newest version only.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager

from coordinator.stores.changes import DeviceTask
from edge.core.errors import CoordinatorUnavailable
from edge.rpc.client import BudgetSnapshot

SHARED_PAUSE_S = 1.0
Heard = Callable[[str], Awaitable[None]]


class BudgetBell:
    """Rings for watchers, for all devices together at most every `shared_pause_s`. Belongs to one event loop."""

    def __init__(self, shared_pause_s: float = SHARED_PAUSE_S) -> None:
        self._listeners: dict[str, dict[asyncio.Event, str]] = defaultdict(dict)
        self._shared_pause_s = shared_pause_s
        self._shared: set[str] = set()
        self._pause: asyncio.TimerHandle | None = None
        self.stopped = False

    @property
    def listeners(self) -> int:
        """How many watch."""
        return sum(map(len, self._listeners.values()))

    @contextmanager
    def listening(self, device: str, task: str) -> Iterator[asyncio.Event]:
        """An event that is set at each change of this device's task, and at the stop."""
        rung = asyncio.Event()
        self._listeners[device][rung] = task
        try:
            yield rung
        finally:
            del self._listeners[device][rung]
            if not self._listeners[device]:
                del self._listeners[device]

    def ring(self, device: str, task: str = "") -> None:
        """Something changed for this device's task ("": for all of its tasks)."""
        if device in self._listeners:
            for rung, watched in self._listeners[device].items():
                if task in ("", watched):
                    rung.set()

    def ring_shared(self, task: str = "") -> None:
        """Something changed for all devices of a task ("": of any task): at once, or together with the rest when the pause is over."""
        self._shared.add(task)
        if self._pause is None:
            self._ring_shared()

    def _ring_shared(self) -> None:
        tasks, self._shared, self._pause = self._shared, set(), None
        if tasks:
            for device in tuple(self._listeners):
                for task in sorted(tasks):
                    self.ring(device, task)
            self._pause = asyncio.get_running_loop().call_later(self._shared_pause_s, self._ring_shared)

    def ring_all(self) -> None:
        """Something changed for everybody."""
        for device in tuple(self._listeners):
            self.ring(device)

    def stop(self) -> None:
        """Wake everybody for the last time: the coordinator drains."""
        self.stopped = True
        self.ring_all()


async def versions(
    bell: BudgetBell, device: str, task: str, read: Callable[[], Awaitable[BudgetSnapshot]], heartbeat_s: float
) -> AsyncIterator[BudgetSnapshot | None]:
    """The budget as it is, then each change, newest only; None when nothing changed for `heartbeat_s`. Raises DRAINING at the stop."""
    last: BudgetSnapshot | None = None
    with bell.listening(device, task) as rung:
        while not bell.stopped:
            rung.clear()
            newest = await read()
            if newest != last:
                last = newest
                yield newest
            elif not await _rings_within(rung, heartbeat_s):
                yield None
    raise CoordinatorUnavailable("the coordinator is stopping", reason="DRAINING", retry_after_s=1.0)


async def _rings_within(rung: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await rung.wait()
    except TimeoutError:
        return False
    return True


async def ring_changes(bell: BudgetBell, changes: AsyncIterator[DeviceTask], heard: Heard | None = None) -> None:
    """Ring for what a store says has changed, whichever replica wrote it, until the store is closed.

    `heard` is told of a device that was disabled or enabled, before its watchers are rung.
    """
    async for device, task in changes:
        if not device:
            bell.ring_shared(task)
            continue
        if not task and heard is not None:
            await heard(device)
        bell.ring(device, task)
