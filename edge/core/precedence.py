"""Who comes first: people."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager

from edge.core.clock import Clock


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
