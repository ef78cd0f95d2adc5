"""Counting what happened to a group. Knows intervals, sources and the result's schema; knows nothing of how anything came about."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from tools.simulate.fleet.tally import told_rates
from tools.simulate.reports.result import GROWTH, LEAST_S, QUANTILES, SOURCES, LatencyHistogram, Series
from tools.simulate.vectorised.draws import Bools, Floats, Ints

BINS = 3200
"""Enough for 1 % bins from LEAST_S to beyond a year of seconds."""
SUMS = ("answers", "asked", "right", "local", "local_right", "calls", "spend_uusd", "steps", "rate_sum", "busy_s", "off_s")


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

    def merge(self, other: Latencies) -> None:
        """Add another's."""
        self._counts += other._counts
        self._sums += other._sums

    def histograms(self) -> dict[str, LatencyHistogram]:
        """Those of the sources that answered."""
        found = {}
        for place, source in enumerate(SOURCES):
            kept = np.flatnonzero(self._counts[place])
            if kept.size:
                counts = {int(one): int(self._counts[place, one]) for one in kept}
                found[source] = LatencyHistogram(counts, round(float(self._sums[place]), 6))
        return found


class Curves:
    """Sums by interval of the report, and what was looked at at the end of each."""

    def __init__(self, intervals: int) -> None:
        self.answers, self.asked, self.right, self.local, self.local_right, self.calls, self.spend_uusd, self.steps = (
            np.zeros(intervals, np.int64) for _ in range(8)
        )
        self.rate_sum, self.busy_s, self.off_s = (np.zeros(intervals) for _ in range(3))
        self.dual: list[float | None] = []
        self.target: list[float | None] = []
        self.training_target: list[float | None] = []
        self.online: list[float | None] = []

    def merge(self, other: Curves) -> None:
        """Add another's sums."""
        for name in SUMS:
            getattr(self, name).__iadd__(getattr(other, name))


