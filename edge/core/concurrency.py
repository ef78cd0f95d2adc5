"""Small pieces of structured concurrency: many awaitables at once, streams closed in time, a stop at a safe point, people first."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from edge.core.clock import Clock

T = TypeVar("T")


async def all_of(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All results in order. On a failure the others are cancelled and awaited, and the failure is raised."""
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(coroutine) for coroutine in coroutines]
    except BaseExceptionGroup as group:
        first: BaseException = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from group
    return [task.result() for task in running]


@asynccontextmanager
async def closing(stream: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """The stream, closed on the way out if it can be closed."""
    try:
        yield stream
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()


class Stop:
    """Asked for once, for good."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ask(self) -> None:
        """Ask for it; may be called from a signal handler."""
        self._event.set()

    @property
    def asked(self) -> bool:
        """Whether it was asked for."""
        return self._event.is_set()

    async def cuts(self, work: Awaitable[object], may_cancel: Callable[[], bool] = lambda: True) -> None:
        """Await the work; when a stop is asked for, cancel it if it may be cancelled, else wait for its end."""
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self._event.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done() and may_cancel():
                task.cancel()
            await asyncio.wait({task})
        finally:
            stop.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
        if not task.cancelled():
            task.result()


class ServingPrecedence:
    """Counts answers under way and lets learning wait until there is none."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: float | None = None
        self._active = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def busy(self) -> bool:
        """Somebody is being served."""
        return self._active > 0

    @property
    def quiet_s(self) -> float:
        """Seconds since the last answer ended; without end where nobody was answered yet."""
        if self.busy:
            return 0.0
        return math.inf if self._last is None else self._clock.monotonic() - self._last

    @contextmanager
    def serving(self) -> Iterator[None]:
        """While this is held, somebody is served."""
        self._active += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._active -= 1
            self._last = self._clock.monotonic()
            if self._active == 0:
                self._idle.set()

    async def idle(self) -> None:
        """Wait until nobody is served."""
        await self._idle.wait()
