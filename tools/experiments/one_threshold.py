"""The comparison at equal rate with one threshold for everything an adapter is asked. Knows contestants and their looks; knows nothing of
rates while learning.

With a rate for each family nobody has to know which families are hard for him. A person's dial may have to: here what is sent is
chosen among all held-out items of an adapter at once, so that a family may take more of the calls than another.
"""

from __future__ import annotations

from collections.abc import Sequence

from tools.experiments import left_out
from tools.experiments.contestants import ALL_FAMILIES, DA_GRPO, FIRST, HELD, SECOND, TARGET, Contestant
from tools.experiments.findings import Findings, Part, by_common_seed, common_seeds_of, of_pairs
from tools.experiments.left_out import LeftOut
from tools.experiments.measures import Look, accuracy, difference
from tools.experiments.tables import MISSING, Table, percent, signed, with_half


def one_threshold_table(findings: Findings) -> Table:
    """Joint accuracy where one threshold sends the share, and what DA-GRPO is ahead of it, after one phase and after both."""
    rows = [(model, row.told, *_cells(findings, model, row)) for model in findings.spec.models for row in HELD]
    share = percent(TARGET, 0)
    return Table(
        f"One threshold for all four families: joint accuracy with {share} % of all items sent, in percent",
        ("SLM", "method", "seeds", "after one phase", "after both", "DA-GRPO minus it, one phase", "DA-GRPO minus it, both"),
        tuple(rows),
        (
            "All held-out items of an adapter are ranked together, of both groups, whichever it has learned; mean over the two orders of "
            "the phases. So no family has its own rate, and half of these looks are in no table above. A star marks an interval over "
            "several seeds that is without 0; before learning ± is of items only.",
        ),
    )


def _cells(findings: Findings, model: str, row: Contestant) -> tuple[str, ...]:
    phases = (FIRST, SECOND)
    right = (_accuracy(findings, model, row, phase) for phase in phases)
    leads = ("" if row is DA_GRPO else _lead(findings, model, row, phase) for phase in phases)
    return (common_seeds_of(_parts(findings, model, row, FIRST)), *right, *leads)


def _parts(findings: Findings, model: str, row: Contestant, phase: int) -> list[Part]:
    """The looks at all families of each order's adapter, one adapter after the other."""
    orders = sorted({family.direction for family in ALL_FAMILIES})
    return [row.part_of(findings, model, order, family, phase) for order in orders for family in ALL_FAMILIES]


def _accuracy(findings: Findings, model: str, row: Contestant, phase: int) -> str:
    adapters_S = [_adapters(looks) for looks in by_common_seed(_parts(findings, model, row, phase))]
    found = left_out.estimated([left_out.together([_sent(row, look) for look in looks]) for looks in adapters_S], accuracy)
    return MISSING if found is None else with_half(found)


def _lead(findings: Findings, model: str, other: Contestant, phase: int) -> str:
    mine, theirs = (_parts(findings, model, row, phase) for row in (DA_GRPO, other))
    looks_S = by_common_seed([*mine, *theirs])
    pairs_S = [list(zip(_adapters(looks[: len(mine)]), _adapters(looks[len(mine) :]), strict=True)) for looks in looks_S]
    found = of_pairs(pairs_S, lambda one, its: (_sent(DA_GRPO, one), _sent(other, its)), difference(accuracy))
    return MISSING if found is None else signed(found)


def _adapters(looks: Sequence[Look]) -> list[Look]:
    """One look for each adapter, of all its families together."""
    step = len(ALL_FAMILIES)
    return [left_out.as_one(looks[begin : begin + step]) for begin in range(0, len(looks), step)]


def _sent(row: Contestant, look: Look) -> LeftOut:
    return left_out.left_out(look, row.held_to(TARGET))
