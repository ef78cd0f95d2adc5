"""Cost against quality: what other thresholds on the help log-odds would have given, as numbers and as a figure.

At threshold θ an item goes to the cloud when its help log-odds at the decision are at least θ and stays local (forced) otherwise; items
that reached no decision always stay. The curve is compared with random routing (the straight line from forced-local to cloud accuracy)
and the oracle-router bound forced-local + min(q, 1 - forced-local) · cloud.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from edge.core.errors import EdgeError
from edge.dagrpo.metrics import oracle_router_bound, wilson_interval_of_share
from edge.evaluation.judging import JudgedItem
from edge.evaluation.scores import EvalReport, Interval, effective_items

_MOST = 1e6
"""Certainty: an infinite value has no place in JSON."""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Share sent to the cloud and joint accuracy at one threshold (nats; None: nothing is sent)."""

    threshold: float | None
    assist_rate: float
    joint_accuracy: float
    interval: Interval


@dataclass(frozen=True, slots=True)
class RealisedPoint:
    """What the model itself decided, with 95 % intervals of both coordinates."""

    assist_rate: float
    joint_accuracy: float
    assist_rate_interval: Interval
    joint_interval: Interval


@dataclass(frozen=True, slots=True)
class CostQuality:
    """The curve and what it is compared with. `without_decision` is the share of items that no threshold can send; `oracle` are
    (assist rate, bound) where the bound starts, bends and ends."""

    model: str
    adapter_version: int | None
    sources: tuple[str, ...]
    temperature: float
    items: int
    forced_local_accuracy: float
    cloud_accuracy: float
    without_decision: float
    realised: RealisedPoint
    points: tuple[CurvePoint, ...]
    oracle: tuple[tuple[float, float], ...]

    def to_json(self) -> dict[str, Any]:
        """Everything that is drawn, as a JSON object."""
        return asdict(self)


def cost_quality(report: EvalReport, judged: Sequence[JudgedItem]) -> CostQuality:
    """The curve of one evaluation. Raises EdgeError when the cloud's answer to some item is not known."""
    scores, cloud = report.scores, report.scores.cloud_accuracy
    unknown = sum(one.judged.cloud is None and not one.judged.too_long for one in judged)
    if unknown or cloud is None:
        raise EdgeError(
            f"no curve: the cloud's answer is not known for {unknown} of {len(judged)} items",
            hint="repeat the evaluation with --cloud-all, or replay a complete recording",
        )
    assert scores.joint_accuracy is not None
    assert scores.intervals.joint_accuracy is not None
    local = scores.forced_local_accuracy
    oracle = tuple((rate, oracle_router_bound(rate, local, cloud)) for rate in (0.0, 1.0 - local, 1.0))
    return CostQuality(
        model=report.measured.model,
        adapter_version=report.measured.adapter_version,
        sources=report.measured.sources,
        temperature=report.measured.temperature,
        items=scores.items,
        forced_local_accuracy=local,
        cloud_accuracy=cloud,
        without_decision=_weight([one for one in judged if _log_odds(one) is None]) / _weight(judged),
        realised=RealisedPoint(
            scores.assist_rate, scores.joint_accuracy, scores.intervals.assist_rate, scores.intervals.joint_accuracy
        ),
        points=tuple(threshold_curve(judged)),
        oracle=oracle,
    )


def threshold_curve(judged: Sequence[JudgedItem]) -> Iterator[CurvePoint]:
    """One point for each value of the log-odds that occurs, from sending nothing to sending all that reached a decision."""
    whole, trials = _weight(judged), effective_items(judged)
    sent, right = 0.0, sum(one.weight for one in judged if one.judged.forced.right)

    def point(threshold: float | None) -> CurvePoint:
        accuracy = min(max(right / whole, 0.0), 1.0)
        return CurvePoint(threshold, min(sent / whole, 1.0), accuracy, wilson_interval_of_share(accuracy, trials))

    yield point(None)
    decided = sorted((one for one in judged if _log_odds(one) is not None), key=lambda one: -(_log_odds(one) or 0.0))
    for log_odds, members in groupby(decided, key=_log_odds):
        for one in members:
            sent += one.weight
            right += one.weight * (bool(one.judged.cloud and one.judged.cloud.right) - one.judged.forced.right)
        yield point(log_odds)


def _log_odds(one: JudgedItem) -> float | None:
    """None where no decision was reached or it cannot be compared."""
    value = None if one.judged.too_long else one.judged.help_log_odds
    return None if value is None or math.isnan(value) else min(max(value, -_MOST), _MOST)


def _weight(judged: Sequence[JudgedItem]) -> float:
    return sum(one.weight for one in judged)


_BLUE, _ORANGE, _GREEN, _GREY = "#1f6fb4", "#d9730d", "#2a8c4a", "#666666"


def write_cost_quality(path: Path, quality: CostQuality) -> Path:
    """Draw what is right in the end against the share of questions sent to the cloud; returns the path. Its ending chooses the format."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6.2), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    rates, accuracies = (
        _hundred(one.assist_rate for one in quality.points),
        _hundred(one.joint_accuracy for one in quality.points),
    )
    low, high = zip(*(one.interval for one in quality.points), strict=True)
    axis.plot(rates, accuracies, color=_BLUE, linewidth=2.0, zorder=3, label="threshold on the help log-odds")
    axis.fill_between(rates, _hundred(low), _hundred(high), color=_BLUE, alpha=0.12, linewidth=0, label="its 95 % interval")
    own = quality.realised
    x, y = 100 * own.assist_rate, 100 * own.joint_accuracy
    spans = [
        [[max(0.0, at - 100 * low)], [max(0.0, 100 * high - at)]]
        for at, (low, high) in ((x, own.assist_rate_interval), (y, own.joint_interval))
    ]
    label = f"the model's own decision: {y:.1f} % @ {x:.1f} % cloud"
    style: dict[str, Any] = {"color": _ORANGE, "marker": "o", "markersize": 7, "capsize": 3, "linestyle": "", "zorder": 4}
    axis.errorbar([x], [y], xerr=spans[0], yerr=spans[1], label=label, **style)
    rates, bounds = (_hundred(corner) for corner in zip(*quality.oracle, strict=True))
    local, cloud = 100 * quality.forced_local_accuracy, 100 * quality.cloud_accuracy
    axis.plot(rates, bounds, color=_GREEN, linewidth=1.4, linestyle="--", label="oracle router (bound)")
    axis.plot([0, 100], [local, cloud], color=_GREY, linewidth=1.4, linestyle=":", label="random routing")
    for rate, accuracy, marker, name in ((0, local, "s", "never ask"), (100, cloud, "D", "always ask")):
        label = f"{name}: {accuracy:.1f} % @ {rate} % cloud"
        axis.plot([rate], [accuracy], color=_GREY, marker=marker, markersize=6, linestyle="", label=label, clip_on=False)
    axis.set_xlabel("assist rate: questions sent to the cloud (%)")
    axis.set_ylabel("right in the end (%)")
    axis.set_xlim(-1.5, 101.5)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    version = "of an unknown version" if quality.adapter_version is None else quality.adapter_version
    adapter = "no adapter" if version == 0 else f"adapter {version}"
    axis.set_title(
        f"{', '.join(quality.sources)}: {quality.model}, {adapter}, n = {quality.items}, T = {quality.temperature:g}", fontsize=10
    )
    figure.suptitle("What asking the cloud buys", fontsize=12)
    figure.savefig(path)
    return path


def _hundred(shares: Iterable[float]) -> list[float]:
    return [100 * share for share in shares]
