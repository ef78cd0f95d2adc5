"""What learning does to the model without the cloud: how often it is right where it may not ask, and how well it knows when it will not be.
Knows contestants and their looks; knows nothing of rates.

Joint accuracy at a set rate is made of these two. Without them nobody sees which of them a lead comes from.
"""

from __future__ import annotations

from tools.experiments import left_out
from tools.experiments.contestants import ALL_FAMILIES, ASKING, BARE, EDGE_ONLY, FIRST, SECOND, Contestant, Family
from tools.experiments.findings import Findings, Part, by_common_seed, common_seeds_of, compared
from tools.experiments.measures import accuracy, difference, never, ranking
from tools.experiments.tables import MISSING, Table, plain, signed

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
