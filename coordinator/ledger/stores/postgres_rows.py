"""All rows of a ledger in PostgreSQL as of one moment, for verification and export. Knows cursors; knows nothing of what rows mean.

For a program without an event loop, or a thread without one: it brings its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import asyncpg

from coordinator.ledger.journal import JournalEntry
from coordinator.ledger.stores import postgres
from coordinator.ledger.stores.postgres_statements import restored
from coordinator.ledger.stores.schema import has_postgres_ledger
from coordinator.ledger.tables import Table
from edge.core.errors import StateError

Row = TypeVar("Row")
PAGE = 2_000


@contextlib.contextmanager
def open_read_only(dsn: str) -> Iterator[PostgresRows]:
    """The rows as of now, also while coordinators write. Raises StateError when there is no such ledger."""
    with asyncio.Runner() as runner:
        try:
            connection = runner.run(_opened(dsn))
            try:
                yield PostgresRows(runner, connection)
            finally:
                runner.run(connection.close())
        except postgres.DRIVER_ERRORS as error:
            raise postgres.cannot_open(error) from error


async def _opened(dsn: str) -> asyncpg.Connection[Any]:
    settings = postgres.PostgresSettings(name="edge-coordinator ledger", statement_timeout_s=600.0)
    connection = await postgres.connect(dsn, settings)
    try:
        if not await has_postgres_ledger(connection):
            raise StateError("there is no ledger in this PostgreSQL database")
        await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    except BaseException:
        connection.terminate()
        raise
    return connection


class PostgresRows:
    """What `verify` and `export` read; every table in pages, so that memory does not grow with it."""

    def __init__(self, runner: asyncio.Runner, connection: asyncpg.Connection[Any]) -> None:
        self._runner = runner
        self._connection = connection

    def all(self, table: Table[Row]) -> Iterable[Row]:
        """All rows of a table, sorted by key."""
        rows = self._pages(f"SELECT {', '.join(table.columns)} FROM {table} ORDER BY {', '.join(table.key)}")  # noqa: S608 - names are ours
        return (table.row(tuple(map(restored, row))) for row in rows)

    def journal_after(self, seq: int, limit: int | None = None) -> Iterable[JournalEntry]:
        """Entries in order."""
        rows = self._pages("SELECT * FROM journal WHERE seq > $1 ORDER BY seq LIMIT $2", seq, limit)
        return (JournalEntry(*row) for row in rows)

    def _pages(self, sql: str, *values: Any) -> Iterator[Any]:
        cursor = self._runner.run(_cursor(self._connection, sql, values))
        while page := self._runner.run(cursor.fetch(PAGE)):
            yield from page


async def _cursor(connection: asyncpg.Connection[Any], sql: str, values: Sequence[Any]) -> Any:
    return await connection.cursor(sql, *values)
