"""Verification finds whatever was changed behind the ledger's back."""

from __future__ import annotations

import asyncio
import hashlib
import io
import math
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from coordinator.ledger.accounts import Amount, BudgetTerms, Limits
from coordinator.ledger.journal import GENESIS, JournalEntry, canonical_json, entry_hash, next_entry
from coordinator.ledger.stores.memory import MemoryLedgerStore
from coordinator.ledger.stores.migrations import upgrade_sqlite
from coordinator.ledger.stores.sqlite import SqliteLedgerStore, open_read_only
from coordinator.ledger.stores.sqlite_rows import SqliteRows
from coordinator.ledger.stores.store import LedgerStore
from coordinator.ledger.tables import PRICE, STEP, TASK
from coordinator.ledger.transitions import Ledger
from coordinator.ledger.verify import export, read_export, verify, verify_file
from tests.unit.ledger_requests import NOW, close_request, open_request, reserve_request, settlement

ENTRIES = 46


async def write_history(store: LedgerStore) -> None:
    """Two steps and some serving: an answer, a copy, a refund with a second try, a failure, a doubt, a sweep, a purge, an open hold."""
    await store.open_step(open_request())
    for key in ("answered", "refused", "garbage"):
        await store.reserve(reserve_request(key, step=0, cache_key=f"cache {key}"))
    await store.settle(settlement("answered", charge=Amount(1, 100, 5_000)))
    await store.reserve(reserve_request("copied", cache_key="cache answered"))
    await store.refund("d1", "refused", 1, "refused", NOW)
    await store.reserve(reserve_request("refused", step=0, cache_key="cache refused"))
    await store.settle(settlement("refused", 2))
    await store.fail("d1", "garbage", 1, "garbage", None, NOW)
    await store.close_step(close_request())
    await store.open_step(open_request(1, target_rate=0.7))
    await store.reserve(reserve_request("cut"))
    await store.doubt("d1", "cut", 1, "cut", NOW)
    await store.reserve(reserve_request("lost", device="d2"))
    await store.sweep(NOW + 100.0)
    await store.reserve(reserve_request("old"))
    await store.settle(settlement("old", now=NOW - 1_000.0))
    await store.purge_results(NOW - 500.0, NOW)
    await store.reserve(reserve_request("open", lease_until=NOW + 9_999.0))
    await write_fleet_history(store)


async def write_fleet_history(store: LedgerStore) -> None:
    """Two devices that share a price and a budget with floors, one of them late; a third that was idle, left and was disabled."""
    shared = {"task": "qa", "price": "fleet[task:qa]"}
    for device in ("d1", "d2", "d3"):
        await store.register_device(device, "1.0", ("qa",), NOW)
        await store.open_step(open_request(device=device, **shared))
    fair = BudgetTerms("fleet@2026-10", Limits(10, 10_000, 100_000), 500_000)
    for device in ("d1", "d2"):
        await store.reserve(reserve_request("fair", device=device, task="qa", step=0, budgets=(fair,)))
        await store.settle(settlement("fair", device=device))
        await store.close_step(close_request(device=device, task="qa"))
    await store.open_step(open_request(1, now=NOW + 50.0, **shared))
    await store.leave_idle_prices(NOW + 1.0, NOW + 50.0)
    await store.set_device_disabled("d3", True, NOW + 51.0)
    await store.open_step(open_request(task="essay", price="global[device:d1]"))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed ledger with that history; tests only read it."""
    path = tmp_path_factory.mktemp("ledger") / "ledger.sqlite3"

    async def write() -> None:
        store = await SqliteLedgerStore.open(path, NOW)
        await write_history(store)
        await store.aclose()

    asyncio.run(write())
    return path


@pytest.fixture
async def memory() -> MemoryLedgerStore:
    store = MemoryLedgerStore(NOW)
    await write_history(store)
    return store


class Forger:
    """A copy of a ledger in memory, in the hands of someone with full access; every change is checked and taken back."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        with open_read_only(path) as rows:
            rows.connection.backup(self.connection)
        self.connection.executescript(
            "PRAGMA ignore_check_constraints = ON; DROP TRIGGER journal_keeps; DROP TRIGGER journal_stays"
        )

    def keys(self, table: str) -> list[str]:
        """The columns of a table's primary key."""
        return [row[1] for row in self.connection.execute(f"PRAGMA table_info({table})") if row[5]]

    def must_be_found(self, statement: str, values: Sequence[Any] = ()) -> None:
        """Run a change; verification must see it."""
        self.connection.execute("SAVEPOINT forgery")
        assert self.connection.execute(statement, values).rowcount > 0
        report = verify(SqliteRows(self.connection))
        assert not report.ok, (statement, values)
        assert report.lines()[-1].startswith("DIFFERS")
        self.connection.execute("ROLLBACK TO forgery")


