"""Mutation check: every invariant notices the bug that is planted against it.

The seed of a world that meets the bug is listed with it and is played first; when the simulation changes and that seed no longer does,
others are searched.
"""

from __future__ import annotations

import pytest

from tools.simulate.faults.explore import KINDS, played
from tools.simulate.faults.planted import BUGS, Bug
from tools.simulate.faults.verdict import INVARIANTS

MOST_SEEDS = {"coordinator": 600, "agents": 60}


def test_every_invariant_has_a_bug() -> None:
    assert {bug.invariant for bug in BUGS} == set(INVARIANTS)


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_bug_is_planted_through_public_names_alone(bug: Bug) -> None:
    assert not [name for _, name, _ in bug.replaced if name.startswith("_")]


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_planted_bug_is_caught(bug: Bug) -> None:
    kind = KINDS[bug.kind]
    for seed in (bug.seed, *range(MOST_SEEDS[bug.kind])):
        outcome = played(kind.draw(seed), bug.name)
        if bug.invariant in outcome.violated:
            return
    pytest.fail(f"{bug}: not caught within {MOST_SEEDS[bug.kind]} seeds")
