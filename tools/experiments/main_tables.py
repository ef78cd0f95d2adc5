"""The tables of the main experiment: the paper's Tables 1 and 2 on practice tasks, and the comparison that the paper leaves out.

Joint accuracy grows with the share sent to the cloud, so a method that asks slightly more appears slightly better. So every adapter is
also compared at exactly the same share, where only the choice of items counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from edge.dagrpo.hyperparameters import GVPO_UPDATES
from tools.experiments import left_out
from tools.experiments.contestants import (
    ALL_FAMILIES,
    ASKING,
    BARE,
    BARE_DIAL,
    DA_GRPO,
    EDGE_ONLY,
    EDGE_ONLY_DIAL,
    FIRST,
    HELD,
    METHODS,
    MODELS,
    NAMES,
    PAPER,
    RIVALS,
    SECOND,
    TABLES,
    TARGET,
    Contestant,
    Family,
    Published,
)
from tools.experiments.findings import (
    Findings,
    Part,
    by_common_seed,
    common_seeds_of,
    compared,
    of_pairs,
    pairs_of,
    pooled,
    seeds_of,
)
from tools.experiments.layouts import BAND, END_STEPS, end_mean
from tools.experiments.measures import (
    Evaluation,
    Rule,
    accuracy,
    cloud_accuracy,
    difference,
    forgetting,
    kept_accuracy,
    never,
    oracle,
    ranking,
    rate,
)
from tools.experiments.result import Result
from tools.experiments.stats import Estimate, Statistic, over_seeds
from tools.experiments.tables import MISSING, Table, or_missing, percent, plain, seeds_text, signed, with_half

EQUAL_RATES = (0.1, 0.2, 0.3, 0.5)
_SHARE = percent(TARGET, 0)
_PHASES = {FIRST: "during", SECOND: "post"}
_PLACES = tuple((family, phase) for family in ALL_FAMILIES for phase in _PHASES)
_PLACE_NAMES = tuple(f"{family.name} {_PHASES[phase]}" for family, phase in _PLACES)
_STAR = "A star marks an interval over several seeds that is without 0."
_ITEMS = "Where there is one seed, and before learning, ± is of items only."
_HOW_RATES_ARE_SET = (
    "Each adapter is frozen and its rate is set after the fact, in each family: first what the model asks for by itself, then what has "
    "the highest help log-odds goes to the cloud (router: the highest predicted failure; naive: random questions); the oracle has the "
    "same share of each family. Items without a decision stay, so a rate may not be reached. The dial of a model before learning, and of "
    "one that only learned to answer, ranks by the same log-odds, which nobody has trained."
)


def main_tables(findings: Findings, published: Mapping[str, Published | None]) -> dict[str, list[Table]]:
    """All tables of the main experiment, by the names that the report has for them. `published`: the paper's numbers by table."""
    papers = {name: [paper_table(findings, name, one, published.get(name)) for one in READINGS] for name in TABLES}
    return {
        "primary": [primary(findings)],
        "summary": [summary_table(findings)],
        **papers,
        "ability": [ability_table(findings)],
        "ranking": [ranking_table(findings)],
        "equal-rates": [equal_rates(findings, phase) for phase in _PHASES],
        "differences": [differences(findings)],
        "pooled-differences": [pooled_differences(findings)],
        "forgotten": [forgotten(findings)],
        "one-threshold": [one_threshold_table(findings)],
        "kept-rates": [kept_rates_table(findings)],
        "costs": [cost_table(findings)],
    }


def _rows(
    findings: Findings, contestants: Sequence[Contestant], cells: Callable[[str, Contestant], Iterable[str]]
) -> tuple[tuple[str, ...], ...]:
    """A row for each SLM and contestant."""
    return tuple((model, row.label, *cells(model, row)) for model in findings.spec.models for row in contestants)


# -- the paper's tables ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read a table: the counted statistic, the rows, the decision rule, and the share shown beside it."""

    title: str
    value: Statistic
    rows: tuple[Contestant, ...]
    rule: Callable[[Contestant], Rule]
    share: str = "asked"
    published: bool = False


def _own(row: Contestant) -> Rule:
    return row.rule


def _held(row: Contestant) -> Rule:
    return row.held_to(TARGET)


