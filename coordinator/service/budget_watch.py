"""Who watches which budget, and when its watchers are notified.

A change is notified to the device and task it concerns, whichever replica wrote it. What concerns many devices, such as what others spend
of a shared budget, is notified to them in turn, a few at a time, and what follows meanwhile in the next round: a fleet of ten thousand must
not be notified of every call of one. A slow watcher is notified once of many changes, and then reads the newest version only.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager

from coordinator.calls.admission import draining
from coordinator.ledger.stores.changes import DeviceTask
from edge.rpc.client import BudgetSnapshot

SHARED_PAUSE_S = 1.0
NOTIFIED_AT_ONCE = 5
AT_ONCE_EVERY_S = 0.05
Heard = Callable[[str], Awaitable[None]]


class BudgetNotifier:
    """Notifies watchers. What concerns many goes to NOTIFIED_AT_ONCE devices every AT_ONCE_EVERY_S, and begins again every
    `shared_pause_s` at most. Belongs to one event loop."""

    def __init__(self, shared_pause_s: float = SHARED_PAUSE_S) -> None:
        self._watchers: dict[str, dict[asyncio.Event, str]] = defaultdict(dict)
        self._shared_pause_s = shared_pause_s
        self._shared: set[str] = set()
        self._round: set[str] = set()
        self._in_turn: deque[str] = deque()
        self._round_ends = 0.0
        self._next: asyncio.TimerHandle | None = None
        self.stopped = False

    @property
    def watchers(self) -> int:
        """How many watch."""
        return sum(map(len, self._watchers.values()))

    @contextmanager
    def watching(self, device: str, task: str) -> Iterator[asyncio.Event]:
        """An event that is set at each change of this device's task, and at the stop."""
        changed = asyncio.Event()
        self._watchers[device][changed] = task
        try:
            yield changed
        finally:
            del self._watchers[device][changed]
            if not self._watchers[device]:
                del self._watchers[device]

    def notify(self, device: str, task: str = "") -> None:
        """Something changed for this device's task ("": for all of its tasks)."""
        if device in self._watchers:
            for changed, watched in self._watchers[device].items():
                if task in ("", watched):
                    changed.set()

    def notify_shared(self, task: str = "") -> None:
        """Something changed for all devices of a task ("": of any task): they are notified in turn, from now on or in the next round."""
        self._shared.add(task)
        if self._next is None:
            self._begin_round()

    def _begin_round(self) -> None:
        self._next = None
        if not self._shared:
            return
        self._round, self._shared, self._in_turn = self._shared, set(), deque(self._watchers)
        self._round_ends = asyncio.get_running_loop().time() + self._shared_pause_s
        self._notify_some()

    def _notify_some(self) -> None:
        for _ in range(min(NOTIFIED_AT_ONCE, len(self._in_turn))):
            device = self._in_turn.popleft()
            for task in sorted(self._round):
                self.notify(device, task)
        loop = asyncio.get_running_loop()
        if self._in_turn:
            self._next = loop.call_later(AT_ONCE_EVERY_S, self._notify_some)
        else:
            self._next = loop.call_at(max(loop.time(), self._round_ends), self._begin_round)

    def notify_all(self) -> None:
        """Something changed for everybody."""
        for device in tuple(self._watchers):
            self.notify(device)

    def stop(self) -> None:
        """Wake everybody for the last time: the coordinator drains."""
        self.stopped = True
        self.notify_all()


async def versions(
    notifier: BudgetNotifier, device: str, task: str, read: Callable[[], Awaitable[BudgetSnapshot]], heartbeat_s: float
) -> AsyncIterator[BudgetSnapshot | None]:
    """The budget as it is, then each change, newest only; None when nothing changed for `heartbeat_s`. Raises DRAINING at the stop."""
    last: BudgetSnapshot | None = None
    with notifier.watching(device, task) as changed:
        while not notifier.stopped:
            changed.clear()  # before the read: a change meanwhile is read again, not lost
            newest = await read()
            if newest != last:
                last = newest
                yield newest
            if not await _changes_within(changed, heartbeat_s):
                yield None
    raise draining()


async def _changes_within(changed: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await changed.wait()
    except TimeoutError:
        return False
    return True


async def notify_changes(notifier: BudgetNotifier, changes: AsyncIterator[DeviceTask], heard: Heard | None = None) -> None:
    """Notify of what a store reports as changed, whichever replica wrote it, until the store is closed.

    `heard` is called for a device that was disabled or enabled, before its watchers are notified.
    """
    async for device, task in changes:
        if not device:
            notifier.notify_shared(task)
            continue
        if not task and heard is not None:
            await heard(device)
        notifier.notify(device, task)
