"""The rules by which a candidate adapter may serve. Knows shares and bounds; knows nothing of models, files or how shares were measured.

Two tests: no task's anchors (a few stored items) may have fallen too far below what the adapter in use makes of them, and the share of
responses that ask must lie near τ, or at least not further away than before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class GateRules:
    """When and how candidates are judged.

    `every`: steps between judgements (a phase's last step is judged too). `anchors_per_task`: items of each task. `max_drop`: largest
    fall of a task's share right. `rate_band`: half-width around τ. `rate_window`: steps whose mean is the rate. `max_refusals` in a row
    take training back to the adapter in use. `keep`: versions that served, kept to go back to.
    """

    every: int = 10
    anchors_per_task: int = 16
    max_drop: float = 0.2
    rate_band: float = 0.15
    rate_window: int = 10
    max_refusals: int = 5
    keep: int = 3


@dataclass(frozen=True, slots=True)
class AnchorScore:
    """Share of one source's anchors that are right: with the adapter in use, and with the candidate."""

    source: str
    items: int
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class RateScore:
    """Shares of validly asking responses: the target, the candidate's last steps, and what it was before (None: not known)."""

    target: float
    now: float
    before: float | None


def refusal_of(anchors: Sequence[AnchorScore], rate: RateScore, rules: GateRules) -> str:
    """Why the candidate may not serve, in one line; "" when it may."""
    fallen = [score for score in anchors if score.before - score.after > rules.max_drop + _ROUNDING]
    reasons = [
        f"{score.source}: {_percent(score.after)} of {score.items} anchors right, {_percent(score.before)} with the adapter in use"
        for score in fallen
    ]
    if _strays(rate, rules.rate_band):
        reasons.append(f"asks {_percent(rate.now)}, too far from the target of {_percent(rate.target)}")
    return "; ".join(reasons)


def _strays(rate: RateScore, band: float) -> bool:
    """Outside the band around τ, and further away than before."""
    distance = abs(rate.now - rate.target)
    within = distance <= band + _ROUNDING
    return not within and (rate.before is None or distance > abs(rate.before - rate.target) + _ROUNDING)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
