"""Mutation check: every planted bug is caught, within so many seeds, by an invariant that it breaks.

Where the first seed that catches it is far from 0, it is noted beside the bug and played first; when the simulation changes and that seed
no longer catches the bug, all seeds are searched.
"""

from __future__ import annotations

import pytest

from tools.simulate.faults.kinds import KINDS, played
from tools.simulate.faults.planted import MUTATIONS, Mutation

MOST_SEEDS = {"coordinator": 600, "agents": 60}


@pytest.mark.parametrize("bug", MUTATIONS, ids=str)
def test_a_planted_bug_is_caught(bug: Mutation) -> None:
    kind = KINDS[bug.kind]
    for seed in (bug.seed, *range(MOST_SEEDS[bug.kind])):
        outcome = played(kind, kind.draw(seed), bug.name)
        if outcome.violated & bug.noticed_by:
            print(f"{bug}: seed {seed}: {outcome.verdict.violations[0]}")
            return
    pytest.fail(f"{bug}: not caught within {MOST_SEEDS[bug.kind]} seeds")
