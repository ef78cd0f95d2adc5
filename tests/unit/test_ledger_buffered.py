"""Rows buffered between transactions and the file: at any write time, operations see and leave the same as in memory."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from coordinator.ledger.accounts import Amount, AmountLimits, BudgetTerms, Reserved, dual_key
from coordinator.ledger.stores.buffered import BufferedTables, CallKeys, CommitBatch
from coordinator.ledger.stores.memory import MemoryRows
from coordinator.ledger.stores.schema import create_in_sqlite
from coordinator.ledger.stores.sqlite import SqliteLedgerStore, SqliteRows, open_read_only
from coordinator.ledger.tables import (
    ATTEMPT,
    BUDGET,
    CACHED_CALLS,
    CALL,
    DUAL_MEMBER,
    EXPIRED_ATTEMPTS,
    GROUP_CALLS,
    OLD_RESULTS,
    SHARED_DUAL,
    STEP,
    STEP_CALLS,
    TASK,
)
from coordinator.ledger.transitions import Ledger
from coordinator.ledger.verify import verify
from edge.core.errors import CoordinatorError
from tests.worlds.ledger_requests import FLEET, NOW, close_request, open_request, reserve_request, settlement

DEVICES, KEYS, HISTORIES, OPERATIONS = ("d1", "d2"), ("a", "b", "c", "d", "e"), 60, 80
SHARED = BudgetTerms(FLEET, AmountLimits(calls=9), floor_ppm=300_000)
LAST = BudgetTerms("zone", AmountLimits(tokens=1800))
Operation = Callable[[Ledger], Any]


def _reserve(device: str, key: str, step: int, prompt: str, cache_key: str) -> Operation:
    changes = {
        "device": device,
        "step": step,
        "prompt_id": prompt,
        "cache_key": cache_key,
        "fingerprint": f"{prompt} of step {step}",
    }
    return lambda ledger: ledger.reserve(reserve_request(key, budgets=(SHARED, LAST), **changes))


def _listed(ledger: Ledger) -> list[Any]:
    tables = ledger.tables
    pages = [ledger.list_budgets_after("f", 2), ledger.list_calls_after("d1", "a", 2)]
    return [*map(list, pages), list(tables.all(ATTEMPT)), list(tables.journal_after(2, 3)), tables.journal_head()]


def _some_operation(rng: random.Random) -> Operation:
    """A random one, often enough one that is possible."""
    device, key, step = rng.choice(DEVICES), rng.choice(KEYS), rng.choice((-1, 0, 0, 1))
    number = rng.choice((1, 1, 2))
    prompt, cache_key = rng.choice("pqr"), rng.choice(("", "x", "y"))
    dual = dual_key("fleet", "", "math")
    rare: tuple[Operation, ...] = (
        lambda ledger: ledger.open_step(open_request(max(0, step), device=device, shared_dual=dual)),
        lambda ledger: ledger.close_step(close_request(max(0, step), device=device)),
        lambda ledger: ledger.sweep(NOW + 61.0),
        lambda ledger: ledger.purge_results(NOW + 5.0, NOW + 5.0),
        lambda ledger: ledger.leave_idle_duals(NOW + 5.0, NOW + 5.0),
        lambda ledger: ledger.get_budget(device, "math", (SHARED, LAST)),
        _listed,
    )
    often: tuple[Operation, ...] = (
        _reserve(device, key, step, prompt, cache_key),
        lambda ledger: ledger.settle(settlement(key, number, device=device)),
        lambda ledger: ledger.refund(device, key, number, "refused", NOW + 1.0),
    )
    return rng.choice(often if rng.random() < 0.8 else rare)


def _outcome(ledger: Ledger, tables: Any, operation: Operation) -> Any:
    try:
        value = operation(ledger)
    except CoordinatorError as error:
        tables.roll_back()
        return type(error), str(error)
    tables.keep()
    return value


def _everything(tables: BufferedTables) -> list[Any]:
    rows = (tables.all(BUDGET), tables.all(CALL), tables.all(ATTEMPT), tables.all(STEP), tables.all(TASK))
    return [*rows, list(tables.all(SHARED_DUAL)), list(tables.all(DUAL_MEMBER)), list(tables.journal_after(0))]


def _write(file: SqliteRows, batch: CommitBatch) -> None:
    for table, rows in batch.rows.items():
        file.put_all(table, rows)
    file.append_all(batch.journal)


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_result_of_operations_does_not_depend_on_when_rows_are_written(seed: int) -> None:
    rng = random.Random(seed)
    with sqlite3.connect(":memory:", isolation_level=None) as connection:
        create_in_sqlite(connection)
        file, memory = SqliteRows(connection), MemoryRows()
        buffered, plain = BufferedTables(file, CallKeys()), BufferedTables(memory)
        ours, theirs = Ledger(buffered, 1), Ledger(plain, 1)
        for device in DEVICES:
            opening = partial(Ledger.open_step, request=open_request(device=device))
            assert _outcome(ours, buffered, opening) == _outcome(theirs, plain, opening)
        under_way: CommitBatch | None = None
        for _ in range(OPERATIONS):
            operation = _some_operation(rng)
            assert _outcome(ours, buffered, operation) == _outcome(theirs, plain, operation)
            memory.write(plain.take())  # at once
            plain.committed()
            if under_way is None and rng.random() < 0.25:
                under_way = buffered.take()
            elif under_way is not None and rng.random() < 0.5:
                if rng.random() < 0.5:
                    _write(file, under_way)  # the file has it, before any reply
                    assert _everything(buffered) == _everything(plain)
                    under_way.rows, under_way.journal = {}, ()
                _write(file, under_way)
                buffered.committed()
                under_way = None
        assert _everything(buffered) == _everything(plain)
        if under_way is not None:
            _write(file, under_way)
            buffered.committed()
        _write(file, buffered.take())
        buffered.committed()
        assert not buffered.waiting
        assert verify(file).ok
        assert list(file.journal_after(0)) == list(plain.journal_after(0))
    connection.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite3"


def _overspend(ledger: Ledger) -> None:
    row = ledger.tables.budgets.get(FLEET)
    assert row is not None
    ledger.tables.budgets.put(replace(row, reserved=Amount(calls=1_000_000)))


async def test_row_refused_by_the_file_fails_only_its_own_operation(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = await SqliteLedgerStore.open(path, NOW)
    await store.reserve(reserve_request("k0"))
    foreign = store.transact(lambda ledger: ledger.tables.calls.put(replace(ledger.get_call("d1", "k0"), key="\ud800")))
    work = [store.reserve(reserve_request("k1")), store.transact(_overspend), foreign, store.reserve(reserve_request("k2"))]
    first, refused, unreadable, second = await asyncio.gather(*work, return_exceptions=True)
    assert isinstance(first, Reserved) and isinstance(second, Reserved)
    assert isinstance(refused, CoordinatorError) and isinstance(unreadable, CoordinatorError)
    assert "CHECK" not in str(refused) and "CHECK constraint failed" in caplog.text
    await store.aclose()
    with open_read_only(path) as rows:
        assert [call.key for call in rows.all(CALL)] == ["k0", "k1", "k2"]
        assert verify(rows).ok


@pytest.mark.parametrize(
    ("question", "columns"),
    [
        ((GROUP_CALLS, "d", "t", 0, "p"), "device=? AND task=? AND step=? AND prompt_id=?"),
        ((STEP_CALLS, "d", "t", 0), "device=? AND task=? AND step=?"),
        ((CACHED_CALLS, "x"), "cache_key=?"),
        ((EXPIRED_ATTEMPTS, 0), "lease_ms<?"),
        ((OLD_RESULTS, 0), "updated_ms<?"),
    ],
)
def test_query_uses_an_index_on_its_columns(question: tuple[Any, ...], columns: str) -> None:
    connection = sqlite3.connect(":memory:")
    create_in_sqlite(connection)
    asked: list[str] = []
    connection.set_trace_callback(asked.append)
    list(SqliteRows(connection).ask(*question))
    connection.set_trace_callback(None)
    plan = " ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {asked[-1]}"))
    connection.close()
    assert f"({columns})" in plan
