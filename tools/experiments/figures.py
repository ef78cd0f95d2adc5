"""Figures as small SVG files. A figure without results is not drawn; the same results give the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tools.experiments.contestants import (
    ASKING,
    BARE_RANDOM,
    DA_GRPO,
    FIRST,
    HELD,
    PAPER,
    PAPERS_RULE,
    SAMPLED,
    SECOND,
    Adapters,
    Contestant,
    families_of,
    rows_in,
)
from tools.experiments.findings import ExperimentFindings, Runs, by_common_seed, pooled
from tools.experiments.layouts import BAND, END_STEPS, SMOOTH_STEPS, end_of, forced_over_steps
from tools.experiments.measures import Evaluation, Rule, accuracy, forgetting, oracle, rate, value_of
from tools.experiments.spec import short_name
from tools.experiments.stats import Estimate
from tools.experiments.tables import shown
from tools.svg import COLOURS, GREY, drawn

FIGURES = Path(__file__).parent / "figures"
_METHOD_COLOURS = {
    "before learning, dial": "#4a4a4a", "Edge Tuning Only": "#b08900", "Edge Tuning w/ dial": "#b08900",
    "Edge Tuning w/ Naive Router": "#0f8b8d", "Edge Tuning w/ Router": "#8a4fb0", "GRPO": "#1f6fb4", "GVPO": "#2a8c4a",
    "GAPG": "#d9730d", "DA-GRPO, paper's rule": "#e08a85", "DA-GRPO": "#b3261e", "DA-GRPO, sampled answers": "#d16ba5",
    "DA-GRPO, by its certainty": "#b3261e", "Fine-tuning w/ certainty": "#000000", "before learning, certainty": "#8c8c8c",
}  # fmt: skip
"""A method has one colour in all figures."""
_MOST_FORGOTTEN = 60.0
"""Percent; longer intervals, as of two seeds, leave the picture."""
_RATES = tuple(number / 20 for number in range(15))
Paint = Callable[[Any, ExperimentFindings], None]
"""Draws on a figure."""


def draw_figures(findings: ExperimentFindings, out: Path) -> list[Path]:
    """Draw every figure of an experiment for which there are results; the paths, named `EXPERIMENT-KIND.svg`."""
    paths: list[Path] = []
    if not any(result.cell.phases for result in findings.results.values()):
        return paths  # there is nothing but the models before learning
    for kind in findings.spec.figure:
        path = out / f"{findings.spec.name}-{kind}.svg"
        _draw(path, findings, _PAINT[kind])
        paths.append(path)
    return paths


def _draw(path: Path, findings: ExperimentFindings, paint: Paint) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(drawn(lambda figure: paint(figure, findings), 9, 4.2))


def _lambda(figure: Any, findings: ExperimentFindings) -> None:
    """Left λ, right the rate, for every initial value; one row for each SLM."""
    models, ((key, values),) = findings.spec.models, findings.spec.vary.items()
    figure.set_size_inches(9, 2.6 * len(models) + 0.6)
    axes = figure.subplots(len(models), 2, squeeze=False, sharex=True)
    for (left, right), model in zip(axes, models, strict=True):
        for value, colour in zip(values, COLOURS, strict=False):
            runs = findings.runs(model, varied={key: value})
            _lines(left, runs, "dual", colour, f"λ_0 = {shown(value)}", smooth=1)
            _lines(right, runs, "assist", colour, "", smooth=SMOOTH_STEPS)
        left.set(title=f"{model}: λ", ylim=(0, None))
        _target(right, findings.spec.phases[next(iter(findings.spec.phases))][-1].target_rate)
        right.set(title=f"{model}: assist rate, mean of {SMOOTH_STEPS} steps", ylim=(0, 1))
    for axis in axes[-1]:
        axis.set_xlabel("step")
    _legend(figure, axes[0][0])


def _schedules(figure: Any, findings: ExperimentFindings) -> None:
    """The rate and τ, one panel for each schedule."""
    names = list(findings.spec.phases)
    rows = -(-len(names) // 2)
    figure.set_size_inches(9, 2.3 * rows + 0.6)
    axes = figure.subplots(rows, min(2, len(names)), squeeze=False, sharey=True).ravel()
    for axis, name in zip(axes, names, strict=False):
        targets = [phase.target_rate for phase in findings.spec.phases[name] for _ in range(phase.steps)]
        steps = range(1, len(targets) + 1)
        axis.plot(steps, targets, color=GREY, linewidth=1.2, linestyle="--", label="τ")
        axis.fill_between(steps, [t - BAND for t in targets], [t + BAND for t in targets], color=GREY, alpha=0.15, linewidth=0)
        lines = [(model, way) for model in findings.spec.models for way in findings.spec.ways]
        for (model, way), colour in zip(lines, COLOURS, strict=False):
            label = model if len(findings.spec.ways) == 1 else way
            _lines(axis, findings.runs(model, method=way, phases=name), "assist", colour, label, smooth=SMOOTH_STEPS)
        axis.set(title=name, ylim=(0, 1), xlabel="step", ylabel="assist rate")
    _legend(figure, axes[0])


def _sensitivity(figure: Any, findings: ExperimentFindings) -> None:
    """Left: the rate while learning; right: the final values for each setting."""
    ((key, values),) = findings.spec.vary.items()
    left, right = figure.subplots(1, 2)
    model, name = findings.spec.models[0], key.rpartition(".")[2]
    for value, colour in zip(values, COLOURS, strict=False):
        _lines(left, findings.runs(model, varied={key: value}), "dual", colour, f"{name} {shown(value)}", smooth=1)
    left.set(title=f"{model}: λ", xlabel="step", ylim=(0, None))
    left.legend(fontsize=8)
    for series, colour in (("assist", COLOURS[0]), ("joint", COLOURS[1]), ("kept", COLOURS[2])):
        points = [(at, findings.runs(model, varied={key: value}).mean(end_of(series))) for at, value in enumerate(values)]
        _points(right, points, colour, series)
    right.set_xticks(range(len(values)), [shown(value) for value in values])
    _target(right, next(iter(findings.spec.phases.values()))[-1].target_rate)
    right.set(title=f"mean of the last {END_STEPS} steps (T = 1)", xlabel=name, ylim=(0, 1))
    right.legend(fontsize=8)


def _rates(figure: Any, findings: ExperimentFindings) -> None:
    """Left the rate while learning towards each τ, right accuracy against τ."""
    left, right = figure.subplots(1, 2)
    for (name, phases), colour in zip(findings.spec.phases.items(), COLOURS, strict=False):
        left.axhline(phases[-1].target_rate, color=colour, linestyle=":", linewidth=1.0)
        for model, style in zip(findings.spec.models, ("-", "--"), strict=False):
            label = f"τ = {phases[-1].target_rate:g}" if style == "-" else ""
            _lines(left, findings.runs(model, phases=name), "assist", colour, label, smooth=SMOOTH_STEPS, style=style)
    lines = " / ".join(f"{model} {word}" for model, word in zip(findings.spec.models, ("solid", "dashed"), strict=False))
    left.set(title=f"assist rate, mean of {SMOOTH_STEPS} steps", xlabel=f"step ({lines})", ylim=(0, 1))
    left.legend(fontsize=8)
    for model, style in zip(findings.spec.models, ("-", "--"), strict=False):
        for series, colour in (("joint", COLOURS[1]), ("kept", COLOURS[2])):
            points = [
                (phases[-1].target_rate, findings.runs(model, phases=name).mean(end_of(series)))
                for name, phases in findings.spec.phases.items()
            ]
            _points(right, points, colour, f"{series}, {model}", style)
    right.set(title=f"accuracy, mean of the last {END_STEPS} steps (T = 1)", xlabel="τ", ylim=(0, 1))
    right.legend(fontsize=8)


def _curves(figure: Any, findings: ExperimentFindings) -> None:
    """Joint accuracy at every rate, each adapter frozen, with the methods' own decisions as points."""
    figure.set_size_inches(9, 4.4)
    axes = figure.subplots(1, len(findings.spec.models), squeeze=False, sharey=True)[0]
    for axis, model in zip(axes, findings.spec.models, strict=True):
        for row in rows_in(findings.spec, HELD):
            if row is not BARE_RANDOM:
                _curve(axis, findings, model, row, _METHOD_COLOURS[row.label])
        bounds = [_mean_over(findings, model, DA_GRPO, partial(oracle, share=at)) for at in _RATES]
        known = [(at, bound) for at, bound in zip(_RATES, bounds, strict=True) if bound is not None]
        axis.plot([100 * at for at, _ in known], [100 * bound for _, bound in known], color=GREY, linestyle="--", linewidth=1.2,
                  label="oracle over DA-GRPO")  # fmt: skip
        axis.set(title=model, xlabel="share of questions sent to the cloud (%)")
    axes[0].set_ylabel("joint accuracy (%), mean of families")
    _legend(figure, axes[0])