_EQUAL = f"at the same {_SHARE} % cloud, set after the fact"
READINGS: Mapping[str, Reading] = {
    "local_solved": Reading(
        "local-solved (right among what is kept, @ the share that is kept)", kept_accuracy, (*PAPER, BARE), _own, "kept", True
    ),
    "joint": Reading(
        "joint (right in the end, @ the share that the cloud answered)", accuracy, (*PAPER, BARE), _own, "asked", True
    ),
    "local_solved_equal": Reading(f"local-solved {_EQUAL} (@ kept)", kept_accuracy, (*HELD[2:], *HELD[:2]), _held, "kept"),
    "joint_equal": Reading(f"joint {_EQUAL}", accuracy, (*HELD[2:], *HELD[:2]), _held, "asked"),
    "forced": Reading(
        "forced local (asking made impossible; not in the paper)", accuracy, (EDGE_ONLY, *ASKING, BARE), lambda row: never, ""
    ),
}


def paper_table(findings: Findings, name: str, reading: str, published: Published | None) -> Table:
    """`table1` or `table2` in one of the READINGS, with the paper's columns where it has them."""
    families, read = TABLES[name], READINGS[reading]
    quoted = [(family, kind) for family in families for kind in _kinds(family)] if published and read.published else []

    def cells(model: str, row: Contestant) -> Iterator[str]:
        yield seeds_of([row.part(findings, model, family, FIRST) for family in families])
        for family in families:
            during, post = (row.part(findings, model, family, phase) for phase in _PHASES)
            yield _read(during, read, row)
            if row.learns:
                yield _read(post, read, row)
                yield or_missing(compared([during], [post], (read.rule(row), read.rule(row)), forgetting(read.value)))
            else:
                yield from ("-", "-")
        if published and quoted:
            yield ""
            for family, kind in quoted:
                column = f"{family.stands_for}_{kind}"
                yield (published.cell(reading, model, row.name, column) or "-") if row.name in METHODS else ""

    own = [f"{family.name} {kind}" for family in families for kind in ("during", "post", "forgetting")]
    theirs = ["", *(f"paper {family.stands_for.upper()} {kind}" for family, kind in quoted)] if quoted else []
    return Table(
        f"Table {name[-1]} on practice tasks: {read.title}, in percent",
        ("SLM", "method", "seeds", *own, *theirs),
        _rows(findings, read.rows, cells),
        tuple(_notes(findings, families, quotes=bool(quoted))),
    )


def _kinds(family: Family) -> tuple[str, ...]:
    """Which of the paper's columns there are for a family."""
    return ("during", "post", *(("forgetting",) if family.stands_for in ("math", "taco") else ()))


def _read(part: Part, read: Reading, row: Contestant) -> str:
    found, asked = pooled([part], read.rule(row), read.value), pooled([part], read.rule(row), rate)
    if asked is None:
        return MISSING
    share = f" @ {percent(1.0 - asked.mean if read.share == 'kept' else asked.mean, 0)} %" if read.share else ""
    return f"{'none kept' if found is None else with_half(found)}{share}"


def _notes(findings: Findings, families: Sequence[Family], *, quotes: bool) -> Iterator[str]:
    cloud = []
    for family in families:
        evaluations = [
            evaluation
            for result in findings.results.values()
            for evaluation in result.evaluations()
            if evaluation["source"] == family.source
        ]
        cloud.append(f"{family.name} {percent(cloud_accuracy(evaluations[0])) if evaluations else MISSING}")
    yield f"The cloud LLM alone (nano-cloud): {', '.join(cloud)}."
    if any(result.cell.phases for result in findings.results.values()):
        yield _ITEMS
    if quotes:
        alike = ", ".join(f"{ours}: {theirs}" for ours, theirs in MODELS.items())
        yield f"Columns that begin with `paper` quote the published numbers for other models and tasks ({alike})."


