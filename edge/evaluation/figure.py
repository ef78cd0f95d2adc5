"""The cost-quality figure. Knows how an evaluation's curve is drawn; knows nothing of how it was measured."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from edge.evaluation.curve import CostQuality

_BLUE, _ORANGE, _GREEN, _GREY = "#1f6fb4", "#d9730d", "#2a8c4a", "#666666"


def write_cost_quality(path: Path, quality: CostQuality) -> Path:
    """Draw joint accuracy against the share of questions sent to the cloud; returns the path. The file's ending chooses the format."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6.2), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    _threshold_curve(axis, quality)
    _realised(axis, quality)
    _comparisons(axis, quality)
    axis.set_xlabel("assist rate: questions sent to the cloud (%)")
    axis.set_ylabel("joint accuracy: right answers (%)")
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


def _comparisons(axis: Any, quality: CostQuality) -> None:
    rates, bounds = zip(*quality.oracle, strict=True)
    local, cloud = 100 * quality.forced_local_accuracy, 100 * quality.cloud_accuracy
    axis.plot(_hundred(rates), _hundred(bounds), color=_GREEN, linewidth=1.4, linestyle="--", label="oracle router (bound)")
    axis.plot([0, 100], [local, cloud], color=_GREY, linewidth=1.4, linestyle=":", label="random routing")
    for rate, accuracy, marker, name in ((0, local, "s", "never ask"), (100, cloud, "D", "always ask")):
        label = f"{name}: {accuracy:.1f} % @ {rate} % cloud"
        axis.plot([rate], [accuracy], color=_GREY, marker=marker, markersize=6, linestyle="", label=label, clip_on=False)


def _threshold_curve(axis: Any, quality: CostQuality) -> None:
    rates = _hundred(point.assist_rate for point in quality.points)
    low, high = zip(*(point.interval for point in quality.points), strict=True)
    accuracies = _hundred(point.joint_accuracy for point in quality.points)
    axis.plot(rates, accuracies, color=_BLUE, linewidth=2.0, zorder=3, label="threshold on the help log-odds")
    axis.fill_between(rates, _hundred(low), _hundred(high), color=_BLUE, alpha=0.12, linewidth=0, label="its 95 % interval")


def _realised(axis: Any, quality: CostQuality) -> None:
    point = quality.realised
    x, y = 100 * point.assist_rate, 100 * point.joint_accuracy
    spans = [
        [[max(0.0, at - 100 * low)], [max(0.0, 100 * high - at)]]
        for at, (low, high) in ((x, point.assist_rate_interval), (y, point.joint_interval))
    ]
    label = f"the model's own decision: {y:.1f} % @ {x:.1f} % cloud"
    style = {"color": _ORANGE, "marker": "o", "markersize": 7, "capsize": 3, "linestyle": "", "zorder": 4}
    axis.errorbar([x], [y], xerr=spans[0], yerr=spans[1], label=label, **style)


def _hundred(shares: Iterable[float]) -> list[float]:
    return [100 * share for share in shares]