def _curve(axis: Any, findings: ExperimentFindings, model: str, row: Contestant, colour: str) -> None:
    points = [_mean_rule(findings, model, row, row.held_to(at)) for at in _RATES]
    known = [point for point in points if point is not None]
    if not known:
        return
    xs, ys = zip(*known, strict=True)
    style = {"chance": ":", "router": "-.", "doubt": "--"}.get(row.ranked_by, "-" if row in PAPER else "--")
    axis.plot(xs, ys, color=colour, linewidth=1.5, linestyle=style, label=row.label)
    if row in PAPER and (point := _mean_rule(findings, model, row, row.rule)) is not None:
        axis.plot([point[0]], [point[1]], color=colour, marker="o", markersize=6, linestyle="")


def _mean_rule(findings: ExperimentFindings, model: str, row: Contestant, rule: Rule) -> tuple[float, float] | None:
    asked = _mean_over(findings, model, row, lambda evaluation: value_of(evaluation, rule, rate))
    right = _mean_over(findings, model, row, lambda evaluation: value_of(evaluation, rule, accuracy))
    return None if asked is None or right is None else (100 * asked, 100 * right)


def _mean_over(findings: ExperimentFindings, model: str, row: Contestant, value: Callable[[Evaluation], float]) -> float | None:
    """Mean of a value over families, and over the seeds that have all of them, from the evaluation after their group's phase."""
    evaluations = by_common_seed(Adapters(findings, model, row).parts(FIRST))
    means = [sum(map(value, found)) / len(found) for found in evaluations]
    return sum(means) / len(means) if means else None


