"""The main experiment in one small table, all four families together. Knows contestants; knows nothing of a single family."""

from __future__ import annotations

from tools.experiments.contestants import BARE_DIAL, EDGE_ONLY_DIAL, FIRST, PAPER, SECOND, TARGET, Contestant
from tools.experiments.findings import Findings, Part, common_seeds_of, compared, pooled
from tools.experiments.measures import Rule, accuracy, forgetting, rate
from tools.experiments.stats import Estimate
from tools.experiments.tables import MISSING, Table, percent, with_half

_HELD_AS = {"edge-only": EDGE_ONLY_DIAL}
"""Who holds a row's runs to a rate where the row itself cannot choose."""


def summary_table(findings: Findings) -> Table:
    """Joint accuracy by own decision and at equal rate, during and post, and what is forgotten."""
    rows = [(model, row.told, *_cells(findings, model, row)) for model in findings.spec.models for row in (BARE_DIAL, *PAPER)]
    at = f"at {percent(TARGET, 0)} % cloud"
    return Table(
        "Summary: joint accuracy in percent, mean of the four families",
        ("SLM", "method", "seeds", "during @ cloud", "post @ cloud", "forgotten", f"{at}, during", f"{at}, post"),
        tuple(rows),
        (
            "During: after the phase of a family's own group; post: after the other group's (arith and science are read in the runs that "
            "learn group 1 first, code and facts in the others); forgotten: (during - post) / during. The first three by each method's own "
            "decision @ the share that the cloud answered; the last two with exactly "
            f"{percent(TARGET, 0)} % sent, set after the fact: by the log-odds of asking, for the routers by what they predict (naive: at "
            "random). ± is a 95 % interval over seeds and items (one seed, or none learned: items only).",
        ),
    )


def _cells(findings: Findings, model: str, row: Contestant) -> tuple[str, ...]:
    during, post = (row.parts(findings, model, phase) for phase in (FIRST, SECOND))
    held = _HELD_AS.get(row.name, row).held_to(TARGET)
    if not row.learns:
        return ("-", _told(during, row.rule), "-", "-", _plain(pooled(during, held, accuracy)), "-")
    lost = compared(during, post, (row.rule, row.rule), forgetting(accuracy))
    return (
        common_seeds_of(during),
        _told(during, row.rule),
        _told(post, row.rule),
        _plain(lost),
        _plain(pooled(during, held, accuracy)),
        _plain(pooled(post, held, accuracy)),
    )


def _told(parts: list[Part], rule: Rule) -> str:
    right, asked = pooled(parts, rule, accuracy), pooled(parts, rule, rate)
    return MISSING if right is None or asked is None else f"{with_half(right)} @ {percent(asked.mean, 0)} %"


def _plain(found: Estimate | None) -> str:
    return MISSING if found is None else with_half(found)
