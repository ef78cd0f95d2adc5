"""The invariants of fault worlds, and the result of one played world: what was checked, met and violated."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

INVARIANTS = {
    "A1": "every answered question has its record, as it was shown; a question that was cut has one at most; there are no others",
    "A2": "an answer of the cloud has exactly one call, completed; what a call for people cost is in a record",
    "A3": "the cost of calls in the records is what the journal charged",
    "A4": "every committed step was reported exactly once, in order, with its rate; λ is the journal's after each",
    "A5": "at the end no report waits to be sent, and no call is unconfirmed",
    "A6": "learning's daily budget is the journal's share of learning, call by call; no day has more calls than its limit",
    "A7": "the dial has counted the answers that count by their records",
    "A8": "nothing is left over: no task, no failure",
    "A9": "position, cursor and committed steps agree; all that was planned was done",
    "A10": "λ and the next step in the agent's folder are the journal's",
    "I1": "no budget, floor or rate limit is exceeded at any moment",
    "I2": "the use of a budget that is shown is the journal's sum",
    "I3": "the upstream is asked at most once for a call, and only under a hold that is durable",
    "I4": "a call is charged what it cost, and refunded only where it was not executed",
    "I5": "a key always gets its first answer, and never for other content",
    "I6": "the steps of a task follow each other, and each λ follows from the reports",
    "I7": "calls of learning belong to an open step; a step's report is possible",
    "I8": "no hold outlives its lease",
    "I9": "every reply is in the journal, stays true, and has the HTTP status of its kind",
    "I10": "nobody gets what belongs to another device or person, nor uses a task of others, nor gets in when disabled",
    "I11": "everything ends: no call stays open, no watcher misses the newest version",
    "I12": "nothing is sent while the ledger cannot be written",
    "I13": "the journal is one chain",
    "I14": "nothing is left over: no task, no complaint of the event loop",
}
"""Those of the agent (A), and those of the coordinator (I)."""


@dataclass(slots=True)
class WorldVerdict:
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
class PlayedWorld:
    """One played world. `digest` is over all logs: the same seed gives the same bytes. `story`: all that happened, a line each."""

    seed: int
    verdict: WorldVerdict
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
