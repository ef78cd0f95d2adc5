"""The ledger's rows in an SQLite file: its statements. Knows nothing of transactions, threads or meaning."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, TypeVar

from coordinator.ledger.journal import GENESIS, JournalEntry
from coordinator.ledger.tables import CALL, JOURNAL, Question, Table

Row = TypeVar("Row")
ROWS_PER_STATEMENT = 32


class SqliteRows:
    """RowSource over one connection; and whole rows written."""

    def __init__(self, connection: sqlite3.Connection, failed: Callable[[sqlite3.Error], Exception] | None = None) -> None:
        """`failed` makes of an error what is raised in its place, and every answer is then fetched at once."""
        self.connection = connection
        self._failed = failed

    def get(self, table: Table[Row], *key: Any) -> Row | None:
        """A row by its key."""
        found = self._one(f"{_select(table)} WHERE {' AND '.join(f'{name} = ?' for name in table.key)}", key)
        return None if found is None else table.row(found)

    def ask(self, question: Question[Row], *parameters: Any) -> Iterable[Row]:
        """The rows that a question finds."""
        values = dict(zip(question.parameters, parameters, strict=True))
        index = f" INDEXED BY {question.index}" if question.index else ""
        return map(question.table.row, self._all(f"{_select(question.table)}{index} WHERE {question.where}", values))

    def all(self, table: Table[Row]) -> Iterable[Row]:
        """All rows of a table, sorted by key."""
        return map(table.row, self._all(f"{_select(table)} ORDER BY {', '.join(table.key)}"))

    def call_keys(self) -> Iterable[tuple[str, str, str, int, str, str]]:
        """Device, key, task, step, prompt id and cache key of every call."""
        return self._all(f"SELECT device, key, task, step, prompt_id, cache_key FROM {CALL.name}")

    def journal_after(self, seq: int, limit: int | None = None) -> Iterable[JournalEntry]:
        """Entries after this one."""
        rows = self._all(f"{_select(JOURNAL)} WHERE seq > ? ORDER BY seq LIMIT ?", (seq, -1 if limit is None else limit))
        return map(JOURNAL.row, rows)

    def journal_head(self) -> tuple[int, str]:
        """The last entry's number and hash."""
        return self._one("SELECT seq, hash FROM journal ORDER BY seq DESC LIMIT 1") or (0, GENESIS)

    def meta(self, name: str) -> int:
        """A number kept with the ledger; 0 when it was never set."""
        row = self._one("SELECT value FROM meta WHERE name = ?", (name,))
        return 0 if row is None else int(row[0])

    def put_meta(self, name: str, value: int) -> None:
        """Keep a number with the ledger."""
        self.connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))

    def put_all(self, table: Table[Row], rows: Iterable[Row]) -> None:
        """Insert whole rows of this table, or change those that are there."""
        self._write(table, rows, table.or_changed)

    def append_all(self, entries: Iterable[JournalEntry]) -> None:
        """Append to the journal."""
        self._write(JOURNAL, entries)

    def _write(self, table: Table[Any], rows: Iterable[Any], or_changed: str = "") -> None:
        """Many rows a statement: each statement gives the interpreter's lock to the event loop and has to get it back."""
        values = list(map(table.values, rows))
        marks = f"({', '.join('?' * len(table.columns))})"
        for first in range(0, len(values), ROWS_PER_STATEMENT):
            some = values[first : first + ROWS_PER_STATEMENT]
            insert = f"INSERT INTO {table.name} ({', '.join(table.columns)}) VALUES {', '.join([marks] * len(some))}"
            self.connection.execute(f"{insert} {or_changed}", tuple(chain.from_iterable(some)))

    def _one(self, sql: str, values: Sequence[Any] = ()) -> Any:
        try:
            return self.connection.execute(sql, values).fetchone()
        except sqlite3.Error as error:
            if self._failed is None:
                raise
            raise self._failed(error) from error

    def _all(self, sql: str, values: Sequence[Any] | dict[str, Any] = ()) -> Iterable[Any]:
        if self._failed is None:
            return self.connection.execute(sql, values)
        try:
            return self.connection.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise self._failed(error) from error


def _select(table: Table[Any]) -> str:
    return f"SELECT {', '.join(table.columns)} FROM {table.name}"
