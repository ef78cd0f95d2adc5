"""A clock over the virtual time, which can jump."""

from __future__ import annotations

import asyncio

EPOCH = 1_700_000_000.0


class VirtualClock:
    """Clock of one machine: calendar time is the loop's time from a fixed day on, plus what it was set forward or back by."""

    def __init__(self, loop: asyncio.AbstractEventLoop, offset_s: float = 0.0) -> None:
        self._loop = loop
        self._offset_s = offset_s

    def now(self) -> float:
        """Seconds since the epoch, as this machine believes."""
        return EPOCH + self._loop.time() + self._offset_s

    def monotonic(self) -> float:
        """Virtual seconds; never goes back."""
        return self._loop.time()

    def jump(self, seconds: float) -> None:
        """Set the calendar forward (or, when negative, back)."""
        self._offset_s += seconds