def summary_table(findings: Findings) -> Table:
    """Joint accuracy by own decision and at equal rate, during and post, and the forgetting; all four families together."""

    def at_own_rate(parts: list[Part], rule: Rule) -> str:
        right, asked = pooled(parts, rule, accuracy), pooled(parts, rule, rate)
        return MISSING if right is None or asked is None else f"{with_half(right)} @ {percent(asked.mean, 0)} %"

    def cells(model: str, row: Contestant) -> tuple[str, ...]:
        during, post = (row.parts(findings, model, phase) for phase in _PHASES)
        held = (EDGE_ONLY_DIAL if row is EDGE_ONLY else row).held_to(TARGET)  # edge tuning alone cannot choose whom to send
        if not row.learns:
            return ("-", at_own_rate(during, row.rule), "-", "-", or_missing(pooled(during, held, accuracy)), "-")
        return (
            common_seeds_of(during),
            at_own_rate(during, row.rule),
            at_own_rate(post, row.rule),
            or_missing(compared(during, post, (row.rule, row.rule), forgetting(accuracy))),
            or_missing(pooled(during, held, accuracy)),
            or_missing(pooled(post, held, accuracy)),
        )

    at = f"at {_SHARE} % cloud"
    return Table(
        "Summary: joint accuracy in percent, mean of the four families",
        ("SLM", "method", "seeds", "during @ cloud", "post @ cloud", "forgotten", f"{at}, during", f"{at}, post"),
        _rows(findings, (BARE_DIAL, *PAPER), cells),
        (
            "During: after the phase of a family's own group; post: after the other group's (arith and science are read in the runs that "
            "learn group 1 first, code and facts in the others); forgotten: (during - post) / during. The first three by each method's own "
            f"decision @ the share that the cloud answered; the last two with exactly {_SHARE} % sent, set after the fact: by the "
            "log-odds of asking, for the routers by what they predict (naive: at random). ± is a 95 % interval over seeds and items (one "
            "seed, or none learned: items only).",
        ),
    )


# -- at equal realised rate ------------------------------------------------------------------------------------------------------------


def equal_rates(findings: Findings, phase: int) -> Table:
    """Joint accuracy over all four families at each rate, with the oracle's bound of the same models."""
    rows = []
    for model in findings.spec.models:
        for row in HELD:
            parts = row.parts(findings, model, phase)
            at = (or_missing(pooled(parts, row.held_to(share), accuracy)) for share in EQUAL_RATES)
            rows.append((model, row.label, common_seeds_of(parts), *at))
        for row in (BARE_DIAL, EDGE_ONLY_DIAL, DA_GRPO):
            parts = row.parts(findings, model, phase)
            at = (_bound(parts, share) for share in EQUAL_RATES)
            rows.append((model, f"oracle over {row.label}", common_seeds_of(parts), *at))
    when = {FIRST: "during (after the phase of their group)", SECOND: "post (after the other group's phase)"}[phase]
    return Table(
        f"Joint accuracy at equal realised rate, in percent: mean of the four families {when}",
        ("SLM", "method", "seeds", *(f"@ {percent(share, 0)} %" for share in EQUAL_RATES)),
        tuple(rows),
        (_HOW_RATES_ARE_SET, _ITEMS),
    )


def _bound(parts: list[Part], share: float) -> str:
    """The oracle's accuracy at this rate, mean of the families."""
    bounds = [
        over_seeds([oracle(evaluation, share) for evaluation in evaluations]).mean
        for evaluations in zip(*by_common_seed(parts), strict=True)
    ]
    return percent(sum(bounds) / len(bounds)) if len(bounds) == len(parts) else MISSING


def minus(mine: Sequence[Part], theirs: Sequence[Part], one: Contestant, other: Contestant) -> Estimate | None:
    """The lead of one over another at the same rate, by item and seed; in accuracy, not in points."""
    return compared(mine, theirs, (one.held_to(TARGET), other.held_to(TARGET)), difference(accuracy))


def _lead(findings: Findings, model: str, other: Contestant, phase: int) -> Estimate | None:
    """DA-GRPO's lead over another, all four families together."""
    mine, theirs = (row.parts(findings, model, phase) for row in (DA_GRPO, other))
    return minus(mine, theirs, DA_GRPO, other)


def _seeds_of_both(findings: Findings, model: str, other: Contestant) -> str:
    return common_seeds_of([part for row in (DA_GRPO, other) for part in row.parts(findings, model, FIRST)])


