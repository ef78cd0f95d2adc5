"""Many deadlines on one timer of the event loop: a timer for each call costs more than what most calls do with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class Deadlines:
    """Calls back what is not taken out in time. The timer is set to the earliest end, and not touched when one is taken out."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ends: dict[int, tuple[float, Callable[[], None]]] = {}
        self._last = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, end: float, over: Callable[[], None]) -> int:
        """Call `over` at `end` (loop time), unless what this returns is taken out before."""
        self._last += 1
        self._ends[self._last] = (end, over)
        if self._timer is None or end < self._timer.when():
            self._arm(end)
        return self._last

    def take_out(self, added: int) -> None:
        """It ended in time, or was called back."""
        self._ends.pop(added, None)

    def within(self, end: float) -> _Within:
        """`with`: what the task that runs awaits ends by `end`. Raises TimeoutError, as asyncio.timeout_at does."""
        return _Within(self, self._loop, end)

    def _arm(self, end: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(end, self._look)

    def _look(self) -> None:
        self._timer = None
        now = self._loop.time()
        for added, (end, over) in tuple(self._ends.items()):
            if end <= now and self._ends.pop(added, None) is not None:
                over()
        if self._ends and self._timer is None:
            self._arm(min(end for end, _ in self._ends.values()))


class _Within:
    __slots__ = ("_added", "_cancelling", "_deadlines", "_end", "_expired", "_loop", "_task")

    def __init__(self, deadlines: Deadlines, loop: asyncio.AbstractEventLoop, end: float) -> None:
        self._deadlines = deadlines
        self._loop = loop
        self._end = end
        self._expired = False

    def __enter__(self) -> None:
        task: asyncio.Task[Any] | None = asyncio.current_task(self._loop)
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self._added = self._deadlines.add(self._end, self._expire)

    def _expire(self) -> None:
        self._expired = True
        self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        self._deadlines.take_out(self._added)
        if self._expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error
