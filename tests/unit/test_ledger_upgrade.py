"""A ledger of an earlier version, killed with open holds, is brought up to date: it proves itself before and after, and nothing is charged
twice."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from coordinator.ledger.accounts import Amount, CallState, Ended, Replay
from coordinator.ledger.stores.sqlite import SqliteLedgerStore
from coordinator.ledger.verify import verify_file
from tests.unit.ledger_requests import HOLD, NOW, ROOMY, reserve_request, settlement

KILLED = Path(__file__).parent / "ledgers" / "version_6_killed.sql"
STATES = {
    "k0": (CallState.COMPLETED, Amount(1, 100, 300)),
    "k1": (CallState.COMPLETED, Amount(1, 100, 300)),
    "k2": (CallState.REFUNDED, Amount()),
    "k3": (CallState.FAILED, HOLD),
    "k4": (CallState.IN_DOUBT, HOLD),
    "k5": (CallState.IN_DOUBT, HOLD),
    "g0": (CallState.IN_DOUBT, HOLD),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.sqlite3"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(KILLED.read_text(encoding="utf-8"))
    return path


async def test_a_ledger_that_was_killed_with_open_holds_is_upgraded_and_charges_nothing_twice(path: Path) -> None:
    before = verify_file(path)
    assert before.ok, before.differences
    store = await SqliteLedgerStore.open(path, NOW + 5.0)
    for key, (state, charged) in STATES.items():
        row = await store.get_call("d1", key)
        assert (row.state, row.charged) == (state, charged), key
    fleet = (await store.get_budget("d1", "math", [ROOMY])).budgets[0]
    total = Amount()
    for _, charged in STATES.values():
        total = total.plus(charged)
    assert (fleet.reserved, fleet.committed) == (Amount(), total)
    for key in ("k4", "g0"):
        assert not (await store.settle(settlement(key))).applied, "what was in doubt is charged already"
    assert isinstance(await store.reserve(reserve_request("k0")), Replay)
    assert isinstance(await store.reserve(reserve_request("k4")), Ended)
    assert (await store.get_budget("d1", "math", [ROOMY])).budgets[0] == fleet
    assert [row.changes for row in await store.list_set_limits()] == [(("calls_limit", 50),)]
    await store.aclose()
    after = verify_file(path)
    assert after.ok, after.differences
    assert (after.calls, after.attempts) == (before.calls, before.attempts)
