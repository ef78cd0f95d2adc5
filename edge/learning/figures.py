"""Figures of a learning run, drawn at its end and while it goes on."""

from __future__ import annotations

import asyncio
import importlib.util
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from typing import Any

from edge.core.events import Event
from edge.core.files import replacing
from edge.core.formatting import percent
from edge.core.install import install_extra
from edge.learning.forgetting import PhaseSpan, forgetting_of, phase_spans
from edge.state.events import FamilyScores, HeldOutScored, PhaseStarted, StepFinished

_WINDOW = 15
_BLUE, _ORANGE, _GREEN, _GREY, _PURPLE = "#1f6fb4", "#d9730d", "#2a8c4a", "#666666", "#8a4fb0"
_COLOURS = ("#1f6fb4", "#d9730d", "#2a8c4a", "#8a4fb0", "#b3261e", "#0f8b8d", "#7a6a00", "#c2418c")
_MARKERS = "osD^vPX*"
_SHADE = "#f1f1ee"
_ROOM_FOR_A_NAME = 0.3
"""Share of a figure's width that a phase's name needs."""


def what_is_missing() -> str:
    """Why no figure can be drawn here, in one line, or ""."""
    if importlib.util.find_spec("matplotlib") is not None:
        return ""
    return f"no figures: matplotlib is not installed ({install_extra('train')})"


def write_figures(folder: Path, steps: Sequence[StepFinished], held_out: Sequence[HeldOutScored] = ()) -> list[Path]:
    """Write what there is to show and return the paths; needs at least one step.

    rate_and_dual.png, accuracy.png; families.png where several families occur; bands.png of practice questions; forgetting.png where
    held-out items were scored.
    """
    spans = phase_spans(steps)
    written = [_rate_and_dual(folder / "rate_and_dual.png", spans), _accuracy(folder / "accuracy.png", spans)]
    if len({family for span in spans for family in span.families}) > 1:
        written.append(_families(folder / "families.png", spans))
    if any(step.scores.bands for step in steps):
        written.append(_bands(folder / "bands.png", spans))
    if held_out:
        written.append(_forgetting(folder / "forgetting.png", spans, held_out))
    return written


def running_mean(values: Sequence[float | None], window: int = _WINDOW) -> list[float | None]:
    """Centred mean over at most `window` neighbours that are known; None where there is none."""
    half = window // 2
    means: list[float | None] = []
    for index in range(len(values)):
        near = [value for value in values[max(0, index - half) : index + half + 1] if value is not None]
        means.append(sum(near) / len(near) if near else None)
    return means


def _rate_and_dual(path: Path, spans: Sequence[PhaseSpan]) -> Path:
    figure, (rate, dual) = _panels(2)
    _curve(rate, spans, lambda step: step.control.assist_rate, _BLUE, "assist rate")
    _steps(rate, spans, lambda step: step.control.target_rate, _GREY, "target rate τ")
    highest = max(max(step.control.assist_rate, step.control.target_rate) for span in spans for step in span.steps)
    rate.set(ylabel="share of responses\nthat ask", ylim=(0, min(1.02, max(0.5, highest) * 1.1)))
    _steps(dual, spans, lambda step: step.control.dual_before, _ORANGE, "λ", width=1.8)
    highest = max(step.control.dual_before for span in spans for step in span.steps)
    dual.set(ylabel="λ (units of reward)", ylim=(0, 1.1 * max(0.1, highest)))
    return _save(figure, (rate, dual), spans, path, "How often it asks, and what asking costs")


