"""The tables of a main experiment: the paper's Tables 1 and 2 on other tasks, and the comparison that the paper leaves out.

Joint accuracy grows with the share sent to the cloud, so a method that asks slightly more appears slightly better. So every adapter is
also compared at exactly the same share, where only the choice of items counts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import mean
from typing import Literal

from edge.dagrpo.hyperparameters import GVPO_UPDATES
from tools.experiments.contestants import (
    ASKING,
    BARE,
    BARE_DIAL,
    DA_GRPO,
    EDGE_ONLY,
    EDGE_ONLY_DIAL,
    FINE_TUNING,
    FIRST,
    HELD,
    METHODS,
    MODELS,
    NAMES,
    PAPER,
    SECOND,
    STANDS_FOR,
    TARGET,
    Adapters,
    Contestant,
    Published,
    TestedFamily,
    families_of,
    rivals_in,
    rows_in,
    tables_of_families,
)
from tools.experiments.findings import EvaluatedPart, ExperimentFindings, by_common_seed, common_seeds_of, pooled, seeds_of
from tools.experiments.layouts import BAND, END_STEPS, end_mean
from tools.experiments.measures import (
    Evaluation,
    Rule,
    Statistic,
    accuracy,
    as_one,
    cloud_accuracy,
    difference,
    estimated,
    estimated_of,
    forgetting,
    kept_accuracy,
    never,
    oracle,
    ranking,
    rate,
    side_by_side,
    tally,
    together,
    value_of,
)
from tools.experiments.result import Result
from tools.experiments.spec import Spec, model_name
from tools.experiments.stats import Estimate, over_seeds
from tools.experiments.tables import (
    MISSING,
    TextTable,
    at_share,
    or_missing,
    percent,
    plain,
    seeds_text,
    signed,
    table_of,
    with_half,
)

EQUAL_RATES = (0.1, 0.2, 0.3, 0.5)
_ABOUT = 0.01
Wanted = float | Literal["cloud"]
"""An accuracy, or that of the cloud LLM alone, about."""
_SHARE = percent(TARGET, 0)
_PHASES = {FIRST: "during", SECOND: "post"}
_Places = Mapping[str, tuple[Sequence[TestedFamily], int]]
"""Columns: which families, after how many phases."""
_STAR = "A star marks an interval over several seeds that is without 0."
_ITEMS = "Where there is one seed, and before learning, ± is of items only."
_HOW_RATES_ARE_SET = (
    "Each adapter is frozen and its rate is set after the fact, in each family: first what the model asks for by itself, then what has "
    "the highest help log-odds goes to the cloud (router: the highest predicted failure; naive: random questions); the oracle has the "
    "same share of each family. Items without a decision stay, so a rate may not be reached. The dial of a model before learning, and of "
    "one that only learned to answer, ranks by the same log-odds, which nobody has trained."
)


def _named(spec: Spec) -> str:
    """`all four families`."""
    return {2: "both families", 4: "all four families"}.get(count := len(families_of(spec)), f"all {count} families")


def _each(spec: Spec) -> _Places:
    return {f"{family.name} {when}": ((family,), phase) for family in families_of(spec) for phase, when in _PHASES.items()}


def _all(spec: Spec) -> _Places:
    return {when: (families_of(spec), phase) for phase, when in _PHASES.items()}


def main_tables(findings: ExperimentFindings, published: Mapping[str, Published | None]) -> dict[str, list[TextTable]]:
    """All tables of the main experiment, by the names that the report has for them. `published`: the paper's numbers by table."""
    papers = {
        name: [paper_table(findings, name, one, published.get(name)) for one in READINGS]
        for name in tables_of_families(findings.spec)
    }
    return {
        "primary": [primary(findings)],
        "summary": [summary_table(findings)],
        **papers,
        "ability": [ability_table(findings)],
        "ranking": [ranking_table(findings)],
        "equal-rates": [equal_rates(findings, phase) for phase in _PHASES],
        "hand-off": [hand_off_table(findings)],
        "differences": [differences(findings)],
        "pooled-differences": [pooled_differences(findings)],
        "forgotten": [forgotten(findings)],
        "one-threshold": [one_threshold_table(findings)],
        "kept-rates": [kept_rates_table(findings)],
        "costs": [cost_table(findings)],
    }


