"""Verification finds any manipulation of the ledger."""

from __future__ import annotations

import asyncio
import hashlib
import io
import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from coordinator.ledger.accounts import Amount, AmountLimits, BudgetTerms
from coordinator.ledger.journal import GENESIS, JournalEntry, canonical_json, entry_hash, next_entry
from coordinator.ledger.stores.memory import MemoryLedgerStore
from coordinator.ledger.stores.schema import create_in_sqlite
from coordinator.ledger.stores.sqlite import SqliteLedgerStore, SqliteRows, open_read_only
from coordinator.ledger.stores.store import LedgerStore
from coordinator.ledger.tables import SHARED_DUAL, STEP, TASK
from coordinator.ledger.transitions import Ledger
from coordinator.ledger.verify import export, verify, verify_file
from tests.worlds.ledger_requests import NOW, close_request, open_request, read_export, reserve_request, settlement

ENTRIES = 46
JOURNAL_OF_VERSION_1 = Path(__file__).parent / "ledger_journal_version_1.jsonl"


async def write_history(store: LedgerStore) -> None:
    """Two steps and some serving: an answer, a replay, a refund with a second try, a failure, an unconfirmed call, a sweep, a purge, an
    open hold."""
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
    """Two devices that share a λ and a budget with floors, one of them late; a third that was idle, left and was disabled."""
    shared = {"task": "qa", "shared_dual": "fleet[task:qa]"}
    for device in ("d1", "d2", "d3"):
        await store.register_device(device, "1.0", ("qa",), NOW)
        await store.open_step(open_request(device=device, **shared))
    fair = BudgetTerms("fleet@2026-10", AmountLimits(10, 10_000, 100_000), 500_000)
    for device in ("d1", "d2"):
        await store.reserve(reserve_request("fair", device=device, task="qa", step=0, budgets=(fair,)))
        await store.settle(settlement("fair", device=device))
        await store.close_step(close_request(device=device, task="qa"))
    await store.open_step(open_request(1, now=NOW + 50.0, **shared))
    await store.leave_idle_duals(NOW + 1.0, NOW + 50.0)
    await store.set_device_disabled("d3", True, NOW + 51.0)
    await store.open_step(open_request(task="essay", shared_dual="global[device:d1]"))


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
    """A copy of a ledger in memory, changed by someone with full access; every change is checked and taken back."""

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
    create_in_sqlite(scratch)
    tables = ("budget", "call", "attempt", "step", "task_state", "shared_dual", "dual_member", "journal")
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


def test_intact_ledger_verifies_and_reports_what_was_checked(path: Path) -> None:
    report = verify_file(path)
    assert report.ok, report.differences
    counts = (report.calls, report.attempts, report.open_attempts, report.steps, report.dual_updates, report.tasks)
    assert counts == (10, 10, 1, 7, 3, 6)
    assert report.entries == ENTRIES
    assert report.to_json()["ok"] is True
    assert len(report.lines()) == 1
    assert verify(MemoryLedgerStore(NOW).tables).ok, "an empty one, too"


@pytest.mark.parametrize(("table", "column"), columns())
def test_a_change_of_any_column_of_any_row_is_found(forger: Forger, table: str, column: str) -> None:
    keys = forger.keys(table)
    where = " AND ".join(f"{key} = ?" for key in keys)
    for *key, value in forger.connection.execute(f"SELECT {', '.join(keys)}, {column} FROM {table}").fetchall():
        if (table, column) == ("call", "result") and value is None:
            continue  # a text for a call that has none is the next test
        new = value + 1_000 if column in keys and isinstance(value, int) else changed(value)
        forger.must_be_found(f"UPDATE {table} SET {column} = ? WHERE {where}", (new, *key))


