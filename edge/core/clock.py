"""Calendar and elapsed time behind one Protocol, and calendar days. The only module that reads the machine's clocks.

Durations of waiting belong to the event loop (`asyncio.sleep`, `asyncio.timeout`); this is for stamps and measurements, so that the
simulator can run everything in virtual time.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Where the time comes from."""

    def now(self) -> float:
        """Seconds since the epoch (calendar time, for stamps)."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start that never goes back (for measuring durations)."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()


def local_day(at: float) -> str:
    """The day of a time in seconds since the epoch, as YYYY-MM-DD."""
    return datetime.fromtimestamp(at, UTC).astimezone().date().isoformat()


def day_began(at: float, days_before: int = 0) -> float:
    """When the day of a time began, or the day this many days before it, in seconds since the epoch.

    Midnight is looked up again for that day: where the clocks change it has another offset than the rest of the day.
    """
    midnight = datetime.fromtimestamp(at, UTC).astimezone().replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    return (midnight - timedelta(days=days_before)).astimezone().timestamp()
