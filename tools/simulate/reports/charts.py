"""What the report draws of a run. A group has the same colour in all charts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import nan
from typing import Any

from tools.simulate.reports.quantities import FigureUnit, weighted, written
from tools.simulate.reports.result import GROWTH, LEAST_S, SOURCES, GroupResult, LatencyHistogram, Series, SimulationResult
from tools.svg import COLOURS, GREY, drawn

_WAITING = {
    "local": "Time to the whole answer where the device answered alone.",
    "cloud": "Time to the whole answer of questions that went to the cloud: the device's own thinking, the way, the queue, the cloud.",
    "local-fallback": "Time to the whole answer where the cloud was wanted and could not be had, so that the device answered alone.",
}
POOL = 20
"""Answers that a point of a curve stands for, at least."""
_ALARM = COLOURS[6]
Values = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure of a page."""

    title: str
    caption: str
    svg: bytes


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart; None: a gap. Without a name it is in no legend."""

    name: str
    colour: str
    at_s: Sequence[float]
    values: Values
    drawstyle: str = "default"
    dash: str = "-"

    @property
    def is_known(self) -> bool:
        """Whether there is anything to draw."""
        return any(value is not None for value in self.values)


def charts_of(result: SimulationResult) -> list[Chart]:
    """Every chart that has something to show."""
    found = [
        *(_waiting(result, source) for source in SOURCES),
        _asking(result),
        _training(result),
        _dual(result),
        _accuracy(result),
        _spend(result),
        _cloud(result),
        _online(result),
    ]
    return [chart for chart in found if chart is not None]


def _by_group(result: SimulationResult, values: Callable[[Series], Values]) -> list[Line]:
    """A line over time for each group."""
    return [Line(group.name, colour, group.series.at_s, values(group.series)) for group, colour in _coloured(result)]


def _coloured(result: SimulationResult) -> list[tuple[GroupResult, str]]:
    return [(group, COLOURS[number % len(COLOURS)]) for number, group in enumerate(result.groups)]


def _asking(result: SimulationResult) -> Chart | None:
    caption = f"Share of people's questions that went to the cloud; a point is of at least {POOL} answers. Dotted: τ; shaded: the warm-up."
    lines = _pooled_by_group(result, lambda series: series.assist_rate) + _targets(result, training=False)
    return _over_time(result, "How often people's questions go to the cloud", caption, lines, FigureUnit.SHARE, _shade_warm_up)


def _training(result: SimulationResult) -> Chart | None:
    caption = "Share of the responses of learning steps that asked the cloud: what λ steers. Dotted: τ; shaded: the warm-up."
    lines = _by_group(result, lambda series: series.training_assist_rate)
    targets = _targets(result, training=True) if any(line.is_known for line in lines) else []
    return _over_time(result, "How often learning asks the cloud", caption, lines + targets, FigureUnit.SHARE, _shade_warm_up)


def _targets(result: SimulationResult, *, training: bool) -> list[Line]:
    return [
        Line("", colour, group.series.at_s, group.target_rates(training=training), "steps-pre", ":")
        for group, colour in _coloured(result)
    ]


def _dual(result: SimulationResult) -> Chart | None:
    fleet = Line("fleet", GREY, result.cloud.at_s, result.cloud.fleet_dual)
    caption = (
        "What asking the cloud costs a device while it learns, in units of reward: it rises while more is asked than τ allows."
    )
    return _over_time(
        result, "Cost of asking, λ", caption, [*_by_group(result, lambda series: series.dual), fleet], FigureUnit.NUMBER
    )


def _accuracy(result: SimulationResult) -> Chart | None:
    caption = f"Share of right answers, whoever gave them; a point is of at least {POOL} answers."
    lines = _pooled_by_group(result, lambda series: series.joint_accuracy)
    return _over_time(result, "Right answers", caption, lines, FigureUnit.SHARE)


def _spend(result: SimulationResult) -> Chart | None:
    cloud = result.cloud
    budget = Line("budget", _ALARM, cloud.at_s, _dollars(cloud.limit_uusd), "steps-pre", "--")
    lines = [Line("spent", COLOURS[0], cloud.at_s, _dollars(cloud.spend_uusd)), budget]
    caption = "Charged by the ledger in the budget's window so far, and what the fleet's budget allows."
    return _over_time(result, "Spend against budget", caption, lines, FigureUnit.DOLLARS)


def _cloud(result: SimulationResult) -> Chart | None:
    cloud = result.cloud
    lines = [
        Line("waiting", COLOURS[1], cloud.at_s, cloud.queue, "steps-pre"),
        Line("under way", COLOURS[0], cloud.at_s, cloud.in_flight, "steps-pre"),
    ]
    caption = (
        "Most calls that waited at the coordinator, and most that were under way at the cloud. Shaded: the coordinator was down."
    )
    return _over_time(result, "Queue and calls under way", caption, lines, FigureUnit.COUNT, _shade_down_time)


def _online(result: SimulationResult) -> Chart | None:
    lines = _by_group(result, lambda series: series.online_share)
    return _over_time(result, "Devices online", "Share of the devices that can reach the coordinator.", lines, FigureUnit.SHARE)


def _waiting(result: SimulationResult, source: str) -> Chart | None:
    known = [
        (group.name, colour, histogram)
        for group, colour in _coloured(result)
        if (histogram := group.latency_total.get(source)) is not None and histogram.count
    ]

    def paint(figure: Any) -> None:
        from matplotlib.ticker import LogLocator, NullFormatter

        axis = figure.subplots()
        for name, colour, histogram in known:
            seconds, shares = _distribution(histogram)
            axis.step(seconds, shares, where="post", color=colour, label=name)
        axis.set(xscale="log", xlabel="time (logarithmic)", ylabel="share of answers", ylim=(0, 1.02))
        axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.xaxis.set_major_formatter(lambda value, _: written(value, FigureUnit.SECONDS))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.axhline(0.95, color=GREY, linewidth=0.8, linestyle=":")
        axis.legend(fontsize=8)

    return Chart(f"Waiting: {source}", _WAITING[source], drawn(paint, 5.2, 3.0)) if known else None


def _distribution(histogram: LatencyHistogram) -> tuple[list[float], list[float]]:
    """Upper ends of the bins in seconds, and the share of answers up to there."""
    places = sorted(histogram.counts)
    seen = accumulate(histogram.counts[place] for place in places)
    ends = [LEAST_S * GROWTH ** (place + 1) for place in places]
    return [ends[0] / GROWTH, *ends], [0.0, *(count / histogram.count for count in seen)]


def _over_time(
    result: SimulationResult,
    title: str,
    caption: str,
    lines: Sequence[Line],
    unit: FigureUnit,
    shade: Callable[[Any, SimulationResult, float], None] = lambda axis, result, unit_s: None,
) -> Chart | None:
    known = [line for line in lines if line.is_known]
    if not known:
        return None
    unit_s, name = (3600.0, "hours") if result.virtual_s <= 72 * 3600 else (86400.0, "days")

    def paint(figure: Any) -> None:
        axis = figure.subplots()
        for line in known:
            x, y = [at / unit_s for at in line.at_s], [nan if value is None else value for value in line.values]
            marker = "." if line.dash == "-" and len(y) < POOL else None
            axis.plot(x, y, line.dash, color=line.colour, drawstyle=line.drawstyle, marker=marker, label=line.name or None)
        for at_s, _ in result.events:
            axis.axvline(at_s / unit_s, color=_ALARM, linewidth=1.0, linestyle="--")
        axis.set(xlabel=f"{name} since the start", xlim=(0, result.virtual_s / unit_s))
        axis.set_ylim(min(0.0, axis.get_ylim()[0]), None)
        axis.yaxis.set_major_formatter(lambda value, _: written(value, unit))
        shade(axis, result, unit_s)
        axis.legend(fontsize=8)

    return Chart(title, caption, drawn(paint, 5.2, 3.0))


def _shade_warm_up(axis: Any, result: SimulationResult, unit_s: float) -> None:
    axis.axvspan(0, result.warm_up_s / unit_s, color=GREY, alpha=0.1, linewidth=0)


def _shade_down_time(axis: Any, result: SimulationResult, unit_s: float) -> None:
    cloud = result.cloud
    for begins, ends, up in zip([0.0, *cloud.at_s], cloud.at_s, cloud.up, strict=False):
        if up < 1:
            axis.axvspan(begins / unit_s, ends / unit_s, color=_ALARM, alpha=0.3 * (1 - up), linewidth=0)


def _pooled_by_group(result: SimulationResult, values: Callable[[Series], Values]) -> list[Line]:
    """A line for each group of shares of answers: those of intervals with few would only flicker."""
    return [
        Line(group.name, colour, *pooled(group.series.at_s, values(group.series), group.series.answers))
        for group, colour in _coloured(result)
    ]


def pooled(at_s: Sequence[float], shares: Values, answers: Sequence[int]) -> tuple[list[float], list[float | None]]:
    """Consecutive intervals together until they have POOL answers; what is left over at the end is a point, too."""
    ends: list[float] = []
    points: list[float | None] = []
    pool: list[tuple[float | None, float]] = []
    for place, (at, share, count) in enumerate(zip(at_s, shares, answers, strict=True), 1):
        pool.append((share, count))
        if sum(weight for _, weight in pool) >= POOL or place == len(at_s):
            ends.append(at)
            points.append(weighted(pool))
            pool = []
    return ends, points


def _dollars(uusd: Sequence[int | None]) -> Values:
    return [None if each is None else each / 1e6 for each in uusd]
