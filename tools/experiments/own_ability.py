"""What learning does to the model without the cloud: how often it is right where it may not ask, and how well it knows when it will not be.
Knows contestants and their looks; knows nothing of rates.

Joint accuracy at a set rate is made of these two. Without them nobody sees which of them a lead comes from.
"""

from __future__ import annotations

from tools.experiments import left_out
from tools.experiments.contestants import ALL_FAMILIES, ASKING, BARE, EDGE_ONLY, FIRST, SECOND, Contestant, Family
from tools.experiments.findings import Findings, Part, by_common_seed, common_seeds_of, compared
from tools.experiments.measures import accuracy, difference, never, ranking
from tools.experiments.tables import MISSING, Table, percent, plain, signed

_PLACES = tuple((family, phase) for family in ALL_FAMILIES for phase in (FIRST, SECOND))
_COLUMNS = tuple(f"{family.name} {'during' if phase == FIRST else 'post'}" for family, phase in _PLACES)
_STAR = "A star marks an interval over several seeds that is without 0."


def ability_table(findings: Findings) -> Table:
    """Forced local accuracy minus that of the same model before learning, by family and over all four."""
    rows = []
    for model in findings.spec.models:
        for row in (EDGE_ONLY, *ASKING):
            told = (_gained(findings, model, row, [family], phase) for family, phase in _PLACES)
            whole = (_gained(findings, model, row, ALL_FAMILIES, phase) for phase in (FIRST, SECOND))
            rows.append((model, row.told, common_seeds_of(row.parts(findings, model, FIRST)), *told, *whole))
    return Table(
        "Forced local accuracy minus that before learning, in points: asking made impossible",
        ("SLM", "method", "seeds", *_COLUMNS, "all during", "all post"),
        tuple(rows),
        (_STAR,),
    )


def ranking_table(findings: Findings) -> Table:
    """AUC of the log-odds of asking for the failures of the same adapter."""
    rows = []
    for model in findings.spec.models:
        for row in (BARE, EDGE_ONLY, *ASKING):
            told = (_ranked(row.part(findings, model, family, phase)) if _looks(row, phase) else "-" for family, phase in _PLACES)
            rows.append((model, row.told, common_seeds_of(row.parts(findings, model, FIRST)), *told))
    return Table(
        "How well asking ranks: AUC of the log-odds of asking for what fails locally",
        ("SLM", "method", "seeds", *_COLUMNS),
        tuple(rows),
        (
            "The chance that a question that fails locally ranks above one that does not; 0.5 is asking at random, below it is worse.",
        ),
    )


def over_steps_table(findings: Findings) -> Table:
    """Forced local accuracy on each source before learning and at each look, mean over seeds."""
    spec = findings.spec
    steps = sorted({look["step"] for result in findings.results.values() if result.cell.phases for look in result.looks()})
    rows = []
    for model in spec.models:
        for name in spec.phases:
            for source in spec.evaluate.sources:
                curve = dict(forced_over_steps(findings, model, name, source))
                told = (percent(curve[step]) if step in curve else MISSING for step in (0, *steps))
                rows.append((model, name, source.removeprefix("practice:"), findings.runs(model, phases=name).told, *told))
    header = ("SLM", "learns", "asked", "seeds", *(f"step {step}" for step in (0, *steps)))
    return Table("Forced local accuracy while learning, in percent, T = 0", header, tuple(rows))


def forced_over_steps(findings: Findings, model: str, phases: str, source: str) -> list[tuple[int, float]]:
    """(steps done, forced local accuracy on a source, mean over seeds), beginning with the model before it learns."""
    by_step: dict[int, list[float]] = {}
    for result in (*findings.bare(model).results, *findings.runs(model, phases=phases).results):
        for look in result.looks():
            if look["source"] == source:
                right = [share.right for share in never(look)]
                by_step.setdefault(look["step"], []).append(sum(right) / len(right))
    return [(step, sum(found) / len(found)) for step, found in sorted(by_step.items())]


def _gained(findings: Findings, model: str, row: Contestant, families: list[Family] | tuple[Family, ...], phase: int) -> str:
    after = [row.part(findings, model, family, phase) for family in families]
    before = [BARE.part(findings, model, family, phase) for family in families]
    found = compared(after, before, (never, never), difference(accuracy))
    return MISSING if found is None else signed(found)


def _ranked(part: Part) -> str:
    looks = [one for (one,) in by_common_seed([part])]
    if not looks:
        return MISSING
    found = left_out.estimated_of_looks(looks, ranking)
    return "-" if found is None else plain(found, 2)


def _looks(row: Contestant, phase: int) -> bool:
    """A model that does not learn is looked at once."""
    return row.learns or phase == FIRST
