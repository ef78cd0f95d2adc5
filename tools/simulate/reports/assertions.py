"""Whether a run did what its scenario states. Knows how a claim is judged by a result; knows nothing of how it is written or read.

What cannot be told (nobody answered, no budget is in force, no such group) makes an assertion not hold, and `found` says so.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from tools.simulate.reports.quantities import Asked, Quantity, answers_of, weighted, written
from tools.simulate.reports.result import AssertionResult, GroupResult, SimulationResult
from tools.simulate.reports.sentences import EACH, Claim, check_sentences, parse

__all__ = ["check_sentences", "evaluate", "holds"]

_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
}
_HAIR = 1e-9
"""Sums of binary fractions are off by less; what is right on the limit keeps it."""


@dataclass(frozen=True, slots=True)
class _Judged:
    """`missed_by` orders what does not hold: the worst is the largest; not above 0 where it holds."""

    holds: bool
    found: str
    missed_by: float = 0.0


def evaluate(result: SimulationResult, sentences: Sequence[str]) -> list[AssertionResult]:
    """Judge each sentence. Raises UsageError for one that is not understood."""
    judged = [(sentence, _judge(result, parse(sentence))) for sentence in sentences]
    return [AssertionResult(sentence, found.holds, found.found) for sentence, found in judged]


def holds(result: SimulationResult) -> bool:
    """Whether the run did all that its scenario states, and the ledger agrees with the devices."""
    return all(each.holds for each in result.assertions) and not result.cloud.ledger_violations


def _judge(result: SimulationResult, claim: Claim) -> _Judged:
    groups = [each for each in result.groups if claim.group in ("", EACH, each.name)]
    if not groups:
        return _Judged(False, f"no group is called {claim.group}")
    if claim.aim.word == "budget":
        return _within_budget(result, claim.quantity)
    if claim.aim.word == "τ":
        return _worst([_near_target(result, claim, group) for group in groups])
    if claim.group == EACH:
        return _worst([_compare(claim, Asked(result, [each], claim.source, claim.settled), f" ({each.name})") for each in groups])
    return _compare(claim, Asked(result, groups, claim.source, claim.settled), "")


def _worst(judged: Sequence[_Judged]) -> _Judged:
    return max(judged, key=lambda each: (not each.holds, each.missed_by))


def _compare(claim: Claim, asked: Asked, whose: str) -> _Judged:
    value, aim = claim.quantity.measure(asked), claim.aim.number
    if value is None or aim is None:
        return _Judged(False, f"{claim.quantity.name}: {_why_not(asked)}{whose}", float("inf"))
    found = f"{claim.quantity.name} {written(value, claim.quantity.unit)}{whose}"
    if claim.op == "within":
        off = abs(value - aim) - claim.tolerance
        return _Judged(off <= _HAIR, f"{found}, {written(abs(value - aim), claim.quantity.unit)} off", off)
    off = {"<": value - aim, "<=": value - aim, ">": aim - value, ">=": aim - value, "=": abs(value - aim)}[claim.op]
    return _Judged(_COMPARISONS[claim.op](value, aim), found, off)


def _why_not(asked: Asked) -> str:
    if not sum(answers_of(each, asked.sources) for each in asked.groups):
        return f"no {asked.source} answers".replace("  ", " ")
    return "nothing after the warm-up" if asked.settled else "was not measured"


def _near_target(result: SimulationResult, claim: Claim, group: GroupResult) -> _Judged:
    """A rate against its own τ; where τ changes, each stretch of one τ for itself, and each after a warm-up of its own."""
    stretches = _stretches(result, claim, group)
    known = [(rate, target) for rate, target in stretches if rate is not None]
    if not known:
        why = _why_not(Asked(result, [group], settled=claim.settled))
        return _Judged(False, f"{claim.quantity.name}: {why} ({group.name})", float("inf"))
    rate, target = max(known, key=lambda each: abs(each[0] - each[1]))
    off = abs(rate - target) - claim.tolerance
    stretch = "" if len(stretches) == 1 else f", the worst of {len(known)} stretches of one τ"
    if stretch and claim.settled and result.warm_up_s:
        stretch += f", each after a warm-up of {result.warm_up_s / 3600:g} h of its own"
    return _Judged(off <= _HAIR, f"{claim.quantity.name} {rate:.3f}, τ {target:.3g} ({group.name}{stretch})", off)


def _stretches(result: SimulationResult, claim: Claim, group: GroupResult) -> list[tuple[float | None, float]]:
    """(rate, τ) of each stretch of time with one τ."""
    training = claim.quantity.name == "training rate"
    targets, series = group.target_rates(training=training), group.series
    if len(set(targets)) < 2:
        target = targets[0] if targets else group.target_rate
        return [(claim.quantity.measure(Asked(result, [group], settled=claim.settled)), target)]
    rates, weights = (series.training_assist_rate, [1] * len(targets)) if training else (series.assist_rate, series.answers)
    stretches: list[tuple[float | None, float]] = []
    begins = 0.0
    for target, stretch in groupby(zip(targets, series.at_s, rates, weights, strict=True), key=lambda row: row[0]):
        own = list(stretch)
        settled_at = begins + (result.warm_up_s if claim.settled else 0.0)
        stretches.append((weighted([(rate, weight) for _, at, rate, weight in own if at > settled_at]), target))
        begins = own[-1][1]
    return stretches


def _within_budget(result: SimulationResult, quantity: Quantity) -> _Judged:
    """Charged at most what the limit allows, at the end of every interval.

    A limit that is lowered under what has been charged takes nothing back: then nothing more may be added, save what was under way, which
    may end in the interval that follows.
    """
    cloud, money = result.cloud, quantity.name == "spend"
    charged, limits = (cloud.spend_uusd, cloud.limit_uusd) if money else (cloud.calls, cloud.limit_calls)
    rows = [(at, used, limit) for at, used, limit in zip(cloud.at_s, charged, limits, strict=True)]
    if all(limit is None for _, _, limit in rows):
        return _Judged(False, f"no budget of {quantity.name} is in force")
    scale = 1e6 if money else 1.0
    over = [
        (used - allowed, at, used, limit)
        for (at, used, limit), allowed in zip(rows, _allowances(rows), strict=True)
        if used > allowed
    ]
    if over:
        _, at, used, limit = max(over, key=lambda each: each[0])
        said = f"{written(used / scale, quantity.unit)} of {written((limit or 0) / scale, quantity.unit)}"
        return _Judged(False, f"{said} at {at / 3600:.4g} h")
    _, used, limit = max((row for row in rows if row[2] is not None), key=lambda row: row[1] / max(row[2] or 0, 1))
    return _Judged(True, f"at most {written(used / scale, quantity.unit)} of {written((limit or 0) / scale, quantity.unit)}")


def _allowances(rows: Sequence[tuple[float, int, int | None]]) -> list[float]:
    """What may have been charged at the end of each interval."""
    limits = [float("inf") if limit is None else float(limit) for _, _, limit in rows]
    allowed: list[float] = []
    kept = still_ending = 0.0
    limit_before, used_before, of_old = limits[0], 0, 0.0
    for (_, used, _), limit in zip(rows, limits, strict=True):
        if used < used_before:  # another window began
            kept = still_ending = 0.0
        if limit < limit_before:
            kept, still_ending, of_old = 0.0, 2, limit_before
        if still_ending:
            kept, still_ending = max(kept, min(float(used), of_old)), still_ending - 1
        allowed.append(max(limit, kept))
        limit_before, used_before = limit, used
    return allowed
