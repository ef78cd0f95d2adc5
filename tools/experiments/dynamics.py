"""How λ and the rate move while learning: convergence, schedules, sensitivity, other target rates, the grid of assistance rewards. Knows
series of steps; knows nothing of files.

The end of a phase is its last 50 steps. A level of a schedule is held where the mean rate over them lies within ±0.05 of τ, in each seed
by itself; it is back within 40 steps where the mean of the twenty after them does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tools.experiments.chosen import LAST_STEPS, last_rate
from tools.experiments.contestants import TARGET
from tools.experiments.findings import Findings, Part, Runs, pooled
from tools.experiments.measures import accuracy, kept_accuracy, never, own_decision, rate
from tools.experiments.result import Result
from tools.experiments.spec import Value
from tools.experiments.stats import over_seeds
from tools.experiments.tables import MISSING, Table, percent, plain, shown, with_half

END_STEPS = 50
BAND = 0.05
BACK_AFTER, BACK_STEPS = 40, 20
SMOOTH_STEPS = 20
Columns = Sequence[tuple[str, Callable[[Runs], str]]]


def phase_values(result: Result, name: str, phase: int) -> list[Any]:
    """The values of a series in one phase, counted from 0."""
    begin = sum(one.steps for one in result.cell.phases[:phase])
    return result.series[name][begin : begin + result.cell.phases[phase].steps]


def end_mean(result: Result, name: str, phase: int = -1) -> float:
    """Mean over the end of a phase; kept accuracy weighs each step by what was kept."""
    number = phase % len(result.cell.phases)
    values: list[float | None] = phase_values(result, name, number)[-END_STEPS:]
    if name != "kept":
        return sum(value or 0.0 for value in values) / len(values)
    weights: list[float] = [1.0 - asked for asked in phase_values(result, "assist", number)[-END_STEPS:]]
    known = [(value, weight) for value, weight in zip(values, weights, strict=True) if value is not None]
    return sum(value * weight for value, weight in known) / max(1e-12, sum(weight for _, weight in known))


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


def _dual(value: Callable[[Result], float]) -> Callable[[Runs], str]:
    """Of a method that has a price; the others' λ moves nothing."""
    told = _number(value)
    return lambda runs: "-" if any(result.cell.method != "da-grpo" for result in runs.results) else told(runs)


def _number(value: Callable[[Result], float], digits: int = 3) -> Callable[[Runs], str]:
    def told(runs: Runs) -> str:
        found = runs.mean(value)
        return MISSING if found is None else plain(found, digits)

    return told


def _held_out(rule: Any, statistic: Any, *, kept: bool = False, rated: bool = True) -> Callable[[Runs], str]:
    """Accuracy over all held-out items that were looked at after the last phase."""

    def told(runs: Runs) -> str:
        cell = runs.results[0].cell if runs.results else None
        if cell is not None and not cell.evaluate.items:
            return "-"
        parts = [Part(runs, source, len(cell.phases)) for source in cell.evaluate.sources] if cell else []
        found, asked = pooled(parts, rule, statistic), pooled(parts, rule, rate)
        if found is None or asked is None:
            return MISSING
        share = percent(1 - asked.mean if kept else asked.mean, 0)
        return f"{with_half(found)} @ {share} %" if rated else with_half(found)

    return told


_SEEDS = ("seeds", lambda runs: runs.told)
_END: Columns = (
    _SEEDS,
    ("end rate", _number(lambda result: end_mean(result, "assist"))),
    ("end λ", _dual(lambda result: end_mean(result, "dual"))),
    ("λ's deviation", _dual(spread)),
    ("end joint (T = 1)", _number(lambda result: end_mean(result, "joint"))),
    ("held-out joint, %", _held_out(own_decision, accuracy)),
    ("held-out kept, % @ kept", _held_out(own_decision, kept_accuracy, kept=True)),
    ("held-out forced local, %", _held_out(never, accuracy, rated=False)),
)
_END_NOTE = f"End: mean over the last {END_STEPS} steps of training at T = 1; ± is a 95 % interval over seeds (held out: seeds and items)."


_LAMBDA: Columns = (
    _SEEDS,
    ("λ, second half", _number(lambda result: half_mean(result, "dual"))),
    ("rate, second half", _number(lambda result: half_mean(result, "assist"))),
    *(column for column in _END[1:] if not column[0].startswith("held-out")),
)
_HALF_NOTE = "Second half: mean over the later half of all steps, over which the swings of λ even out."


def lambda_table(findings: Findings) -> list[Table]:
    """Where λ comes to from each initial value, and whether the SLMs differ."""
    values = findings.spec.vary["learning.dual_init"]
    rows = [
        (model, shown(value), *(told(runs) for _, told in _LAMBDA))
        for model in findings.spec.models
        for value in values
        if (runs := findings.runs(model, varied={"learning.dual_init": value})) is not None
    ]
    header = ("SLM", "λ_0", *(name for name, _ in _LAMBDA))
    whole = Table(f"λ from several initial values at τ = {TARGET:g}", header, tuple(rows), (_END_NOTE, _HALF_NOTE))
    together = [(model, *_over_all(findings, model, values)) for model in findings.spec.models]
    header = ("SLM", "seeds", "λ, second half", "largest difference between the λ_0", "rate, second half")
    note = "Means over every λ_0, then over seeds: runs of one seed see the same prompts and are no evidence of each other."
    return [whole, Table("One λ for each SLM?", header, tuple(together), (note,))]


