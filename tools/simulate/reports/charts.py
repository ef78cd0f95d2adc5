"""What the report draws of a run. A group has the same colour in all charts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import nan
from typing import Any

from tools.simulate.reports.drawing import (
    Chart,
    Stroke,
    colour,
    drawn,
    from_nothing,
    log_axis,
    stroke_of,
    time_axis,
    unit_of_time,
)
from tools.simulate.reports.quantities import Unit, weighted, written
from tools.simulate.reports.result import (
    GROWTH,
    LEAST_S,
    SOURCES,
    CloudResult,
    GroupResult,
    LatencyHistogram,
    Series,
    SimulationResult,
    all_sources,
)

_SOURCE_WORDS = {
    "local": ("Waiting for local answers", "Time to the whole answer where the device answered alone."),
    "cloud": (
        "Waiting for the cloud",
        "Time to the whole answer of questions that went to the cloud: the device's own thinking, the way, the queue, the cloud.",
    ),
    "local-fallback": (
        "Waiting for fallbacks",
        "Time to the whole answer where the cloud was wanted and could not be had, so that the device answered alone.",
    ),
}
POOL = 20
"""Answers that a point of a curve stands for, at least."""
FEW = 16
"""Points of a curve that are shown as points, too, when there are fewer."""
_LEAST_SPAN = 5.0
"""Longest by shortest time of an axis, at least: less has no room for the names of its times."""
_Curve = tuple[Sequence[float], Sequence[float | None]]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart: x in its own unit (seconds on a time axis); None: a gap. Without a name it is in no legend."""

    name: str
    stroke: Stroke
    x: Sequence[float]
    y: Sequence[float | None]
    drawstyle: str = "default"
    width: float = 1.8

    @property
    def is_known(self) -> bool:
        """Whether there is anything to draw."""
        return any(value is not None for value in self.y)


