"""Batteries of a group's devices. Knows watts, charge and when it was gone; knows nothing of what a device works on."""

from __future__ import annotations

import numpy as np

from tools.simulate.fleet.hardware import DeviceSpeed
from tools.simulate.vectorised.draws import Bools, Floats, Ints

HOUR_S = 3600.0


class Batteries:
    """One for each device, full at first; of devices on mains there is nothing to know. An empty device is off."""

    def __init__(self, speed: DeviceSpeed, devices: int) -> None:
        self._full_wh = speed.battery_wh or 0.0
        self._idle_w, self._busy_w = speed.idle_w, speed.busy_w
        count = devices if speed.battery_wh is not None else 0
        self._charge_wh = np.full(count, self._full_wh)
        self._at = np.zeros(count)
        self._empty_at = np.full(count, np.inf)

    @property
    def any(self) -> bool:
        """Whether there are batteries at all."""
        return bool(self._at.size)

    def empty(self, who: Ints, at: Floats) -> Bools:
        """Whose is empty then."""
        if not self.any:
            return np.zeros(who.size, bool)
        self._idle(who, at)
        return np.asarray(self._empty_at[who] <= at)

    def work(self, who: Ints, at: Floats, busy_s: Floats) -> None:
        """These devices (each once) computed for so long, about from then on."""
        if self.any:
            self._idle(who, at)
            self._draw(who, busy_s, self._busy_w)

    def recharge(self, at: float) -> None:
        """All are full again."""
        if self.any:
            self._charge_wh[:], self._at[:], self._empty_at[:] = self._full_wh, np.maximum(self._at, at), np.inf

    def off_s(self, begins: float, ends: float) -> float:
        """Device-seconds between two times in which they were empty."""
        if not self.any:
            return 0.0
        self._idle(np.arange(self._at.size), np.full(self._at.size, ends))
        return float(np.maximum(0.0, ends - np.maximum(begins, self._empty_at)).sum())

    def _idle(self, who: Ints, at: Floats) -> None:
        self._draw(who, np.maximum(0.0, at - self._at[who]), self._idle_w)

    def _draw(self, who: Ints, seconds: Floats, watts: float) -> None:
        used = watts * seconds / HOUR_S
        charge, since = self._charge_wh[who], self._at[who]
        runs_out = (used >= charge) & np.isinf(self._empty_at[who]) & (seconds > 0.0)
        lasted_s = charge * HOUR_S / watts if watts else seconds
        self._empty_at[who] = np.where(runs_out, since + np.minimum(lasted_s, seconds), self._empty_at[who])
        self._charge_wh[who] = np.maximum(0.0, charge - used)
        self._at[who] = since + seconds