@pytest.fixture
def forger(path: Path) -> Iterator[Forger]:
    forger = Forger(path)
    assert verify(SqliteRows(forger.connection)).ok
    yield forger
    forger.connection.close()


def columns() -> list[tuple[str, str]]:
    """Every column of every table whose rows the journal proves."""
    scratch = sqlite3.connect(":memory:")
    upgrade_sqlite(scratch, 0)
    tables = ("budget", "call", "attempt", "step", "task_state", "price", "price_member", "journal")
    found = [(table, row[1]) for table in tables for row in scratch.execute(f"PRAGMA table_info({table})")]
    found.append(("device", "disabled"))
    scratch.close()
    return found


def changed(value: Any) -> Any:
    """Another value of the same type that passes for real."""
    if value is None:
        return 7
    if isinstance(value, int):
        return value + 1
    if value.startswith("0x"):
        return (float.fromhex(value) + 2.0**-40).hex()
    if value.startswith("["):
        return '["x"]'
    return {"completed": "failed", "failed": "completed"}.get(value, value + "x")


def test_an_honest_ledger_verifies_and_says_what_was_checked(path: Path) -> None:
    report = verify_file(path)
    assert report.ok, report.differences
    counts = (report.calls, report.attempts, report.open_attempts, report.steps, report.dual_updates, report.tasks)
    assert counts == (10, 10, 1, 7, 3, 6)
    assert report.entries == ENTRIES
    assert report.to_json()["ok"] is True
    assert len(report.lines()) == 1


def test_an_empty_ledger_verifies() -> None:
    assert verify(MemoryLedgerStore(NOW).tables).ok


@pytest.mark.parametrize(("table", "column"), columns())
def test_a_change_of_any_column_of_any_row_is_found(forger: Forger, table: str, column: str) -> None:
    keys = forger.keys(table)
    where = " AND ".join(f"{key} = ?" for key in keys)
    for *key, value in forger.connection.execute(f"SELECT {', '.join(keys)}, {column} FROM {table}").fetchall():
        if (table, column) == ("call", "result") and value is None:
            continue  # a text for a call that has none is the next test
        new = value + 1_000 if column in keys and isinstance(value, int) else changed(value)
        forger.must_be_found(f"UPDATE {table} SET {column} = ? WHERE {where}", (new, *key))


def test_a_text_put_under_a_call_without_one_is_found(forger: Forger) -> None:
    forger.must_be_found("UPDATE call SET result = 'forged' WHERE key = 'cut'")
    forger.must_be_found("UPDATE call SET result = NULL WHERE key = 'answered'")
    forger.must_be_found("UPDATE call SET beyond_text = '{}' WHERE key = 'answered'")
    forger.must_be_found("UPDATE call SET beyond_text = '{}' WHERE key = 'cut'")


@pytest.mark.parametrize(
    "table", ["budget", "call", "attempt", "step", "task_state", "price", "price_member", "device", "journal"]
)
def test_a_removed_row_of_any_table_is_found(forger: Forger, table: str) -> None:
    keys = forger.keys(table)
    where = " AND ".join(f"{key} = ?" for key in keys)
    for row in forger.connection.execute(f"SELECT {', '.join(keys)} FROM {table}").fetchall():
        forger.must_be_found(f"DELETE FROM {table} WHERE {where}", row)


