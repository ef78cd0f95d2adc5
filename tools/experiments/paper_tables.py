"""Tables 1 and 2 on practice tasks, and the comparison the paper leaves out: accuracy at equal realised rate, and what each method costs.

Knows the paper's layout; knows nothing of files. MATH, TACO, MATH-500 and MMLU become arith, code, science and facts: of each group the
family that is nearest. A family of group 1 is looked at in the runs that learn group 1 first, one of group 2 in the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edge.tasks.practice import GROUPS
from tools.experiments.findings import Findings, Runs, pooled
from tools.experiments.measures import (
    Rule,
    accuracy,
    at_random,
    by_threshold,
    cloud_accuracy,
    difference,
    forgetting,
    kept_accuracy,
    never,
    oracle,
    own_decision,
    rate,
    routed,
)
from tools.experiments.published import METHODS, MODELS, Published
from tools.experiments.stats import Statistic, over_seeds
from tools.experiments.tables import MISSING, Table, percent, told_seeds, with_half

TARGET = 0.3
EQUAL_RATES = (0.1, 0.2, 0.3, 0.5)
_FIRST, _SECOND = 1, 2
"""Phases done."""


@dataclass(frozen=True, slots=True)
class Row:
    """One method of the tables: whose runs it reads and who decides."""

    name: str
    runs_of: str
    rule: Rule

    def at(self, share: float) -> Rule:
        """The same runs held to a rate after the fact."""
        if self.name in ("edge-only", "naive-router"):
            return at_random(share)
        return by_threshold(share, "router" if self.name == "router" else "help")


@dataclass(frozen=True, slots=True)
class Family:
    """A practice family and the paper's data set that it stands for."""

    name: str
    stands_for: str

    @property
    def source(self) -> str:
        """As it is looked at."""
        return f"practice:{self.name}"

    @property
    def direction(self) -> str:
        """The phases in which its group comes first."""
        return "g1-g2" if self.name in GROUPS["group1"] else "g2-g1"


ROWS = (
    Row("edge-only", "edge-only", never),
    Row("naive-router", "edge-only", at_random(TARGET)),
    Row("router", "edge-only", routed),
    *(Row(name, name, own_decision) for name in ("grpo", "gvpo", "gapg", "da-grpo")),
)
TABLES: Mapping[str, tuple[Family, Family]] = {
    "table1": (Family("arith", "math"), Family("code", "taco")),
    "table2": (Family("science", "math500"), Family("facts", "mmlu")),
}
_READINGS = {
    "local_solved": "local-solved (right among what is kept, @ the share that is kept)",
    "joint": "joint (right in the end, @ the share that the cloud answered)",
    "forced": "forced local (asking made impossible; not in the paper)",
}


def paper_tables(findings: Findings, published: Mapping[str, Published | None]) -> list[Table]:
    """All that is told of the main experiment."""
    return [
        *(paper_table(findings, name, reading, published.get(name)) for name in TABLES for reading in _READINGS),
        equal_rates(findings),
        differences(findings),
        cost_table(findings),
    ]


def paper_table(findings: Findings, name: str, reading: str, published: Published | None) -> Table:
    """`table1` or `table2`, read as local_solved, joint or forced."""
    families = TABLES[name]
    reference = published if reading != "forced" else None
    header = ["SLM", "method"]
    for family in families:
        header += [f"{family.name} during", f"{family.name} post", f"{family.name} forgetting"]
    header += ["", *(column for family in families for column, _ in _reference(family))] if reference else []
    rows = [
        (
            model,
            METHODS[row.name],
            *_cells(findings, model, row, families, reading),
            *_quoted(reference, reading, model, row, families),
        )
        for model in findings.spec.models
        for row in ROWS
    ]
    blank = ("",) * (len(header) - 2 - 3 * len(families))
    rows += [
        (model, "before learning", *_bare_cells(findings, model, families, reading), *blank) for model in findings.spec.models
    ]
    notes = [_cloud_note(findings, families)]
    if reference:
        alike = ", ".join(f"{ours}: {theirs}" for ours, theirs in MODELS.items())
        notes.append(f"Columns that begin with `paper` quote the published numbers for other models and tasks ({alike}).")
    title = f"Table {name[-1]} on practice tasks: {_READINGS[reading]}, in percent"
    return Table(title, tuple(header), tuple(rows), tuple(notes))


