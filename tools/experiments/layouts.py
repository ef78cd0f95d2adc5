"""The tables of every experiment except the main one, by the layout named in its specification.

The end of a phase is its last 50 steps. A level of a schedule is held where the mean rate over them is within ±0.05 of τ, for each seed
separately; it is back within 40 steps where the mean of the following twenty is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tools.experiments.chosen import LAST_STEPS, last_rate
from tools.experiments.contestants import TARGET
from tools.experiments.findings import EvaluatedPart, ExperimentFindings, Runs, by_common_seed, pooled
from tools.experiments.measures import (
    Rule,
    Statistic,
    accuracy,
    difference,
    estimated,
    kept_accuracy,
    never,
    own_decision,
    rate,
    side_by_side,
    tally,
    tally_at_the_rate_of,
)
from tools.experiments.result import Result
from tools.experiments.spec import short_name
from tools.experiments.stats import Estimate, over_seeds
from tools.experiments.tables import MISSING, TextTable, at_share, or_missing, percent, plain, shown, signed, table_of

END_STEPS = 50
BAND = 0.05
BACK_AFTER, BACK_STEPS = 40, 20
SMOOTH_STEPS = 20
Columns = Mapping[str, Callable[[Runs], str]]


# -- series of steps ---------------------------------------------------------------------------------------------------------------------


def phase_values(result: Result, name: str, phase: int) -> list[Any]:
    """The values of a series in one phase, counted from 0."""
    begin = sum(one.steps for one in result.cell.phases[:phase])
    return result.series[name][begin : begin + result.cell.phases[phase].steps]


def end_mean(result: Result, name: str, phase: int = -1) -> float:
    """Mean over the end of a phase; local accuracy weights each step by its local answers."""
    number = phase % len(result.cell.phases)
    values: list[float | None] = phase_values(result, name, number)[-END_STEPS:]
    if name != "kept":
        return sum(value or 0.0 for value in values) / len(values)
    weights: list[float] = [1.0 - asked for asked in phase_values(result, "assist", number)[-END_STEPS:]]
    known = [(value, weight) for value, weight in zip(values, weights, strict=True) if value is not None]
    return sum(value * weight for value, weight in known) / max(1e-12, sum(weight for _, weight in known))


def end_of(series: str) -> Callable[[Result], float]:
    """The mean of a series over the end of the last phase."""
    return lambda result: end_mean(result, series)


def half_mean(result: Result, name: str) -> float:
    """Mean of a series over the later half of a run."""
    values = result.series[name][len(result.series[name]) // 2 :]
    return float(sum(values) / len(values))


def spread(result: Result) -> float:
    """Standard deviation of λ over the end: how much it oscillates."""
    values = result.series["dual"][-END_STEPS:]
    centre = sum(values) / len(values)
    return float((sum((value - centre) ** 2 for value in values) / max(1, len(values) - 1)) ** 0.5)


def rate_once_back(result: Result, phase: int) -> float:
    """Mean rate of the twenty steps after the first forty of a phase."""
    window = phase_values(result, "assist", phase)[BACK_AFTER : BACK_AFTER + BACK_STEPS]
    return float(sum(window) / max(1, len(window)))


def settled_after(result: Result, phase: int) -> int | None:
    """The first step of a phase from which on the mean of 20 steps stays within the band; None: it never does."""
    values, target = phase_values(result, "assist", phase), result.cell.phases[phase].target_rate
    ends = range(SMOOTH_STEPS, len(values) + 1)
    inside = [abs(sum(values[end - SMOOTH_STEPS : end]) / SMOOTH_STEPS - target) <= BAND for end in ends]
    outside = [index for index, is_in in enumerate(inside) if not is_in]
    first = outside[-1] + 1 if outside else 0
    return first + SMOOTH_STEPS if first < len(inside) else None


# -- layouts that differ in what their rows are ----------------------------------------------------------------------------------------


def _number(value: Callable[[Result], float]) -> Callable[[Runs], str]:
    return lambda runs: or_missing(runs.mean(value), plain)


def _dual(value: Callable[[Result], float]) -> Callable[[Runs], str]:
    """Of a method that has a price; the others' λ moves nothing."""
    return lambda runs: "-" if any(one.cell.method != "da-grpo" for one in runs.results) else or_missing(runs.mean(value), plain)


