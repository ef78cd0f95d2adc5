"""Seeds that are others every day, so that each day's test run plays worlds that no run has played before."""

from __future__ import annotations

from edge.core.clock import SystemClock
from tests.simulate.summary import note
from tools.simulate.faults.command import fresh_start
from tools.simulate.faults.explore import Kind, explore

_DAY_S = 86_400


def explore_today(kind: Kind, count: int) -> None:
    """Play the day's seeds; a failure names those that violate something and how to play the first one again."""
    day = int(SystemClock().now()) // _DAY_S
    start = fresh_start(day * _DAY_S)
    tally = explore(range(start, start + count), kind=kind, keep_going=True)
    what = f"{tally.seeds} seeds of the {kind.name} world of day {day}"
    note(what, tally.kills, sum(tally.injected.values()), sum(tally.checks.values()), tally.violations)
    agents = " --agents" if kind.name == "agents" else ""
    again = f"python -m tools.simulate explore{agents} --seeds 1 --start {next(iter(tally.found), start)}"
    assert not tally.found, f"day {day}: {tally.by_invariant()} {tally.found}; again: {again}"