def _cells(findings: Findings, model: str, row: Row, families: Sequence[Family], reading: str) -> Iterator[str]:
    rule = never if reading == "forced" else row.rule
    value = kept_accuracy if reading == "local_solved" else accuracy
    for family in families:
        runs = findings.runs(model, row.runs_of, family.direction)
        for phase in (_FIRST, _SECOND):
            yield _told(runs, family.source, phase, rule, value, kept=reading == "local_solved", rated=reading != "forced")
        lost = runs.across(family.source, (_FIRST, _SECOND), rule, forgetting(value))
        yield MISSING if lost is None else told_seeds(with_half(lost), lost.seeds, runs.wanted)


def _bare_cells(findings: Findings, model: str, families: Sequence[Family], reading: str) -> Iterator[str]:
    """What the model makes of the families before it learns anything."""
    rule = never if reading == "forced" else own_decision
    value = kept_accuracy if reading == "local_solved" else accuracy
    for family in families:
        runs = findings.bare(model)
        yield _told(runs, family.source, 0, rule, value, kept=reading == "local_solved", rated=reading != "forced")
        yield from ("-", "-")


def _told(runs: Runs, source: str, phase: int, rule: Rule, value: Statistic, *, kept: bool, rated: bool) -> str:
    found, asked = runs.at(source, phase, rule, value), runs.at(source, phase, rule, rate)
    if asked is None:
        return MISSING
    share = percent(1.0 - asked.mean if kept else asked.mean, 0)
    text = "none kept" if found is None else with_half(found)
    return told_seeds(f"{text} @ {share} %" if rated else text, asked.seeds, runs.wanted)


def _reference(family: Family) -> list[tuple[str, str]]:
    """The paper's columns for a family: what they are called here, and there."""
    kinds = ("during", "post", *(("forgetting",) if family.stands_for in ("math", "taco") else ()))
    return [(f"paper {family.stands_for.upper()} {kind}", f"{family.stands_for}_{kind}") for kind in kinds]


def _quoted(published: Published | None, reading: str, model: str, row: Row, families: Sequence[Family]) -> list[str]:
    """The paper's numbers for this row, in columns of their own."""
    if published is None:
        return []
    quoted = (published.cell(reading, model, row.name, column) for family in families for _, column in _reference(family))
    return ["", *(number or "-" for number in quoted)]


def _cloud_note(findings: Findings, families: Sequence[Family]) -> str:
    told = []
    for family in families:
        looks = [look for result in findings.results.values() for look in result.looks() if look["source"] == family.source]
        told.append(f"{family.name} {percent(cloud_accuracy(looks[0])) if looks else MISSING}")
    return f"The cloud LLM alone (nano-cloud): {', '.join(told)}."


def equal_rates(findings: Findings) -> Table:
    """Joint accuracy of each method where exactly the same share goes to the cloud, over all four families after the last phase."""
    families = [family for pair in TABLES.values() for family in pair]
    rows = [
        (model, METHODS[row.name], *(_mean_of(findings, model, row.runs_of, row.at(share), families) for share in EQUAL_RATES))
        for model in findings.spec.models
        for row in ROWS[1:]
    ]
    for model in findings.spec.models:
        for of, name in (("edge-only", "oracle over edge tuning"), ("da-grpo", "oracle over DA-GRPO")):
            rows.append((model, name, *(_oracle_of(findings, model, of, share, families) for share in EQUAL_RATES)))
    return Table(
        "Joint accuracy at equal realised rate, in percent: mean of the four families after the phase of their group",
        ("SLM", "method", *(f"@ {percent(share, 0)} %" for share in EQUAL_RATES)),
        tuple(rows),
        (
            "Each adapter is frozen and its rate is set after the fact: the questions with the highest help log-odds (edge tuning with "
            "router: the highest predicted failure; naive: random ones) go to the cloud. Items without a decision stay, so a rate "
            "may not be reached.",
        ),
    )


def _mean_of(findings: Findings, model: str, method: str, rule: Rule, families: Sequence[Family]) -> str:
    parts = [(findings.runs(model, method, family.direction), family.source, _FIRST) for family in families]
    found = pooled(parts, rule, accuracy)
    return MISSING if found is None else told_seeds(with_half(found), found.seeds, parts[0][0].wanted)