def test_an_invented_attempt_is_found(forger: Forger) -> None:
    names = "number + 100, state, 0, 0, 0, 0, 0, 0, budgets, epoch, lease_ms"
    forger.must_be_found(f"INSERT INTO attempt SELECT device, key, {names} FROM attempt")


@pytest.mark.parametrize(
    "change", ["budget SET reserved_calls = -9", "call SET state = '?'", "attempt SET budgets = '['", "step SET dual = '?'"]
)
def test_rows_that_cannot_be_read_are_reported_not_raised(forger: Forger, change: str) -> None:
    forger.must_be_found(f"UPDATE {change}")


def forged(memory: MemoryLedgerStore, kind: str, has: str = "", **changes: Any) -> list[JournalEntry]:
    """The journal with fields of the first entry of this kind (that has the field `has`) changed and the chain computed anew."""
    entries: list[JournalEntry] = []
    done = False
    for entry in memory.tables.journal:
        data = entry.data()
        if entry.kind == kind and not done and (not has or has in data):
            data, done = {**data, **changes}, True
        last = entries[-1] if entries else None
        entries.append(next_entry(last.seq if last else 0, last.hash if last else GENESIS, entry.at_ms, entry.kind, data))
    assert done
    return entries


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("close_step", {"dual_after": (0.25).hex()}),
        ("close_step", {"help_units": 33}),
        ("open_step", {"dual_lr": (0.5).hex()}),
        ("completed", {"charge": [1, 1, 1]}),
        ("completed", {"charge": [1, 100, 5_000]}),
        ("reserve", {"hold": [1, 1, 1]}),
        ("reserve", {"attempt": 2}),
        ("limits", {"limits": [1, 1, 1], "asked": [1, 1, 1]}),
        ("in_doubt", {"charge": [0, 0, 0]}),
        ("refunded", {"charge": [1, 0, 0]}),
        ("copy", {"result_sha256": "0" * 64}),
        ("purge", {"calls": []}),
        ("task", {"device": "d9"}),
        ("close_step", {"total_units": 0}),
        ("completed", {"key": None}),
        ("device", {"disabled": True}),
        ("leave", {"device": "d1"}),
        ("leave", {"price": "fleet"}),
    ],
)
async def test_a_forged_entry_is_found_even_with_a_chain_computed_anew(
    memory: MemoryLedgerStore, kind: str, changes: dict[str, Any]
) -> None:
    memory.tables.journal[:] = forged(memory, kind, **changes)
    report = verify(memory.tables)
    assert not report.ok
    assert not any("hash" in line or "follow the entry before" in line for line in report.differences)


@pytest.mark.parametrize(
    ("kind", "has", "changes"),
    [
        ("limits", "joined", {"floor": [9, 9, 9]}),
        ("limits", "joined", {"set_aside": [0, 0, 0]}),
        ("limits", "joined", {"floor_ppm": 100_000}),
        ("limits", "joined", {"members": 2}),
        ("limits", "joined", {"joined": "d9"}),
        ("open_step", "price", {"price": ""}),
        ("open_step", "price", {"planned_prompts": 17}),
        ("close_step", "round_units", {"round_units": 128}),
        ("close_step", "round_units", {"dual_before": (0.25).hex()}),
        ("close_step", "round_units", {"dual_after": (0.25).hex()}),
    ],
)
async def test_a_forged_entry_of_a_shared_price_or_budget_is_found(
    memory: MemoryLedgerStore, kind: str, has: str, changes: dict[str, Any]
) -> None:
    memory.tables.journal[:] = forged(memory, kind, has, **changes)
    assert not verify(memory.tables).ok


