"""The figures that people ask of a run, by name: how each is put together from a result, its unit, and how it is written.

A figure of several groups weighs each by what it is a share of: rates and accuracies by answers, training rates by learning steps, λ by
devices. A figure that is unknown (nothing was answered, nothing was counted) is None and never 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby

from edge.core.formatting import money, percent
from tools.simulate.reports.result import SOURCES, GroupResult, LatencyHistogram, SimulationResult, all_sources


class FigureUnit(Enum):
    """What a figure is counted in."""

    SECONDS = "s"
    SHARE = "share"
    DOLLARS = "USD"
    COUNT = "count"
    WATT_HOURS = "Wh"
    NUMBER = "number"


@dataclass(frozen=True, slots=True)
class Scope:
    """What part of a run a figure is asked of: these groups, answers of one source ("": of all), and whether only after the warm-up."""

    result: SimulationResult
    groups: Sequence[GroupResult]
    source: str = ""
    settled: bool = False

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources that count."""
        return (self.source,) if self.source else SOURCES


Measure = Callable[[Scope], float | None]


@dataclass(frozen=True, slots=True)
class Quantity:
    """One figure. `of_groups`, `of_sources`, `settles`: whether it can be asked of single groups, of one source, after the warm-up."""

    name: str
    unit: FigureUnit
    measure: Measure
    of_groups: bool = True
    of_sources: bool = False
    settles: bool = False


def latency(asked: Scope, *, first: bool) -> LatencyHistogram:
    """All latencies that are asked about."""
    by_source = [group.latency_first if first else group.latency_total for group in asked.groups]
    kept = [each[source] for each in by_source for source in asked.sources if source in each]
    return all_sources({f"{number:09}": histogram for number, histogram in enumerate(kept)})


def quantile(share: float, *, first: bool = False) -> Quantity:
    """The latency that `share` of the answers do not exceed; `first`: to the first visible letter."""
    name = f"p{100 * share:.6g}" + (" first token" if first else "")
    return Quantity(name, FigureUnit.SECONDS, lambda asked: latency(asked, first=first).quantile(share), of_sources=True)


def answers_of(group: GroupResult, sources: Sequence[str] = SOURCES) -> int:
    """How many answers of these sources it gave."""
    return sum(group.answers.get(source, 0) for source in sources)


def weighted(pairs: Sequence[tuple[float | None, float]]) -> float | None:
    """Mean of the (value, weight) that are known; None without any weight."""
    known = [(value, weight) for value, weight in pairs if value is not None]
    whole = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / whole if whole else None


def _rate(asked: Scope) -> float | None:
    rates = [(each.settled_assist_rate if asked.settled else each.assist_rate, answers_of(each)) for each in asked.groups]
    return weighted(rates)


def _training_rate(asked: Scope) -> float | None:
    settled = asked.settled
    return weighted(
        [(each.settled_training_assist_rate if settled else each.training_assist_rate, each.steps) for each in asked.groups]
    )


def _joint_accuracy(asked: Scope) -> float | None:
    if not asked.settled:
        return weighted([(each.accuracy, answers_of(each)) for each in asked.groups])
    return _settled(asked, lambda group: group.series.joint_accuracy, lambda group: group.series.answers)


def _settled(
    asked: Scope, values: Callable[[GroupResult], Sequence[float | None]], weights: Callable[[GroupResult], Sequence[float]]
) -> float | None:
    """Mean over the intervals after the warm-up."""
    rows = [row for group in asked.groups for row in zip(group.series.at_s, values(group), weights(group), strict=True)]
    return weighted([(value, weight) for at, value, weight in rows if at > asked.result.warm_up_s])


def _local_accuracy(asked: Scope) -> float | None:
    return weighted([(each.local_accuracy, answers_of(each, ("local", "local-fallback"))) for each in asked.groups])


