"""Who comes first: people. Knows how many answers are under way; learning waits for none."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class ServingGate:
    """Counts answers under way and lets learning wait until there is none."""

    def __init__(self) -> None:
        self._active = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def busy(self) -> bool:
        """Somebody is being served."""
        return self._active > 0

    @contextmanager
    def serving(self) -> Iterator[None]:
        """While this is held, somebody is served."""
        self._active += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._active -= 1
            if self._active == 0:
                self._idle.set()

    async def idle(self) -> None:
        """Wait until nobody is served."""
        await self._idle.wait()
