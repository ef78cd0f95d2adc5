"""What checks come to: of one world (`Verdict`, `Outcome`) and of many (`Tally`)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tools.simulate.reports.quantities import several

KILLS = ("kill", "limits", "drain")


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
    """One played world. `digest` is over all logs: the same seed gives the same bytes. `told`: all that happened, a line each."""

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


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All that a kind of world can check, inject and meet."""

    invariants: tuple[str, ...]
    faults: frozenset[str]
    features: frozenset[str]


@dataclass(slots=True)
class Tally:
    """The sums over seeds, the first outcome that violates something, and what each violating seed said first. `violated` counts
    violations of each invariant, `violated_in` the seeds."""

    catalogue: Catalogue
    seeds: int = 0
    violations: int = 0
    steps: int = 0
    virtual_s: float = 0.0
    interrupted: bool = False
    checks: Counter[str] = field(default_factory=Counter)
    met: Counter[str] = field(default_factory=Counter)
    injected: Counter[str] = field(default_factory=Counter)
    violating: Outcome | None = None
    found: dict[int, str] = field(default_factory=dict)
    violated: Counter[str] = field(default_factory=Counter)
    violated_in: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        """Another seed."""
        self.seeds += 1
        self.steps += outcome.steps
        self.virtual_s += outcome.virtual_s
        self.violations += len(outcome.verdict.violations)
        self.checks += outcome.verdict.checks
        self.met += outcome.verdict.met
        self.injected += outcome.injected
        if not outcome.ok:
            self.violating = self.violating or outcome
            self.found[outcome.seed] = outcome.verdict.violations[0]
            self.violated.update(line.partition(":")[0] for line in outcome.verdict.violations)
            self.violated_in.update(outcome.violated)

    @property
    def kills(self) -> int:
        """How often the coordinator was killed."""
        return sum(count for kind, count in self.injected.items() if kind in KILLS or kind.startswith("killed at "))

    def line(self) -> str:
        """One line for a summary."""
        return (
            f"{several(self.seeds, 'seed')}, {self.virtual_s / 3600:.1f} virtual hours in {self.steps} steps: {self.kills} kills survived, "
            f"{sum(self.injected.values())} faults injected, {sum(self.checks.values())} invariant checks, "
            f"{self.violations} violations" + (" (interrupted)" if self.interrupted else "")
        )

    def by_invariant(self) -> list[str]:
        """How often each invariant was violated, and in how many seeds, a line each; none where nothing was."""
        return [
            f"{name}: {several(self.violated[name], 'violation')} in {several(self.violated_in[name], 'seed')}"
            for name in self.catalogue.invariants
            if self.violated[name]
        ]

    def table(self) -> list[str]:
        """What was checked, met and injected how often, a line each; what was never met stands there with 0."""
        checks = {name: self.checks[name] for name in self.catalogue.invariants}
        injected = {**dict.fromkeys(sorted(self.catalogue.faults), 0), **self.injected}
        met = {**dict.fromkeys(sorted(self.catalogue.features), 0), **self.met}
        parts = (("checks of", checks), ("fault", injected), ("met:", met))
        return [f"  {what} {name}: {count}" for what, counts in parts for name, count in counts.items()]

    def never_met(self) -> list[str]:
        """The invariants, faults and features that none of these seeds had to do with."""
        missing = {f"check of {name}" for name in self.catalogue.invariants if not self.checks[name]}
        missing |= {f"fault {name}" for name in self.catalogue.faults if not self.injected[name]}
        return sorted(missing | {name for name in self.catalogue.features if not self.met[name]})
