"""A clock for tests and the simulator."""

from __future__ import annotations


class ManualClock:
    """Moves only by `advance`."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start

    def now(self) -> float:
        """The set time in seconds."""
        return self._now

    def monotonic(self) -> float:
        """The same set time in seconds."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move forward. Raises ValueError on a negative step."""
        if seconds < 0:
            raise ValueError(f"a clock cannot go back ({seconds} s)")
        self._now += seconds
