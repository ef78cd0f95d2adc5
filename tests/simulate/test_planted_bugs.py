"""Mutation check: every planted bug is caught, within so many seeds, by an invariant that it breaks.

Where the first seed that catches it is far from 0, it is noted beside the bug and played first; when the simulation changes and that seed
no longer catches the bug, all seeds are searched.
"""

from __future__ import annotations

import pytest

from tests.simulate.mutations import MUTATIONS, Mutation
from tools.simulate.faults.world import run_seed

MOST_SEEDS = 600


@pytest.mark.parametrize("planted", MUTATIONS, ids=str)
def test_a_planted_bug_is_caught(planted: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    planted.plant(monkeypatch)
    for seed in (planted.seed, *range(MOST_SEEDS)):
        outcome = run_seed(seed)
        noticed = {line.partition(":")[0] for line in outcome.verdict.violations}
        if noticed & planted.noticed_by:
            print(f"{planted}: seed {seed}: {outcome.verdict.violations[0]}")
            return
    pytest.fail(f"{planted}: not caught within {MOST_SEEDS} seeds")
