"""Deterministic simulation of the coordinator and of agents: many seeds, and what makes them trustworthy."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from edge.core.clock import SystemClock
from tests.simulate.summary import note
from tools.simulate.faults.explore import AGENTS, COORDINATOR, ExploreTally, Kind, explore, played

KINDS = pytest.mark.parametrize("kind", [COORDINATOR, AGENTS], ids=lambda kind: kind.name)
EVERY_RUN = 300
_DAY_S = 86_400


def of_today(count: int) -> range:
    """`count` seeds, others every day, so that each day's run plays worlds that no run has played before."""
    start = 1000 * (int(SystemClock().now()) // _DAY_S * _DAY_S)
    return range(start, start + count)


def explored(kind: Kind, seeds: range) -> ExploreTally:
    """Play them all; a failure names those that violate something and how to play the first one again."""
    tally = explore(seeds, kind=kind, keep_going=True)
    what = f"{tally.seeds} seeds of the {kind.name} world from {seeds.start} on"
    note(what, tally.kills, sum(tally.injected.values()), sum(tally.checks.values()), tally.violations)
    agents = " --agents" if kind.name == "agents" else ""
    again = f"python -m tools.simulate explore{agents} --seeds 1 --start {next(iter(tally.found), seeds.start)}"
    assert not tally.found, f"{tally.by_invariant()} {tally.found}; again: {again}"
    assert tally.seeds == len(seeds), "interrupted"
    return tally


def test_no_seed_violates_an_invariant_and_none_is_never_met() -> None:
    """Every invariant is checked, every fault injected, and everything that a check needs to mean anything comes up."""
    tally = explored(COORDINATOR, range(EVERY_RUN))
    assert not tally.never_met(), tally.table()
    assert min(tally.checks[invariant] for invariant in COORDINATOR.invariants) > EVERY_RUN / 10


def test_no_seed_violates_an_invariant_of_the_agent_or_of_the_coordinator() -> None:
    tally = explored(AGENTS, range(10))
    assert all(tally.checks[invariant] for invariant in AGENTS.invariants if invariant.startswith("A")), tally.table()


@pytest.mark.parametrize(("kind", "count"), [(COORDINATOR, 150), (AGENTS, 20)], ids=["coordinator", "agents"])
def test_no_seed_of_today_violates_an_invariant(kind: Kind, count: int) -> None:
    explored(kind, of_today(count))


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "seeds"),
    [(COORDINATOR, range(1_000_000, 1_020_000)), (AGENTS, range(500_000, 501_500))],
    ids=["coordinator", "agents"],
)
def test_no_seed_of_a_long_run_violates_an_invariant_and_nothing_is_never_met(kind: Kind, seeds: range) -> None:
    tally = explored(kind, seeds)
    assert not tally.never_met(), tally.table()


@pytest.mark.parametrize(
    ("kind", "seed"),
    [(AGENTS, 900139), (AGENTS, 900698), (AGENTS, 900173), (AGENTS, 900874), (COORDINATOR, 3000087)],
    ids=lambda each: each.name if isinstance(each, Kind) else str(each),
)
def test_a_seed_that_once_violated_an_invariant_does_so_no_more(kind: Kind, seed: int) -> None:
    """900139, 900698: a step made offline had the number of a report that waited. 900173, 900874: people's pauses outlasted the world.
    3000087: a chat without a key could be sent again though its hold stayed, and was paid twice."""
    assert played(kind.draw(seed)).verdict.violations == []


@KINDS
def test_the_same_seed_gives_the_same_bytes_here_and_in_another_process(kind: Kind) -> None:
    """Neither the hashes of strings nor the addresses of objects decide anything."""
    seeds = range(40, 60) if kind is COORDINATOR else (2, 7, 8)
    program = f"from tools.simulate.faults.explore import KINDS, played; kind = KINDS[{kind.name!r}]\n"
    program += f"print([played(kind.draw(seed)).digest for seed in {seeds!r}])"

    def digests(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True).stdout

    here = [played(kind.draw(seed)).digest for seed in seeds]
    assert digests("1") == digests("2") == f"{here}\n"
    assert len(set(here)) == len(here)
