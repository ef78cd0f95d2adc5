"""Brings a ledger's schema to the newest version. Knows Alembic and the revisions; knows nothing of rows or of who serves."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.core.errors import StateError

if TYPE_CHECKING:
    from alembic.config import Config

_FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class History:
    """The newest version of the schema, and the folders that hold the revisions up to it."""

    version: int
    folders: tuple[Path, ...]


LEDGER = History(7, (_FOLDER / "versions",))


def revision_of(version: int) -> str:
    """The Alembic revision of a schema version: 1 is `0001`."""
    return f"{version:04d}"


def migrate_sqlite_file(path: Path, found: int, history: History = LEDGER) -> Path:
    """Bring a closed SQLite ledger of version `found` to the newest one; returns the backup made beside it first.

    All in one transaction: a failure leaves the file as it was. Raises StateError.
    """
    backup = _backed_up(path, found)
    try:
        _upgrade_sqlite(path, found, history)
    except Exception as error:
        told = f"ledger {path} cannot be migrated from version {found}: {_one_line(error)}"
        raise StateError(told, hint=f"a copy is {backup}") from error
    return backup


def _backed_up(path: Path, version: int) -> Path:
    """A consistent copy, what the write-ahead log holds included, on the disk before anything changes."""
    backup = path.with_name(f"{path.name}.v{version}.backup")
    temporary = backup.with_name(backup.name + ".part")
    temporary.unlink(missing_ok=True)
    temporary.touch(mode=0o600)
    source, target = sqlite3.connect(path), sqlite3.connect(temporary)
    try:
        source.backup(target)
    finally:
        source.close()
        target.close()
    with temporary.open("rb") as copy:
        os.fsync(copy.fileno())
    return temporary.rename(backup)


def migrated_copy(source: sqlite3.Connection, found: int, history: History = LEDGER) -> sqlite3.Connection:
    """A copy in memory of a ledger of version `found`, brought to the newest version. The caller closes it; the source stays as it is."""
    copy = sqlite3.connect(":memory:", isolation_level=None)
    try:
        source.backup(copy)
        _upgrade_connection(copy, found, history)
    except Exception as error:
        copy.close()
        raise StateError(f"a ledger of version {found} cannot be read: {_one_line(error)}") from error
    return copy


def _one_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _upgrade_sqlite(path: Path, found: int, history: History) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        _upgrade_connection(connection, found, history)


def _upgrade_connection(raw: sqlite3.Connection, found: int, history: History) -> None:
    """All in one transaction, begun and ended here, tables included."""
    import sqlalchemy as sa

    engine = sa.create_engine("sqlite://", creator=lambda: raw, poolclass=sa.pool.StaticPool)
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA synchronous = FULL")
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            _upgrade_in(connection, revision_of(found), history)
            connection.exec_driver_sql("DROP TABLE alembic_version")  # a file's version is its user_version
            connection.exec_driver_sql(f"PRAGMA user_version = {history.version}")
            connection.exec_driver_sql("COMMIT")
    finally:
        engine.dispose(close=False)


def _upgrade_in(connection: Any, known: str | None, history: History) -> None:
    """Upgrade within the caller's transaction, which it must commit."""
    from alembic import command

    config = _config(connection, history)
    if known is not None:
        command.stamp(config, known)
    command.upgrade(config, revision_of(history.version))


def _config(connection: Any, history: History) -> Config:
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.set_main_option("version_locations", os.pathsep.join(map(str, history.folders)).replace("%", "%%"))
    return config


async def migrate_postgres(connect: Callable[[], Any], history: History = LEDGER) -> None:
    """Make or upgrade the schema of a PostgreSQL database; one process at a time. `connect` is an async function giving an asyncpg
    connection. Whatever the driver raises goes through."""
    from sqlalchemy.ext.asyncio import create_async_engine
    from sqlalchemy.pool import NullPool

    engine = create_async_engine("postgresql+asyncpg://", async_creator=connect, poolclass=NullPool)
    try:
        async with engine.begin() as connection:
            await connection.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtext('edge-coordinator schema'))")
            await connection.run_sync(_upgrade_in, None, history)
    finally:
        await engine.dispose()
