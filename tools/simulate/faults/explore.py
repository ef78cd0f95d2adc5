"""Many seeds, in one process or several, in the order of their numbers."""

from __future__ import annotations

import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from multiprocessing import get_context
from typing import Any

from tools.simulate.faults.planted import planted
from tools.simulate.faults.scenario import (
    AGENT_FAULTS,
    AGENT_FEATURES,
    AGENT_POINTS,
    FAULTS,
    FEATURES,
    POINTS,
    Scenario,
    draw_agents,
    draw_scripted,
)
from tools.simulate.faults.verdict import INVARIANTS, Outcome
from tools.simulate.faults.world import play
from tools.simulate.reports.quantities import several

AHEAD = 4
"""Batches of seeds that each process is given before those of lower numbers are reported."""
BATCH = 4
_KILLS = ("kill", "limits", "drain")


@dataclass(frozen=True, slots=True)
class Kind:
    """A family of worlds: how a seed's world is drawn, and all that they can check (in words, by code), inject and meet."""

    name: str
    draw: Callable[[int], Scenario]
    invariants: Mapping[str, str]
    faults: frozenset[str]
    features: frozenset[str]


COORDINATOR = Kind(
    "coordinator",
    draw_scripted,
    {code: told for code, told in INVARIANTS.items() if code.startswith("I")},
    frozenset(FAULTS) | {f"killed at {point}" for point in POINTS},
    FEATURES,
)
AGENTS = Kind(
    "agents",
    draw_agents,
    INVARIANTS,
    frozenset(AGENT_FAULTS) | {f"agent died at {point}" for point in AGENT_POINTS},
    AGENT_FEATURES,
)
KINDS = {kind.name: kind for kind in (COORDINATOR, AGENTS)}


@dataclass(slots=True)
class Tally:
    """The sums over seeds, the first outcome that violates something, and what each violating seed said first. `violated` counts
    violations of each invariant, `violated_in` the seeds."""

    kind: Kind
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
        return sum(count for kind, count in self.injected.items() if kind in _KILLS or kind.startswith("killed at "))

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
            for name in self.kind.invariants
            if self.violated[name]
        ]

    def table(self) -> list[str]:
        """What was checked, met and injected how often, a line each; what was never met stands there with 0."""
        checks = {name: self.checks[name] for name in self.kind.invariants}
        injected = {**dict.fromkeys(sorted(self.kind.faults), 0), **self.injected}
        met = {**dict.fromkeys(sorted(self.kind.features), 0), **self.met}
        parts = (("checks of", checks), ("fault", injected), ("met:", met))
        return [f"  {what} {name}: {count}" for what, counts in parts for name, count in counts.items()]

    def never_met(self) -> list[str]:
        """The invariants, faults and features that none of these seeds had to do with."""
        missing = {f"check of {name}" for name in self.kind.invariants if not self.checks[name]}
        missing |= {f"fault {name}" for name in self.kind.faults if not self.injected[name]}
        return sorted(missing | {name for name in self.kind.features if not self.met[name]})


def played(scenario: Scenario, plant: str = "") -> Outcome:
    """One scenario, with the bug of this name planted for as long as it is played."""
    with planted(plant):
        return play(scenario)


def explore(
    seeds: Iterable[int],
    progress: Callable[[Tally], None] = lambda _: None,
    *,
    kind: Kind = COORDINATOR,
    jobs: int = 1,
    keep_going: bool = False,
    plant: str = "",
    time_over: Callable[[], bool] = lambda: False,
) -> Tally:
    """Play seeds until the first violation, all of them, or until `time_over`; the tally of the same seeds is the same whatever the number
    of jobs. Ctrl-C gives the tally after the seed in hand, a second one raises KeyboardInterrupt."""
    tally = Tally(kind)
    in_order = _here(kind, seeds, plant) if jobs == 1 else _in_processes(kind, seeds, jobs, plant)
    with noted_interrupts() as interrupted, closing(in_order) as outcomes:
        for outcome in outcomes:
            tally.add(outcome)
            progress(tally)
            tally.interrupted = interrupted()
            if tally.interrupted or time_over() or (tally.violating is not None and not keep_going):
                break
    return tally


def _here(kind: Kind, seeds: Iterable[int], plant: str) -> Generator[Outcome, None, None]:
    for seed in seeds:
        yield played(kind.draw(seed), plant)


def _in_processes(kind: Kind, seeds: Iterable[int], jobs: int, plant: str) -> Generator[Outcome, None, None]:
    coming = iter(seeds)
    waiting: deque[Future[list[Outcome]]] = deque()
    with ProcessPoolExecutor(jobs, get_context("spawn"), signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        try:
            while True:
                while len(waiting) < AHEAD * jobs and (batch := list(islice(coming, BATCH))):
                    waiting.append(pool.submit(_batch, kind.name, batch, plant))
                if not waiting:
                    return
                yield from waiting.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _batch(kind: str, seeds: list[int], plant: str) -> list[Outcome]:
    """What happened is sent along only where something was violated."""
    outcomes = _here(KINDS[kind], seeds, plant)
    return [replace(outcome, story=()) if outcome.ok else outcome for outcome in outcomes]


@contextmanager
def noted_interrupts() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C came since the block began; a second one ends the program where it is. Beside the main thread it never did.

    A KeyboardInterrupt would rise wherever the program is just then: in a simulated device it would be taken for what that device's own
    code raised, and so for a violation."""
    came = False

    def note(number: int, frame: Any) -> None:
        nonlocal came
        came = True
        signal.signal(number, before)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: came
    finally:
        signal.signal(signal.SIGINT, before)
