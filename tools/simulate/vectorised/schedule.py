"""When devices learn. Knows hours of the local clock and turns; knows nothing of what a step is."""

from __future__ import annotations

import numpy as np

from tools.simulate.fleet.scenario import DAY_S, HOUR_S, LearningPart
from tools.simulate.vectorised.draws import Draws, Floats, Ints

GRAIN = 1e-3
"""Of a pause, as in `fleet.timetable`: turns are told apart by more than their rounding."""


class FleetTimetable:
    """`fleet.timetable.Timetable` for each device of a group: so many turns a day, evenly within the hours, each device's shifted by a
    share of the pause between two. A turn that comes while a step is made is taken behind it, further ones are missed."""

    def __init__(self, part: LearningPart, devices: int, starts_at_h: float, draws: Draws) -> None:
        length_h = (part.until_hour - part.from_hour) % 24.0 or 24.0
        self._pause_s = length_h * HOUR_S / part.steps_per_day
        self._steps = part.steps_per_day
        shift = np.zeros(devices) if part.at_once else draws.uniforms(devices).astype(np.float64)
        self._first = (part.from_hour - starts_at_h) * HOUR_S + shift * self._pause_s
        self._due = self._turn_from(np.arange(devices), np.zeros(devices))

    def due(self, ends: float) -> tuple[Ints, Floats]:
        """Whose turn comes before this time, and when it did."""
        who = np.flatnonzero(self._due < ends)
        return who, self._due[who]

    def taken(self, who: Ints, at: Floats) -> None:
        """These devices began a step at these times."""
        self._due[who] = self._turn_from(who, at + GRAIN * self._pause_s)

    def _turn_from(self, who: Ints, at: Floats) -> Floats:
        """The first turn at this time or later."""
        first = self._first[who]
        begins = first + np.floor((at - first) / DAY_S) * DAY_S
        turn = np.maximum(0.0, np.ceil((at - begins) / self._pause_s))
        return np.asarray(np.where(turn < self._steps, begins + turn * self._pause_s, begins + DAY_S))
