"""Asking work to end at a safe point. Knows that a stop was asked for; knows nothing of what is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


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
