"""Many seeds, one after the other, and what they add up to. Knows counts; knows nothing of what a seed does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tools.simulate.faults.scenario import FAULTS, FEATURES, POINTS
from tools.simulate.faults.world import Outcome, run_seed

INVARIANTS = tuple(f"I{number}" for number in range(1, 15))
EVERY_FAULT = frozenset(FAULTS) | {f"killed at {point}" for point in POINTS}
KILLS = ("kill", "limits", "drain")


@dataclass(slots=True)
class Tally:
    """The sums over seeds, and the first outcome that violates something."""

    seeds: int = 0
    violations: int = 0
    steps: int = 0
    virtual_s: float = 0.0
    checks: Counter[str] = field(default_factory=Counter)
    met: Counter[str] = field(default_factory=Counter)
    injected: Counter[str] = field(default_factory=Counter)
    violating: Outcome | None = None

    def add(self, outcome: Outcome) -> None:
        """Another seed."""
        self.seeds += 1
        self.steps += outcome.steps
        self.virtual_s += outcome.virtual_s
        self.violations += len(outcome.verdict.violations)
        self.checks += outcome.verdict.checks
        self.met += outcome.verdict.met
        self.injected += outcome.injected
        if not outcome.ok and self.violating is None:
            self.violating = outcome

    @property
    def kills(self) -> int:
        """How often the coordinator was killed."""
        return sum(count for kind, count in self.injected.items() if kind in KILLS or kind.startswith("killed at "))

    def line(self) -> str:
        """One line for a summary."""
        return (
            f"{self.seeds} seeds, {self.virtual_s / 3600:.1f} virtual hours in {self.steps} steps: {self.kills} kills survived, "
            f"{sum(self.injected.values())} faults injected, {sum(self.checks.values())} invariant checks, "
            f"{self.violations} violations"
        )

    def table(self) -> list[str]:
        """What was checked, met and injected how often, a line each; what was never met stands there with 0."""
        checks = {name: self.checks[name] for name in INVARIANTS}
        injected = {**dict.fromkeys(sorted(EVERY_FAULT), 0), **self.injected}
        met = {**dict.fromkeys(sorted(FEATURES), 0), **self.met}
        parts = (("checks of", checks), ("fault", injected), ("met:", met))
        return [f"  {what} {name}: {count}" for what, counts in parts for name, count in counts.items()]

    def never_met(self) -> list[str]:
        """The invariants, faults and features that none of these seeds had to do with."""
        missing = {f"check of {name}" for name in INVARIANTS if not self.checks[name]}
        missing |= {f"fault {name}" for name in EVERY_FAULT if not self.injected[name]}
        return sorted(missing | {name for name in FEATURES if not self.met[name]})


def explore(seeds: Iterable[int], progress: Callable[[Tally], None] = lambda _: None) -> Tally:
    """Play seeds until the first violation."""
    tally = Tally()
    for seed in seeds:
        tally.add(run_seed(seed))
        progress(tally)
        if tally.violating is not None:
            break
    return tally