Column = Callable[[Adapters], str]


def _table(
    findings: ExperimentFindings,
    title: str,
    rows: Sequence[Contestant],
    columns: Mapping[str, Column],
    *notes: str,
    name: str = "method",
) -> TextTable:
    """A row for each SLM and contestant."""
    rows = rows_in(findings.spec, rows)
    models = findings.spec.models
    subjects = [((model_name(model), row.label), Adapters(findings, model, row)) for model in models for row in rows]
    return table_of(title, ("SLM", name), subjects, columns, *notes)


def _seeds(its: Adapters) -> str:
    return common_seeds_of(its.parts(FIRST))


def _learned(column: Column) -> Column:
    """A dash for the model before it learns."""
    return lambda its: column(its) if its.row.learns else "-"


# -- the paper's tables ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TableReading:
    """One way to read a table: the counted statistic, the rows, the decision rule, and the share shown with it."""

    title: str
    value: Statistic
    rows: tuple[Contestant, ...]
    rule: Callable[[Contestant], Rule]
    share: Literal["asked", "kept", ""] = "asked"
    published: bool = False


def _own(row: Contestant) -> Rule:
    return row.rule


def _held(row: Contestant) -> Rule:
    return row.held_to(TARGET)


_EQUAL = f"at the same {_SHARE} % cloud, set after the fact"
READINGS: Mapping[str, TableReading] = {
    "local_solved": TableReading(
        "local-solved (right among what is kept, @ the share that is kept)", kept_accuracy, (*PAPER, BARE), _own, "kept", True
    ),
    "joint": TableReading(
        "joint (right in the end, @ the share that the cloud answered)", accuracy, (*PAPER, BARE), _own, "asked", True
    ),
    "local_solved_equal": TableReading(f"local-solved {_EQUAL} (@ kept)", kept_accuracy, (*HELD[3:], *HELD[:3]), _held, "kept"),
    "joint_equal": TableReading(f"joint {_EQUAL}", accuracy, (*HELD[3:], *HELD[:3]), _held),
    "forced": TableReading(
        "forced local (asking made impossible; not in the paper)",
        accuracy,
        (FINE_TUNING, EDGE_ONLY, *ASKING, BARE),
        lambda row: never,
        "",
    ),
}


def paper_table(findings: ExperimentFindings, name: str, reading: str, published: Published | None) -> TextTable:
    """`table1` or `table2` in one of the READINGS, with the paper's columns where it has them."""
    families, read = tables_of_families(findings.spec)[name], READINGS[reading]
    paper = published if read.published and all(family.name in STANDS_FOR for family in families) else None

    def part(its: Adapters, family: TestedFamily, phase: int) -> EvaluatedPart:
        return its.part(family, phase, read.rule(its.row))

    def value(family: TestedFamily, phase: int) -> Column:
        return lambda its: _read(part(its, family, phase), read)

    def lost(family: TestedFamily) -> Column:
        return lambda its: or_missing(pooled(forgetting(read.value), *([part(its, family, phase)] for phase in _PHASES)))

    def quoted(paper: Published, column: str) -> Column:
        return lambda its: (paper.cell(reading, its.model, its.row.name, column) or "-") if its.row.name in METHODS else ""

    columns: dict[str, Column] = {"seeds": lambda its: seeds_of([part(its, family, FIRST) for family in families])}
    for family in families:
        columns[f"{family.name} during"] = value(family, FIRST)
        columns[f"{family.name} post"] = _learned(value(family, SECOND))
        columns[f"{family.name} forgetting"] = _learned(lost(family))
    if paper is not None:
        columns[""] = lambda its: ""
        for family in families:
            for kind in _kinds(family):
                columns[f"paper {STANDS_FOR[family.name].upper()} {kind}"] = quoted(paper, f"{STANDS_FOR[family.name]}_{kind}")
    title = f"Table {name[-1]} of the paper on {' and '.join(family.name for family in families)}: {read.title}, in percent"
    return _table(findings, title, read.rows, columns, *_notes(findings, families, quotes=paper is not None))


