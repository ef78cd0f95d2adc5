"""What one played world came to. Knows what is told of it; knows nothing of how it was played."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tools.simulate.faults.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a seed came to. `digest` is over all logs: the same seed gives the same bytes. `told`: all that happened, a line each."""

    seed: int
    verdict: Verdict
    digest: str
    steps: int
    virtual_s: float
    injected: Counter[str]
    told: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing was violated."""
        return self.verdict.ok

    @property
    def violated(self) -> frozenset[str]:
        """The names of the invariants that were."""
        return frozenset(line.partition(":")[0] for line in self.verdict.violations)