def _accuracy(path: Path, spans: Sequence[PhaseSpan]) -> Path:
    figure, (accuracy, coverage) = _panels(2)
    _curve(accuracy, spans, lambda step: step.scores.kept_accuracy, _BLUE, "local accuracy\n(did not ask)")
    _curve(accuracy, spans, lambda step: step.scores.joint_accuracy, _GREEN, "right in the end\n(with the cloud's help)")
    accuracy.set(ylabel="share correct", ylim=(-0.02, 1.02))
    _curve(coverage, spans, lambda step: step.scores.coverage, _ORANGE, "answered locally")
    _curve(coverage, spans, lambda step: step.scores.format_ok, _GREY, "well formatted")
    coverage.set(ylabel="share of responses", ylim=(-0.02, 1.02))
    return _save(figure, (accuracy, coverage), spans, path, "Accuracy while learning (rollouts at temperature 1)")


def _families(path: Path, spans: Sequence[PhaseSpan]) -> Path:
    figure, (kept, joint, rate) = _panels(3)
    families = list(dict.fromkeys(family for span in spans for family in span.families))
    for number, family in enumerate(families):
        colour = _COLOURS[number % len(_COLOURS)]
        _curve(kept, spans, _of_family(family, lambda scores: scores.kept_accuracy), colour, family, raw=0.15)
        _curve(joint, spans, _of_family(family, lambda scores: scores.joint_accuracy), colour, family, raw=0.15)
        _curve(rate, spans, _of_family(family, lambda scores: scores.assist_rate), colour, family, raw=0.15)
    _steps(rate, spans, lambda step: step.control.target_rate, _GREY, "target rate τ\n(of all together)")
    kept.set(ylabel="local accuracy", ylim=(-0.02, 1.02))
    joint.set(ylabel="right in the end", ylim=(-0.02, 1.02))
    rate.set(ylabel="share of responses\nthat ask", ylim=(-0.02, 1.02))
    return _save(figure, (kept, joint, rate), spans, path, "Each family of questions while learning")


_BANDS = {"known": "known\nbefore", "learnable": "learnable", "beyond": "beyond:\nonly the\ncloud can"}


def _bands(path: Path, spans: Sequence[PhaseSpan]) -> Path:
    """Shares of the attempts in each band, stacked: right here, asked, wrong."""
    figure, panels = _panels(3, inches=1.4)
    for axes, (band, name) in zip(panels, _BANDS.items(), strict=True):
        for span in spans:
            at = [step.step for step in span.steps]
            shares = [next((one for one in step.scores.bands if one.band == band), None) for step in span.steps]
            right, asked, wrong = (
                [_number(value) for value in running_mean([None if one is None else getattr(one, key) for one in shares])]
                for key in ("right", "asked", "wrong")
            )
            labels = ("right locally", "asks for help", "wrong") if span is spans[-1] else ()
            axes.stackplot(at, right, asked, wrong, colors=(_GREEN, _PURPLE, "#d9dbd6"), labels=labels, linewidth=0)
        axes.set(ylabel=name, ylim=(0, 1))
    return _save(figure, panels, spans, path, "What became of the attempts at practice questions, by band")


def _forgetting(path: Path, spans: Sequence[PhaseSpan], held_out: Sequence[HeldOutScored]) -> Path:
    figure, (accuracy, kept, rate) = _panels(3, heights=(2.2, 1, 1))
    sources = dict.fromkeys(result.source for result in held_out)
    tasks = {result.task for result in held_out}
    for number, source in enumerate(sources):
        own = sorted((result for result in held_out if result.source == source), key=lambda result: result.step)
        style = {"color": _COLOURS[number % len(_COLOURS)], "marker": _MARKERS[number % len(_MARKERS)], "markersize": 5}
        name = own[0].task if len(tasks) == len(sources) else source.removeprefix("practice:")
        counts = sorted({result.items for result in own})
        items = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        at, label = [result.step for result in own], f"{name}\n({items} items)"
        low, high = zip(*(result.forced_local_interval for result in own), strict=True)
        accuracy.fill_between(at, low, high, color=style["color"], alpha=0.13, linewidth=0)
        accuracy.plot(at, [result.forced_local_accuracy for result in own], linewidth=2.0, label=label, **style)
        kept.plot(at, [_number(result.kept_accuracy) for result in own], linewidth=1.5, label=name, **style)
        rate.plot(at, [result.assist_rate for result in own], linewidth=1.5, label=name, **style)
    accuracy.set(ylabel="forced local: share correct\n(band: 95 % interval)", ylim=(-0.02, 1.02))
    kept.set(ylabel="local accuracy", ylim=(-0.02, 1.02))
    rate.set(ylabel="share of\nitems that ask", ylim=(-0.02, 1.02))
    title = "Held-out items while learning (temperature 0, no cloud)"
    for entry in forgetting_of([step for span in spans for step in span.steps], held_out):
        title += f"\n{entry.task}: {percent(entry.during_task_acc)} at the end of its phase"
        if entry.post_switch_acc is not None:
            title += f", {percent(entry.post_switch_acc)} after the switch"
        if entry.forgetting_rate is not None:
            title += f", forgetting rate {percent(entry.forgetting_rate)}"
    return _save(figure, (accuracy, kept, rate), spans, path, title)