@pytest.mark.parametrize(
    "table", ["budget", "call", "attempt", "step", "task_state", "shared_dual", "dual_member", "device", "journal"]
)
def test_a_removed_row_of_any_table_is_found(forger: Forger, table: str) -> None:
    keys = forger.keys(table)
    where = " AND ".join(f"{key} = ?" for key in keys)
    for row in forger.connection.execute(f"SELECT {', '.join(keys)} FROM {table}").fetchall():
        forger.must_be_found(f"DELETE FROM {table} WHERE {where}", row)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE call SET result = 'forged' WHERE key = 'cut'",
        "UPDATE call SET result = NULL WHERE key = 'answered'",
        "UPDATE call SET beyond_text = '{}' WHERE key = 'answered'",
        "UPDATE call SET beyond_text = '{}' WHERE key = 'cut'",
        "INSERT INTO attempt SELECT device, key, number + 100, state, 0, 0, 0, 0, 0, 0, budgets, epoch, lease_ms FROM attempt",
        "UPDATE budget SET reserved_calls = -9",
        "UPDATE call SET state = '?'",
        "UPDATE attempt SET budgets = '['",
        "UPDATE step SET dual = '?'",
    ],
)
def test_text_added_attempts_invented_and_rows_that_cannot_be_read_are_found(forger: Forger, statement: str) -> None:
    forger.must_be_found(statement)


def rechained(entries: Iterable[tuple[int, str, dict[str, Any]]]) -> list[JournalEntry]:
    """A journal of these times, kinds and contents, with the chain of hashes computed anew."""
    chain: list[JournalEntry] = []
    for at_ms, kind, data in entries:
        seq, head = (chain[-1].seq, chain[-1].hash) if chain else (0, GENESIS)
        chain.append(next_entry(seq, head, at_ms, kind, data))
    return chain


def forged(journal: Sequence[JournalEntry], kind: str, has: str = "", **changes: Any) -> list[JournalEntry]:
    """The journal with fields of the first entry of this kind (that has the field `has`) changed."""
    entries = [(entry.at_ms, entry.kind, entry.data()) for entry in journal]
    next(data for _, of, data in entries if of == kind and (not has or has in data)).update(changes)
    return rechained(entries)


def appended(journal: list[JournalEntry], kind: str, **data: Any) -> list[JournalEntry]:
    last = journal[-1]
    return [*journal, next_entry(last.seq, last.hash, last.at_ms, kind, data)]


def first(journal: list[JournalEntry], kind: str) -> dict[str, Any]:
    return next(entry.data() for entry in journal if entry.kind == kind)


@pytest.mark.parametrize(
    ("kind", "has", "changes"),
    [
        ("close_step", "", {"dual_after": (0.25).hex()}),
        ("close_step", "", {"help_units": 33}),
        ("close_step", "", {"total_units": 0}),
        ("open_step", "", {"dual_lr": (0.5).hex()}),
        ("completed", "", {"charge": [1, 1, 1]}),
        ("completed", "", {"charge": [1, 100, 5_000]}),
        ("completed", "", {"key": None}),
        ("reserve", "", {"hold": [1, 1, 1]}),
        ("reserve", "", {"attempt": 2}),
        ("limits", "", {"limits": [1, 1, 1], "asked": [1, 1, 1]}),
        ("in_doubt", "", {"charge": [0, 0, 0]}),
        ("refunded", "", {"charge": [1, 0, 0]}),
        ("copy", "", {"result_sha256": "0" * 64}),
        ("purge", "", {"calls": []}),
        ("task", "", {"device": "d9"}),
        ("device", "", {"disabled": True}),
        ("leave", "", {"device": "d1"}),
        ("leave", "", {"shared_dual": "fleet"}),
        ("limits", "joined", {"floor": [9, 9, 9]}),
        ("limits", "joined", {"set_aside": [0, 0, 0]}),
        ("limits", "joined", {"floor_ppm": 100_000}),
        ("limits", "joined", {"members": 2}),
        ("limits", "joined", {"joined": "d9"}),
        ("open_step", "shared_dual", {"shared_dual": ""}),
        ("open_step", "shared_dual", {"planned_prompts": 17}),
        ("close_step", "round_units", {"round_units": 128}),
        ("close_step", "round_units", {"dual_before": (0.25).hex()}),
        ("close_step", "round_units", {"dual_after": (0.25).hex()}),
    ],
)
async def test_forged_entry_is_found_even_with_a_recomputed_chain(
    memory: MemoryLedgerStore, kind: str, has: str, changes: dict[str, Any]
) -> None:
    memory.tables.journal[:] = forged(memory.tables.journal, kind, has, **changes)
    report = verify(memory.tables)
    assert not report.ok
    assert not any("hash" in line or "follow the entry before" in line for line in report.differences)