def _held_out(rule: Rule, statistic: Statistic, *, kept: bool = False, rated: bool = True) -> Callable[[Runs], str]:
    """Accuracy over all held-out items that were evaluated after the last phase."""

    def cell(runs: Runs) -> str:
        cell = runs.results[0].cell if runs.results else None
        if cell is not None and not cell.evaluate.items:
            return "-"
        parts = [EvaluatedPart(runs, source, len(cell.phases), rule) for source in cell.evaluate.sources] if cell else []
        found = pooled(statistic, parts)
        return at_share(found, pooled(rate, parts), kept=kept) if rated else or_missing(found)

    return cell


_SEEDS: Columns = {"seeds": lambda runs: runs.seeds}
_TRAINING_END: Columns = {
    "end rate": _number(end_of("assist")),
    "end λ": _dual(end_of("dual")),
    "λ's deviation": _dual(spread),
    "end joint (T = 1)": _number(end_of("joint")),
}
_END: Columns = {
    **_SEEDS,
    **_TRAINING_END,
    "held-out joint, %": _held_out(own_decision, accuracy),
    "held-out kept, % @ kept": _held_out(own_decision, kept_accuracy, kept=True),
    "held-out forced local, %": _held_out(never, accuracy, rated=False),
}
_END_NOTE = f"End: mean over the last {END_STEPS} steps of training at T = 1; ± is a 95 % interval over seeds (held out: seeds and items)."


def methods_tables(findings: ExperimentFindings) -> list[TextTable]:
    """Every method, phase order and varied value of an experiment side by side, for experiments without their own layout."""
    places = dict.fromkeys((one.cell.model, one.method, one.phases, tuple(one.varied.items())) for one in findings.grid.placed)
    rows = [
        (
            (model, method, phases, ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in varied) or "-"),
            findings.runs(model, method, phases, dict(varied)),
        )
        for model, method, phases, varied in places
    ]
    names = ("SLM", "method", "phases", "varied")
    return [table_of(findings.spec.about.rstrip("."), names, rows, _END, _END_NOTE)]


def sensitivity_tables(findings: ExperimentFindings) -> list[TextTable]:
    """The results for each value of the varied setting."""
    return [
        table_of(
            f"Sensitivity to {key}",
            ("SLM", key),
            [((model, shown(one)), findings.runs(model, varied={key: one})) for model in findings.spec.models for one in values],
            _END,
            _END_NOTE,
        )
        for key, values in findings.spec.vary.items()
    ]


def lambda_tables(findings: ExperimentFindings) -> list[TextTable]:
    """The final λ for each initial value, and whether the SLMs differ."""
    key, models = "learning.control.dual_init", findings.spec.models
    runs = {model: {value: findings.runs(model, varied={key: value}) for value in findings.spec.vary[key]} for model in models}
    columns: Columns = {
        **_SEEDS,
        "λ, second half": _number(lambda result: half_mean(result, "dual")),
        "rate, second half": _number(lambda result: half_mean(result, "assist")),
        **_TRAINING_END,
    }
    rows = [((model, shown(value)), one) for model in models for value, one in runs[model].items()]
    note = "Second half: mean over the later half of all steps, over which the swings of λ even out."
    title = f"λ from several initial values at τ = {TARGET:g}"
    whole = table_of(title, ("SLM", "λ_0"), rows, columns, _END_NOTE, note)
    header = ("SLM", "seeds", "λ, second half", "largest difference between the λ_0", "rate, second half")
    together = tuple((model, *_over_all(list(runs[model].values()))) for model in models)
    note = "Means over every λ_0, then over seeds: runs of one seed see the same prompts and are no evidence of each other."
    return [whole, TextTable("One λ for each SLM?", header, together, (note,))]


def _over_all(by_value: Sequence[Runs]) -> tuple[str, str, str, str]:
    """Seeds, λ, its largest difference and the rate over all initial values."""
    means = [found.mean for runs in by_value if (found := runs.mean(lambda result: half_mean(result, "dual"))) is not None]
    if not means:
        return (MISSING, MISSING, MISSING, MISSING)
    seeds = [{result.cell.seed: result for result in runs.results} for runs in by_value if runs.results]
    common = sorted(set.intersection(*map(set, seeds)))
    duals, rates = (
        [sum(half_mean(found[seed], name) for found in seeds) / len(seeds) for seed in common] for name in ("dual", "assist")
    )
    return (str(len(duals)), plain(over_seeds(duals)), f"{max(means) - min(means):.3f}", plain(over_seeds(rates)))


