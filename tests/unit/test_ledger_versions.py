"""A ledger of another version is refused in one line and left as it is."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from coordinator.ledger.stores.schema import VERSION
from coordinator.ledger.stores.sqlite import SqliteLedgerStore, copy_file, open_read_only
from edge.core.errors import StateError
from tests.worlds.ledger_requests import NOW, reserve_request, settlement


@pytest.fixture
async def path(tmp_path: Path) -> Path:
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
async def test_ledger_of_a_development_version_is_refused_with_what_to_do_and_left_as_it_is(path: Path, version: int) -> None:
    numbered(path, 0, version)
    for refused in await refusals(path):
        assert "earlier development version" in str(refused) and "commit 037616aa" in str(refused) and "\n" not in str(refused)
        assert "start anew" in refused.hint


async def test_ledger_of_a_newer_program_is_refused_and_left_as_it_is(path: Path) -> None:
    numbered(path, None, VERSION + 1)
    for refused in await refusals(path):
        assert f"version {VERSION + 1}, newer than" in str(refused) and "update" in refused.hint


async def test_killed_ledger_of_this_version_is_opened_with_all_that_it_wrote(path: Path) -> None:
    store = await SqliteLedgerStore.open(path, NOW)
    assert (await store.get_call("d1", "k1")).result == "42"
    await store.aclose()


async def test_a_copy_of_a_ledger_includes_its_write_ahead_log(path: Path, tmp_path: Path) -> None:
    copy_file(path, tmp_path / "copy.sqlite3")
    assert (tmp_path / "copy.sqlite3").stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(tmp_path / "copy.sqlite3")) as copy:
        assert copy.execute("SELECT result FROM call").fetchall() == [("42",)]
