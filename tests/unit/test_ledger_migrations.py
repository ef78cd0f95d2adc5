"""A ledger file of an older version is upgraded with a copy beside it; a newer one is refused."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from coordinator.ledger.accounts import Amount, CallState, Ended, InProgress, Replay
from coordinator.ledger.stores.migrations import LEDGER, Version, migrate_sqlite_file
from coordinator.ledger.stores.sqlite import SqliteLedgerStore, SqliteSettings, open_read_only
from coordinator.ledger.tables import CALL
from coordinator.ledger.verify import verify_file
from edge.core.errors import StateError
from tests.unit.ledger_requests import HOLD, NOW, ROOMY, reserve_request, settlement


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A ledger of this version with one answered call and one open hold."""
    path = tmp_path / "ledger.sqlite3"
    store = await SqliteLedgerStore.open(path, NOW)
    await store.reserve(reserve_request())
    await store.settle(settlement())
    await store.reserve(reserve_request("open"))
    await store.aclose()
    return path


def next_version(script: str = "") -> SqliteSettings:
    """The schema of a program that is one version further on."""
    return SqliteSettings(schema=(*LEDGER, Version(f"CREATE TABLE note (text TEXT PRIMARY KEY); {script}")))


def tables(path: Path) -> set[str]:
    with sqlite3.connect(path) as connection:
        names = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    connection.close()
    return names


def version(path: Path) -> int:
    with sqlite3.connect(path) as connection:
        found = int(connection.execute("PRAGMA user_version").fetchone()[0])
    connection.close()
    return found


async def test_older_file_is_upgraded_with_a_copy_beside_it(path: Path) -> None:
    store = await SqliteLedgerStore.open(path, NOW, next_version())
    assert (await store.get_call("d1", "k1")).result == "42"
    await store.aclose()
    assert version(path) == len(LEDGER) + 1
    assert "note" in tables(path)
    backup = path.with_name(f"{path.name}.v{len(LEDGER)}.backup")
    assert (version(backup), "note" in tables(backup)) == (len(LEDGER), False)
    assert backup.stat().st_mode & 0o777 == 0o600
    assert verify_file(backup).ok


async def test_failed_migration_leaves_the_file_unchanged(path: Path) -> None:
    before = tables(path)
    with pytest.raises(StateError, match="cannot be migrated from version"):
        await SqliteLedgerStore.open(path, NOW, next_version("DROP TABLE missing;"))
    assert (version(path), tables(path)) == (len(LEDGER), before)
    again = await SqliteLedgerStore.open(path, NOW)
    assert (await again.get_call("d1", "k1")).result == "42"
    await again.aclose()
    assert verify_file(path).ok


async def test_a_file_of_a_newer_program_is_refused_and_left_alone(path: Path) -> None:
    await (await SqliteLedgerStore.open(path, NOW, next_version())).aclose()
    with pytest.raises(StateError, match="newer than"):
        await SqliteLedgerStore.open(path, NOW)
    with pytest.raises(StateError, match="newer than"), open_read_only(path):
        pass
    assert version(path) == len(LEDGER) + 1


async def test_a_file_in_use_is_not_migrated(path: Path, tmp_path: Path) -> None:
    store = await SqliteLedgerStore.open(path, NOW)
    with pytest.raises(StateError, match="in use"):
        await SqliteLedgerStore.open(path, NOW, next_version())
    await store.reserve(reserve_request("k2"))
    assert await store.reserve(reserve_request("k2")) == InProgress("k2")
    await store.aclose()
    assert not list(tmp_path.glob("*.backup"))


def test_backup_of_a_file_includes_its_write_ahead_log(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("CREATE TABLE journal (seq INTEGER PRIMARY KEY)")
    writer.execute("INSERT INTO journal VALUES (7)")
    settings = next_version()
    backup = migrate_sqlite_file(path, len(LEDGER), settings.schema)
    copy = sqlite3.connect(backup)
    assert copy.execute("SELECT seq FROM journal").fetchall() == [(7,)]
    copy.close()
    writer.close()


async def test_calls_of_a_ledger_of_version_4_keep_their_answers_and_digests(tmp_path: Path) -> None:
    """Version 5 adds the non-text parts of an answer; answers stored before have none."""
    old = tmp_path / "old.sqlite3"
    with closing(sqlite3.connect(old)) as connection:
        connection.executescript((Path(__file__).parents[1] / "golden" / "ledger_version_2.sql").read_text())
    migrate_sqlite_file(old, 2, LEDGER[:4])
    assert version(old) == 4 and verify_file(old).ok
    store = await SqliteLedgerStore.open(old, NOW + 500.0)
    await store.reserve(reserve_request("late"))
    settled = await store.settle(settlement("late", beyond_text='{"tool_calls":[]}'))
    await store.aclose()
    assert settled.call.beyond_text == '{"tool_calls":[]}'
    with open_read_only(old) as rows:
        stored = {call.key: call.beyond_text for call in rows.all(CALL)}
    assert stored.pop("late") and set(stored.values()) == {""}
    assert verify_file(old).ok


KILLED = {
    "k0": (CallState.COMPLETED, Amount(1, 100, 300)),
    "k1": (CallState.COMPLETED, Amount(1, 100, 300)),
    "k2": (CallState.REFUNDED, Amount()),
    "k3": (CallState.FAILED, HOLD),
    "k4": (CallState.IN_DOUBT, HOLD),
    "k5": (CallState.IN_DOUBT, HOLD),
    "g0": (CallState.IN_DOUBT, HOLD),
}
"""What became of the calls of a ledger of version 6 that was killed with open holds."""


async def test_killed_ledger_with_open_holds_is_upgraded_and_charges_nothing_twice(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((Path(__file__).parent / "ledgers" / "version_6_killed.sql").read_text(encoding="utf-8"))
    before = verify_file(path)
    assert before.ok, before.differences
    store = await SqliteLedgerStore.open(path, NOW + 5.0)
    for key, (state, charged) in KILLED.items():
        row = await store.get_call("d1", key)
        assert (row.state, row.charged) == (state, charged), key
    fleet = (await store.get_budget("d1", "math", [ROOMY])).budgets[0]
    total = Amount()
    for _, charged in KILLED.values():
        total = total.plus(charged)
    assert (fleet.reserved, fleet.committed) == (Amount(), total)
    for key in ("k4", "g0"):
        assert not (await store.settle(settlement(key))).applied, "an unconfirmed call is charged already"
    assert isinstance(await store.reserve(reserve_request("k0")), Replay)
    assert isinstance(await store.reserve(reserve_request("k4")), Ended)
    assert (await store.get_budget("d1", "math", [ROOMY])).budgets[0] == fleet
    assert [row.changes for row in await store.list_set_limits()] == [(("calls_limit", 50),)]
    await store.aclose()
    after = verify_file(path)
    assert after.ok, after.differences
    assert (after.calls, after.attempts) == (before.calls, before.attempts)
