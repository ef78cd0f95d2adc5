"""`python -m tools.simulate explore`: play seeds, make the first violating world small, show its story."""

from __future__ import annotations

import argparse
import itertools
import math
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
from rich.console import Console

from edge.core.clock import Clock, SystemClock
from tools.simulate.faults.explore import AGENTS, COORDINATOR, KINDS, Kind, explore, played
from tools.simulate.faults.planted import find_bug
from tools.simulate.faults.scenario import Scenario, smaller, words
from tools.simulate.faults.verdict import Outcome
from tools.simulate.reports.places import check_files, put_json, read_json

_INTERRUPTED = 130
_VIOLATIONS_SHOWN = 10
_COMMAND = "python -m tools.simulate explore"


def add_explore(commands: Any) -> None:
    """The subcommand, for argparse's subparsers."""
    command = commands.add_parser(
        "explore", help="worlds full of faults in virtual time, one for each seed, until something is violated"
    )
    many = command.add_mutually_exclusive_group()
    many.add_argument("--seeds", type=_natural, default=1000, help="how many")
    many.add_argument("--minutes", type=_minutes, metavar="N", help="fresh seeds, for so many minutes")
    command.add_argument("--start", type=int, help="the first one (0; with --minutes, one that depends on the time)")
    command.add_argument("--jobs", type=_natural, default=1, help="processes at once; what is found does not depend on it")
    command.add_argument(
        "--keep-going",
        action="store_true",
        help="play all seeds and count by invariant, instead of stopping at the first violation",
    )
    command.add_argument("--agents", action="store_true", help="with the real agent, its state folder and its crashes")
    command.add_argument("--plant", default="", metavar="BUG", help="plant this bug first; an unknown one lists those there are")
    command.add_argument("--replay", type=Path, metavar="FILE.json", help="play this scenario instead of seeds")
    command.add_argument("--write", type=Path, metavar="FILE.json", help="where the smallest violating scenario goes")
    command.add_argument("--tries", type=int, default=400, help="of making a violating scenario smaller, at most")
    command.add_argument("--story", type=_natural, default=60, help="lines of the story of a violation", metavar="LINES")
    command.add_argument("--brief", action="store_true", help="without the counts of each invariant, fault and feature")
    command.set_defaults(play=run_explore)


def run_explore(chosen: argparse.Namespace) -> int:
    """0 when nothing was found, 1 when something was, 130 after Ctrl-C. Raises UsageError."""
    check_files(chosen.write)
    if chosen.replay is not None:
        return _replay(chosen)
    plant = find_bug(chosen.plant) if chosen.plant else None
    kind = KINDS["agents"] if chosen.agents else COORDINATOR if plant is None else KINDS[plant.kind]
    name = "" if plant is None else plant.name
    seeds, time_over = _seeds(chosen, SystemClock())
    with Console(stderr=True).status("") as line:
        tally = explore(
            seeds,
            lambda tally: line.update(f"{tally.seeds} seeds, {tally.violations} violations"),
            kind=kind,
            jobs=chosen.jobs,
            keep_going=chosen.keep_going,
            plant=name,
            time_over=time_over,
        )
    print(tally.line())
    if not chosen.brief:
        print("\n".join(tally.table()))
    if chosen.keep_going:
        print("\n".join([*tally.by_invariant(), *(f"seed {seed}: {said}" for seed, said in tally.found.items())]))
    elif tally.violating is not None:
        _report_smallest(kind, tally.violating, name, chosen)
    return 1 if tally.found else _INTERRUPTED if tally.interrupted else 0


def _seeds(chosen: argparse.Namespace, clock: Clock) -> tuple[Iterable[int], Callable[[], bool]]:
    """The seeds to play, and whether the time for them is over."""
    if chosen.minutes is None:
        start = chosen.start or 0
        return range(start, start + chosen.seeds), lambda: False
    start = fresh_start(clock.now()) if chosen.start is None else chosen.start
    end = clock.monotonic() + 60.0 * chosen.minutes
    print(f"seeds from {start} on, for {chosen.minutes:g} min", flush=True)
    return itertools.count(start), lambda: clock.monotonic() >= end


def fresh_start(now: float) -> int:
    """The first of seeds that were hardly ever played: every second (`now`, since the epoch) has a thousand of its own."""
    return 1000 * int(now)


def _replay(chosen: argparse.Namespace) -> int:
    replay = read_replay(chosen.replay)
    outcome = played(replay.scenario, replay.plant)
    if outcome.ok:
        print(f"nothing is violated; when {chosen.replay} was written, {', '.join(replay.violates)} was")
        return 0
    _report(replay.scenario, outcome, chosen.story)
    return 1