def differences(findings: Findings) -> Table:
    """DA-GRPO against every other, family by family."""

    def cells(model: str, other: Contestant) -> Iterator[str]:
        yield _seeds_of_both(findings, model, other)
        for place in _PLACES:
            mine, theirs = ([row.part(findings, model, *place)] for row in (DA_GRPO, other))
            yield or_missing(minus(mine, theirs, DA_GRPO, other), signed)

    return Table(
        f"DA-GRPO's joint accuracy minus that of others at the same {_SHARE} % cloud, in points (same seeds, same items)",
        ("SLM", "against", "seeds", *_PLACE_NAMES),
        _rows(findings, HELD[:-1], cells),
        (_STAR, _ITEMS),
    )


def pooled_differences(findings: Findings) -> Table:
    """The same over all four families: one number for each model, other and time."""

    def cells(model: str, other: Contestant) -> Iterator[str]:
        yield _seeds_of_both(findings, model, other)
        yield from (or_missing(_lead(findings, model, other, phase), signed) for phase in _PHASES)

    return Table(
        f"All four families together: DA-GRPO minus others at the same {_SHARE} % cloud, joint accuracy in points",
        ("SLM", "against", "seeds", *_PHASES.values()),
        _rows(findings, HELD[:-1], cells),
        (_STAR, _ITEMS),
    )


def forgotten(findings: Findings) -> Table:
    """During minus post of the same runs: the cost of the other group's phase, where a change of the rate cannot hide or imitate it."""

    def cells(model: str, row: Contestant) -> Iterator[str]:
        during, post = (row.parts(findings, model, phase) for phase in _PHASES)
        yield common_seeds_of([*during, *post])
        for before, after in (*(([one], [other]) for one, other in zip(during, post, strict=True)), (during, post)):
            yield or_missing(minus(before, after, row, row), signed)

    return Table(
        f"Forgotten at equal rate: joint accuracy during minus post at the same {_SHARE} % cloud, in points",
        ("SLM", "method", "seeds", *(family.name for family in ALL_FAMILIES), "all four"),
        _rows(findings, [row for row in HELD if row.learns], cells),
        (_STAR, _ITEMS),
    )


def primary(findings: Findings) -> Table:
    """DA-GRPO against the best of the others at the target rate, during, for each SLM and in the mean of all."""
    models = findings.spec.models
    best = {model: one for model in models if (one := _best_rival(findings, model)) is not None}

    def held(row: Contestant, model: str) -> str:
        return or_missing(pooled(row.parts(findings, model, FIRST), row.held_to(TARGET), accuracy))

    rows = [
        (
            model,
            best[model].label if model in best else MISSING,
            held(DA_GRPO, model),
            held(best[model], model) if model in best else MISSING,
            or_missing(_lead(findings, model, best[model], FIRST), signed) if model in best else MISSING,
        )
        for model in models
    ]
    rows.append(("all", "", "", "", or_missing(_lead_over(findings, best), signed) if len(best) == len(models) else MISSING))
    return Table(
        f"Primary comparison: joint accuracy at the same {_SHARE} % cloud, during, mean of the four families, in percent",
        ("SLM", "best other", "DA-GRPO", "best other's", "DA-GRPO minus it"),
        tuple(rows),
        (
            "Set down before the first cell was run. The best other is, for each SLM, the one with the highest mean of: "
            f"{', '.join(row.label for row in RIVALS)}. ± is a 95 % interval over seeds and items, not widened for the choice of "
            "the best, which favours the others. " + _STAR,
        ),
    )


def _best_rival(findings: Findings, model: str) -> Contestant | None:
    """The other method with the highest joint accuracy; None until all of them have at least one seed."""
    found = [(pooled(row.parts(findings, model, FIRST), row.held_to(TARGET), accuracy), row) for row in RIVALS]
    known = [(one.mean, row) for one, row in found if one is not None]
    return max(known, key=lambda pair: pair[0])[1] if len(known) == len(RIVALS) else None