def _over_all(findings: Findings, model: str, values: Sequence[Value]) -> tuple[str, str, str, str]:
    by_value = [findings.runs(model, varied={"learning.dual_init": value}) for value in values]
    means = [found.mean for runs in by_value if (found := runs.mean(lambda result: half_mean(result, "dual"))) is not None]
    if not means:
        return (MISSING, MISSING, MISSING, MISSING)
    duals, rates = (_by_seed(by_value, name) for name in ("dual", "assist"))
    return (str(len(duals)), plain(over_seeds(duals)), f"{max(means) - min(means):.3f}", plain(over_seeds(rates)))


def _by_seed(by_value: Sequence[Runs], name: str) -> list[float]:
    """For each seed that every value has been run with the mean over the values of the later half of a series."""
    seeds = [{result.cell.seed: result for result in runs.results} for runs in by_value if runs.results]
    common = sorted(set.intersection(*map(set, seeds)))
    return [sum(half_mean(found[seed], name) for found in seeds) / len(seeds) for seed in common]


def schedule_table(findings: Findings) -> list[Table]:
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
    return [Table("Schedules of τ", header, tuple(row for rows in tables for row in rows), (note, *counts))]


def _levels(findings: Findings, model: str, way: str) -> Iterator[tuple[str, ...]]:
    for name, phases in findings.spec.phases.items():
        runs = findings.runs(model, method=way, phases=name)
        for number, phase in enumerate(phases):
            where = (model, way, name, str(number + 1), f"{phase.target_rate:g}", runs.told)
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


def _count(findings: Findings, rows: Sequence[tuple[str, ...]]) -> str:
    """How many levels are held. Schedules that begin alike are the same run as far as that, and count once."""
    measured_last = sorted(rows, key=lambda row: row[7] != MISSING)
    levels = list({_history(findings, row): row[7].split() for row in measured_last}.values())
    singly = [word for held in levels for word in held if word != MISSING]
    every = sum(set(held) == {"yes"} for held in levels)
    missing = sum(held == [MISSING] for held in levels)
    alike = "" if len(levels) == len(rows) else " (a level that two schedules begin with counts once)"
    left = f"; {missing} not measured yet" if missing else ""
    return (
        f"{rows[0][0]}, {rows[0][1]}: {every} of {len(levels)} levels are held in every seed, {singly.count('yes')} of {len(singly)} "
        f"one by one{alike}{left}."
    )


def _history(findings: Findings, row: tuple[str, ...]) -> tuple[object, ...]:
    phases = findings.spec.phases[row[2]][: int(row[3])]
    return tuple((phase.source, phase.steps, phase.target_rate) for phase in phases)


def sensitivity_table(findings: Findings) -> list[Table]:
    """What each value of the setting that is varied comes to."""
    return [_varied_table(findings, key) for key in findings.spec.vary]


def _varied_table(findings: Findings, key: str) -> Table:
    rows = [
        (model, shown(value), *(told(findings.runs(model, varied={key: value})) for _, told in _END))
        for model in findings.spec.models
        for value in findings.spec.vary[key]
    ]
    return Table(f"Sensitivity to {key}", ("SLM", key, *(name for name, _ in _END)), tuple(rows), (_END_NOTE,))


def rates_table(findings: Findings) -> list[Table]:
    """What each target rate comes to."""
    rows = [
        (model, f"{phases[-1].target_rate:g}", *(told(findings.runs(model, phases=name)) for _, told in _END))
        for model in findings.spec.models
        for name, phases in findings.spec.phases.items()
    ]
    return [Table("Target rates", ("SLM", "τ", *(name for name, _ in _END)), tuple(rows), (_END_NOTE,))]


def assist_table(findings: Findings, chosen: Mapping[str, Any]) -> list[Table]:
    """The realised rate of each assistance reward; a star marks what is chosen."""
    ((key, values),) = findings.spec.vary.items()
    rows = []
    for model in findings.spec.models:
        for method in findings.spec.ways:
            for name, phases in findings.spec.phases.items():
                mine = chosen.get(model, {}).get(method, {}).get(phases[-1].source)
                cells = [
                    _chosen_cell(findings.runs(model, method, name, {key: value}), value == mine, phases[-1].target_rate)
                    for value in values
                ]
                rows.append((model, method, phases[-1].source, *cells))
    title = f"Realised rate over the last {LAST_STEPS} steps by assistance reward (chosen: *)"
    note = f"A choice that misses τ by more than {BAND:g} says by how much."
    return [Table(title, ("SLM", "method", "learns", *map(shown, values)), tuple(rows), (note,))]


def _chosen_cell(runs: Runs, is_chosen: bool, target: float) -> str:
    found = runs.mean(last_rate)
    if found is None:
        return MISSING
    misses = f" ({found.mean - target:+.2f})" if is_chosen and abs(found.mean - target) > BAND else ""
    return plain(found) + (f" *{misses}" if is_chosen else "")


def methods_table(findings: Findings) -> list[Table]:
    """Every method, phases and varied value of an experiment, side by side: for what has no layout of its own."""
    placed = {(one.cell.model, one.method, one.phases, tuple(one.varied.items())): one for one in findings.grid.placed}
    rows = []
    for model, method, phases, varied in placed:
        runs = findings.runs(model, method, phases, dict(varied))
        set_to = ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in varied)
        rows.append((model, method, phases, set_to or "-", *(told(runs) for _, told in _END)))
    header = ("SLM", "method", "phases", "varied", *(name for name, _ in _END))
    return [Table(findings.spec.about.rstrip("."), header, tuple(rows), (_END_NOTE,))]
