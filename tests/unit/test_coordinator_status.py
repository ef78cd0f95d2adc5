"""Spending since a moment is read from the end of the journal, wherever the period begins."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from coordinator.commands.admin_client import AdminClient
from coordinator.commands.status import spent_since
from coordinator.ledger.accounts import Amount
from coordinator.ledger.journal import GENESIS, JournalEntry, next_entry


class Journal(AdminClient):
    """A coordinator's journal without the coordinator; one call of 3 tokens and 5 micro-USD ends every second entry."""

    def __init__(self, entries: int) -> None:
        self.entries: list[JournalEntry] = []
        self.asked = 0
        last = (0, GENESIS)
        for number in range(entries):
            kind, data = ("completed", {"charge": [1, 3, 5]}) if number % 2 else ("reserve", {"hold": [1, 9, 9]})
            self.entries.append(next_entry(*last, 1000 * number, kind, data))
            last = (self.entries[-1].seq, self.entries[-1].hash)

    def journal(self, after: int) -> Generator[JournalEntry, None, None]:
        self.asked += 1
        yield from self.entries[after:]


@pytest.mark.parametrize("entries", [0, 1, 2, 3, 7, 64, 65])
def test_spending_since_a_moment_is_the_sum_of_later_charges(entries: int) -> None:
    for first in range(entries + 2):
        calls = sum(number % 2 for number in range(first, entries))
        assert spent_since(Journal(entries), 1000 * first) == Amount(calls, 3 * calls, 5 * calls)


def test_a_long_journal_is_not_read_from_its_beginning() -> None:
    journal = Journal(5000)
    assert spent_since(journal, 4_998_000) == Amount(1, 3, 5)
    assert journal.asked < 40
