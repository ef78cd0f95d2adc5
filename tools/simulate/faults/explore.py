"""`python -m tools.simulate explore`: play many seeds, in one process or several, in the order of their numbers; make the first violating
world small, and show its story."""

from __future__ import annotations

import argparse
import shlex
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
from rich.console import Console

from tools.arguments import positive
from tools.places import check_files, put_json, read_json
from tools.simulate.faults.planted import find_bug, planted
from tools.simulate.faults.scenario import (
    AGENT_FAULTS,
    AGENT_FEATURES,
    AGENT_POINTS,
    FAULTS,
    FEATURES,
    POINTS,
    TASK_TAKEN,
    FaultScenario,
    draw_agents,
    draw_scripted,
    smaller,
    words,
)
from tools.simulate.faults.verdict import INVARIANTS, PlayedWorld
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
    draw: Callable[[int], FaultScenario]
    invariants: Mapping[str, str]
    faults: frozenset[str]
    features: frozenset[str]


COORDINATOR = Kind(
    "coordinator",
    draw_scripted,
    {code: text for code, text in INVARIANTS.items() if code.startswith("I")},
    frozenset(FAULTS) | {f"killed at {point}" for point in POINTS},
    FEATURES,
)
AGENTS = Kind(
    "agents",
    draw_agents,
    INVARIANTS,
    frozenset(AGENT_FAULTS) | {TASK_TAKEN} | {f"agent died at {point}" for point in AGENT_POINTS},
    AGENT_FEATURES,
)
KINDS = {kind.name: kind for kind in (COORDINATOR, AGENTS)}


@dataclass(slots=True)
class ExploreTally:
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
    violating: PlayedWorld | None = None
    found: dict[int, str] = field(default_factory=dict)
    violated: Counter[str] = field(default_factory=Counter)
    violated_in: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: PlayedWorld) -> None:
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
        """What was checked, met and injected how often, a line each; what was never met has 0."""
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


def played(scenario: FaultScenario, plant: str = "") -> PlayedWorld:
    """One scenario, with the bug of this name planted for as long as it is played."""
    with planted(plant):
        return play(scenario)


def explore(
    seeds: Iterable[int],
    progress: Callable[[ExploreTally], None] = lambda _: None,
    *,
    kind: Kind = COORDINATOR,
    jobs: int = 1,
    keep_going: bool = False,
    plant: str = "",
) -> ExploreTally:
    """Play seeds until the first violation, or all of them; the tally of the same seeds is the same whatever the number
    of jobs. Ctrl-C gives the tally after the seed in hand, a second one raises KeyboardInterrupt."""
    tally = ExploreTally(kind)
    in_order = _here(kind, seeds, plant) if jobs == 1 else _in_processes(kind, seeds, jobs, plant)
    with noted_interrupts() as interrupted, closing(in_order) as outcomes:
        for outcome in outcomes:
            tally.add(outcome)
            progress(tally)
            tally.interrupted = interrupted()
            if tally.interrupted or (tally.violating is not None and not keep_going):
                break
    return tally


def _here(kind: Kind, seeds: Iterable[int], plant: str) -> Generator[PlayedWorld, None, None]:
    for seed in seeds:
        yield played(kind.draw(seed), plant)


def _in_processes(kind: Kind, seeds: Iterable[int], jobs: int, plant: str) -> Generator[PlayedWorld, None, None]:
    coming = iter(seeds)
    waiting: deque[Future[list[PlayedWorld]]] = deque()
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


def _batch(kind: str, seeds: list[int], plant: str) -> list[PlayedWorld]:
    """What happened is sent along only where something was violated."""
    outcomes = _here(KINDS[kind], seeds, plant)
    return [replace(outcome, story=()) if outcome.ok else outcome for outcome in outcomes]


@contextmanager
def noted_interrupts() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C came since the block began; a second one ends the program where it is. In any other than the main thread always False.

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


_INTERRUPTED = 130
_VIOLATIONS_SHOWN = 10
_TRIES = 400
"""Of making a violating scenario smaller, at the most."""
_SEEDS_A_LINE = 1000
"""Of progress in a log file; a terminal has one line that changes."""
_COMMAND = "python -m tools.simulate explore"


def add_command(commands: Any) -> None:
    """The subcommand, for argparse's subparsers."""
    command = commands.add_parser(
        "explore", help="worlds full of faults in virtual time, one for each seed, until something is violated"
    )
    command.add_argument("--seeds", type=positive, default=1000, help="how many")
    command.add_argument("--start", type=int, default=0, help="the first one (0)")
    command.add_argument("--jobs", type=positive, default=1, help="processes at once; what is found does not depend on it")
    command.add_argument(
        "--keep-going",
        action="store_true",
        help="play all seeds and count by invariant, instead of stopping at the first violation",
    )
    command.add_argument("--agents", action="store_true", help="with the real agent, its state folder and its crashes")
    command.add_argument("--plant", default="", metavar="BUG", help="plant this bug first; an unknown one lists those there are")
    command.add_argument("--replay", type=Path, metavar="FILE.json", help="play this scenario instead of seeds")
    command.add_argument("--write", type=Path, metavar="FILE.json", help="where the smallest violating scenario goes")
    command.add_argument("--story", type=positive, default=60, help="lines of the story of a violation", metavar="LINES")
    command.set_defaults(play=run_explore)