def _report_smallest(kind: Kind, outcome: Outcome, plant: str, chosen: argparse.Namespace) -> None:
    """Make the scenario smaller for as long as one of the invariants is violated, and report what is left."""
    violated = outcome.verdict.violations[0].partition(":")[0]
    found = {"outcome": outcome}

    def violates(scenario: Scenario) -> bool:
        outcome = played(scenario, plant)
        if violated in outcome.violated:
            found["outcome"] = outcome
        return violated in outcome.violated

    with Console(stderr=True).status("") as line:
        said = f"making it smaller, try {{}} of {chosen.tries}"
        smallest = shrink(kind.draw(outcome.seed), smaller, violates, chosen.tries, lambda tries: line.update(said.format(tries)))
    path = chosen.write or Path(f"explore-{kind.name}-{outcome.seed}.json")
    write_replay(path, smallest.scenario, found["outcome"].violated, plant)
    _report(smallest.scenario, found["outcome"], chosen.story)
    rest = "" if smallest.exhausted else "; it may be made smaller still with more --tries"
    print(f"made smaller in {smallest.tries} tries{rest}")
    agents = " --agents" if kind.name == "agents" else ""
    planted = f" --plant {shlex.quote(plant)}" if plant else ""
    print(f"the seed again: {_COMMAND}{agents} --start {outcome.seed} --seeds 1{planted}")
    print(f"this story again: {_COMMAND} --replay {shlex.quote(str(path))}")


def _report(scenario: Scenario, outcome: Outcome, lines: int) -> None:
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
    print("\n".join(minimal_story(violations[:1], outcome.story, lines)))


def _minutes(text: str) -> float:
    number = float(text)
    if not 0.0 < number < math.inf:
        raise argparse.ArgumentTypeError("must be more than 0")
    return number


def _natural(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Shrunk(Generic[S]):
    """The smallest scenario found, after so many tries; `exhausted`: no smaller one that was thought of violates any more."""

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


class Replay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As it stands in the file. `plant`: the bug that is planted, "" for none; `violates`: the invariants that were, when it was
    written."""

    format: int
    violates: list[str]
    plant: str
    scenario: Scenario


def write_replay(path: Path, scenario: Scenario, violates: frozenset[str], plant: str) -> None:
    """Write a scenario. Raises EdgeError for a place that cannot be written."""
    put_json(Replay(_REPLAY_FORMAT, sorted(violates), plant, scenario), path)


def read_replay(path: Path) -> Replay:
    """What a file says. Raises UsageError for one that cannot be read or is none."""
    return read_json(path, Replay, _REPLAY_FORMAT, hint="explore writes such files")


_KEY = re.compile(r"\b[0-9a-f]{32}\b|[\w]+(?:-+[\w]+)+(?:#\d+)?")
_STEP = re.compile(r"\b\w+#\d+")
_ENTRY = re.compile(r"\bentry (\d+)")
_BUDGET = re.compile(r"\b(?:share/)?(?:fleet_task|device_task|fleet|device)(?:\[[^\]]*\])?(?:@[\w-]+)?(?![\w\[])")
_DEVICE = re.compile(r"\b(?:d|agent-)\d+\b")
_JOURNAL = re.compile(r"journal +(\d+) ")
_WORLD = re.compile(r"^ *[\d.]+ world ")


def minimal_story(violations: Sequence[str], told: Sequence[str], most: int) -> list[str]:
    """The last `most` lines of what happened to what the violations name, with all that befell the world. They name calls and steps,
    journal entries, budgets or devices; the most particular kind that is named decides."""
    text = "\n".join(line.partition(": ")[2] for line in violations)
    devices, entries = set(_DEVICE.findall(text)), set(_ENTRY.findall(text))
    names, budgets = _names(text) - devices, set(_BUDGET.findall(text)) - {"device"}

    def concerned(line: str) -> bool:
        entry = _JOURNAL.search(line)
        if _WORLD.match(line) or (entry is not None and entry[1] in entries):
            return True
        if names:
            return bool(names & _names(line))
        if budgets and entry is not None:
            return bool(budgets & set(_BUDGET.findall(line)))
        return not (entries or budgets) and (not devices or bool(devices & set(_DEVICE.findall(line))))

    lines = [line for line in told if concerned(line)]
    left = len(lines) - most
    return [*([f"({left} lines before)"] if left > 0 else []), *lines[-most:]]


def _names(text: str) -> set[str]:
    """Keys of calls and numbers of steps."""
    keys = {key for key in _KEY.findall(text) if any(sign.isdigit() for sign in key) and not re.fullmatch(r"[\d-]+", key)}
    return keys | set(_STEP.findall(text))