def _kinds(family: TestedFamily) -> tuple[str, ...]:
    """Which of the paper's columns there are for a family."""
    return ("during", "post", *(("forgetting",) if STANDS_FOR[family.name] in ("math", "taco") else ()))


def _read(part: EvaluatedPart, read: TableReading) -> str:
    found = pooled(read.value, [part])
    return at_share(found, pooled(rate, [part]), kept=read.share == "kept") if read.share else or_missing(found)


def _notes(findings: ExperimentFindings, families: Sequence[TestedFamily], *, quotes: bool) -> Iterator[str]:
    cloud = []
    for family in families:
        evaluations = [
            evaluation
            for result in findings.results.values()
            for evaluation in result.evaluations()
            if evaluation["source"] == family.source
        ]
        cloud.append(f"{family.name} {percent(cloud_accuracy(evaluations[0])) if evaluations else MISSING}")
    yield f"The cloud LLM alone: {', '.join(cloud)}."
    if any(result.cell.phases for result in findings.results.values()):
        yield _ITEMS
    if quotes:
        alike = ", ".join(f"{ours}: {theirs}" for ours, theirs in MODELS.items())
        yield f"Columns that begin with `paper` quote the published numbers for other models and tasks ({alike})."


def summary_table(findings: ExperimentFindings) -> TextTable:
    """Joint accuracy by own decision and at equal rate, during and post, and the forgetting; all families together."""

    def own(phase: int) -> Column:
        return lambda its: at_share(pooled(accuracy, its.parts(phase)), pooled(rate, its.parts(phase)))

    def held(phase: int) -> Column:
        """Edge tuning alone cannot choose whom to send: its dial can."""
        return lambda its: or_missing(pooled(accuracy, (its.of(EDGE_ONLY_DIAL) if its.row is EDGE_ONLY else its).held(phase)))

    columns = {
        "seeds": _learned(_seeds),
        "during @ cloud": own(FIRST),
        "post @ cloud": _learned(own(SECOND)),
        "forgotten": _learned(lambda its: or_missing(pooled(forgetting(accuracy), *map(its.parts, _PHASES)))),
        f"at {_SHARE} % cloud, during": held(FIRST),
        f"at {_SHARE} % cloud, post": _learned(held(SECOND)),
    }
    return _table(
        findings,
        f"Summary: joint accuracy in percent, mean of {_named(findings.spec)}",
        (BARE_DIAL, FINE_TUNING, *PAPER),
        columns,
        "During: after the phase of a family's own group; post: after the other group's (each is read in the runs that learn its own "
        "group first); forgotten: (during - post) / during. The first three by each method's own "
        f"decision @ the share that the cloud answered; the last two with exactly {_SHARE} % sent, set after the fact: by the "
        "log-odds of asking, for the routers by what they predict (naive: at random). ± is a 95 % interval over seeds and items (one "
        "seed, or none learned: items only).",
    )


# -- at equal realised rate ------------------------------------------------------------------------------------------------------------


def equal_rates(findings: ExperimentFindings, phase: int) -> TextTable:
    """Joint accuracy over all families at each rate, with the oracle's bound of the same models."""
    rows = []
    for model in findings.spec.models:
        for its in (Adapters(findings, model, row) for row in rows_in(findings.spec, HELD)):
            at = (or_missing(pooled(accuracy, its.parts(phase, its.row.held_to(share)))) for share in EQUAL_RATES)
            rows.append((model, its.row.label, common_seeds_of(its.parts(phase)), *at))
        for row in (BARE_DIAL, EDGE_ONLY_DIAL, DA_GRPO):
            parts = Adapters(findings, model, row).parts(phase)
            at = (_bound(parts, share) for share in EQUAL_RATES)
            rows.append((model, f"oracle over {row.label}", common_seeds_of(parts), *at))
    when = {FIRST: "during (after the phase of their group)", SECOND: "post (after the other group's phase)"}[phase]
    return TextTable(
        f"Joint accuracy at equal realised rate, in percent: mean of {_named(findings.spec)} {when}",
        ("SLM", "method", "seeds", *(f"@ {percent(share, 0)} %" for share in EQUAL_RATES)),
        tuple(rows),
        (_HOW_RATES_ARE_SET, _ITEMS),
    )


