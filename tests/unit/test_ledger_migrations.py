"""A ledger file of an older version is brought up to date with a copy beside it; a newer one is refused; fresh equals migrated."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from coordinator.ledger.accounts import Amount, CallState, Ended, InProgress, Replay
from coordinator.ledger.stores.migrations import LEDGER, History, migrate_sqlite_file
from coordinator.ledger.stores.sqlite import SqliteLedgerStore, SqliteSettings, open_read_only
from coordinator.ledger.verify import verify_file
from edge.core.errors import StateError
from tests.unit.ledger_requests import HOLD, NOW, ROOMY, reserve_request, settlement

NEXT = """
from alembic import op
import sqlalchemy as sa
revision = "{number:04d}"
down_revision = "{before:04d}"

def upgrade() -> None:
    op.create_table("note", sa.Column("text", sa.Text(), primary_key=True))
    {then}
"""


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


def next_version(folder: Path, then: str = "pass") -> SqliteSettings:
    """The schema of a program that is one version further on."""
    folder.mkdir()
    number = LEDGER.version + 1
    (folder / "next.py").write_text(NEXT.format(number=number, before=LEDGER.version, then=then))
    return SqliteSettings(schema=History(number, (*LEDGER.folders, folder)))


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


async def test_an_older_file_is_brought_up_to_date_with_a_copy_beside_it(path: Path, tmp_path: Path) -> None:
    store = await SqliteLedgerStore.open(path, NOW, next_version(tmp_path / "revisions"))
    assert (await store.get_call("d1", "k1")).result == "42"
    await store.aclose()
    assert version(path) == LEDGER.version + 1
    assert "note" in tables(path)
    assert "alembic_version" not in tables(path)
    backup = path.with_name(f"{path.name}.v{LEDGER.version}.backup")
    assert (version(backup), "note" in tables(backup)) == (LEDGER.version, False)
    assert backup.stat().st_mode & 0o777 == 0o600
    assert verify_file(backup).ok


async def test_a_migration_that_fails_leaves_the_file_as_it_was(path: Path, tmp_path: Path) -> None:
    before = tables(path)
    with pytest.raises(StateError, match="cannot be migrated from version"):
        await SqliteLedgerStore.open(path, NOW, next_version(tmp_path / "revisions", then="op.execute('DROP TABLE missing')"))
    assert (version(path), tables(path)) == (LEDGER.version, before)
    again = await SqliteLedgerStore.open(path, NOW)
    assert (await again.get_call("d1", "k1")).result == "42"
    await again.aclose()
    assert verify_file(path).ok


async def test_a_file_of_a_newer_program_is_refused_and_left_alone(path: Path, tmp_path: Path) -> None:
    await (await SqliteLedgerStore.open(path, NOW, next_version(tmp_path / "revisions"))).aclose()
    with pytest.raises(StateError, match="newer than"):
        await SqliteLedgerStore.open(path, NOW)
    with pytest.raises(StateError, match="newer than"), open_read_only(path):
        pass
    assert version(path) == LEDGER.version + 1


async def test_a_file_in_use_is_not_migrated(path: Path, tmp_path: Path) -> None:
    store = await SqliteLedgerStore.open(path, NOW)
    with pytest.raises(StateError, match="in use"):
        await SqliteLedgerStore.open(path, NOW, next_version(tmp_path / "revisions"))
    await store.reserve(reserve_request("k2"))
    assert await store.reserve(reserve_request("k2")) == InProgress("k2")
    await store.aclose()
    assert not list(tmp_path.glob("*.backup"))


async def test_a_fresh_file_has_what_the_revisions_make(path: Path, tmp_path: Path) -> None:
    """The tables a new file gets at once and those that all revisions make one after the other are the same."""
    migrated = tmp_path / "migrated.sqlite3"
    _upgrade_from_nothing(migrated)
    assert _described(migrated) == _described(path)


def _upgrade_from_nothing(path: Path) -> None:
    from alembic import command

    from coordinator.ledger.stores.migrations import _config

    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        command.upgrade(_config(connection, LEDGER), "head")
        connection.exec_driver_sql("DROP TABLE alembic_version")
    engine.dispose()


def _described(path: Path) -> dict[str, object]:
    """Tables, columns with types, keys and nullability, indexes with their conditions, triggers; and how many checks there are."""
    connection = sqlite3.connect(path)
    found: dict[str, object] = {}
    for kind, name, sql in connection.execute("SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL").fetchall():
        if kind == "table":
            columns = connection.execute(f"PRAGMA table_info({name})").fetchall()
            strict = connection.execute(f"SELECT wr, strict FROM pragma_table_list('{name}')").fetchone()
            nullable = [(row[1], row[2], row[5], bool(row[3] or row[5])) for row in columns]
            found[name] = (nullable, strict, _rules(sql))
        else:
            found[name] = "".join(sql.replace("(", " ( ").split()).replace('"', "").lower()
    connection.close()
    return found


def _rules(sql: str) -> list[str]:
    """What the CHECKs of a table say, each once, sorted."""
    parts = sql.replace("\n", " ").split("CHECK (")[1:]
    return sorted("".join(part[: part.index(")")].split()) for part in parts)


def test_the_backup_of_a_file_holds_what_its_write_ahead_log_holds(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("CREATE TABLE journal (seq INTEGER PRIMARY KEY)")
    writer.execute("INSERT INTO journal VALUES (7)")
    settings = next_version(tmp_path / "revisions")
    backup = migrate_sqlite_file(path, LEDGER.version, settings.schema)
    copy = sqlite3.connect(backup)
    assert copy.execute("SELECT seq FROM journal").fetchall() == [(7,)]
    copy.close()
    writer.close()


async def test_calls_of_a_ledger_of_version_4_keep_their_answers_and_digests(path: Path, tmp_path: Path) -> None:
    """Version 5 adds what an answer had beyond its text; answers that were stored before had nothing more."""
    old = tmp_path / "old.sqlite3"
    with closing(sqlite3.connect(old)) as connection:
        connection.executescript((Path(__file__).parents[1] / "golden" / "ledger_version_2.sql").read_text())
    migrate_sqlite_file(old, 2, History(4, LEDGER.folders))
    assert version(old) == 4 and verify_file(old).ok
    store = await SqliteLedgerStore.open(old, NOW + 500.0)
    await store.reserve(reserve_request("late"))
    settled = await store.settle(settlement("late", beyond_text='{"tool_calls":[]}'))
    await store.aclose()
    assert settled.call.beyond_text == '{"tool_calls":[]}'
    with open_read_only(old) as rows:
        told = {call.key: call.beyond_text for call in rows.all_calls()}
    assert told.pop("late") and set(told.values()) == {""}
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


async def test_a_ledger_that_was_killed_with_open_holds_is_upgraded_and_charges_nothing_twice(tmp_path: Path) -> None:
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
        assert not (await store.settle(settlement(key))).applied, "what was in doubt is charged already"
    assert isinstance(await store.reserve(reserve_request("k0")), Replay)
    assert isinstance(await store.reserve(reserve_request("k4")), Ended)
    assert (await store.get_budget("d1", "math", [ROOMY])).budgets[0] == fleet
    assert [row.changes for row in await store.list_set_limits()] == [(("calls_limit", 50),)]
    await store.aclose()
    after = verify_file(path)
    assert after.ok, after.differences
    assert (after.calls, after.attempts) == (before.calls, before.attempts)