def schedule_tables(findings: ExperimentFindings) -> list[TextTable]:
    """Each level of each schedule: the rate at its end and soon after the switch, seed by seed, and whether it is held."""
    spec = findings.spec
    tables = [[*_levels(findings, model, way)] for model in spec.models for way in spec.ways]
    counts = (_count(findings, rows) for rows in tables)
    note = (
        f"Each number is one seed's. End: mean rate over the last {END_STEPS} steps of the level (training, T = 1); held: within ±{BAND:g} "
        f"of τ. Steps {BACK_AFTER + 1} to {BACK_AFTER + BACK_STEPS}: the mean over them. Settled: the step from which on every mean of "
        f"{SMOOTH_STEPS} steps stays within ±{BAND:g}."
    )
    back = f"steps {BACK_AFTER + 1} to {BACK_AFTER + BACK_STEPS}"
    header = ("SLM", "method", "schedule", "level", "τ", "seeds", "end", "held", back, "settled after", "λ at the end")
    return [TextTable("Schedules of τ", header, tuple(row for rows in tables for row in rows), (note, *counts))]


def _levels(findings: ExperimentFindings, model: str, way: str) -> Iterator[tuple[str, ...]]:
    for name, phases in findings.spec.phases.items():
        runs = findings.runs(model, method=way, phases=name)
        for number, phase in enumerate(phases):
            where = (model, way, name, str(number + 1), f"{phase.target_rate:g}", runs.seeds)
            if not runs.results:
                yield (*where, *(MISSING,) * 5)
                continue
            ends = [end_mean(result, "assist", number) for result in runs.results]
            settled = [settled_after(result, number) for result in runs.results]
            yield (
                *where,
                " ".join(f"{rate:.3f}" for rate in ends),
                " ".join("yes" if abs(rate - phase.target_rate) <= BAND else "no" for rate in ends),
                " ".join(f"{rate_once_back(result, number):.3f}" for result in runs.results),
                " ".join("never" if step is None else str(step) for step in settled),
                " ".join(f"{phase_values(result, 'dual', number)[-1]:.2f}" for result in runs.results),
            )


def _count(findings: ExperimentFindings, rows: Sequence[tuple[str, ...]]) -> str:
    """The number of held levels. Schedules with the same beginning are the same run up to there, and count once."""

    def history(row: tuple[str, ...]) -> tuple[object, ...]:
        return tuple((one.source, one.steps, one.target_rate) for one in findings.spec.phases[row[2]][: int(row[3])])

    measured_last = sorted(rows, key=lambda row: row[7] != MISSING)
    levels = list({history(row): row[7].split() for row in measured_last}.values())
    singly = [word for held in levels for word in held if word != MISSING]
    every = sum(set(held) == {"yes"} for held in levels)
    missing = sum(held == [MISSING] for held in levels)
    alike = "" if len(levels) == len(rows) else " (a level that two schedules begin with counts once)"
    left = f"; {missing} not measured yet" if missing else ""
    return (
        f"{rows[0][0]}, {rows[0][1]}: {every} of {len(levels)} levels are held in every seed, {singly.count('yes')} of {len(singly)} "
        f"one by one{alike}{left}."
    )


def assist_tables(findings: ExperimentFindings, chosen: Mapping[str, Any]) -> list[TextTable]:
    """The realised rate of each assistance reward; a star marks the chosen ones."""
    ((key, values),) = findings.spec.vary.items()

    def cell(found: Estimate | None, is_chosen: bool, target: float) -> str:
        if found is None or not is_chosen:
            return or_missing(found, plain)
        misses = f" ({found.mean - target:+.2f})" if abs(found.mean - target) > BAND else ""
        return f"{plain(found)} *{misses}"

    rows = []
    for model in findings.spec.models:
        for method in findings.spec.ways:
            for name, phases in findings.spec.phases.items():
                mine = chosen.get(model, {}).get(method, {}).get(phases[-1].source)
                found = (findings.runs(model, method, name, {key: value}).mean(last_rate) for value in values)
                cells = (cell(one, value == mine, phases[-1].target_rate) for one, value in zip(found, values, strict=True))
                rows.append((model, method, phases[-1].source, *cells))
    title = f"Realised rate over the last {LAST_STEPS} steps by assistance reward (chosen: *)"
    note = f"A choice that misses τ by more than {BAND:g} says by how much."
    return [TextTable(title, ("SLM", "method", "learns", *map(shown, values)), tuple(rows), (note,))]


# -- other target rates: training again for each, or turning the dial of one adapter ---------------------------------------------------