def hand_off_table(findings: ExperimentFindings) -> TextTable:
    """The least share of the questions that has to be sent until SLM and cloud LLM together are as accurate as wanted."""

    def needed(its: Adapters, wanted: Wanted) -> str:
        """Mean over seeds of whole percents; accuracy is the mean of the families, each with the same share sent."""
        shares = []
        for evaluations in by_common_seed(its.parts(FIRST)):

            def reached(percents: int, evaluations: Sequence[Evaluation] = evaluations) -> float:
                rule = its.row.held_to(percents / 100)
                return mean(value_of(one, rule, accuracy) for one in evaluations)

            goal = wanted if isinstance(wanted, float) else mean(map(cloud_accuracy, evaluations)) - _ABOUT
            if reached(100) < goal:
                return "not reached"
            shares.append(bisect_left(range(101), goal - 1e-9, key=reached) / 100)
        return with_half(over_seeds(shares), 0) if shares else MISSING

    columns = {f"{goal:.0%}": partial(needed, wanted=goal) for goal in (0.8, 0.9, 0.95)}
    columns["the cloud LLM's - 1"] = partial(needed, wanted="cloud")
    return _table(
        findings,
        "Hand-off: share of the questions that must be sent until the pair is right in so many percent, during, in percent",
        HELD,
        {"seeds": _seeds, **columns},
        "The accuracy is the mean of the families, each with the same share sent, set after the fact; the last column: within one point of "
        "the cloud LLM alone. ± is of seeds. Where a ranking is not monotone the share is found by halving.",
    )


def _bound(parts: list[EvaluatedPart], share: float) -> str:
    """The oracle's accuracy at this rate, mean of the families."""
    bounds = [
        over_seeds([oracle(evaluation, share) for evaluation in evaluations]).mean
        for evaluations in zip(*by_common_seed(parts), strict=True)
    ]
    return percent(sum(bounds) / len(bounds)) if len(bounds) == len(parts) else MISSING


def _lead(its: Adapters, phase: int, families: Sequence[TestedFamily] | None = None) -> Estimate | None:
    """DA-GRPO's lead over another at the same rate, by item and seed; in accuracy, not in points."""
    return pooled(difference(accuracy), its.of(DA_GRPO).held(phase, families), its.held(phase, families))


def _differences(findings: ExperimentFindings, title: str, places: _Places) -> TextTable:
    def lead(families: Sequence[TestedFamily], phase: int) -> Column:
        return lambda its: or_missing(_lead(its, phase, families), signed)

    columns: dict[str, Column] = {"seeds": lambda its: common_seeds_of([*its.of(DA_GRPO).parts(FIRST), *its.parts(FIRST)])}
    columns |= {name: lead(*place) for name, place in places.items()}
    return _table(findings, title, HELD[:-1], columns, _STAR, _ITEMS, name="against")


def differences(findings: ExperimentFindings) -> TextTable:
    """DA-GRPO against every other, family by family."""
    title = f"DA-GRPO's joint accuracy minus that of others at the same {_SHARE} % cloud, in points (same seeds, same items)"
    return _differences(findings, title, _each(findings.spec))


def pooled_differences(findings: ExperimentFindings) -> TextTable:
    """The same over all families: one number for each model, other and time."""
    title = f"{_named(findings.spec).capitalize()} together: DA-GRPO minus others at the same {_SHARE} % cloud, joint accuracy in points"
    return _differences(findings, title, _all(findings.spec))


