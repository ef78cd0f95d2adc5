"""Properties of the SQLite store only: durability, one process per file, failing closed and recovering; a ledger of another version is
refused in one line and left as it is."""

from __future__ import annotations

import asyncio
import errno
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from coordinator.ledger.accounts import Amount, CallState, InProgress, Reserved
from coordinator.ledger.stores.schema import VERSION
from coordinator.ledger.stores.sqlite import SqliteLedgerStore, SqliteSettings, copy_file, open_read_only
from coordinator.ledger.stores.trouble import CHECK_RIGHTS, DAMAGED, NO_SPACE, READ_ONLY, STEADY_WRITES, advice
from coordinator.ledger.tables import CALL
from coordinator.ledger.transitions import Ledger
from coordinator.ledger.verify import verify_file
from edge.core.errors import CoordinatorUnavailable, StateError
from tests.worlds.ledger_requests import HOLD, NOW, ROOMY, reserve_request, settlement

CRASHING = """
import asyncio, os, sys
from coordinator.ledger.transitions import Ledger
from coordinator.ledger.stores.sqlite import SqliteLedgerStore
from tests.worlds.ledger_requests import NOW, reserve_request, settlement

async def main():
    store = await SqliteLedgerStore.open(sys.argv[1], NOW)
    await asyncio.gather(*(store.reserve(reserve_request(f"k{number}")) for number in range(20)))
    await asyncio.gather(*(store.settle(settlement(f"k{number}")) for number in range(5)))
    print("acknowledged", flush=True)
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""


def sqlite_error(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError("something failed")
    error.sqlite_errorcode = code
    return error


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite3"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteLedgerStore]:
    store = await SqliteLedgerStore.open(path, NOW, SqliteSettings(busy_timeout_s=0.05))
    yield store
    await store.aclose()


@contextmanager
def full_disk(path: Path) -> Iterator[None]:
    """No file of this process can grow beyond the size of the write-ahead log."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.with_name(path.name + "-wal").stat().st_size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_acknowledged_operations_survive_kill_9_and_open_holds_become_in_doubt(path: Path) -> None:
    crashed = subprocess.run([sys.executable, "-c", CRASHING, str(path)], capture_output=True, text=True, check=False)
    assert (crashed.stdout.strip(), crashed.returncode) == ("acknowledged", -signal.SIGKILL), crashed.stderr
    store = await SqliteLedgerStore.open(path, NOW + 1.0)
    states = [(await store.get_call("d1", f"k{number}")).state for number in range(20)]
    assert states == [CallState.COMPLETED] * 5 + [CallState.IN_DOUBT] * 15
    fleet = (await store.get_budget("d1", "math", [ROOMY])).budgets[0]
    assert (fleet.reserved, fleet.committed) == (Amount(), Amount(20, 5 * 100 + 15 * HOLD.tokens, 5 * 300 + 15 * HOLD.uusd))
    await store.aclose()
    assert verify_file(path).ok


async def test_a_second_opener_is_refused_in_one_line(path: Path, store: SqliteLedgerStore) -> None:
    with pytest.raises(StateError, match="in use by another process") as refused:
        await SqliteLedgerStore.open(path, NOW)
    assert "\n" not in str(refused.value)
    assert isinstance(await store.reserve(reserve_request()), Reserved)


async def test_every_commit_reaches_the_disk(store: SqliteLedgerStore) -> None:
    def pragma(name: str) -> object:
        return store.transact(lambda ledger: ledger.tables.source.connection.execute(f"PRAGMA {name}").fetchone()[0])

    assert (await pragma("synchronous"), await pragma("journal_mode")) == (2, "wal")


async def test_other_connections_cannot_touch_the_write_ahead_log(path: Path, store: SqliteLedgerStore) -> None:
    """SQLite before 3.51.3 can lose data when two connections write or checkpoint concurrently; here only one ever can."""
    await store.reserve(reserve_request())
    log = path.with_name(path.name + "-wal")
    before = log.read_bytes()
    with open_read_only(path) as rows:
        assert rows.get(CALL, "d1", "k1") is not None
        rows.connection.execute("COMMIT")
        for statement in ("PRAGMA wal_checkpoint(TRUNCATE)", "INSERT INTO meta VALUES ('x', 1)"):
            with pytest.raises(sqlite3.OperationalError, match=r"readonly|disk I/O"):
                rows.connection.execute(statement)
    assert log.read_bytes() == before
    connections = {id(await store.transact(_connection_of)) for _ in range(5)}
    assert len(connections) == 1


def _connection_of(ledger: Ledger) -> object:
    return ledger.tables.source.connection


async def test_locked_file_refuses_calls_and_recovers_when_released(path: Path, store: SqliteLedgerStore) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(CoordinatorUnavailable) as refused:
        await store.reserve(reserve_request())
    assert refused.value.reason == "LEDGER_UNAVAILABLE"
    other.execute("ROLLBACK")
    other.close()
    assert await store.reserve(reserve_request()) == Reserved(1, "d1|k1|1")