class Book:
    """All charts of a run."""

    def __init__(self, result: SimulationResult) -> None:
        self._result = result
        self._ends_s = result.virtual_s

    def charts(self) -> list[Chart]:
        """Every chart that has something to show."""
        sections: list[Iterable[Chart | None]] = [
            (self._latency(source) for source in SOURCES),
            [self._first_letter(), self._asking(), self._training(), self._dual(), self._accuracy(), self._local_accuracy()],
            [self._spend(), self._calls(), self._load(), self._cloud(), self._online()],
        ]
        return [chart for section in sections for chart in section if chart is not None]

    def _groups(self) -> list[tuple[GroupResult, Stroke]]:
        return [(group, stroke_of(number)) for number, group in enumerate(self._result.groups)]

    def _by_group(self, values: Callable[[GroupResult], Sequence[float | None]], *, pool: bool = False) -> list[Line]:
        """A line over time for each group that has any of it. `pool`: shares of answers, of which intervals with few are taken together,
        since their shares would only flicker."""
        lines = []
        for group, stroke in self._groups():
            at_s, y = group.series.at_s, values(group)
            at_s, y = pooled(at_s, y, group.series.answers) if pool else (at_s, y)
            lines.append(Line(group.name, stroke, at_s, y))
        return [line for line in lines if line.is_known]

    def _of_cloud(
        self,
        name: str,
        colour: str,
        values: Callable[[CloudResult], Sequence[float | None]],
        *,
        dash: int = 0,
        steps: bool = False,
    ) -> list[Line]:
        """One line over time, or none where nothing of it is known."""
        style, cloud = "steps-pre" if steps else "default", self._result.cloud
        line = Line(name, Stroke(colour, dash), cloud.at_s, values(cloud), style)
        return [line] if line.is_known else []

    def _latency(self, source: str) -> Chart | None:
        title, caption = _SOURCE_WORDS[source]
        return self._waiting(f"latency-{source}", title, caption, lambda group: group.latency_total.get(source))

    def _first_letter(self) -> Chart | None:
        title, caption = "Waiting for the first letter", "Time to the first visible letter, all answers together."
        return self._waiting("first-letter", title, caption, lambda group: all_sources(group.latency_first))

    def _waiting(self, name: str, title: str, caption: str, of: Callable[[GroupResult], LatencyHistogram | None]) -> Chart | None:
        found = [(group.name, stroke, of(group)) for group, stroke in self._groups()]
        known = [(name, stroke, each) for name, stroke, each in found if each is not None and each.count]
        if not known:
            return None
        lines = [Line(group, stroke, *_distribution(histogram), "steps-post") for group, stroke, histogram in known]
        histograms = [histogram for _, _, histogram in known]
        said = "; ".join(
            f"{line.name} half within {_within(histogram, 0.5)}, 95 % within {_within(histogram, 0.95)}"
            for line, histogram in zip(lines, histograms, strict=True)
        )
        return _chart(name, title, caption, said, lines, lambda axis: _waiting_axes(axis, histograms))

    def _over_time(
        self,
        name: str,
        title: str,
        caption: str,
        lines: Sequence[Line],
        unit: Unit,
        label: str,
        finish: Callable[[Any], None] = lambda axis: None,
    ) -> Chart | None:
        lines = [line for line in lines if line.is_known]
        if not lines:
            return None

        def axes(axis: Any) -> None:
            time_axis(axis, self._ends_s, self._result.events)
            axis.set_ylabel(label)
            (_percent_axis if unit is Unit.SHARE else from_nothing)(axis)
            finish(axis)

        said = "; ".join(_course(line, unit) for line in lines if line.name)
        return _chart(name, title, caption, said, lines, axes, unit_s=unit_of_time(self._ends_s)[0])

    def _asking(self) -> Chart | None:
        caption = f"Share of people's questions that went to the cloud; a point is of at least {POOL} answers."
        lines = self._by_group(lambda group: group.series.assist_rate, pool=True)
        return self._rate("rate", "How often people's questions go to the cloud", caption, lines, training=False)

    def _training(self) -> Chart | None:
        caption = "Share of the responses of learning steps that asked the cloud: what λ steers."
        lines = self._by_group(lambda group: group.series.training_assist_rate)
        return self._rate("training-rate", "How often learning asks the cloud", caption, lines, training=True)

    def _rate(self, name: str, title: str, caption: str, lines: list[Line], *, training: bool) -> Chart | None:
        known = {line.name for line in lines}
        targets = [
            Line("", Stroke(stroke.colour, 2), group.series.at_s, group.target_rates(training=training), "steps-pre", 1.0)
            for group, stroke in self._groups()
            if group.name in known
        ]
        caption += " Dotted: the target rate τ; shaded: the warm-up."
        return self._over_time(name, title, caption, [*lines, *targets], Unit.SHARE, "assist rate", self._shade_warm_up)

    def _shade_warm_up(self, axis: Any) -> None:
        warm_up = self._result.warm_up_s / unit_of_time(self._ends_s)[0]
        axis.axvspan(0, warm_up, color=colour("line"), alpha=0.5, linewidth=0, zorder=0)

    def _dual(self) -> Chart | None:
        lines = self._by_group(lambda group: group.series.dual) + self._of_cloud("fleet", "ink", lambda cloud: cloud.fleet_dual)
        caption = "What asking the cloud costs a device while it learns, in units of reward: it rises while more is asked than τ allows."
        return self._over_time("dual", "Cost of asking, λ", caption, lines, Unit.NUMBER, "λ")

    def _accuracy(self) -> Chart | None:
        lines = self._by_group(lambda group: group.series.joint_accuracy, pool=True)
        caption = f"Share of right answers, whoever gave them; a point is of at least {POOL} answers."
        return self._over_time("accuracy", "Right answers, all", caption, lines, Unit.SHARE, "accuracy")

    def _local_accuracy(self) -> Chart | None:
        lines = self._by_group(lambda group: group.series.local_accuracy, pool=True)
        caption = "Share of right answers among those that the device gave alone."
        return self._over_time("local-accuracy", "Right answers, local alone", caption, lines, Unit.SHARE, "accuracy")

    def _spend(self) -> Chart | None:
        lines = self._of_cloud("spent", "c0", lambda cloud: _dollars(cloud.spend_uusd))
        lines += self._of_cloud("budget", "alarm", lambda cloud: _dollars(cloud.limit_uusd), dash=1, steps=True)
        caption = "Charged by the ledger in the budget's window so far, and what the fleet's budget allows."
        return self._over_time("spend", "Spend against budget", caption, lines, Unit.DOLLARS, "dollars")

    def _calls(self) -> Chart | None:
        limits = self._of_cloud("budget", "alarm", lambda cloud: cloud.limit_calls, dash=1, steps=True)
        lines = self._of_cloud("calls", "c0", lambda cloud: cloud.calls) + limits if limits else []
        caption = "Charged calls in the budget's window so far."
        return self._over_time("calls", "Cloud calls against budget", caption, lines, Unit.COUNT, "calls")

    def _load(self) -> Chart | None:
        def per_hour(group: GroupResult) -> list[float | None]:
            return [3600 * count / width for count, width in zip(group.series.answers, _widths(group.series), strict=True)]

        caption = "How much the devices are asked."
        return self._over_time("load", "Answers an hour", caption, self._by_group(per_hour), Unit.COUNT, "answers an hour")

    def _cloud(self) -> Chart | None:
        lines = self._of_cloud("waiting", "c1", lambda cloud: cloud.queue, steps=True)
        lines += self._of_cloud("under way", "c0", lambda cloud: cloud.in_flight, steps=True)
        caption = "Most calls that waited at the coordinator, and most that were under way at the cloud, in each interval."
        if any(share < 1 for share in self._result.cloud.up):
            caption += " Shaded: the coordinator was down."
        return self._over_time("cloud", "Queue and calls under way", caption, lines, Unit.COUNT, "calls", self._shade_down_time)

    def _shade_down_time(self, axis: Any) -> None:
        cloud, unit_s = self._result.cloud, unit_of_time(self._ends_s)[0]
        for begins, ends, up in zip([0.0, *cloud.at_s], cloud.at_s, cloud.up, strict=False):
            if up < 1:
                span, alpha = (begins / unit_s, ends / unit_s), 0.12 + 0.2 * (1 - up)
                axis.axvspan(*span, color=colour("alarm"), alpha=alpha, linewidth=0, zorder=0)

    def _online(self) -> Chart | None:
        lines = self._by_group(lambda group: group.series.online_share)
        caption = "Share of the devices that can reach the coordinator."
        return self._over_time("online", "Devices online", caption, lines, Unit.SHARE, "online")


