"""Many seeds of a kind of world, played for a test; those of today are others every day, so that each day's run plays worlds that no run
has played before."""

from __future__ import annotations

from edge.core.clock import SystemClock
from tests.simulate.summary import note
from tools.simulate.faults.explore import Kind, Tally, explore, fresh_start

_DAY_S = 86_400


def of_today(count: int) -> range:
    """So many seeds."""
    start = fresh_start(int(SystemClock().now()) // _DAY_S * _DAY_S)
    return range(start, start + count)


def explored(kind: Kind, seeds: range) -> Tally:
    """Play them all; a failure names those that violate something and how to play the first one again."""
    tally = explore(seeds, kind=kind, keep_going=True)
    what = f"{tally.seeds} seeds of the {kind.name} world from {seeds.start} on"
    note(what, tally.kills, sum(tally.injected.values()), sum(tally.checks.values()), tally.violations)
    agents = " --agents" if kind.name == "agents" else ""
    again = f"python -m tools.simulate explore{agents} --seeds 1 --start {next(iter(tally.found), seeds.start)}"
    assert not tally.found, f"{tally.by_invariant()} {tally.found}; again: {again}"
    return tally
