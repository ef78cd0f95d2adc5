"""Where phases begin and end among finished steps. Knows step records; knows nothing of plans that have not been carried out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from edge.agent.events import StepFinished


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """The steps of one phase, at least one, in order. `phase` counts from 0."""

    phase: int
    source: str
    task: str
    steps: tuple[StepFinished, ...]

    @property
    def first(self) -> int:
        """Number of its first step."""
        return self.steps[0].step

    @property
    def last(self) -> int:
        """Number of its last step so far."""
        return self.steps[-1].step

    @property
    def families(self) -> tuple[str, ...]:
        """The families of questions that occurred, by name."""
        return tuple(sorted({scores.family for step in self.steps for scores in step.families}))

    @property
    def name(self) -> str:
        """For people: `phase 1: group1 (arith, science)`; a family that is called as its task is not repeated."""
        families = ", ".join(family for family in self.families if family != self.task)
        return f"phase {self.phase + 1}: {self.task}" + (f" ({families})" if families else "")


def phase_spans(steps: Sequence[StepFinished]) -> list[PhaseSpan]:
    """Consecutive steps of the same phase, in order."""
    grouped = groupby(steps, key=lambda step: (step.phase, step.source, step.task))
    return [PhaseSpan(phase, source, task, tuple(members)) for (phase, source, task), members in grouped]