def _lead_over(findings: Findings, best: Mapping[str, Contestant]) -> Estimate | None:
    """DA-GRPO minus each SLM's best other, all SLMs together: every SLM is asked the same items, which are left out together."""
    mine = [part for model in best for part in DA_GRPO.parts(findings, model, FIRST)]
    theirs = [part for model, row in best.items() for part in row.parts(findings, model, FIRST)]
    rules = [row.held_to(TARGET) for row in best.values() for _ in ALL_FAMILIES]
    left_S = [
        left_out.together(
            [
                left_out.side_by_side(left_out.left_out(one, DA_GRPO.held_to(TARGET)), left_out.left_out(other, rule))
                for (one, other), rule in zip(pairs, rules, strict=True)
            ]
        )
        for pairs in pairs_of(mine, theirs)
    ]
    return left_out.estimated(left_S, difference(accuracy))


def one_threshold_table(findings: Findings) -> Table:
    """Joint accuracy where one threshold for all items of an adapter sends the share, and DA-GRPO's lead there.

    With a rate for each family a method need not know which families are hard. A person's dial may have to.
    """

    def adapters(parts: Sequence[Part]) -> list[list[Evaluation]]:
        """For each seed one evaluation for each adapter, of all its families together."""
        step = len(ALL_FAMILIES)
        return [
            [left_out.as_one(evaluations[begin : begin + step]) for begin in range(0, len(evaluations), step)]
            for evaluations in by_common_seed(parts)
        ]

    def parts(model: str, row: Contestant, phase: int) -> list[Part]:
        orders = sorted({family.direction for family in ALL_FAMILIES})
        return [row.part_of(findings, model, order, family, phase) for order in orders for family in ALL_FAMILIES]

    def sent(row: Contestant, evaluation: Evaluation) -> left_out.LeftOut:
        return left_out.left_out(evaluation, row.held_to(TARGET))

    def right(model: str, row: Contestant, phase: int) -> Estimate | None:
        sums_S = [
            left_out.together([sent(row, evaluation) for evaluation in evaluations])
            for evaluations in adapters(parts(model, row, phase))
        ]
        return left_out.estimated(sums_S, accuracy)

    def lead(model: str, other: Contestant, phase: int) -> Estimate | None:
        evaluations_S = adapters([*parts(model, DA_GRPO, phase), *parts(model, other, phase)])
        pairs_S = [
            list(zip(evaluations[: len(evaluations) // 2], evaluations[len(evaluations) // 2 :], strict=True))
            for evaluations in evaluations_S
        ]
        return of_pairs(pairs_S, lambda one, its: (sent(DA_GRPO, one), sent(other, its)), difference(accuracy))

    def cells(model: str, row: Contestant) -> Iterator[str]:
        yield common_seeds_of(parts(model, row, FIRST))
        yield from (or_missing(right(model, row, phase)) for phase in _PHASES)
        yield from ("" if row is DA_GRPO else or_missing(lead(model, row, phase), signed) for phase in _PHASES)

    return Table(
        f"One threshold for all four families: joint accuracy with {_SHARE} % of all items sent, in percent",
        ("SLM", "method", "seeds", "after one phase", "after both", "DA-GRPO minus it, one phase", "DA-GRPO minus it, both"),
        _rows(findings, HELD, cells),
        (
            "All held-out items of an adapter are ranked together, of both groups, whichever it has learned; mean over the two orders of "
            "the phases. So no family has its own rate, and half of these looks are in no table above. A star marks an interval over "
            "several seeds that is without 0; before learning ± is of items only.",
        ),
    )


# -- the model without the cloud: joint accuracy at a set rate is made of these two ------------------------------------------------------


def ability_table(findings: Findings) -> Table:
    """Forced local accuracy minus that of the same model before learning, by family and over all four."""

    def cells(model: str, row: Contestant) -> Iterator[str]:
        yield common_seeds_of(row.parts(findings, model, FIRST))
        for families, phase in (*(([family], phase) for family, phase in _PLACES), *((ALL_FAMILIES, phase) for phase in _PHASES)):
            after, before = ([one.part(findings, model, family, phase) for family in families] for one in (row, BARE))
            yield or_missing(compared(after, before, (never, never), difference(accuracy)), signed)

    return Table(
        "Forced local accuracy minus that before learning, in points: asking made impossible",
        ("SLM", "method", "seeds", *_PLACE_NAMES, "all during", "all post"),
        _rows(findings, (EDGE_ONLY, *ASKING), cells),
        (_STAR,),
    )


def ranking_table(findings: Findings) -> Table:
    """AUC of the log-odds of asking for the failures of the same adapter."""

    def auc(part: Part) -> str:
        evaluations = [one for (one,) in by_common_seed([part])]
        found = left_out.estimated_of(evaluations, ranking)
        return MISSING if not evaluations else "-" if found is None else plain(found, 2)

    def cells(model: str, row: Contestant) -> Iterator[str]:
        yield common_seeds_of(row.parts(findings, model, FIRST))
        for family, phase in _PLACES:
            yield auc(row.part(findings, model, family, phase)) if row.learns or phase == FIRST else "-"

    return Table(
        "How well asking ranks: AUC of the log-odds of asking for what fails locally",
        ("SLM", "method", "seeds", *_PLACE_NAMES),
        _rows(findings, (BARE, EDGE_ONLY, *ASKING), cells),
        (
            "The chance that a question that fails locally ranks above one that does not; 0.5 is asking at random, below it is worse.",
        ),
    )


# -- while learning: the rate that was held, and what it cost --------------------------------------------------------------------------


def kept_rates_table(findings: Findings) -> Table:
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
    return Table(
        f"Assist rate at the end of each phase while learning, τ = {TARGET:g}",
        ("SLM", "method", "seeds", *columns, "off τ", f"within ±{BAND:g}"),
        tuple(rows),
        (
            f"Mean over the last {END_STEPS} steps of the phase, at T = 1, and over seeds. Off τ: mean absolute deviation over all phases "
            "of all runs; within: how many of them. λ moves DA-GRPO's rate; the others' rests on the assistance reward that was chosen.",
        ),
    )


def cost_table(findings: Findings) -> Table:
    """Cloud calls, tokens, spend, time and memory of each method: means over directions and seeds."""
    rows = []
    for model in findings.spec.models:
        for method in findings.spec.ways:
            results = findings.runs(model, method).results
            wanted = len(findings.spec.phases) * len(findings.spec.seeds)
            count = str(len(results)) if len(results) in (0, wanted) else f"{len(results)} of {wanted}"
            costs = [_costs(result) for result in results]
            means = (sum(values) / len(values) for values in zip(*costs, strict=True))
            cells = (
                [form.format(mean) for form, mean in zip(_COSTS.values(), means, strict=True)]
                if costs
                else [MISSING] * len(_COSTS)
            )
            rows.append((model, NAMES.get(method, method), count, *cells))
    return Table(
        "What learning costs: means over the runs of a method",
        ("SLM", "method", "runs", *_COSTS),
        tuple(rows),
        (
            "Asked is the share of responses that ask for help, which λ is moved by; billed the share of prompts for which a call was "
            "paid, at most one for the G responses to a prompt. Compare processor minutes, which hold the looks at held-out items, too: "
            "wall time hangs on what else the machine had to do. Memory is the peak of each process.",
        ),
    )


_COSTS = {
    "optimiser steps": "{:.0f}",
    "cloud calls": "{:.0f}",
    "cloud tokens": "{:.0f}",
    "spend, $": "{:.4f}",
    "asked, % of responses": "{:.1f}",
    "billed, % of prompts": "{:.1f}",
    "wall s a step": "{:.2f}",
    "processor min": "{:.1f}",
    "agent MiB": "{:.0f}",
    "coordinator MiB": "{:.0f}",
}


def _costs(result: Result) -> list[float]:
    """The cost of one run, in the order of _COSTS."""
    cost = result.body["cost"]
    training = cost["training"]
    usual = GVPO_UPDATES if result.cell.method == "gvpo" else 1
    updates = result.body["settings"]["learning"].get("updates_per_rollout") or usual
    return [
        float((training["steps"] - training.get("skipped_updates", 0)) * updates),
        float(training["billed_calls"]),
        float(training["cloud_tokens"]),
        1e-6 * training["spend_uusd"],
        100 * float(training["response_rate"] or 0.0),
        100 * float(training["billed_rate"] or 0.0),
        training["seconds"] / training["steps"],
        (cost["cpu_agent_s"] + cost["cpu_programs_s"] + cost["cpu_coordinator_s"]) / 60,
        float(cost["peak_agent_mib"]),
        float(cost["peak_coordinator_mib"]),
    ]
