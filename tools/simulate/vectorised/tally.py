"""What happened to a group of the vectorised fleet, counted in arrays."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from tools.simulate.fleet.tally import share, told_rates
from tools.simulate.reports.result import GROWTH, LEAST_S, SOURCES, LatencyHistogram, Series, rounded
from tools.simulate.vectorised.draws import Bools, Floats, Ints

BINS = 3200
"""Enough for 1 % bins from LEAST_S to beyond a year of seconds."""


class Latencies:
    """Histograms of latencies by source."""

    def __init__(self) -> None:
        self._counts = np.zeros((len(SOURCES), BINS), np.int64)
        self._sums = np.zeros(len(SOURCES))

    def add(self, source: Ints, seconds: Floats) -> None:
        """Latencies of answers with these sources (places in SOURCES)."""
        scale = np.float64(1.0 / math.log(GROWTH))
        bins = np.floor(np.log(np.maximum(seconds, LEAST_S) / LEAST_S) * scale).astype(np.int64)
        flat = source * BINS + np.clip(bins, 0, BINS - 1)
        self._counts += np.bincount(flat, minlength=self._counts.size).reshape(self._counts.shape)
        self._sums += np.bincount(source, weights=seconds, minlength=len(SOURCES))

    def histograms(self) -> dict[str, LatencyHistogram]:
        """Those of the sources that answered."""
        found = {}
        for place, source in enumerate(SOURCES):
            kept = np.flatnonzero(self._counts[place])
            if kept.size:
                counts = {int(one): int(self._counts[place, one]) for one in kept}
                found[source] = LatencyHistogram(counts, round(float(self._sums[place]), 6))
        return found


class Tally:
    """What one group did. `counts` by interval of the report: answers, those of the cloud, right ones, local ones, right local ones.
    `settled`: answers of the cloud and all answers after the warm-up."""

    def __init__(self, devices: int, intervals: int, every_s: float, warm_up_s: float) -> None:
        self.first, self.total = Latencies(), Latencies()
        self.counts = np.zeros((5, intervals), np.int64)
        self.settled = (0, 0)
        self.target_rates: list[float] = []
        self.calls_by_device = np.zeros(devices, np.int32)
        self.spend_by_device = np.zeros(devices, np.int64)
        self.refused: Counter[str] = Counter()
        self._calls, self._spend_uusd = np.zeros((2, intervals), np.int64)
        self._busy_s = np.zeros(intervals)
        self._intervals, self._every_s, self._warm_up_s = intervals, every_s, warm_up_s

    def answered(self, at: Floats, source: Ints, first_s: Floats, total_s: Floats, right: Bools, worked_s: Floats) -> None:
        """Questions were answered at these times."""
        self.first.add(source, first_s)
        self.total.add(source, total_s)
        place, cloud = self._interval(at), source == SOURCES.index("cloud")
        for curve, mine in zip(self.counts, (slice(None), cloud, right, ~cloud, ~cloud & right), strict=True):
            curve += np.bincount(place[mine], minlength=self._intervals)
        settled = at >= self._warm_up_s
        self.settled = (self.settled[0] + int((settled & cloud).sum()), self.settled[1] + int(settled.sum()))
        self._busy_s += np.bincount(self._interval(at - total_s), weights=worked_s, minlength=self._intervals)

    def called(self, at: Floats, who: Ints, spend_uusd: Ints) -> None:
        """Calls of these devices were charged."""
        place = self._interval(at)
        self._calls += np.bincount(place, minlength=self._intervals)
        self._spend_uusd += np.bincount(place, weights=spend_uusd, minlength=self._intervals).astype(np.int64)
        np.add.at(self.calls_by_device, who, 1)
        np.add.at(self.spend_by_device, who, spend_uusd)

    def _interval(self, at: Floats) -> Ints:
        return np.clip((at / self._every_s).astype(np.int64), 0, self._intervals - 1)

    def series(self, ends_at: Sequence[float], idle_w: float, busy_w: float) -> Series:
        """The curves, with energy from the time that devices were busy."""
        answers, asked, right, local, local_right = self.counts
        whole_s = self.calls_by_device.size * np.diff([0.0, *ends_at])
        energy_wh = (self._busy_s * busy_w + np.maximum(0.0, whole_s - self._busy_s) * idle_w) / 3600.0
        nothing: list[float | None] = [None] * len(ends_at)
        return Series(
            at_s=[rounded(at) for at in ends_at],
            assist_rate=_shares(asked, answers),
            training_assist_rate=nothing,
            dual=nothing,
            joint_accuracy=_shares(right, answers),
            local_accuracy=_shares(local_right, local),
            answers=answers.tolist(),
            cloud_calls=self._calls.tolist(),
            spend_uusd=self._spend_uusd.tolist(),
            online_share=[1.0] * len(ends_at),
            target_rate=told_rates(self.target_rates, self.target_rates[-1]),
            energy_wh=[round(float(value), 6) for value in energy_wh],
        )


def _shares(part: Ints, whole: Ints) -> list[float | None]:
    return [share(one, of) for one, of in zip(part.tolist(), whole.tolist(), strict=True)]