def forgotten(findings: ExperimentFindings) -> TextTable:
    """During minus post of the same runs: the cost of the other group's phase, where a change of the rate cannot hide or imitate it."""

    def lost(families: Sequence[TestedFamily]) -> Column:
        return lambda its: or_missing(pooled(difference(accuracy), *(its.held(phase, families) for phase in _PHASES)), signed)

    columns: dict[str, Column] = {"seeds": lambda its: common_seeds_of([*its.parts(FIRST), *its.parts(SECOND)])}
    columns |= {family.name: lost([family]) for family in families_of(findings.spec)}
    columns["all"] = lost(families_of(findings.spec))
    title = f"Forgotten at equal rate: joint accuracy during minus post at the same {_SHARE} % cloud, in points"
    return _table(findings, title, [row for row in HELD if row.learns], columns, _STAR, _ITEMS)


def primary(findings: ExperimentFindings) -> TextTable:
    """DA-GRPO against the best of the others at the target rate, during, for each SLM and in the mean of all."""
    models = findings.spec.models
    best = {model: one for model in models if (one := _best_rival(findings, model)) is not None}

    def held(row: Contestant, *of: str) -> list[EvaluatedPart]:
        return [part for model in of for part in Adapters(findings, model, row).held(FIRST)]

    rows: list[tuple[str, ...]] = []
    for model in models:
        if (one := best.get(model)) is None:
            rows.append((model, MISSING, or_missing(pooled(accuracy, held(DA_GRPO, model))), MISSING, MISSING))
            continue
        accuracies = (or_missing(pooled(accuracy, held(row, model))) for row in (DA_GRPO, one))
        rows.append((model, one.label, *accuracies, or_missing(_lead(Adapters(findings, model, one), FIRST), signed)))
    # every SLM is asked the same items, which are left out together
    theirs = [part for model, row in best.items() for part in held(row, model)]
    lead = pooled(difference(accuracy), held(DA_GRPO, *models), theirs) if len(best) == len(models) else None
    rows.append(("all", "", "", "", or_missing(lead, signed)))
    return TextTable(
        f"Primary comparison: joint accuracy at the same {_SHARE} % cloud, during, mean of {_named(findings.spec)}, in percent",
        ("SLM", "best other", "DA-GRPO", "best other's", "DA-GRPO minus it"),
        tuple(rows),
        (
            "Set down before the first cell was run. The best other is, for each SLM, the one with the highest mean of: "
            f"{', '.join(row.label for row in rivals_in(findings.spec))}. ± is a 95 % interval over seeds and items, not widened for the "
            "choice of the best, which favours the others. " + _STAR,
        ),
    )


def _best_rival(findings: ExperimentFindings, model: str) -> Contestant | None:
    """The other method with the highest joint accuracy; None until all of them have at least one seed."""
    found = [(pooled(accuracy, Adapters(findings, model, row).held(FIRST)), row) for row in rivals_in(findings.spec)]
    known = [(one.mean, row) for one, row in found if one is not None]
    return max(known, key=lambda pair: pair[0])[1] if len(known) == len(found) else None