async def test_full_disk_refuses_calls_changes_nothing_and_recovers(path: Path, store: SqliteLedgerStore) -> None:
    await store.reserve(reserve_request())
    with full_disk(path):
        outcomes = await asyncio.gather(
            *(store.reserve(reserve_request(f"full{number}")) for number in range(50)), return_exceptions=True
        )
    refused = [outcome for outcome in outcomes if isinstance(outcome, CoordinatorUnavailable)]
    assert refused
    assert all(error.reason == "LEDGER_UNAVAILABLE" for error in refused)
    assert await store.reserve(reserve_request()) == InProgress("k1")
    assert (await store.settle(settlement())).applied
    report = verify_file(path)
    assert report.ok, report.differences
    assert report.calls == 1 + len(outcomes) - len(refused)


async def test_a_removed_file_refuses_calls(path: Path, store: SqliteLedgerStore) -> None:
    path.unlink()
    with pytest.raises(CoordinatorUnavailable, match="cannot be written"):
        await store.reserve(reserve_request())


def test_foreign_file_is_refused_and_not_turned_into_a_ledger(path: Path) -> None:
    with pytest.raises(StateError, match="there is no ledger"):
        verify_file(path)
    assert not path.exists()
    path.write_bytes(b"not a database" * 500)
    with pytest.raises(StateError) as unreadable, open_read_only(path):
        pass
    assert unreadable.value.hint == DAMAGED
    path.unlink()
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE mine (x)")
    before = path.read_bytes()
    with pytest.raises(StateError, match="is not a ledger"):
        asyncio.run(SqliteLedgerStore.open(path, NOW))
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("error", "reading", "hint"),
    [
        (sqlite_error(sqlite3.SQLITE_CORRUPT | 1 << 8), False, DAMAGED),
        (sqlite_error(sqlite3.SQLITE_FULL), False, NO_SPACE),
        (OSError(errno.ENOSPC, "no space"), False, NO_SPACE),
        (OSError(errno.EROFS, "read-only"), False, READ_ONLY),
        (sqlite_error(sqlite3.SQLITE_READONLY_CANTINIT), False, READ_ONLY),
        (sqlite_error(sqlite3.SQLITE_CANTOPEN), True, READ_ONLY),
        (sqlite_error(sqlite3.SQLITE_CANTOPEN), False, CHECK_RIGHTS),
        (PermissionError(errno.EACCES, "no"), False, CHECK_RIGHTS),
    ],
)
def test_each_kind_of_failure_has_its_own_advice(error: Exception, reading: bool, hint: str) -> None:
    assert advice(error, reading=reading) == hint


async def test_disk_full_and_recovery_are_logged_once_each(
    path: Path, store: SqliteLedgerStore, caplog: pytest.LogCaptureFixture
) -> None:
    await store.reserve(reserve_request())
    with full_disk(path):
        for number in range(20):
            with suppress(CoordinatorUnavailable):
                await store.reserve(reserve_request(f"full{number}"))
    await store.settle(settlement())
    with full_disk(path):  # what was written before this was no end of the trouble
        for number in range(20):
            with suppress(CoordinatorUnavailable):
                await store.reserve(reserve_request(f"again{number}"))
    for number in range(STEADY_WRITES):
        await store.reserve(reserve_request(f"later{number}"))
    messages = [record.getMessage() for record in caplog.records if record.name == "coordinator.ledger.stores.trouble"]
    assert len(messages) == 2
    assert str(path) in messages[0] and "calls are refused" in messages[0]
    assert "again" in messages[1]


async def test_ledger_without_its_write_ahead_log_warns_of_lost_charges(path: Path, caplog) -> None:
    subprocess.run([sys.executable, "-c", CRASHING, str(path)], capture_output=True, check=False)
    alone, whole, copied = (path.with_name(name) for name in ("alone", "whole", "copied"))
    alone.write_bytes(path.read_bytes())
    for suffix in ("", "-wal"):
        whole.with_name(whole.name + suffix).write_bytes(path.with_name(path.name + suffix).read_bytes())
    with closing(sqlite3.connect(path)) as running, closing(sqlite3.connect(copied)) as copy:
        running.backup(copy)
    for file, warnings, calls in ((whole, 0, 20), (copied, 1, 20), (alone, 1, 0)):
        for start in range(2):  # the second one after a clean stop
            assert file is whole or verify_file(file).entries  # reading makes side files, too
            caplog.clear()
            store = await SqliteLedgerStore.open(file, NOW)
            assert len([record for record in caplog.records if "lost its -wal file" in record.message]) == (
                0 if start else warnings
            )
            await store.aclose()
        assert verify_file(file).calls == calls