def _of_family(family: str, value: Callable[[FamilyScores], float | None]) -> Callable[[StepFinished], float | None]:
    return lambda step: next((value(scores) for scores in step.scores.families if scores.family == family), None)


def _panels(rows: int, heights: Sequence[float] | None = None, inches: float = 2.7) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 1.2 + inches * rows), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, 1, sharex=True, height_ratios=heights)


def _curve(
    axis: Any,
    spans: Sequence[PhaseSpan],
    value: Callable[[StepFinished], float | None],
    colour: str,
    label: str,
    raw: float = 0.3,
) -> None:
    """Single steps faintly, their running mean strongly; the mean of one phase knows nothing of the next, and the line breaks between."""
    for span in spans:
        values, numbers = [value(step) for step in span.steps], [step.step for step in span.steps]
        if all(known is None for known in values):
            continue
        marker = "." if len(numbers) < 3 else None
        axis.plot(numbers, [_number(known) for known in values], color=colour, linewidth=0.8, alpha=raw, marker=marker)
        means = [_number(mean) for mean in running_mean(values)]
        axis.plot(numbers, means, color=colour, linewidth=2.0, label=label, marker=marker)
        label = "_" + label.lstrip("_")


def _steps(
    axis: Any, spans: Sequence[PhaseSpan], value: Callable[[StepFinished], float], colour: str, label: str, width: float = 1.2
) -> None:
    """A line that is known exactly; dashed where it is thin."""
    for span in spans:
        numbers, style = [step.step for step in span.steps], "--" if width < 1.5 else "-"
        marker = "." if len(numbers) < 3 else None
        values = [value(step) for step in span.steps]
        axis.plot(numbers, values, color=colour, linestyle=style, linewidth=width, label=label, marker=marker)
        label = "_" + label.lstrip("_")


def _number(value: float | None) -> float:
    return nan if value is None else value


def _save(figure: Any, axes: Sequence[Any], spans: Sequence[PhaseSpan], path: Path, title: str) -> Path:
    for axis in axes:
        firsts: dict[int, int] = {}  # by the last step: sources that take turns are one stretch
        for span in spans:
            firsts.setdefault(span.end, span.first)
        # every other phase is shaded; the others are spanned too, in no colour, to show all steps
        for number, (end, first) in enumerate(firsts.items()):
            axis.axvspan(first - 0.5, end + 0.5, color=_SHADE if number % 2 else "none", zorder=-2, linewidth=0)
            if number:
                axis.axvline(first - 0.5, color=_GREY, linewidth=1.0, linestyle=":", zorder=-1)
        axis.grid(alpha=0.25)
        if axis.get_legend_handles_labels()[1]:
            axis.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    _name_phases(axes[0], spans)
    axes[-1].set_xlabel("learning step")
    axes[-1].xaxis.get_major_locator().set_params(integer=True)
    figure.suptitle(title, fontsize=12)
    with replacing(path) as unfinished:
        figure.savefig(unfinished, format=path.suffix.removeprefix("."))
    return path