def one_threshold_table(findings: ExperimentFindings) -> TextTable:
    """Joint accuracy where one threshold for all items of an adapter sends the share, and DA-GRPO's lead there.

    With a rate for each family a method need not know which families are hard. A person's dial may have to.
    """
    families = families_of(findings.spec)
    orders = sorted({family.order for family in families})

    def parts_of(its: Adapters, phase: int) -> list[EvaluatedPart]:
        rule = its.row.held_to(TARGET)
        return [its.part(family, phase, rule, order) for order in orders for family in families]

    def of_adapters(statistic: Statistic, phase: int, *sides: Adapters) -> Estimate | None:
        """For each seed and side the adapters of both orders, each with the items of all its families as one evaluation."""
        tallies_S = []
        for evaluations in by_common_seed([part for its in sides for part in parts_of(its, phase)]):
            left = iter(evaluations)
            tallied = (
                together([tally(as_one([next(left) for _ in families]), its.row.held_to(TARGET), grouped=True) for _ in orders])
                for its in sides
            )
            tallies_S.append(side_by_side(*tallied))
        return estimated(tallies_S, statistic)

    def right(phase: int) -> Column:
        return lambda its: or_missing(of_adapters(accuracy, phase, its))

    def lead(phase: int) -> Column:
        def column(its: Adapters) -> str:
            both = (its.of(DA_GRPO), its)
            return "" if its.row is DA_GRPO else or_missing(of_adapters(difference(accuracy), phase, *both), signed)

        return column

    columns: dict[str, Column] = {
        "seeds": lambda its: common_seeds_of(parts_of(its, FIRST)),
        "after one phase": right(FIRST),
        "after both": right(SECOND),
        "DA-GRPO minus it, one phase": lead(FIRST),
        "DA-GRPO minus it, both": lead(SECOND),
    }
    return _table(
        findings,
        f"One threshold for {_named(findings.spec)}: joint accuracy with {_SHARE} % of all items sent, in percent",
        HELD,
        columns,
        "All held-out items of an adapter are ranked together, of both groups, whichever it has learned; mean over the two orders of "
        "the phases. So no family has its own rate, and half of these looks are in no table above. A star marks an interval over "
        "several seeds that is without 0; before learning ± is of items only.",
    )


# -- the model without the cloud: joint accuracy at a set rate is made of these two ------------------------------------------------------


def ability_table(findings: ExperimentFindings) -> TextTable:
    """Forced local accuracy minus that of the same model before learning, by family and over all."""

    def gained(families: Sequence[TestedFamily], phase: int) -> Column:
        def column(its: Adapters) -> str:
            after, before = (one.parts(phase, never, families) for one in (its, its.of(BARE)))
            return or_missing(pooled(difference(accuracy), after, before), signed)

        return column

    places = {**_each(findings.spec), **{f"all {when}": place for when, place in _all(findings.spec).items()}}
    columns = {"seeds": _seeds, **{name: gained(*place) for name, place in places.items()}}
    title = "Forced local accuracy minus that before learning, in points: asking made impossible"
    return _table(findings, title, (FINE_TUNING, EDGE_ONLY, *ASKING), columns, _STAR)


def ranking_table(findings: ExperimentFindings) -> TextTable:
    """AUC of the log-odds of asking for the failures of the same adapter."""

    def auc(families: Sequence[TestedFamily], phase: int) -> Column:
        def column(its: Adapters) -> str:
            evaluations = [one for (one,) in by_common_seed(its.parts(phase, families=families))]
            found = estimated_of(evaluations, ranking)
            return MISSING if not evaluations else "-" if found is None else plain(found, 2)

        return column if phase == FIRST else _learned(column)

    columns = {"seeds": _seeds, **{name: auc(*place) for name, place in _each(findings.spec).items()}}
    return _table(
        findings,
        "How well asking ranks: AUC of the log-odds of asking for what fails locally",
        (BARE, FINE_TUNING, EDGE_ONLY, *ASKING),
        columns,
        "The chance that a question that fails locally ranks above one that does not; 0.5 is asking at random, below it is worse.",
    )


# -- while learning: the rate that was held, and what it cost --------------------------------------------------------------------------