def run_explore(chosen: argparse.Namespace) -> int:
    """0 when nothing was found, 1 when something was, 130 after Ctrl-C. Raises UsageError."""
    check_files(chosen.write)
    if chosen.replay is not None:
        return _replay(chosen)
    plant = find_bug(chosen.plant) if chosen.plant else None
    kind = KINDS["agents"] if chosen.agents else COORDINATOR if plant is None else KINDS[plant.kind]
    name = "" if plant is None else plant.name
    seeds = range(chosen.start, chosen.start + chosen.seeds)
    console = Console(stderr=True)
    with console.status("") as line:

        def show(tally: ExploreTally) -> None:
            text = f"{tally.seeds:,} seeds, {tally.violations} violations"
            line.update(text)
            if not console.is_terminal and tally.seeds % _SEEDS_A_LINE == 0:
                console.print(text)

        tally = explore(seeds, show, kind=kind, jobs=chosen.jobs, keep_going=chosen.keep_going, plant=name)
    print(tally.line())
    print("\n".join(tally.table()))
    if chosen.keep_going:
        print("\n".join([*tally.by_invariant(), *(f"seed {seed}: {said}" for seed, said in tally.found.items())]))
    elif tally.violating is not None:
        _report_smallest(kind, tally.violating, name, chosen)
    return 1 if tally.found else _INTERRUPTED if tally.interrupted else 0


def _replay(chosen: argparse.Namespace) -> int:
    replay = read_replay(chosen.replay)
    outcome = played(replay.scenario, replay.plant)
    if outcome.ok:
        print(f"nothing is violated; when {chosen.replay} was written, {', '.join(replay.violates)} was")
        return 0
    _report(replay.scenario, outcome, chosen.story)
    return 1


def _report_smallest(kind: Kind, outcome: PlayedWorld, plant: str, chosen: argparse.Namespace) -> None:
    """Make the scenario smaller for as long as one of the invariants is violated, and report what is left."""
    violated = outcome.verdict.violations[0].partition(":")[0]
    found = {"outcome": outcome}

    def violates(scenario: FaultScenario) -> bool:
        outcome = played(scenario, plant)
        if violated in outcome.violated:
            found["outcome"] = outcome
        return violated in outcome.violated

    with Console(stderr=True).status("") as line:
        said = f"making it smaller, try {{}} of {_TRIES}"
        smallest = shrink(kind.draw(outcome.seed), smaller, violates, _TRIES, lambda tries: line.update(said.format(tries)))
    path = chosen.write or Path(f"explore-{kind.name}-{outcome.seed}.json")
    write_replay(path, smallest.scenario, found["outcome"].violated, plant)
    _report(smallest.scenario, found["outcome"], chosen.story)
    rest = "" if smallest.exhausted else "; it may be made smaller still"
    print(f"made smaller in {smallest.tries} tries{rest}")
    agents = " --agents" if kind.name == "agents" else ""
    planted = f" --plant {shlex.quote(plant)}" if plant else ""
    print(f"the seed again: {_COMMAND}{agents} --start {outcome.seed} --seeds 1{planted}")
    print(f"this story again: {_COMMAND} --replay {shlex.quote(str(path))}")


def _report(scenario: FaultScenario, outcome: PlayedWorld, lines: int) -> None:
    violations = outcome.verdict.violations
    broken = sorted(outcome.violated)
    print(f"seed {outcome.seed} violates {', '.join(broken)}:")
    print("\n".join(f"  {code}: {AGENTS.invariants[code]}" for code in broken))
    print("found:")
    print("\n".join(f"  {line}" for line in violations[:_VIOLATIONS_SHOWN]))
    if len(violations) > _VIOLATIONS_SHOWN:
        print(f"  ... and {len(violations) - _VIOLATIONS_SHOWN} more")
    print("in this world:")
    print("\n".join(f"  {line}" for line in words(scenario)))
    print("what happened to it:")
    left = len(outcome.story) - lines
    print("\n".join([*([f"({left} lines before)"] if left > 0 else []), *outcome.story[-lines:]]))


S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Shrunk(Generic[S]):
    """The smallest scenario found, after `tries` tries; `exhausted`: no smaller one that was thought of violates any more."""

    scenario: S
    tries: int
    exhausted: bool


def shrink(
    scenario: S,
    smaller: Callable[[S], Iterator[S]],
    violates: Callable[[S], bool],
    most_tries: int,
    progress: Callable[[int], None] = lambda tries: None,
) -> Shrunk[S]:
    """Take the first smaller scenario that violates, and again from there, until none does or `most_tries` are over."""
    tries = 0
    waiting = smaller(scenario)
    while (candidate := next(waiting, None)) is not None:
        if tries == most_tries:
            return Shrunk(scenario, tries, exhausted=False)
        tries += 1
        progress(tries)
        if violates(candidate):
            scenario, waiting = candidate, smaller(candidate)
    return Shrunk(scenario, tries, exhausted=True)


_REPLAY_FORMAT = 2


class SavedWorld(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As it is in the file. `plant`: the bug that is planted, "" for none; `violates`: the invariants that were, when it was
    written."""

    format: int
    violates: list[str]
    plant: str
    scenario: FaultScenario


def write_replay(path: Path, scenario: FaultScenario, violates: frozenset[str], plant: str) -> None:
    """Write a scenario. Raises EdgeError for a place that cannot be written."""
    put_json(SavedWorld(_REPLAY_FORMAT, sorted(violates), plant, scenario), path)


def read_replay(path: Path) -> SavedWorld:
    """The content of a file. Raises UsageError for one that cannot be read or is none."""
    return read_json(path, SavedWorld, _REPLAY_FORMAT, hint="explore writes such files")
