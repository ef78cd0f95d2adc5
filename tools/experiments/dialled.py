"""Retraining for a target rate beside turning the dial of one adapter: at the rate that the retrained one realises, family by family.

Knows held-out verdicts under two rules; knows nothing of training. The dial is the frozen adapter of the usual τ, whose items with the
highest log-odds of asking go to the cloud until the same share is reached.
"""

from __future__ import annotations

from collections.abc import Iterator

from tools.experiments.findings import Findings, Part, Runs, of_pairs, pairs_of, pooled
from tools.experiments.left_out import LeftOut, left_out, left_out_at_the_rate_of
from tools.experiments.measures import Look, accuracy, difference, own_decision, rate, second
from tools.experiments.stats import Estimate, Statistic
from tools.experiments.tables import MISSING, Table, percent, signed, with_half

USUAL_RATE = 0.3


def dial_table(findings: Findings) -> list[Table]:
    """A row for each SLM, family and τ other than the usual one; nothing where an experiment has no usual τ."""
    rows = [row for model in findings.spec.models for row in _rows(findings, model)]
    header = ("SLM", "family", "τ", "seeds", "retrained for τ", "the dial at the same rate", "retrained minus dial")
    note = (
        "Joint accuracy @ the share that the cloud answers, held out, T = 0; the dial is on the adapter of "
        f"τ = {USUAL_RATE:g}. A star marks an interval over several seeds that is without 0."
    )
    return [Table("Retraining for a rate beside the dial on one adapter", header, tuple(rows), (note,))] if rows else []


def _rows(findings: Findings, model: str) -> Iterator[tuple[str, ...]]:
    phases = findings.spec.phases
    usual = next((name for name, parts in phases.items() if parts[-1].target_rate == USUAL_RATE), None)
    if usual is None:
        return
    for source in findings.spec.evaluate.sources:
        for name, parts in phases.items():
            if name != usual:
                retrained, dialled = findings.runs(model, phases=name), findings.runs(model, phases=usual)
                where = (model, source.removeprefix("practice:"), f"{parts[-1].target_rate:g}", retrained.told)
                yield (*where, *_compared(retrained, dialled, source, len(parts)))


def _compared(retrained: Runs, dialled: Runs, source: str, phase: int) -> tuple[str, str, str]:
    mine, theirs = [Part(retrained, source, phase)], [Part(dialled, source, phase)]

    def told(statistic: Statistic) -> Estimate | None:
        return of_pairs(pairs_of(mine, theirs), _at_the_same_rate, statistic)

    own, share = pooled(mine, own_decision, accuracy), pooled(mine, own_decision, rate)
    turned, turned_share, gained = told(second(accuracy)), told(second(rate)), told(difference(accuracy))
    if own is None or share is None:
        return (MISSING, MISSING, MISSING)
    if turned is None or turned_share is None or gained is None:
        return (_at(with_half(own), share.mean), MISSING, MISSING)
    return (_at(with_half(own), share.mean), _at(with_half(turned), turned_share.mean), signed(gained))


def _at_the_same_rate(retrained: Look, dialled: Look) -> tuple[LeftOut, LeftOut]:
    """Each seed's dial at the rate of that seed's retrained adapter."""
    own = left_out(retrained, own_decision)
    return own, left_out_at_the_rate_of(own, dialled)


def _at(accuracy_text: str, share: float) -> str:
    return f"{accuracy_text} @ {percent(share, 0)} %"