def kept_rates_table(findings: ExperimentFindings) -> TextTable:
    """The assist rate over the end of each phase, mean over seeds, and how far off τ all of them are."""
    spec = findings.spec
    places = [(name, number) for name, phases in spec.phases.items() for number in range(len(phases))]
    rows = []
    for model in spec.models:
        for method, settings in spec.ways.items():
            if settings.get("learning.method") == "edge-only":
                continue
            runs = {name: findings.runs(model, method, name) for name in spec.phases}
            ends = [[end_mean(result, "assist", number) for result in runs[name].results] for name, number in places]
            off = [abs(rate - TARGET) for found in ends for rate in found]
            rows.append(
                (
                    model,
                    NAMES.get(method, method),
                    seeds_text([len(one.results) for one in runs.values()], len(spec.seeds)),
                    *(f"{sum(found) / len(found):.3f}" if found else MISSING for found in ends),
                    f"{sum(off) / len(off):.3f}" if off else MISSING,
                    f"{sum(one <= BAND for one in off)} of {len(off)}" if off else MISSING,
                )
            )
    columns = (f"{name}, phase {number + 1}" for name, number in places)
    return TextTable(
        f"Assist rate at the end of each phase while learning, τ = {TARGET:g}",
        ("SLM", "method", "seeds", *columns, "off τ", f"within ±{BAND:g}"),
        tuple(rows),
        (
            f"Mean over the last {END_STEPS} steps of the phase (all of a shorter one), at T = 1, and over seeds. Off τ: mean absolute "
            "deviation over all phases of all runs; within: how many of them. λ moves DA-GRPO's rate; the others' rests on the assistance "
            "reward that was chosen.",
        ),
    )


def cost_table(findings: ExperimentFindings) -> TextTable:
    """Cloud calls, tokens, spend, time and memory of each method: means over directions and seeds."""
    wanted = len(findings.spec.phases) * len(findings.spec.seeds)

    def runs(results: Sequence[Result]) -> str:
        return str(len(results)) if len(results) in (0, wanted) else f"{len(results)} of {wanted}"

    def mean(form: str, cost: Callable[[Result], float]) -> Callable[[Sequence[Result]], str]:
        return lambda results: form.format(sum(map(cost, results)) / len(results)) if results else MISSING

    return table_of(
        "What learning costs: means over the runs of a method",
        ("SLM", "method"),
        [
            ((model, NAMES.get(method, method)), findings.runs(model, method).results)
            for model in findings.spec.models
            for method in findings.spec.ways
        ],
        {"runs": runs, **{name: mean(*cost) for name, cost in _COSTS.items()}},
        "Asked is the share of responses that ask for help, which λ is moved by; billed the share of prompts for which a call was "
        "paid, at most one for the G responses to a prompt. Compare processor minutes, which hold the looks at held-out items, too: "
        "wall time hangs on what else the machine had to do. Memory is the peak of each process.",
    )


def _updates(result: Result) -> float:
    """Optimiser steps."""
    training = result.body["cost"]["training"]
    usual = GVPO_UPDATES if result.cell.method == "gvpo" else 1
    updates = result.body["settings"]["learning"].get("updates_per_rollout") or usual
    return float((training["steps"] - training.get("skipped_updates", 0)) * updates)


def _of_training(name: str, unit: float = 1.0) -> Callable[[Result], float]:
    return lambda result: unit * float(result.body["cost"]["training"][name] or 0.0)


def _of_run(*names: str, unit: float = 1.0) -> Callable[[Result], float]:
    return lambda result: float(sum(result.body["cost"][name] for name in names)) / unit


_COSTS: Mapping[str, tuple[str, Callable[[Result], float]]] = {
    "optimiser steps": ("{:.0f}", _updates),
    "cloud calls": ("{:.0f}", _of_training("billed_calls")),
    "cloud tokens": ("{:.0f}", _of_training("cloud_tokens")),
    "spend, $": ("{:.4f}", _of_training("spend_uusd", 1e-6)),
    "asked, % of responses": ("{:.1f}", _of_training("response_rate", 100)),
    "billed, % of prompts": ("{:.1f}", _of_training("billed_rate", 100)),
    "wall s a step": ("{:.2f}", lambda result: result.body["cost"]["training"]["seconds"] / result.cell.steps),
    "processor min": ("{:.1f}", _of_run("cpu_agent_s", "cpu_programs_s", "cpu_coordinator_s", unit=60)),
    "agent MiB": ("{:.0f}", _of_run("peak_agent_mib")),
    "coordinator MiB": ("{:.0f}", _of_run("peak_coordinator_mib")),
}
"""The columns of the table of costs: form, and the cost of one run."""