def _dual(asked: Scope) -> float | None:
    if not asked.settled:
        return weighted([(each.dual, each.devices) for each in asked.groups])
    return _settled(asked, lambda group: group.series.dual, lambda group: [group.devices] * len(group.series.at_s))


def _off_target(asked: Scope, *, training: bool) -> float | None:
    """How far the rate of any group is from its own τ. Where τ changes, each stretch of one τ counts for itself, and each has a warm-up of
    its own."""
    found: list[float] = []
    for group in asked.groups:
        targets, series = group.target_rates(training=training), group.series
        if len(set(targets)) < 2:
            target = targets[0] if targets else group.target_rate
            alone = Scope(asked.result, [group], settled=asked.settled)
            rate = _training_rate(alone) if training else _rate(alone)
            found += [] if rate is None else [abs(rate - target)]
            continue
        rates, weights = (series.training_assist_rate, [1] * len(targets)) if training else (series.assist_rate, series.answers)
        begins = 0.0
        for target, stretch in groupby(zip(targets, series.at_s, rates, weights, strict=True), key=lambda row: row[0]):
            own = list(stretch)
            settled_at = begins + (asked.result.warm_up_s if asked.settled else 0.0)
            rate = weighted([(value, weight) for _, at, value, weight in own if at > settled_at])
            found += [] if rate is None else [abs(rate - target)]
            begins = own[-1][1]
    return max(found, default=None)


def _over_budget(asked: Scope) -> float | None:
    """By how much more was charged than the fleet's budget allows, at the end of any interval.

    A limit that is lowered under what has been charged takes nothing back: then nothing more may be added, save what was under way, which
    may end in the interval that follows.
    """
    cloud = asked.result.cloud
    if all(limit is None for limit in cloud.limit_uusd):
        return None
    most = kept = still_ending = of_old = 0.0
    allowed = [float("inf") if limit is None else float(limit) for limit in cloud.limit_uusd]
    limit_before, used_before = allowed[0], 0
    for used, limit in zip(cloud.spend_uusd, allowed, strict=True):
        if used < used_before:  # another window began
            kept = still_ending = 0.0
        if limit < limit_before:
            kept, still_ending, of_old = 0.0, 2, limit_before
        if still_ending:
            kept, still_ending = max(kept, min(float(used), of_old)), still_ending - 1
        most = max(most, used - max(limit, kept))
        limit_before, used_before = limit, used
    return most / 1e6


def _share(asked: Scope) -> float | None:
    whole = sum(answers_of(each) for each in asked.groups)
    return sum(answers_of(each, asked.sources) for each in asked.groups) / whole if whole else None


def _online(asked: Scope) -> float | None:
    return weighted([(share, each.devices) for each in asked.groups for share in each.series.online_share])


def _energy(asked: Scope) -> float | None:
    """Nothing takes no energy: then the profiles have no watts."""
    return sum(each.energy_wh for each in asked.groups) or None


def _up(asked: Scope) -> float | None:
    return weighted([(share, 1.0) for share in asked.result.cloud.up])


def _spend(asked: Scope) -> float:
    return sum(each.spend_uusd for each in asked.groups) / 1e6


def _sum(of: Callable[[GroupResult], float]) -> Measure:
    return lambda asked: float(sum(of(each) for each in asked.groups))