async def test_a_fleet_price_moved_in_another_order_is_found(memory: MemoryLedgerStore) -> None:
    """Both reports are honest; their order is part of what λ is."""
    places = [
        at for at, entry in enumerate(memory.tables.journal) if entry.kind == "close_step" and "round_units" in entry.data()
    ]
    bodies = [entry.data() for entry in memory.tables.journal]
    bodies[places[0]], bodies[places[1]] = bodies[places[1]], bodies[places[0]]
    entries: list[JournalEntry] = []
    for entry, data in zip(memory.tables.journal, bodies, strict=True):
        last = entries[-1] if entries else None
        entries.append(next_entry(last.seq if last else 0, last.hash if last else GENESIS, entry.at_ms, entry.kind, data))
    memory.tables.journal[:] = entries
    assert any("λ" in line or "started from" in line for line in verify(memory.tables).differences)


async def test_an_answer_that_crossed_devices_without_leave_is_found(memory: MemoryLedgerStore) -> None:
    memory.tables.journal[:] = forged(memory, "copy", "source", device="d2")
    assert any("crossed devices" in line for line in verify(memory.tables).differences)


async def test_a_hold_of_a_disabled_device_is_found(memory: MemoryLedgerStore) -> None:
    last = memory.tables.journal[-1]
    held = next(entry for entry in memory.tables.journal if entry.kind == "reserve")
    data = {**held.data(), "device": "d3", "key": "late", "task": "qa", "step": 0}
    memory.tables.journal.append(next_entry(last.seq, last.hash, last.at_ms, "reserve", data))
    assert any("disabled" in line for line in verify(memory.tables).differences)


def old_ledger(path: Path, version: int) -> Path:
    """A ledger as that version wrote it."""
    connection = sqlite3.connect(path)
    connection.executescript((Path(__file__).parents[1] / "golden" / f"ledger_version_{version}.sql").read_text())
    connection.close()
    return path


@pytest.mark.parametrize(("version", "entries", "updates"), [(1, 24, 1), (2, ENTRIES, 3), (5, ENTRIES, 3)])
def test_a_ledger_of_an_older_version_verifies_and_is_left_as_it_is(
    tmp_path: Path, version: int, entries: int, updates: int
) -> None:
    path = old_ledger(tmp_path / "old.sqlite3", version)
    before = path.read_bytes()
    report = verify_file(path)
    assert report.ok, report.differences
    assert (report.entries, report.dual_updates) == (entries, updates)
    assert path.read_bytes() == before


async def test_a_ledger_of_version_1_is_brought_up_to_date_and_goes_on(tmp_path: Path) -> None:
    path = old_ledger(tmp_path / "old.sqlite3", 1)
    store = await SqliteLedgerStore.open(path, NOW + 500.0)
    await store.close_step(close_request(1))
    await write_fleet_history(store)
    await store.aclose()
    report = verify_file(path)
    assert report.ok, report.differences


async def test_a_ledger_of_version_5_is_brought_up_to_date_and_takes_a_rule(tmp_path: Path) -> None:
    path = old_ledger(tmp_path / "old.sqlite3", 5)
    store = await SqliteLedgerStore.open(path, NOW + 500.0)
    opened = await store.open_step(open_request(1))
    assert (opened.dual_proportional, opened.dual_window, opened.dual_ceiling) == (0.0, 1, math.inf)
    await store.close_step(close_request(1))
    await store.open_step(open_request(2, dual_proportional=0.5, dual_window=2, dual_ceiling=1.0))
    await store.close_step(close_request(2))
    await store.aclose()
    report = verify_file(path)
    assert report.ok, report.differences


def test_the_integral_rule_writes_the_journal_that_version_5_wrote(path: Path, tmp_path: Path) -> None:
    with open_read_only(old_ledger(tmp_path / "old.sqlite3", 5)) as old, open_read_only(path) as new:
        assert list(new.journal_after(0)) == list(old.journal_after(0))


