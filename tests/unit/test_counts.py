"""Counts as they are told, and the reports that tell them."""

from __future__ import annotations

import pytest

from coordinator.ledger.verify import VerifyReport
from edge.core.formatting import counted


@pytest.mark.parametrize(("number", "told"), [(0, "0 entries"), (1, "1 entry"), (2, "2 entries")])
def test_one_is_told_in_the_singular_alone(number: int, told: str) -> None:
    assert counted(number, "entry", "entries") == told
    assert counted(number, "call") == f"{number} call{'' if number == 1 else 's'}"


def test_a_verified_ledger_of_one_call_has_one_call() -> None:
    numbers = {
        "entries": 1,
        "budgets": 1,
        "calls": 1,
        "attempts": 1,
        "open_attempts": 0,
        "steps": 1,
        "dual_updates": 1,
        "tasks": 1,
    }
    (line,) = VerifyReport(**numbers, head_hash="ab", difference_count=0, differences=()).lines()
    assert "1 journal entry, 1 budget, 1 call, 1 attempt (0 open), 1 step, 1 dual update, 1 task;" in line
    *_, last = VerifyReport(**numbers, head_hash="ab", difference_count=1, differences=("one",)).lines()
    assert last.startswith("DIFFERS in 1 place: ")
