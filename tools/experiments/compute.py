"""What experiments cost in hours: measured where cells like these have been run, else guessed. Knows seconds; runs nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tools.experiments.cells import Cell
from tools.experiments.result import Result

_STEP_S, _LOOK_S, _START_S = 3.0, 45.0, 10.0
"""Guesses for two x86 cores, one thread a cell."""


@dataclass
class Pace:
    """Seconds of a cell's step by model, method and source, from finished cells; the rest of a cell counts once for each phase."""

    step_s: dict[tuple[str, str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    phase_s: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, results: Iterable[Result]) -> Pace:
        """The pace of these results."""
        pace = cls()
        for result in results:
            pace.learn(result)
        return pace

    def learn(self, result: Result) -> None:
        """Count a finished cell."""
        cell, cost = result.cell, result.body["cost"]
        if cell.steps:
            step_s = cost["training"]["seconds"] / cell.steps
            for phase in cell.phases:
                self.step_s[cell.model, cell.method, phase.source].append(step_s)
        rest = max(0.0, cost["wall_s"] - cost["training"]["seconds"])
        self.phase_s.append(rest / max(1, len(cell.phases)))

    def cell_s(self, cell: Cell) -> float:
        """Seconds that a cell takes from its beginning to its end."""
        rest = _mean(self.phase_s, _LOOK_S if cell.evaluate.items else 0.0)
        steps = sum(phase.steps * self._step_s(cell, phase.source) for phase in cell.phases)
        return _START_S + steps + rest * max(1, len(cell.phases))

    def _step_s(self, cell: Cell, source: str) -> float:
        """The nearest that is known: this model, method and source, else any with this method, else any."""
        exact = self.step_s.get((cell.model, cell.method, source))
        alike = [
            value for (_, method, of), values in self.step_s.items() if (method, of) == (cell.method, source) for value in values
        ]
        every = [value for values in self.step_s.values() for value in values]
        return _mean(exact or alike or every, _STEP_S)


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