def _training(figure: Any, findings: ExperimentFindings) -> None:
    """λ and the rate of the methods that ask, a row for each order of the phases."""
    (model,), orders = findings.spec.models[:1], findings.spec.phases
    figure.set_size_inches(9, 2.6 * len(orders) + 0.6)
    axes = figure.subplots(len(orders), 2, squeeze=False, sharex=True)
    for (left, right), (order, phases) in zip(axes, orders.items(), strict=True):
        for row in rows_in(findings.spec, ASKING):
            runs = findings.runs(model, row.runs_of, order)
            if row in (PAPERS_RULE, SAMPLED, DA_GRPO):
                _lines(left, runs, "dual", _METHOD_COLOURS[row.label], "", smooth=1)
            _lines(right, runs, "assist", _METHOD_COLOURS[row.label], row.label, smooth=SMOOTH_STEPS // 2)
        learned = " then ".join(short_name(phase.source) for phase in phases)
        left.set(title=f"λ, {learned}", ylim=(0, None))
        _target(right, phases[-1].target_rate)
        right.set(title=f"assist rate, mean of {SMOOTH_STEPS // 2} steps", ylim=(0, 1))
    for axis in axes[-1]:
        axis.set_xlabel("step")
    _legend(figure, axes[0][1])


def _forgetting(figure: Any, findings: ExperimentFindings) -> None:
    """The forgetting rate of each method and family, joint accuracy."""
    families = families_of(findings.spec)
    axes = figure.subplots(1, len(findings.spec.models), squeeze=False, sharey=True)[0]
    for axis, model in zip(axes, findings.spec.models, strict=True):
        for number, row in enumerate(rows_in(findings.spec, PAPER)):
            its = Adapters(findings, model, row)
            found = [pooled(forgetting(accuracy), *([its.part(one, phase)] for phase in (FIRST, SECOND))) for one in families]
            at = [place + 0.1 * (number - 3.5) for place in range(len(families))]
            points = list(zip(at, found, strict=True))
            _points(axis, points, _METHOD_COLOURS[row.label], row.label, "", scale=100)
        axis.axhline(0.0, color=GREY, linewidth=0.8)
        axis.set_ylim(-_MOST_FORGOTTEN, _MOST_FORGOTTEN)
        axis.set_xticks(range(len(families)), [family.name for family in families])
        axis.set_title(model)
    axes[0].set_ylabel("forgetting rate of joint accuracy (%)")
    _legend(figure, axes[0])


def _over_steps(figure: Any, findings: ExperimentFindings) -> None:
    """Forced local accuracy on every source while learning: a row for each SLM, a panel for each list of phases."""
    models, names = findings.spec.models, list(findings.spec.phases)
    figure.set_size_inches(9, 2.8 * len(models) + 0.6)
    axes = figure.subplots(len(models), len(names), squeeze=False, sharex=True, sharey=True)
    for row, model in zip(axes, models, strict=True):
        for axis, name in zip(row, names, strict=True):
            learned = " then ".join(phase.source for phase in findings.spec.phases[name])
            for source, colour in zip(findings.spec.evaluate.sources, COLOURS, strict=False):
                points = forced_over_steps(findings, model, name, source)
                label = short_name(source)
                axis.plot([step for step, _ in points], [100 * right for _, right in points], color=colour, marker="o",
                          markersize=3, linewidth=1.3, label=label)  # fmt: skip
            axis.set(title=f"{model} learns {learned}", ylim=(0, 100))
    for axis in axes[-1]:
        axis.set_xlabel("step")
    for row in axes:
        row[0].set_ylabel("forced local accuracy (%)")
    _legend(figure, axes[0][0])


def _lines(axis: Any, runs: Runs, series: str, colour: str, label: str, *, smooth: int, style: str = "-") -> None:
    """One thin line for each seed; the first one has the label."""
    for number, result in enumerate(runs.results):
        values = list(_smoothed(result.series[series], smooth))
        steps = range(smooth, smooth + len(values))
        axis.plot(steps, values, color=colour, linewidth=1.1, alpha=0.85, linestyle=style, label="" if number else label)


def _smoothed(values: Sequence[float], steps: int) -> Iterator[float]:
    for end in range(steps, len(values) + 1):
        yield sum(values[end - steps : end]) / steps


def _points(
    axis: Any, points: Sequence[tuple[float, Estimate | None]], colour: str, label: str, style: str = "-", *, scale: int = 1
) -> None:
    """Means with their intervals, where there are any."""
    known = [(at, one) for at, one in points if one is not None]
    if known:
        axis.errorbar(
            [at for at, _ in known], [scale * one.mean for _, one in known], yerr=[scale * (one.half or 0.0) for _, one in known],
            color=colour, linestyle=style, marker="o", markersize=4, capsize=2, linewidth=1.2, label=label,
        )  # fmt: skip


def _target(axis: Any, target: float) -> None:
    axis.axhline(target, color=GREY, linestyle="--", linewidth=1.0)


def _legend(figure: Any, axis: Any) -> None:
    handles, labels = axis.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)


_PAINT: dict[str, Paint] = {
    "lambda": _lambda,
    "schedules": _schedules,
    "sensitivity": _sensitivity,
    "rates": _rates,
    "curves": _curves,
    "forgetting": _forgetting,
    "training": _training,
    "over-steps": _over_steps,
}
