"""Figures of a learning run. Knows what people want to see at a glance; knows nothing of files other than the pictures it writes.

Faint lines are single steps, strong ones a centred running mean; phases are separated by thin vertical lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from edge.agent.events import StepFinished

_WINDOW = 15
_BLUE, _ORANGE, _GREEN, _GREY = "#1f6fb4", "#d9730d", "#2a8c4a", "#666666"


def write_figures(folder: Path, steps: Sequence[StepFinished]) -> list[Path]:
    """Write `rate_and_price.png` and `accuracy.png`; returns their paths. Needs at least one step."""
    return [_rate_and_price(folder / "rate_and_price.png", steps), _accuracy(folder / "accuracy.png", steps)]


def running_mean(values: Sequence[float | None], window: int = _WINDOW) -> list[float | None]:
    """Centred mean over at most `window` neighbours that are known; None where there is none."""
    half = window // 2
    means: list[float | None] = []
    for index in range(len(values)):
        near = [value for value in values[max(0, index - half) : index + half + 1] if value is not None]
        means.append(sum(near) / len(near) if near else None)
    return means


def _rate_and_price(path: Path, steps: Sequence[StepFinished]) -> Path:
    figure, (rate, price) = _axes(2)
    numbers = [step.step for step in steps]
    _line(rate, numbers, [step.assist_rate for step in steps], _BLUE, "assist rate (share of responses that ask)")
    rate.step(numbers, [step.target_rate for step in steps], color=_GREY, linestyle="--", where="mid", label="target rate τ")
    rate.set_ylabel("share of responses")
    rate.set_ylim(0, max(0.5, *(step.assist_rate for step in steps), *(step.target_rate for step in steps)) * 1.15)
    price.plot(numbers, [step.dual_before for step in steps], color=_ORANGE, linewidth=1.8, label="price of asking λ")
    price.set_ylabel("λ (units of reward)")
    price.set_ylim(bottom=0)
    return _save(figure, (rate, price), steps, path, "How often it asks, and what asking costs")


def _accuracy(path: Path, steps: Sequence[StepFinished]) -> Path:
    figure, (accuracy, coverage) = _axes(2)
    numbers = [step.step for step in steps]
    _line(accuracy, numbers, [step.kept_accuracy for step in steps], _BLUE, "kept answers (local, did not ask)")
    _line(accuracy, numbers, [step.joint_accuracy for step in steps], _GREEN, "joint (after the cloud's help)")
    accuracy.set_ylabel("share correct")
    accuracy.set_ylim(0, 1.02)
    _line(coverage, numbers, [step.coverage for step in steps], _ORANGE, "coverage (share kept local)")
    _line(coverage, numbers, [step.format_ok for step in steps], _GREY, "well formatted")
    coverage.set_ylabel("share of responses")
    coverage.set_ylim(0, 1.02)
    return _save(figure, (accuracy, coverage), steps, path, "Accuracy while learning (rollouts at temperature 1)")


def _axes(rows: int) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, 1, sharex=True)


def _line(axis: Any, numbers: Sequence[int], values: Sequence[float | None], colour: str, label: str) -> None:
    raw = [float("nan") if value is None else value for value in values]
    axis.plot(numbers, raw, color=colour, linewidth=0.8, alpha=0.3, marker="." if len(numbers) < 3 else None)
    smooth = [float("nan") if value is None else value for value in running_mean(values)]
    axis.plot(numbers, smooth, color=colour, linewidth=2.0, label=label)


def _save(figure: Any, axes: Sequence[Any], steps: Sequence[StepFinished], path: Path, title: str) -> Path:
    switches = [after.step - 0.5 for before, after in pairwise(steps) if after.phase != before.phase]
    for axis in axes:
        for switch in switches:
            axis.axvline(switch, color=_GREY, linewidth=0.8, alpha=0.6)
        axis.grid(alpha=0.25)
        axis.legend(loc="best", framealpha=0.9, fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel("learning step")
    figure.suptitle(title, fontsize=12)
    figure.savefig(path)
    return path