async def test_what_a_price_holds_of_the_last_reports_is_proved(memory: MemoryLedgerStore) -> None:
    tables, terms = memory.tables, {"dual_proportional": 0.5, "dual_window": 2}
    for price in ("", "global[device:d9]"):
        await memory.open_step(open_request(device="d9", task=f"of {price}", price=price, **terms))
        await memory.close_step(close_request(device="d9", task=f"of {price}"))
    assert verify(tables).ok
    task, step = ("d9", "of "), ("d9", "of ", 0)
    for table, key, changed in ((TASK, task, (0.5,)), (PRICE, ("global[device:d9]",), ())):
        tables.rows[table][key] = replace(kept := tables.rows[table][key], recent=changed)
        assert len(verify(tables).differences) == 1
        tables.rows[table][key] = kept
    for forged in ({"dual_proportional": 0.0}, {"dual_window": 1}, {"dual_ceiling": 1.0}):
        tables.rows[STEP][step] = replace(kept := tables.rows[STEP][step], **forged)
        assert len(verify(tables).differences) == 1
        tables.rows[STEP][step] = kept
    assert verify(tables).ok


@pytest.mark.parametrize("forged", [{"dual_proportional": (0.25).hex()}, {"dual_ceiling": (0.1).hex()}, {"price": "fleet"}])
async def test_a_rule_that_does_not_lead_to_the_price_in_the_journal_is_found(forged: dict[str, str]) -> None:
    store = MemoryLedgerStore(NOW)
    await store.open_step(open_request(dual_proportional=0.5))
    await store.close_step(close_request())
    entries, tables = [], store.tables
    for entry in tables.journal:
        data = {**entry.data(), **(forged if entry.kind == "open_step" else {})}
        seq, head = (entries[-1].seq, entries[-1].hash) if entries else (0, GENESIS)
        entries.append(next_entry(seq, head, entry.at_ms, entry.kind, data))
    tables.journal[:] = entries
    assert any("close_step" in line or "open_step" in line for line in verify(tables).differences)


async def test_a_ledger_of_version_2_is_brought_up_to_date_and_takes_limits(tmp_path: Path) -> None:
    path = old_ledger(tmp_path / "old.sqlite3", 2)
    store = await SqliteLedgerStore.open(path, NOW + 500.0)
    await store.close_step(close_request(1))
    await store.set_limits("fleet", {"calls_limit": 700}, NOW)
    await store.reserve(reserve_request("new", budgets=[BudgetTerms("fleet", Limits(700))], limits_version=1))
    await store.aclose()
    report = verify_file(path)
    assert report.ok, report.differences


@pytest.mark.parametrize("version", [1, 2])
def test_a_change_in_a_ledger_of_an_older_version_is_found(tmp_path: Path, version: int) -> None:
    path = old_ledger(tmp_path / "old.sqlite3", version)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE task_state SET dual = ? WHERE device = 'd1'", ((0.25).hex(),))
    connection.close()
    assert not verify_file(path).ok


async def test_a_hold_under_other_limits_than_those_set_is_found() -> None:
    store = MemoryLedgerStore(NOW)
    await store.set_limits("fleet", {"calls_limit": 2}, NOW)
    for key, limit, fits in (("k1", 2, True), ("k2", 9, False)):
        await store.reserve(reserve_request(key, budgets=[BudgetTerms("fleet", Limits(limit))], limits_version=1))
        report = verify(store.tables)
        assert report.ok is fits
    assert any("calls_limit was set otherwise" in line for line in report.differences)


async def test_entries_in_another_order_are_found(memory: MemoryLedgerStore) -> None:
    journal = memory.tables.journal
    journal[3], journal[4] = journal[4], journal[3]
    assert not verify(memory.tables).ok


async def test_an_entry_that_does_not_follow_the_one_before_is_found_though_its_own_hash_is_right(
    memory: MemoryLedgerStore,
) -> None:
    journal = memory.tables.journal
    last = journal[-1]
    journal[-1] = next_entry(last.seq - 1, GENESIS, last.at_ms, last.kind, last.data())
    assert any("does not follow the entry before" in line for line in verify(memory.tables).differences)


async def test_an_unknown_kind_of_entry_is_found(memory: MemoryLedgerStore) -> None:
    last = memory.tables.journal[-1]
    memory.tables.journal.append(next_entry(last.seq, last.hash, last.at_ms, "gift", {"uusd": 1}))
    assert any("gift" in line for line in verify(memory.tables).differences)