def _name_phases(axis: Any, spans: Sequence[PhaseSpan]) -> None:
    """The phases' names above the panel, each over its own steps; in two rows where some are too short for their names."""
    whole = spans[-1].last - spans[0].first + 1
    rows = 2 if len(spans) > 1 and any((span.last - span.first + 1) / whole < _ROOM_FOR_A_NAME for span in spans) else 1
    for number, span in enumerate(spans):
        x, side = ((span.first + span.last) / 2, "center")
        if rows == 2 and number in (0, len(spans) - 1):
            x, side = (span.first, "left") if number == 0 else (span.last, "right")
        at_the_same_end = sum(other.end == span.end for other in spans[:number])
        offset = 3 + 12 * (at_the_same_end or number % rows)
        axis.annotate(
            span.name, (x, 1.0), xycoords=axis.get_xaxis_transform(), xytext=(0, offset), textcoords="offset points",
            ha=side, va="bottom", fontsize=9, color=_GREY,
        )  # fmt: skip


STEPS_BETWEEN = 20
SHOWN_STEPS = 2000
"""Steps that figures of an endless run show: the newest."""

Draw = Callable[[Path, Sequence[StepFinished], Sequence[HeldOutScored]], list[Path]]


@dataclass(slots=True)
class LiveFigures:
    """An event sink that keeps the figures in a folder up to date while it is open.

    Opened once. `report` gets one line for a person: where the figures are, or why there are none. `draw` is called on a thread.
    """

    folder: Path
    report: Callable[[str], None]
    draw: Draw = write_figures
    _steps: deque[StepFinished] = field(default_factory=lambda: deque(maxlen=SHOWN_STEPS), init=False)
    _held_out: list[HeldOutScored] = field(default_factory=list, init=False)
    _undrawn: int = field(default=0, init=False)
    _reported: bool = field(default=False, init=False)
    _due: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _closing: bool = field(default=False, init=False)

    def emit(self, event: Event) -> None:
        """Take one event; draws nothing itself."""
        if isinstance(event, StepFinished):
            self._steps.append(event)
            self._undrawn += 1
        elif isinstance(event, HeldOutScored):
            self._held_out.append(event)
            self._undrawn += 1
        if isinstance(event, (PhaseStarted, HeldOutScored)) or self._undrawn >= STEPS_BETWEEN:
            self._due.set()

    @asynccontextmanager
    async def open(
        self, steps: Sequence[StepFinished], held_out: Sequence[HeldOutScored] = (), *, at_the_end: bool = True
    ) -> AsyncIterator[None]:
        """Go on from what the run did before, draw while it goes on and, `at_the_end`, once more if there is anything new."""
        if missing := what_is_missing():
            self.report(missing)
            yield
            return
        self._steps.extendleft(reversed(steps[-SHOWN_STEPS:]))
        self._held_out[:0] = held_out
        drawing = asyncio.create_task(self._keep_drawing())
        try:
            yield
        finally:
            self._closing = True
            self._undrawn = self._undrawn if at_the_end else 0
            self._due.set()
            await drawing

    async def _keep_drawing(self) -> None:
        """Draw whenever it is due, until closed or until drawing fails, which is reported."""
        closing = False
        while not closing:
            await self._due.wait()
            self._due.clear()
            closing = self._closing  # as it was before drawing: what comes meanwhile is drawn once more
            if not (self._undrawn and self._steps):
                continue
            self._undrawn = 0
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                await asyncio.to_thread(self.draw, self.folder, tuple(self._steps), tuple(self._held_out))
            except Exception as error:  # a full disk or a broken plotting library is no reason to stop learning
                self.report(f"figures are no longer drawn: {type(error).__name__}: {error}")
                return
            if not self._reported:
                self.report(f"figures in {self.folder}, drawn again every {STEPS_BETWEEN} steps")
                self._reported = True