async def test_damage_after_an_unclean_stop_is_found_at_the_next_start(path: Path) -> None:
    subprocess.run([sys.executable, "-c", CRASHING, str(path)], capture_output=True, check=False)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        size = connection.execute("PRAGMA page_size").fetchone()[0]
        root = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'call_with_result'").fetchone()[0]
    connection.close()
    data = bytearray(path.read_bytes())
    data[(root - 1) * size + 8 : (root - 1) * size + 64] = bytes(56)
    path.write_bytes(data)
    with pytest.raises(StateError, match=r"damaged|cannot be opened"):
        await SqliteLedgerStore.open(path, NOW)


async def test_the_database_itself_refuses_overspend_and_edits_of_the_journal(path: Path, store: SqliteLedgerStore) -> None:
    await store.reserve(reserve_request())
    await store.aclose()
    connection = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute("UPDATE budget SET reserved_calls = 1001")
    for statement in ("UPDATE journal SET body = '{}'", "DELETE FROM journal"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            connection.execute(statement)
    connection.close()


async def log_bytes_after(path: Path, operations: int, settings: SqliteSettings) -> int:
    """The size of the write-ahead log after `operations` operations, before the ledger is closed."""
    store = await SqliteLedgerStore.open(path, NOW, settings)
    try:
        for start in range(0, operations, 16):
            await asyncio.gather(*(store.reserve(reserve_request(f"k{number}")) for number in range(start, start + 16)))
        return path.with_name(path.name + "-wal").stat().st_size
    finally:
        await store.aclose()


async def test_the_write_ahead_log_does_not_grow_with_the_ledger(tmp_path: Path) -> None:
    moved = await log_bytes_after(tmp_path / "moved.sqlite3", 512, SqliteSettings(checkpoint_pages=64))
    piled = await log_bytes_after(tmp_path / "piled.sqlite3", 512, SqliteSettings(checkpoint_pages=10**9))
    assert moved < piled / 4


@pytest.fixture
async def killed(tmp_path: Path) -> Path:
    """A ledger of this version, as a killed coordinator leaves it: what it wrote last lies in its write-ahead log."""
    running, path = tmp_path / "running.sqlite3", tmp_path / "ledger.sqlite3"
    store = await SqliteLedgerStore.open(running, NOW)
    await store.reserve(reserve_request())
    await store.settle(settlement())
    for end in ("", "-wal"):
        shutil.copy(f"{running}{end}", f"{path}{end}")
    await store.aclose()
    return path


def numbered(path: Path, application: int | None, version: int) -> None:
    """Give the file other numbers, without what lies in its write-ahead log."""
    data = bytearray(path.read_bytes())
    data[60:64] = version.to_bytes(4, "big")
    if application is not None:
        data[68:72] = application.to_bytes(4, "big")
    path.write_bytes(data)


async def refusals(path: Path) -> list[StateError]:
    """Why it is neither served nor read, after a check that both leave it and its write-ahead log alone."""
    files = [path, path.with_name(f"{path.name}-wal")]
    before, stamps = [file.read_bytes() for file in files], [file.stat().st_mtime_ns for file in files]
    with pytest.raises(StateError) as serving:
        await SqliteLedgerStore.open(path, NOW)
    with pytest.raises(StateError) as reading, open_read_only(path):
        pass
    assert [file.read_bytes() for file in files] == before and [file.stat().st_mtime_ns for file in files] == stamps
    assert {file.name for file in path.parent.glob("ledger.sqlite3*")} == {*(file.name for file in files), f"{path.name}.lock"}
    return [serving.value, reading.value]


@pytest.mark.parametrize("version", [1, 9])
async def test_ledger_of_a_development_version_is_refused_with_what_to_do_and_left_as_it_is(killed: Path, version: int) -> None:
    numbered(killed, 0, version)
    for refused in await refusals(killed):
        assert "earlier development version" in str(refused) and "commit 037616aa" in str(refused) and "\n" not in str(refused)
        assert "start anew" in refused.hint


async def test_ledger_of_a_newer_program_is_refused_and_left_as_it_is(killed: Path) -> None:
    numbered(killed, None, VERSION + 1)
    for refused in await refusals(killed):
        assert f"version {VERSION + 1}, newer than" in str(refused) and "update" in refused.hint


async def test_killed_ledger_of_this_version_is_opened_with_all_that_it_wrote(killed: Path) -> None:
    store = await SqliteLedgerStore.open(killed, NOW)
    assert (await store.get_call("d1", "k1")).result == "42"
    await store.aclose()


async def test_a_copy_of_a_ledger_includes_its_write_ahead_log(killed: Path, tmp_path: Path) -> None:
    copy_file(killed, tmp_path / "copy.sqlite3")
    assert (tmp_path / "copy.sqlite3").stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(tmp_path / "copy.sqlite3")) as copy:
        assert copy.execute("SELECT result FROM call").fetchall() == [("42",)]
