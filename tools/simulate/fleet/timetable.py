"""When a simulated device takes its learning steps."""

from __future__ import annotations

import math
from collections.abc import Callable

from tools.simulate.fleet.scenario import DAY_S, HOUR_S, LearningPart

_LOOK_AGAIN_S = 900.0
_GRAIN = 1e-3
"""Of a pause: turns are told apart by more than their rounding."""


class Timetable:
    """Implements `LearningConditions`: so many steps a day, evenly within the hours, shifted by `shift` (share of the pause between two).

    `check_s` says exactly when it is worth looking again, so that waiting costs no events.
    """

    def __init__(
        self, part: LearningPart, starts_at_h: float, shift: float, time: Callable[[], float], empty: Callable[[], bool]
    ) -> None:
        """`time`: virtual seconds; `empty`: whether the battery is."""
        hours = (part.until_hour - part.from_hour) % 24.0 or 24.0
        self._pause_s = hours * HOUR_S / part.steps_per_day
        self._steps = part.steps_per_day
        self._first_s = (part.from_hour - starts_at_h) * HOUR_S + shift * self._pause_s
        self._time = time
        self._empty = empty
        self._next_s = self._turn_from(time())
        self.check_s = _LOOK_AGAIN_S

    def waiting_for(self, now: float, quiet_s: float) -> str:
        """Why no step may begin, or ""; then the next turn is meant from now on, and turns that were missed are."""
        at = self._time()
        self.check_s = max(self._next_s - at, 0.0) or _LOOK_AGAIN_S
        if at < self._next_s:
            return "the next step has its time"
        if self._empty():
            return "the battery is empty"
        self._next_s = self._turn_from(at + _GRAIN * self._pause_s)
        return ""

    def _turn_from(self, at: float) -> float:
        """The first turn at this time or later."""
        day = math.floor((at - self._first_s) / DAY_S)
        while True:
            begins = self._first_s + day * DAY_S
            turn = max(0, math.ceil((at - begins) / self._pause_s))
            if turn < self._steps:
                return begins + turn * self._pause_s
            day += 1