def _oracle_of(findings: Findings, model: str, method: str, share: float, families: Sequence[Family]) -> str:
    bounds = []
    for family in families:
        looks = [result.look(family.source, _FIRST) for result in findings.runs(model, method, family.direction).results]
        known = [oracle(look, share) for look in looks if look is not None]
        if not known:
            return MISSING
        bounds.append(over_seeds(known).mean)
    return percent(sum(bounds) / len(bounds))


def differences(findings: Findings) -> Table:
    """DA-GRPO against every other method, item by item and seed by seed, at the same rate."""
    da_grpo = ROWS[-1]
    rows = [
        (model, METHODS[row.name], *(_difference(findings, model, da_grpo, row, family, phase) for family, phase in _places()))
        for model in findings.spec.models
        for row in ROWS[1:-1]
    ]
    columns = tuple(f"{family.name} {'during' if phase == _FIRST else 'post'}" for family, phase in _places())
    return Table(
        f"DA-GRPO's joint accuracy minus that of others at the same {percent(TARGET, 0)} % cloud, in points (same seeds, same items)",
        ("SLM", "against", *columns),
        tuple(rows),
        ("A star marks an interval without 0.",),
    )


def _places() -> list[tuple[Family, int]]:
    return [(family, phase) for pair in TABLES.values() for family in pair for phase in (_FIRST, _SECOND)]


def _difference(findings: Findings, model: str, one: Row, other: Row, family: Family, phase: int) -> str:
    runs = findings.runs(model, one.runs_of, family.direction)
    against = findings.runs(model, other.runs_of, family.direction)
    rules = (one.at(TARGET), other.at(TARGET))
    found = runs.against(against, family.source, phase, rules, difference(accuracy))
    if found is None:
        return MISSING
    sure = found.seeds > 1 and found.half is not None and (found.low > 0.0 or found.high < 0.0)
    sign = "+" if found.mean >= 0 else ""
    return told_seeds(f"{sign}{with_half(found)}{' *' if sure else ''}", found.seeds, runs.wanted)


_COSTS: tuple[tuple[str, Callable[[Mapping[str, Any]], float | None], str], ...] = (
    ("cloud calls", lambda cost: cost["training"]["billed_calls"], "{:.0f}"),
    ("cloud tokens", lambda cost: cost["training"]["cloud_tokens"], "{:.0f}"),
    ("spend, $", lambda cost: cost["training"]["spend_uusd"] / 1e6, "{:.4f}"),
    ("asked, % of responses", lambda cost: 100 * (cost["training"]["response_rate"] or 0.0), "{:.1f}"),
    ("billed, % of prompts", lambda cost: 100 * (cost["training"]["billed_rate"] or 0.0), "{:.1f}"),
    ("s a step", lambda cost: cost["training"]["seconds"] / cost["training"]["steps"], "{:.2f}"),
    ("processor min", lambda cost: (cost["cpu_agent_s"] + cost["cpu_programs_s"] + cost["cpu_coordinator_s"]) / 60, "{:.1f}"),
    ("agent MiB", lambda cost: cost["peak_agent_mib"], "{:.0f}"),
    ("coordinator MiB", lambda cost: cost["peak_coordinator_mib"], "{:.0f}"),
)


def cost_table(findings: Findings) -> Table:
    """What training costs, as means over directions and seeds."""
    rows = [
        (model, METHODS.get(method, method), *_costs(findings.runs(model, method)))
        for model in findings.spec.models
        for method in findings.spec.ways
    ]
    return Table(
        "What learning costs: means over the runs of a method",
        ("SLM", "method", *(name for name, _, _ in _COSTS)),
        tuple(rows),
        (
            "Asked is the share of responses that ask for help, which λ is moved by; billed the share of prompts for which a call was "
            "paid, at most one for the G responses to a prompt. Processor minutes hold the looks at held-out items, too; memory "
            "is the peak of each process.",
        ),
    )


def _costs(runs: Runs) -> list[str]:
    costs = [result.body["cost"] for result in runs.results]
    if not costs:
        return [MISSING] * len(_COSTS)
    return [form.format(sum(value(cost) or 0.0 for cost in costs) / len(costs)) for _, value, form in _COSTS]