def _chart(
    name: str, title: str, caption: str, said: str, lines: Sequence[Line], finish: Callable[[Any], None], *, unit_s: float = 1.0
) -> Chart:
    def paint(axis: Any) -> None:
        for line in lines:
            x, y = [each / unit_s for each in line.x], [nan if value is None else value for value in line.y]
            style = line.stroke.style | {
                "linewidth": line.width,
                "marker": "." if len(line.y) < FEW or _is_sparse(line.y) else None,
            }
            axis.plot(x, y, drawstyle=line.drawstyle, **style)
        finish(axis)

    legend = tuple((line.stroke, line.name) for line in lines if line.name)
    return Chart(title, caption, f"{title}. {said}.", drawn(name, paint), legend)


def pooled(
    at_s: Sequence[float], shares: Sequence[float | None], answers: Sequence[int]
) -> tuple[list[float], list[float | None]]:
    """Consecutive intervals together until they have POOL answers; what is left over at the end goes with the last of them.

    An interval without any answer is a gap beside such as have enough of their own, and nothing beside such as were taken together.
    """
    pools: list[list[tuple[float, float | None, float]]] = [[]]
    for at, share, count in zip(at_s, shares, answers, strict=True):
        if share is not None and count:
            pools[-1].append((at, share, count))
            if sum(weight for _, _, weight in pools[-1]) >= POOL:
                pools.append([])
        elif not pools[-1] and (len(pools) == 1 or len(pools[-2]) == 1):
            pools[-1:] = [[(at, None, 0.0)], []]
    rest = pools.pop()
    if pools and len(pools[-1]) > 1:
        pools[-1] += rest
    elif rest:
        pools.append(rest)
    return [pool[-1][0] for pool in pools], [weighted([(share, weight) for _, share, weight in pool]) for pool in pools]


def _is_sparse(values: Sequence[float | None]) -> bool:
    """Whether some known value has no known neighbour, so that a line alone would not show it."""
    known = [value is not None for value in values]
    return any(
        here and not before and not after
        for before, here, after in zip([False, *known], known, [*known[1:], False], strict=False)
    )  # fmt: skip


def _dollars(uusd: Sequence[int | None]) -> list[float | None]:
    return [None if each is None else each / 1e6 for each in uusd]


def _widths(series: Series) -> list[float]:
    return [after - before for before, after in zip([0.0, *series.at_s], series.at_s, strict=False)]


def _distribution(histogram: LatencyHistogram) -> _Curve:
    """Upper ends of the bins in seconds, and the share of answers up to there."""
    places = sorted(histogram.counts)
    seen = list(accumulate(histogram.counts[place] for place in places))
    ends = [LEAST_S * GROWTH ** (place + 1) for place in places]
    return [ends[0] / GROWTH, *ends], [0.0, *(count / histogram.count for count in seen)]


def _within(histogram: LatencyHistogram, share: float) -> str:
    return written(histogram.quantile(share), Unit.SECONDS)


def _waiting_axes(axis: Any, histograms: Sequence[LatencyHistogram]) -> None:
    low = min(histogram.quantile(0.001) or LEAST_S for histogram in histograms)
    high = max(histogram.quantile(0.999) or LEAST_S for histogram in histograms)
    wider = max(1.1, (_LEAST_SPAN * low / high) ** 0.5)
    low, high = low / wider, high * wider
    log_axis(axis, lambda value: written(value, Unit.SECONDS), subs=(1.0, 2.0, 5.0) if high / low < 200 else (1.0,))
    axis.set_xlim(low, high)
    axis.set_xlabel("time (logarithmic)")
    axis.set_ylabel("share of answers")
    _percent_axis(axis, whole=True)
    for share in (0.5, 0.95):
        axis.axhline(share, color=colour("soft"), linewidth=0.8, linestyle=(0, (1, 2)))


def _percent_axis(axis: Any, *, whole: bool = False) -> None:
    from matplotlib.ticker import PercentFormatter

    high = 1.0 if whole else min(1.0, max(0.1, axis.get_ylim()[1]))
    axis.set_ylim(-0.01 * high, high * 1.02)
    axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))


def _course(line: Line, unit: Unit) -> str:
    known = [value for value in line.y if value is not None]
    first, last, least, most = (written(value, unit) for value in (known[0], known[-1], min(known), max(known)))
    return f"{line.name} from {first} to {last}, between {least} and {most}"