class Tally:
    """What one group did. `every_s`: the report's interval."""

    def __init__(self, devices: int, intervals: int, every_s: float, warm_up_s: float) -> None:
        self.devices = devices
        self._every_s = every_s
        self._warm_up_s = warm_up_s
        self._intervals = intervals
        self.first, self.total = Latencies(), Latencies()
        self.curves = Curves(intervals)
        self.settled = {"answers": 0, "asked": 0, "steps": 0}
        self.settled_rate = 0.0
        self.calls_by_device = np.zeros(devices, np.int32)
        self.spend_by_device = np.zeros(devices, np.int64)
        self.refused: Counter[str] = Counter()

    @classmethod
    def together(cls, parts: Sequence[Tally]) -> Tally:
        """One group's tallies of several shards."""
        first = parts[0]
        whole = cls(sum(part.devices for part in parts), first._intervals, first._every_s, first._warm_up_s)
        for part in parts:
            whole._add(part)
        whole.calls_by_device = np.concatenate([part.calls_by_device for part in parts])
        whole.spend_by_device = np.concatenate([part.spend_by_device for part in parts])
        weights = [part.devices for part in parts]
        for curve in ("dual", "online", "target", "training_target"):
            rows = zip(*(getattr(part.curves, curve) for part in parts), strict=True)
            setattr(whole.curves, curve, [_averaged(values, weights) for values in rows])
        return whole

    def _add(self, part: Tally) -> None:
        self.first.merge(part.first)
        self.total.merge(part.total)
        self.curves.merge(part.curves)
        for name, count in part.settled.items():
            self.settled[name] += count
        self.settled_rate += part.settled_rate
        self.refused += part.refused

    def interval(self, at: Floats) -> Ints:
        """Places in the curves."""
        return np.clip((at / self._every_s).astype(np.int64), 0, self._intervals - 1)

    def answered(self, at: Floats, source: Ints, first_s: Floats, total_s: Floats, right: Bools) -> None:
        """Questions were answered at these times."""
        curves, place = self.curves, self.interval(at)
        self.first.add(source, first_s)
        self.total.add(source, total_s)
        cloud = source == 1
        self._count(curves.answers, place)
        self._count(curves.asked, place[cloud])
        self._count(curves.right, place[right])
        self._count(curves.local, place[~cloud])
        self._count(curves.local_right, place[~cloud & right])
        settled = at >= self._warm_up_s
        self.settled["answers"] += int(settled.sum())
        self.settled["asked"] += int((settled & cloud).sum())

    def called(self, at: Floats, who: Ints, calls: Ints, spend_uusd: Ints) -> None:
        """Calls of these devices were charged."""
        place = self.interval(at)
        self.curves.calls += np.bincount(place, weights=calls, minlength=self._intervals).astype(np.int64)
        self.curves.spend_uusd += np.bincount(place, weights=spend_uusd, minlength=self._intervals).astype(np.int64)
        np.add.at(self.calls_by_device, who, calls.astype(np.int32))
        np.add.at(self.spend_by_device, who, spend_uusd)

    def learned(self, at: Floats, rate: Floats) -> None:
        """Steps ended with these assist rates."""
        place = self.interval(at)
        self._count(self.curves.steps, place)
        self.curves.rate_sum += np.bincount(place, weights=rate, minlength=self._intervals)
        settled = at >= self._warm_up_s
        self.settled["steps"] += int(settled.sum())
        self.settled_rate += float(rate[settled].sum())

    def worked(self, at: Floats, busy_s: Floats) -> None:
        """Devices computed for so long from these times on."""
        self.curves.busy_s += np.bincount(self.interval(at), weights=busy_s, minlength=self._intervals)

    def _count(self, into: Ints, place: Ints) -> None:
        into += np.bincount(place, minlength=self._intervals)

    def series(self, ends_at: Sequence[float], idle_w: float, busy_w: float) -> Series:
        """The curves, with energy from the time that devices were busy."""
        curves = self.curves
        lengths = np.diff([0.0, *ends_at])
        energy = (
            curves.busy_s * busy_w + np.maximum(0.0, self.devices * lengths - curves.busy_s - curves.off_s) * idle_w
        ) / 3600.0
        return Series(
            at_s=[round(float(at), 6) for at in ends_at],
            assist_rate=shares(curves.asked, curves.answers),
            training_assist_rate=shares(curves.rate_sum, curves.steps),
            dual=list(curves.dual),
            joint_accuracy=shares(curves.right, curves.answers),
            local_accuracy=shares(curves.local_right, curves.local),
            answers=curves.answers.tolist(),
            cloud_calls=curves.calls.tolist(),
            spend_uusd=curves.spend_uusd.tolist(),
            online_share=[share or 0.0 for share in curves.online],
            target_rate=told_rates(curves.target, curves.target[-1]),
            training_target_rate=told_rates(curves.training_target, curves.training_target[-1]),
            energy_wh=[round(float(value), 6) for value in energy],
        )


def _averaged(values: Sequence[float | None], weights: Sequence[int]) -> float | None:
    """Over shards; None where there is nothing to average, as it is in all of them then."""
    known = [value for value in values if value is not None]
    return round(float(np.average(known, weights=weights)), 9) if known else None


def shares(part: Floats | Ints, whole: Ints) -> list[float | None]:
    """part / whole, None where there is no whole."""
    pairs = zip(part.tolist(), whole.tolist(), strict=True)
    return [round(float(one) / all_of, 9) if all_of else None for one, all_of in pairs]


def share(part: float, whole: float) -> float | None:
    """part / whole, None where there is no whole."""
    return round(float(part) / float(whole), 9) if whole else None


def quantiles(values: Ints) -> list[float]:
    """The quantiles that a result holds, each a value that occurs."""
    ordered = np.sort(values)
    return [float(ordered[min(ordered.size - 1, int(share * ordered.size))]) for share in QUANTILES]
