"""When devices learn. Knows hours of the local clock and steps a day; knows nothing of what a step is."""

from __future__ import annotations

import numpy as np

from tools.simulate.fleet.scenario import LearningPart, Scenario
from tools.simulate.vectorised.draws import Draws, Floats, Ints

HOUR_S, DAY_S = 3600.0, 86400.0


class Timetable:
    """The steps of all devices of a group: step k of a day at a time of its own in the k-th part of the hours, or of all at its beginning."""

    def __init__(self, part: LearningPart, devices: int, scenario: Scenario, draws: Draws) -> None:
        length_h = (part.until_hour - part.from_hour) % 24.0 or 24.0
        self._each_s = length_h * HOUR_S / part.steps_per_day
        self._part = part
        self._draws = draws
        self._day_begins = -((scenario.starts_at_h - part.from_hour) % 24.0) * HOUR_S
        self._next = np.zeros(devices, np.int32)
        self._due = np.full(devices, self._day_begins) + self._within(devices)
        while (past := np.flatnonzero(self._due < 0.0)).size:
            self._advance(past)

    def due(self, begins: float, ends: float) -> tuple[Ints, Floats]:
        """Whose step is due in this time, and when; each device once."""
        who = np.flatnonzero(self._due < ends)
        at = np.maximum(self._due[who], begins)
        self._advance(who)
        return who, at

    def _advance(self, who: Ints) -> None:
        self._next[who] += 1
        day, place = np.divmod(self._next[who], self._part.steps_per_day)
        self._due[who] = self._day_begins + day * DAY_S + place * self._each_s + self._within(who.size)

    def _within(self, count: int) -> Floats:
        if self._part.at_once:
            return np.zeros(count)
        return self._draws.uniforms(count).astype(np.float64) * self._each_s