def rates_tables(findings: ExperimentFindings) -> list[TextTable]:
    """The results at each target rate, and the same rate with the dial on the adapter of the usual τ where there is one."""
    spec = findings.spec
    rows = [
        ((model, f"{phases[-1].target_rate:g}"), findings.runs(model, phases=name))
        for model in spec.models
        for name, phases in spec.phases.items()
    ]
    usual = next((name for name, phases in spec.phases.items() if phases[-1].target_rate == TARGET), None)
    dialled = [] if usual is None or len(spec.phases) == 1 else [_dial_table(findings, usual)]
    return [table_of("Target rates", ("SLM", "τ"), rows, _END, _END_NOTE), *dialled]


def _dial_table(findings: ExperimentFindings, usual: str) -> TextTable:
    """The dial is the frozen adapter of the usual τ, whose items with the highest log-odds of asking go to the cloud until the retrained
    adapter's share is reached, family by family.
    """
    rows = []
    for model in findings.spec.models:
        for source in findings.spec.evaluate.sources:
            for name, phases in findings.spec.phases.items():
                if name != usual:
                    retrained, dialled = findings.runs(model, phases=name), findings.runs(model, phases=usual)
                    parts = (EvaluatedPart(retrained, source, len(phases)), EvaluatedPart(dialled, source, len(phases)))
                    where = (model, short_name(source), f"{phases[-1].target_rate:g}", retrained.seeds)
                    rows.append((*where, *_retrained_and_dialled(*parts)))
    note = (
        "Joint accuracy @ the share that the cloud answers, held out, T = 0; the dial is on the adapter of "
        f"τ = {TARGET:g}. A star marks an interval over several seeds that is without 0."
    )
    header = ("SLM", "family", "τ", "seeds", "retrained for τ", "the dial at the same rate", "retrained minus dial")
    return TextTable("Retraining for a rate beside the dial on one adapter", header, tuple(rows), (note,))


def _retrained_and_dialled(retrained: EvaluatedPart, dialled: EvaluatedPart) -> tuple[str, str, str]:
    pairs_S = by_common_seed([retrained, dialled])
    own_S = [tally(one, own_decision, grouped=True) for one, _ in pairs_S]
    turned_S = [tally_at_the_rate_of(own, other) for own, (_, other) in zip(own_S, pairs_S, strict=True)]
    lead = estimated([side_by_side(*both) for both in zip(own_S, turned_S, strict=True)], difference(accuracy))
    return (
        at_share(pooled(accuracy, [retrained]), pooled(rate, [retrained])),
        at_share(estimated(turned_S, accuracy), estimated(turned_S, rate)),
        or_missing(lead, signed),
    )


def over_steps_tables(findings: ExperimentFindings) -> list[TextTable]:
    """Forced local accuracy on each source before learning and at each evaluation, mean over seeds."""
    spec = findings.spec
    steps = sorted(
        {evaluation["step"] for result in findings.results.values() if result.cell.phases for evaluation in result.evaluations()}
    )
    rows = []
    for model in spec.models:
        for name in spec.phases:
            for source in spec.evaluate.sources:
                curve = dict(forced_over_steps(findings, model, name, source))
                at = (percent(curve[step]) if step in curve else MISSING for step in (0, *steps))
                rows.append((model, name, short_name(source), findings.runs(model, phases=name).seeds, *at))
    header = ("SLM", "learns", "asked", "seeds", *(f"step {step}" for step in (0, *steps)))
    return [TextTable("Forced local accuracy while learning, in percent, T = 0", header, tuple(rows))]


def forced_over_steps(findings: ExperimentFindings, model: str, phases: str, source: str) -> list[tuple[int, float]]:
    """(steps done, forced local accuracy on a source, mean over seeds), beginning with the model before it learns."""
    by_step: dict[int, list[float]] = {}
    for result in (*findings.bare(model).results, *findings.runs(model, phases=phases).results):
        for evaluation in result.evaluations():
            if evaluation["source"] == source:
                right = [share.right for share in never(evaluation)]
                by_step.setdefault(evaluation["step"], []).append(sum(right) / len(right))
    return [(step, sum(found) / len(found)) for step, found in sorted(by_step.items())]


LAYOUTS: Mapping[str, Callable[[ExperimentFindings], list[TextTable]]] = {
    "": methods_tables,
    "methods": methods_tables,
    "lambda": lambda_tables,
    "schedules": schedule_tables,
    "sensitivity": sensitivity_tables,
    "rates": rates_tables,
    "over-steps": over_steps_tables,
}
"""By the name that a specification has for its table; the main experiment's and the grid search's need more than findings."""