async def test_a_second_dual_update_of_one_step_is_found(memory: MemoryLedgerStore) -> None:
    journal = memory.tables.journal
    closing = next(entry for entry in journal if entry.kind == "close_step")
    version = memory.tables.rows[TASK]["d1", "math"].version + 1
    data = {**closing.data(), "version": version}
    journal.append(next_entry(journal[-1].seq, journal[-1].hash, closing.at_ms, "close_step", data))
    assert any("closed before" in line for line in verify(memory.tables).differences)


async def test_overspend_is_found_at_the_entry_where_it_happened(memory: MemoryLedgerStore) -> None:
    entries = forged(memory, "limits", asked=[1, None, None], limits=[1, None, None])
    memory.tables.journal[:] = entries
    assert any("above its limits" in line for line in verify(memory.tables).differences)


async def test_a_charge_above_its_hold_is_found_at_the_entry_where_it_happened(memory: MemoryLedgerStore) -> None:
    memory.tables.journal[:] = forged(memory, "completed", charge=[1, 100, 5_000])
    assert any("(completed): charged" in line and "more than the hold" in line for line in verify(memory.tables).differences)


async def test_differences_are_counted_but_not_listed_without_end(memory: MemoryLedgerStore) -> None:
    memory.tables.journal[:] = [replace(entry, hash="0" * 64) for entry in memory.tables.journal] * 10
    report = verify(memory.tables)
    assert report.difference_count > len(report.differences) == 100


def test_an_export_can_be_checked_elsewhere(path: Path) -> None:
    stream = io.StringIO()
    with open_read_only(path) as rows:
        count = export(rows, stream)
    entries = list(read_export(stream.getvalue().splitlines()))
    assert len(entries) == count == ENTRIES
    previous = GENESIS
    for entry in entries:
        assert entry.previous == previous
        previous = entry_hash(entry.seq, entry.at_ms, entry.kind, entry.body, entry.previous)
        assert previous == entry.hash


async def _met_and_used(store: MemoryLedgerStore) -> None:
    for device in ("d1", "d2"):
        await store.reserve(reserve_request("met", device=device, price="fleet"))
    await store.open_step(open_request(0, device="d2", price="fleet"))


async def test_a_ledger_whose_shared_prices_began_with_their_first_step_verifies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "_begin_price", lambda self, task: False)
    store = MemoryLedgerStore(NOW)
    await _met_and_used(store)
    assert verify(store.tables).ok
    monkeypatch.undo()
    await store.reserve(reserve_request("later", device="d3", price="global[device:d3]"))
    assert verify(store.tables).ok


async def test_a_shared_price_that_begins_twice_or_never_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for begins, told in ((True, "had begun"), (False, "did not begin")):
        store = MemoryLedgerStore(NOW)
        await store.reserve(reserve_request("first", device="d0", price="global[device:d0]"))
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "_begin_price", lambda self, task, begins=begins: begins)
            await _met_and_used(store)
        assert any(told in line for line in verify(store.tables).differences)


async def test_a_running_coordinators_ledger_can_be_verified(tmp_path: Path) -> None:
    path = tmp_path / "live.sqlite3"
    store = await SqliteLedgerStore.open(path, NOW)
    await write_history(store)
    assert verify_file(path).ok
    await store.reserve(reserve_request("later"))
    assert verify_file(path).entries == ENTRIES + 1
    await store.aclose()


NESTED = st.none() | st.booleans() | st.integers() | st.text()
VALUES = st.recursive(NESTED, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=6)


@settings(max_examples=60)
@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_the_body_of_an_entry_is_canonical_json_however_it_is_written(data: dict[str, object]) -> None:
    entry = next_entry(0, GENESIS, 1, "kind", data)
    assert entry.body == canonical_json(data)
    chained = canonical_json([1, 1, "kind", entry.body, GENESIS])
    assert entry.hash == hashlib.sha256(chained.encode()).hexdigest()


def test_an_entry_with_what_is_not_a_number_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        next_entry(0, GENESIS, 1, "kind", {"dual": float("nan")})


def test_canonical_json_refuses_what_is_not_a_number() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json({"value": float("nan")})