QUANTITIES: dict[str, Quantity] = {
    each.name: each
    for each in (
        Quantity("rate", FigureUnit.SHARE, _rate, settles=True),
        Quantity("training rate", FigureUnit.SHARE, _training_rate, settles=True),
        Quantity("rate off target", FigureUnit.SHARE, lambda asked: _off_target(asked, training=False), settles=True),
        Quantity("training rate off target", FigureUnit.SHARE, lambda asked: _off_target(asked, training=True), settles=True),
        Quantity("joint accuracy", FigureUnit.SHARE, _joint_accuracy, settles=True),
        Quantity("local accuracy", FigureUnit.SHARE, _local_accuracy),
        Quantity("fairness", FigureUnit.NUMBER, lambda asked: asked.result.cloud.jain_index, of_groups=False),
        Quantity("spend", FigureUnit.DOLLARS, _spend),
        Quantity("spend over budget", FigureUnit.DOLLARS, _over_budget, of_groups=False),
        Quantity("calls", FigureUnit.COUNT, _sum(lambda group: group.calls)),
        Quantity(
            "answers",
            FigureUnit.COUNT,
            lambda asked: float(sum(answers_of(each, asked.sources) for each in asked.groups)),
            of_sources=True,
        ),
        Quantity("share", FigureUnit.SHARE, _share, of_sources=True),
        Quantity("lost answers", FigureUnit.COUNT, _sum(lambda group: group.lost)),
        Quantity("refusals", FigureUnit.COUNT, _sum(lambda group: sum(group.refused.values()))),
        Quantity("learning steps", FigureUnit.COUNT, _sum(lambda group: group.steps)),
        Quantity("λ", FigureUnit.NUMBER, _dual, settles=True),
        Quantity("queue", FigureUnit.COUNT, lambda asked: float(max(asked.result.cloud.queue, default=0)), of_groups=False),
        Quantity(
            "in flight", FigureUnit.COUNT, lambda asked: float(max(asked.result.cloud.in_flight, default=0)), of_groups=False
        ),
        Quantity("cloud errors", FigureUnit.COUNT, lambda asked: float(sum(asked.result.cloud.errors.values())), of_groups=False),
        Quantity(
            "ledger violations", FigureUnit.COUNT, lambda asked: float(asked.result.cloud.ledger_violations), of_groups=False
        ),
        Quantity("coordinator up", FigureUnit.SHARE, _up, of_groups=False),
        Quantity("online", FigureUnit.SHARE, _online),
        Quantity("energy", FigureUnit.WATT_HOURS, _energy),
        Quantity("battery empty", FigureUnit.SECONDS, _sum(lambda group: group.battery_empty_s)),
    )
}


METRICS = ("p50", "p95", "p99", "p50 first token", "p95 first token", *QUANTITIES)
"""Names of what can be asserted; other percentiles are written in the same way."""
_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d+)?|100)( first token)?")


def metric(name: str) -> Quantity | None:
    """The figure of this name, a percentile of the latency included; None where there is none."""
    if (found := _PERCENTILE.fullmatch(name)) is not None:
        return quantile(float(found[1]) / 100, first=found[2] is not None)
    return QUANTITIES.get(name)


def figure(name: str) -> Quantity:
    """The figure of a name that is known."""
    found = metric(name)
    assert found is not None, name
    return found


def several(count: int, noun: str) -> str:
    """A count of things, as people say it: 1 device, 2,000 devices."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def written(value: float | None, unit: FigureUnit) -> str:
    """A figure for people, with its unit; "-" where it is unknown."""
    return "-" if value is None else _WRITTEN[unit](value)


def _seconds(value: float) -> str:
    if 0 < abs(value) < 1:
        return f"{1000 * value:.3g} ms" if abs(value) >= 0.001 else f"{1000 * value:.2g} ms"
    if abs(value) < 100:
        return f"{value:.3g} s"
    return f"{value / 60:.3g} min" if abs(value) < 7200 else f"{value / 3600:,.4g} h"


def _watt_hours(value: float) -> str:
    if abs(value) >= 1e6:
        return f"{value / 1e6:,.4g} MWh"
    return f"{value / 1000:,.4g} kWh" if abs(value) >= 1000 else f"{value:.3g} Wh"


_WRITTEN: dict[FigureUnit, Callable[[float], str]] = {
    FigureUnit.SECONDS: _seconds,
    FigureUnit.SHARE: percent,
    FigureUnit.DOLLARS: lambda value: money(1e6 * value),
    FigureUnit.COUNT: lambda value: f"{value:,.0f}",
    FigureUnit.WATT_HOURS: _watt_hours,
    FigureUnit.NUMBER: lambda value: f"{value:.3g}",
}