def shared_reports_swapped(journal: list[JournalEntry]) -> list[JournalEntry]:
    """Both reports to a fleet's λ are honest, but λ depends on their order."""
    entries = [(entry.at_ms, entry.kind, entry.data()) for entry in journal]
    one, other, *_ = (at for at, (_, kind, data) in enumerate(entries) if kind == "close_step" and "round_units" in data)
    entries[one], entries[other] = entries[other], entries[one]
    return rechained(entries)


def no_longer_following(journal: list[JournalEntry]) -> list[JournalEntry]:
    """The last entry's own hash is right, but it follows another one."""
    last = journal[-1]
    return [*journal[:-1], next_entry(last.seq - 1, GENESIS, last.at_ms, last.kind, last.data())]


Forgery = Callable[[list[JournalEntry]], list[JournalEntry]]
FORGERIES: dict[str, tuple[Forgery, str]] = {
    "entries in another order": (lambda journal: [*journal[:3], journal[4], journal[3], *journal[5:]], "is at place"),
    "an entry that follows another": (no_longer_following, "does not follow the entry before"),
    "a fleet's λ moved in another order": (shared_reports_swapped, "started from"),
    "an unknown kind": (lambda journal: appended(journal, "gift", uusd=1), "gift"),
    "a second dual update of one step": (
        lambda journal: appended(journal, "close_step", **{**first(journal, "close_step"), "version": 99}),
        "closed before",
    ),
    "a hold of a disabled device": (
        lambda journal: appended(
            journal, "reserve", **{**first(journal, "reserve"), "device": "d3", "key": "late", "task": "qa", "step": 0}
        ),
        "disabled",
    ),
    "an answer that crossed devices": (lambda journal: forged(journal, "copy", "source", device="d2"), "crossed devices"),
    "overspend": (lambda journal: forged(journal, "limits", asked=[1, None, None], limits=[1, None, None]), "above its limits"),
    "a charge above its hold": (lambda journal: forged(journal, "completed", charge=[1, 100, 5_000]), "more than the hold"),
}


@pytest.mark.parametrize("what", FORGERIES)
async def test_impossible_ledger_history_is_found_and_named(memory: MemoryLedgerStore, what: str) -> None:
    forge, words = FORGERIES[what]
    memory.tables.journal[:] = forge(memory.tables.journal)
    differences = verify(memory.tables).differences
    assert any(words in line for line in differences), differences


async def _with_set_limits(store: LedgerStore) -> None:
    await store.set_limits("fleet", {"calls_limit": 700}, NOW)
    await store.reserve(reserve_request("new", budgets=[BudgetTerms("fleet", AmountLimits(700))], limits_version=1))


async def _with_a_proportional_part(store: LedgerStore) -> None:
    await store.open_step(open_request(2, dual_proportional=0.5, dual_window=2, dual_ceiling=1.0))
    await store.close_step(close_request(2, uncalled_units=8))


def test_the_journal_of_version_1_is_written_as_it_is_kept(path: Path) -> None:
    """A change in the content of entries is a change of the ledger on disk: see `coordinator/ledger/stores/schema.py`."""
    stream = io.StringIO()
    with open_read_only(path) as rows:
        export(rows, stream)
    assert stream.getvalue() == JOURNAL_OF_VERSION_1.read_text(encoding="utf-8")


