"""Target rates over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edge.dagrpo.numbers import require_share

PAPER_SCHEDULES: dict[str, tuple[float, ...]] = {
    "rising": (0.1, 0.3, 0.5, 0.7),
    "falling": (0.7, 0.5, 0.3, 0.1),
    "mixed": (0.1, 0.7, 0.3, 0.5),
    "zigzag": (0.5, 0.3, 0.7, 0.1),
}
"""The four schedules of the paper's budget-tracking experiment."""


@dataclass(frozen=True, slots=True)
class TargetPhase:
    """`steps` learning steps held to `target_rate` τ."""

    target_rate: float
    steps: int

    def __post_init__(self) -> None:
        require_share("target_rate", self.target_rate)
        if self.steps < 1:
            raise ValueError(f"a phase needs at least one step, not {self.steps}")


def even_phases(rates: Sequence[float], total_steps: int) -> tuple[TargetPhase, ...]:
    """Phases of equal length; the first ones take the remainder. Raises ValueError when there are more phases than steps."""
    if not rates or total_steps < len(rates):
        raise ValueError(f"cannot spread {total_steps} steps over {len(rates)} phases")
    base, extra = divmod(total_steps, len(rates))
    return tuple(TargetPhase(rate, base + (index < extra)) for index, rate in enumerate(rates))


def phase_at(phases: Sequence[TargetPhase], step: int) -> int:
    """Index of the phase that step (from 0) belongs to; steps past the end belong to the last. Raises ValueError if step < 0."""
    if step < 0 or not phases:
        raise ValueError(f"no phase for step {step}")
    end = 0
    for index, phase in enumerate(phases):
        end += phase.steps
        if step < end:
            return index
    return len(phases) - 1
