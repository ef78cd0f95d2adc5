"""Real and simulated in one picture: how answers' times are distributed, and λ step by step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.simulate.validation.seen import Answered, Run, Taken

_COLOURS = {"local": "#1f6fb4", "cloud": "#d9730d", "local-fallback": "#8a4fb0"}
_LEAST_SPAN = 0.05
"""λ is drawn at least so far up and down, so that small differences look small."""
_KINDS = (("real", "-", 2.2), ("simulated", (0, (4, 2)), 1.6))


def draw(path: Path, real: Run, simulated: Run, target_rate: float) -> None:
    """A PNG: whole answers, first letters, and, where there were learning steps, λ and who asked."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = 4 if real.steps and simulated.steps else 2
    figure = Figure(figsize=(11.5, 4.2 * (panels // 2)), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(panels // 2, 2).flatten()
    _draw_times(axes[0], real, simulated, "total_s", "Whole answers")
    _draw_times(axes[1], real, simulated, "first_s", "First letters")
    if panels == 4:
        _draw_duals(axes[2], real, simulated)
        _draw_rates(axes[3], real.steps, simulated.steps, target_rate)
    figure.savefig(path)


def _draw_times(axis: Any, real: Run, simulated: Run, what: str, title: str) -> None:
    for source, colour in _COLOURS.items():
        for (kind, style, width), run in zip(_KINDS, (real, simulated), strict=True):
            own = [each for each in run.answers if each.source == source]
            if own:
                _draw_distribution(axis, own, what, label=f"{source}, {kind}", color=colour, linestyle=style, linewidth=width)
    axis.set(xscale="log", xlabel="milliseconds", ylabel="share of answers", ylim=(0.0, 1.02))
    _plain_ticks(axis)
    for share in (0.5, 0.95):
        axis.axhline(share, color="#999999", linewidth=0.7, linestyle=":")
    axis.set_title(title)
    axis.legend(loc="lower right", fontsize=9)


def _plain_ticks(axis: Any) -> None:
    """1, 2, 5, 10 ... and no powers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())


def _draw_distribution(axis: Any, answers: Sequence[Answered], what: str, **look: Any) -> None:
    times = sorted(1e3 * getattr(each, what) for each in answers)
    shares = [(place + 1) / len(times) for place in range(len(times))]
    axis.step([times[0], *times], [0.0, *shares], where="post", **look)


def _draw_duals(axis: Any, real: Run, simulated: Run) -> None:
    for (kind, style, width), run in zip(_KINDS, (real, simulated), strict=True):
        duals = [run.dual_init, *(step.dual for step in run.steps)]
        axis.plot(range(len(duals)), duals, color="#2a8c4a", linestyle=style, linewidth=width, label=kind)
    low, high = axis.get_ylim()
    middle = real.dual_init
    axis.set(xlabel="learning steps", ylabel="λ", ylim=(min(low, middle - _LEAST_SPAN), max(high, middle + _LEAST_SPAN)))
    axis.set_title("The price of asking")
    axis.legend()


def _draw_rates(axis: Any, real: Sequence[Taken], simulated: Sequence[Taken], target_rate: float) -> None:
    for (kind, style, width), steps in zip(_KINDS, (real, simulated), strict=True):
        rates = [step.assist_rate for step in steps]
        axis.plot(range(1, len(rates) + 1), rates, color="#8a4fb0", linestyle=style, linewidth=width, label=kind)
    axis.axhline(target_rate, color="#666666", linewidth=0.9, linestyle=":", label="τ")
    axis.set(xlabel="learning step", ylabel="share of responses that ask", ylim=(-0.02, 1.02))
    axis.set_title("Who asks in training")
    axis.legend()