@pytest.mark.parametrize("go_on", [_with_set_limits, _with_a_proportional_part])
async def test_a_ledger_that_goes_on_with_other_kinds_of_entries_is_verified(
    memory: MemoryLedgerStore, go_on: Callable[[LedgerStore], Awaitable[None]]
) -> None:
    await memory.close_step(close_request(1))
    await go_on(memory)
    report = verify(memory.tables)
    assert report.ok, report.differences


async def test_controller_state_of_a_dual_is_verified(memory: MemoryLedgerStore) -> None:
    tables, terms = memory.tables, {"dual_proportional": 0.5, "dual_window": 2}
    for dual in ("", "global[device:d9]"):
        await memory.open_step(open_request(device="d9", task=f"of {dual}", shared_dual=dual, **terms))
        await memory.close_step(close_request(device="d9", task=f"of {dual}"))
    assert verify(tables).ok
    task, step = ("d9", "of "), ("d9", "of ", 0)
    for table, key, changed in ((TASK, task, (0.5,)), (SHARED_DUAL, ("global[device:d9]",), ())):
        tables.rows[table][key] = replace(kept := tables.rows[table][key], recent=changed)
        assert len(verify(tables).differences) == 1
        tables.rows[table][key] = kept
    for forged in ({"dual_proportional": 0.0}, {"dual_window": 1}, {"dual_ceiling": 1.0}):
        tables.rows[STEP][step] = replace(kept := tables.rows[STEP][step], **forged)
        assert len(verify(tables).differences) == 1
        tables.rows[STEP][step] = kept
    assert verify(tables).ok


@pytest.mark.parametrize(
    "changes", [{"dual_proportional": (0.25).hex()}, {"dual_ceiling": (0.1).hex()}, {"shared_dual": "fleet"}]
)
async def test_a_rule_that_does_not_lead_to_the_dual_in_the_journal_is_found(changes: dict[str, str]) -> None:
    store = MemoryLedgerStore(NOW)
    await store.open_step(open_request(dual_proportional=0.5))
    await store.close_step(close_request())
    store.tables.journal[:] = forged(store.tables.journal, "open_step", **changes)
    assert any("close_step" in line or "open_step" in line for line in verify(store.tables).differences)


async def test_a_hold_under_other_limits_than_those_set_is_found() -> None:
    store = MemoryLedgerStore(NOW)
    await store.set_limits("fleet", {"calls_limit": 2}, NOW)
    for key, limit, fits in (("k1", 2, True), ("k2", 9, False)):
        await store.reserve(reserve_request(key, budgets=[BudgetTerms("fleet", AmountLimits(limit))], limits_version=1))
        report = verify(store.tables)
        assert report.ok is fits
    assert any("calls_limit was set otherwise" in line for line in report.differences)


async def test_differences_are_counted_but_listed_up_to_a_limit(memory: MemoryLedgerStore) -> None:
    memory.tables.journal[:] = [replace(entry, hash="0" * 64) for entry in memory.tables.journal] * 10
    report = verify(memory.tables)
    assert report.difference_count > len(report.differences) == 100


def test_export_can_be_verified_elsewhere(path: Path) -> None:
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
        await store.reserve(reserve_request("met", device=device, shared_dual="fleet"))
    await store.open_step(open_request(0, device="d2", shared_dual="fleet"))


async def test_a_shared_dual_that_begins_twice_or_never_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for begins, message in ((True, "had begun"), (False, "did not begin")):
        store = MemoryLedgerStore(NOW)
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "_begin_shared_dual", lambda self, task, begins=begins: begins)
            await _met_and_used(store)
        assert any(message in line for line in verify(store.tables).differences)


async def test_ledger_of_a_running_coordinator_can_be_verified(tmp_path: Path) -> None:
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


def test_entry_with_a_non_number_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        next_entry(0, GENESIS, 1, "kind", {"dual": float("nan")})
