"""A probe with prepared readings of the machine."""

from __future__ import annotations

from edge.learning.conditions import Readings


class ScriptedProbe:
    """Reads prepared values, the last one again and again."""

    def __init__(self, *readings: Readings) -> None:
        self._readings = list(readings) or [Readings()]
        self.reads = 0

    def read(self) -> Readings:
        """The next prepared value."""
        self.reads += 1
        return self._readings.pop(0) if len(self._readings) > 1 else self._readings[0]
