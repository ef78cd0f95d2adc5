"""Tables 1 and 2 on practice tasks, read in several ways. Knows the paper's layout; knows nothing of files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tools.experiments.contestants import (
    ASKING,
    BARE,
    EDGE_ONLY,
    FIRST,
    HELD,
    PAPER,
    SECOND,
    TABLES,
    TARGET,
    Contestant,
    Family,
)
from tools.experiments.costs import cost_table
from tools.experiments.equal_rate import equal_rate_tables, primary
from tools.experiments.findings import Findings, Part, pooled, seeds_of
from tools.experiments.kept_rates import kept_rates_table
from tools.experiments.measures import Rule, accuracy, cloud_accuracy, forgetting, kept_accuracy, never, rate
from tools.experiments.one_threshold import one_threshold_table
from tools.experiments.own_ability import ability_table, ranking_table
from tools.experiments.published import METHODS, MODELS, Published
from tools.experiments.stats import Statistic
from tools.experiments.summary import summary_table
from tools.experiments.tables import MISSING, Table, percent, with_half


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read a table: what is counted, whose rows, who decides, and which share is told beside it."""

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


_EQUAL = f"at the same {percent(TARGET, 0)} % cloud, set after the fact"
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


def paper_tables(findings: Findings, published: Mapping[str, Published | None]) -> list[Table]:
    """All that is told of the main experiment."""
    tables = (paper_table(findings, name, reading, published.get(name)) for name in TABLES for reading in READINGS)
    by_itself = (ability_table(findings), ranking_table(findings))
    at_equal_rate = (*equal_rate_tables(findings), one_threshold_table(findings))
    return [
        primary(findings),
        summary_table(findings),
        *tables,
        *by_itself,
        *at_equal_rate,
        kept_rates_table(findings),
        cost_table(findings),
    ]


def paper_table(findings: Findings, name: str, reading: str, published: Published | None) -> Table:
    """`table1` or `table2` in one of the READINGS, with the paper's columns where it has them."""
    families, read = TABLES[name], READINGS[reading]
    reference = published if read.published else None
    header = ["SLM", "method", "seeds"]
    for family in families:
        header += [f"{family.name} during", f"{family.name} post", f"{family.name} forgetting"]
    header += ["", *(column for family in families for column, _ in _reference(family))] if reference else []
    rows = [
        (model, row.told, *_cells(findings, model, row, families, read), *_quoted(reference, reading, model, row, families))
        for model in findings.spec.models
        for row in read.rows
    ]
    title = f"Table {name[-1]} on practice tasks: {read.title}, in percent"
    return Table(title, tuple(header), tuple(rows), tuple(_notes(findings, families, reference)))


def _notes(findings: Findings, families: Sequence[Family], reference: Published | None) -> Iterator[str]:
    yield _cloud_note(findings, families)
    if any(result.cell.phases for result in findings.results.values()):
        yield "Where there is one seed, and before learning, ± is of items only."
    if reference:
        alike = ", ".join(f"{ours}: {theirs}" for ours, theirs in MODELS.items())
        yield f"Columns that begin with `paper` quote the published numbers for other models and tasks ({alike})."


def _cells(findings: Findings, model: str, row: Contestant, families: Sequence[Family], read: Reading) -> Iterator[str]:
    rule = read.rule(row)
    yield seeds_of([row.part(findings, model, family, FIRST) for family in families])
    for family in families:
        during, post = (row.part(findings, model, family, phase) for phase in (FIRST, SECOND))
        yield _told(during, rule, read)
        if not row.learns:
            yield from ("-", "-")
            continue
        yield _told(post, rule, read)
        lost = during.runs.across(family.source, (FIRST, SECOND), rule, forgetting(read.value))
        yield MISSING if lost is None else with_half(lost)


def _told(part: Part, rule: Rule, read: Reading) -> str:
    found, asked = pooled([part], rule, read.value), pooled([part], rule, rate)
    if asked is None:
        return MISSING
    share = f" @ {percent(1.0 - asked.mean if read.share == 'kept' else asked.mean, 0)} %" if read.share else ""
    return f"{'none kept' if found is None else with_half(found)}{share}"


def _reference(family: Family) -> list[tuple[str, str]]:
    """The paper's columns for a family: what they are called here, and there."""
    kinds = ("during", "post", *(("forgetting",) if family.stands_for in ("math", "taco") else ()))
    return [(f"paper {family.stands_for.upper()} {kind}", f"{family.stands_for}_{kind}") for kind in kinds]


def _quoted(published: Published | None, reading: str, model: str, row: Contestant, families: Sequence[Family]) -> Iterator[str]:
    """The paper's numbers for this row, in columns of their own; blank for a row that is not in the paper."""
    if published is None:
        return
    yield ""
    for family in families:
        for _, column in _reference(family):
            yield (published.cell(reading, model, row.name, column) or "-") if row.name in METHODS else ""


def _cloud_note(findings: Findings, families: Sequence[Family]) -> str:
    told = []
    for family in families:
        looks = [look for result in findings.results.values() for look in result.looks() if look["source"] == family.source]
        told.append(f"{family.name} {percent(cloud_accuracy(looks[0])) if looks else MISSING}")
    return f"The cloud LLM alone (nano-cloud): {', '.join(told)}."
