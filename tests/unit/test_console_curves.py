"""What is folded from the journal matches the ledger: the console's curves at any length, and the spending since a moment."""

from __future__ import annotations

import json
from collections.abc import Generator

import pytest

from coordinator.commands.admin_client import AdminClient
from coordinator.commands.status import spent_since
from coordinator.console import curves as module
from coordinator.console.curves import POINTS, TASKS_KEPT, Curves
from coordinator.ledger.accounts import Amount
from coordinator.ledger.journal import GENESIS, JournalEntry, next_entry


def entry(seq: int, kind: str, at_ms: int = 0, **body: object) -> JournalEntry:
    return JournalEntry(seq, at_ms, kind, json.dumps(body), "", "")


def reader(entries: list[JournalEntry]):
    async def read(after: int, limit: int) -> list[JournalEntry]:
        reads.append((after, limit))
        return [each for each in entries if each.seq > after][:limit]

    reads: list[tuple[int, int]] = []
    read.reads = reads  # type: ignore[attr-defined]
    return read


def curves_of(entries: list[JournalEntry]) -> Curves:
    async def last_entry() -> int:
        return entries[-1].seq if entries else 0

    return Curves(reader(entries), last_entry)


def closing(seq: int, device: str, step: int, helped: int, dual: float) -> JournalEntry:
    body = {"device": device, "task": "math", "step": step, "total_units": 10, "help_units": helped}
    return entry(seq, "close_step", 1000 * seq, **body, dual_after=dual.hex())


async def test_dual_is_the_mean_of_the_last_dual_of_each_device() -> None:
    opened = [
        entry(seq, "open_step", device=device, task="math", target_rate=(0.3).hex()) for seq, device in ((1, "a"), (2, "b"))
    ]
    curves = curves_of([*opened, closing(3, "a", 0, 2, 0.5), closing(4, "b", 0, 4, 0.7), closing(5, "a", 1, 0, 0.1)])
    assert await curves.catch_up()
    points = curves.tasks()["math"]
    assert [(point["assist_rate"], point["dual"]) for point in points] == [(0.2, 0.5), (0.4, 0.6), (0.0, pytest.approx(0.4))]
    assert {point["target_rate"] for point in points} == {0.3}


async def test_of_too_many_tasks_the_most_recently_closed_are_shown() -> None:
    def of(task: str, seq: int) -> list[JournalEntry]:
        closed = {"step": 0, "total_units": 10, "help_units": 1, "dual_after": (0.5).hex()}
        opened = entry(seq, "open_step", device="a", task=task, target_rate=(0.3).hex())
        return [opened, entry(seq + 1, "close_step", device="a", task=task, **closed)]

    names = ["math", *(f"t{number}" for number in range(TASKS_KEPT - 1)), "math", "t-last"]
    curves = curves_of([each for place, name in enumerate(names) for each in of(name, 1 + 2 * place)])
    assert await curves.catch_up()
    assert set(curves.tasks()) == set(names) - {"t0"}
    assert [point["target_rate"] for point in curves.tasks()["t-last"]] == [0.3]


async def test_many_steps_are_binned_into_few_points_without_loss() -> None:
    steps = 3 * POINTS + 7
    curves = curves_of([closing(seq, "a", seq, 3, 0.5) for seq in range(1, steps + 1)])
    await curves.catch_up()
    points = curves.tasks()["math"]
    assert len(points) <= POINTS and sum(point["steps"] for point in points) == steps
    assert all(point["assist_rate"] == pytest.approx(0.3) for point in points)


async def test_spend_adds_up_for_every_outcome_and_refunds_add_nothing() -> None:
    kinds = ("completed", "failed", "in_doubt", "refunded", "reserve")
    entries = [
        entry(seq, kind, 60_000 * seq, charge=[1, 2, 0 if kind == "refunded" else 10 * seq]) for seq, kind in enumerate(kinds, 1)
    ]
    curves = curves_of(entries)
    await curves.catch_up()
    assert curves.spend() == [[60_000, 10], [120_000, 30], [180_000, 60]]


async def test_long_journal_is_read_in_several_passes_and_only_its_end(monkeypatch) -> None:
    monkeypatch.setattr(module, "PAGE", 10)
    monkeypatch.setattr(module, "PAGES_PER_READ", 2)
    monkeypatch.setattr(module, "BACKLOG", 50)
    curves = curves_of([closing(seq, "a", seq, 5, 0.5) for seq in range(1, 101)])
    done = [await curves.catch_up() for _ in range(3)]
    assert done == [False, False, True]
    assert sum(point["steps"] for point in curves.tasks()["math"]) == 50


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
