"""The result of one played world: what was checked, met and violated."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Verdict:
    """How many checks were made of each invariant, what they found, and how often each thing came up that a check needs to mean
    anything."""

    checks: Counter[str] = field(default_factory=Counter)
    met: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def check(self, invariant: str, holds: bool, story: str) -> None:
        """Count one check."""
        self.checks[invariant] += 1
        if not holds:
            self.violations.append(f"{invariant}: {story}")

    def meet(self, what: str, happened: bool = True) -> None:
        """Note that this came up."""
        if happened:
            self.met[what] += 1

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.violations


@dataclass(frozen=True, slots=True)
class Outcome:
    """One played world. `digest` is over all logs: the same seed gives the same bytes. `story`: all that happened, a line each."""

    seed: int
    verdict: Verdict
    digest: str
    steps: int
    virtual_s: float
    injected: Counter[str]
    story: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing was violated."""
        return self.verdict.ok

    @property
    def violated(self) -> frozenset[str]:
        """The names of the invariants that were."""
        return frozenset(line.partition(":")[0] for line in self.verdict.violations)
