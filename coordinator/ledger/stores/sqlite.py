"""The ledger in one SQLite file (WAL, synchronous=FULL).

A thread owns the one connection that writes: BEGIN, all rows, COMMIT. The event loop reads over a second one, which can only read. Another
process is refused by a lock file next to the ledger.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import quote

from coordinator import failpoints
from coordinator.ledger.journal import GENESIS, JournalEntry
from coordinator.ledger.stores.buffered import CommitBatch
from coordinator.ledger.stores.group_commit import Done, GroupCommitStore, ReadFailed, RowsRefused
from coordinator.ledger.stores.schema import create_in_sqlite, is_sqlite_ledger, refuse_other_sqlite_version
from coordinator.ledger.stores.trouble import DAMAGED, advice, cannot_open_file
from coordinator.ledger.tables import CALL, JOURNAL, Question, Table
from edge.core.errors import StateError
from edge.core.files import replacing

log = logging.getLogger(__name__)
T = TypeVar("T")
Row = TypeVar("Row")
StorePath = str | os.PathLike[str]
PAGES_OF_COMMIT, PAGES_OF_ENTRY = 7, 2
"""Pages of the file that a commit changes, about, and that each journal entry adds: counted in the write-ahead log."""
ROWS_PER_STATEMENT = 32
NO_LEDGER_HINT = "name its folder with --state or its configuration with --config; edge-coordinator serve makes one"


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


@dataclass(frozen=True, slots=True)
class SqliteSettings:
    """How the store waits and tidies up."""

    busy_timeout_s: float = 2.0
    """For a foreign lock on the file."""
    checkpoint_pages: int = 8000
    """About when what the write-ahead log holds is moved into the file, while nobody waits for the commit any more."""


class SqliteLedgerStore(GroupCommitStore):
    """LedgerStore over one SQLite file; make it with `open`."""

    def __init__(self, disk: SqliteDisk, epoch: int) -> None:
        super().__init__(disk, epoch, str(disk.path))
        self._file = disk

    @classmethod
    async def open(cls, path: StorePath, now: float, settings: SqliteSettings | None = None) -> SqliteLedgerStore:
        """Open or create the file, start a new epoch and sweep what the last one left.

        Raises StateError: in use by another process, damaged, of another version, or in a folder that cannot be written.
        """
        disk = SqliteDisk(Path(path), settings or SqliteSettings())
        try:
            epoch = await disk.open()
            store = cls(disk, epoch)
            await store.begin(now)
        except BaseException as error:
            await disk.close(clean=False)  # who gets the error may try again immediately
            if isinstance(error, StateError) or not isinstance(error, Exception):
                raise
            raise cannot_open_file(disk.path, error) from error
        return store

    async def aclose(self) -> None:
        """Finish what is queued, mark the file clean and close it. Safe to call twice."""
        await self.stop()
        await self._file.close(clean=True)


class NotWritten(Exception):
    """A batch may not have been written; the message says why, and what to do about it."""


class SqliteDisk:
    """LedgerDisk over a file. Its thread opens the file, writes batches in their order, and closes it."""

    def __init__(self, path: Path, settings: SqliteSettings) -> None:
        self.path = path
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="ledger-writer", daemon=True)
        self._held = contextlib.ExitStack()
        self._inode = 0
        self._writing: sqlite3.Connection | None = None
        self._reading: sqlite3.Connection | None = None
        self._pages_in_log = 0

    # on the loop ---------------------------------------------------------------------------------------------------------------

    async def open(self) -> int:
        """Take the file's lock, check what is there or make it; returns the number of this process run."""
        self._thread.start()
        return await self._in_thread(self._open)

    def rows(self) -> SqliteRows:
        """The rows of the last commit, over a fresh connection. Raises ReadFailed."""
        self._stop_reading()
        try:
            self._reading = sqlite3.connect(
                f"file:{quote(str(self.path))}?mode=ro", timeout=self._settings.busy_timeout_s, uri=True, isolation_level=None
            )
            return SqliteRows(self._reading, failed=_read_failed)
        except sqlite3.Error as error:
            raise _read_failed(error) from error

    def sync(self, batch: CommitBatch, done: Done) -> None:
        """Write a batch as one transaction."""
        self._work.put(lambda: self._write_and_report(batch, done))

    async def close(self, *, clean: bool) -> None:
        """Write what is queued, mark the file as `clean`, and give the lock back. Safe to call twice."""
        self._stop_reading()
        if self._thread.is_alive():
            if clean:
                self._work.put(self._mark_clean)
            self._work.put(None)
            await asyncio.to_thread(self._thread.join)

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.close()
            self._reading = None

    async def _in_thread(self, work: Callable[[], T]) -> T:
        done: asyncio.Future[T] = self._loop.create_future()

        def run() -> None:
            try:
                value = work()
            except Exception as error:  # belongs to whoever awaits it
                self._on_loop(lambda error=error: None if done.done() else done.set_exception(error))  # type: ignore[misc]
            else:
                self._on_loop(lambda: None if done.done() else done.set_result(value))

        self._work.put(run)
        return await done

    # on the thread -------------------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        with self._held:
            while (work := self._work.get()) is not None:
                work()
            self._disconnect()

    def _on_loop(self, call: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(call)

    def _open(self) -> int:
        self._held.enter_context(exclusive_lock(self.path))
        if self.path.exists():
            _refuse_other_version(self.path)
        _make_private(self.path)
        wal = self.path.with_name(f"{self.path.name}-wal")
        has_wal = wal.exists() and wal.stat().st_size > 0  # reading a copy leaves an empty one
        _prepare_file(self.path, self._settings)
        self._writing = connection = _connect(self.path, self._settings)
        self._inode = self.path.stat().st_ino
        file = SqliteRows(connection)
        if file.meta("epoch") and not file.meta("stopped_cleanly"):
            _check_integrity(connection, self.path)
            if not has_wal:
                _warn_of_a_copy(file, self.path)
        return file.meta("epoch") + 1

    def _write_and_report(self, batch: CommitBatch, done: Done) -> None:
        error: Exception | None = None
        try:
            self._write(batch)
        except (sqlite3.IntegrityError, ValueError, OverflowError) as refused:
            error = RowsRefused(str(refused) if isinstance(refused, sqlite3.IntegrityError) else type(refused).__name__)
        except (sqlite3.Error, OSError) as failed:
            error = NotWritten(f"{failed} ({advice(failed)})")
        if error is not None:
            self._disconnect()
        self._on_loop(lambda: done(error))
        if error is None:  # after the report: nobody has to wait for it
            self._checkpoint(batch)

    def _write(self, batch: CommitBatch) -> None:
        """One transaction of the file. Raises OSError when the file was removed or replaced."""
        if self.path.stat().st_ino != self._inode:
            raise OSError(f"{self.path} was replaced")
        if self._writing is None:
            self._writing = _connect(self.path, self._settings)
        file = SqliteRows(self._writing)
        self._writing.execute("BEGIN IMMEDIATE")
        for table, rows in batch.rows.items():
            file.put_all(table, rows)
        file.append_all(batch.journal)
        for name, number in batch.numbers.items():
            file.put_meta(name, number)
        failpoints.reach("before_commit")
        self._writing.execute("COMMIT")
        failpoints.reach("after_commit")

    def _checkpoint(self, batch: CommitBatch) -> None:
        """Move the write-ahead log into the file now and then. One that fails is tried again: the log itself is durable.

        At the start it is moved at once, so that the file alone, too, says that it is in use.
        """
        self._pages_in_log += PAGES_OF_COMMIT + PAGES_OF_ENTRY * len(batch.journal)
        if (self._pages_in_log >= self._settings.checkpoint_pages or batch.numbers) and self._writing is not None:
            self._pages_in_log = 0
            with contextlib.suppress(sqlite3.Error):
                self._writing.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def _mark_clean(self) -> None:
        with contextlib.suppress(sqlite3.Error, OSError):
            self._write(CommitBatch({}, (), set(), {"stopped_cleanly": 1}))
            assert self._writing is not None
            self._writing.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _disconnect(self) -> None:
        if self._writing is not None:
            with contextlib.suppress(sqlite3.Error):
                self._writing.close()
            self._writing = None


def _read_failed(error: sqlite3.Error) -> ReadFailed:
    return ReadFailed(f"{error} ({advice(error)})")


@contextlib.contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Hold PATH.lock for this process. Raises StateError when another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock_path = path.with_name(path.name + ".lock")
    _make_private(lock_path)
    with lock_path.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StateError(_in_use(path, lock), hint="stop the other coordinator or choose another ledger file") from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def _make_private(path: Path) -> None:
    """Make the file if there is none, and keep it from other users (0600); SQLite gives its side files the same mode."""
    path.touch(mode=0o600)
    with contextlib.suppress(PermissionError):  # of another owner: that one decides
        path.chmod(0o600)


@contextlib.contextmanager
def open_read_only(path: StorePath) -> Iterator[SqliteRows]:
    """The rows as of now, for reading, also while a coordinator writes. Raises StateError when there is no such ledger."""
    file = Path(path)
    if not file.is_file():
        raise StateError(f"there is no ledger at {file}", hint=NO_LEDGER_HINT)
    connection: sqlite3.Connection | None = None
    try:
        _refuse_other_version(file)
        connection = sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True, isolation_level=None)
        if not is_sqlite_ledger(connection):
            raise _no_ledger(file)
        connection.execute("BEGIN")
        yield SqliteRows(connection)
    except sqlite3.Error as error:
        raise cannot_open_file(file, error, reading=True) from error
    finally:
        if connection is not None:
            connection.close()


def copy_file(path: Path, copy: Path) -> None:
    """The ledger as it is now in a new file, also while a coordinator writes, what its write-ahead log holds included; there whole and on
    the disk, or not at all.

    Raises StateError: no such ledger, a file of that name, or one that cannot be written.
    """
    if not path.is_file():
        raise StateError(f"there is no ledger at {path}", hint=NO_LEDGER_HINT)
    if copy.exists():
        raise StateError(f"{copy} exists already", hint="name a new file")
    try:
        with replacing(copy) as draft:
            draft.touch(mode=0o600)
            with (
                contextlib.closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as source,
                contextlib.closing(sqlite3.connect(draft)) as target,
            ):
                source.backup(target)  # in one step, which sees one state
                target.execute("PRAGMA journal_mode = DELETE")  # one file alone, without -wal and -shm
    except OSError as error:
        raise StateError(f"{copy} cannot be written: {error.strerror or error}") from error
    except sqlite3.Error as error:
        raise StateError(f"ledger {path} cannot be copied to {copy}: {error}", hint=advice(error)) from error


def _connect(path: Path, settings: SqliteSettings) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=settings.busy_timeout_s, isolation_level=None, cached_statements=256)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    return connection


def _refuse_other_version(path: Path) -> None:
    """Raises StateError for a ledger of another version, which stays as it is, with what lies in its write-ahead log: `immutable` keeps
    SQLite from taking that in."""
    with contextlib.closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True)) as connection:
        refuse_other_sqlite_version(connection, path)


def _prepare_file(path: Path, settings: SqliteSettings) -> None:
    """Make the tables in an empty file. Raises StateError for one that is no ledger; it stays as it is: nothing has set its mode yet."""
    with contextlib.closing(sqlite3.connect(path, timeout=settings.busy_timeout_s, isolation_level=None)) as connection:
        if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0:
            create_in_sqlite(connection)
        elif not is_sqlite_ledger(connection):
            raise _no_ledger(path)


def _no_ledger(path: Path) -> StateError:
    return StateError(f"{path} is not a ledger", hint="choose another ledger file")


def _check_integrity(connection: sqlite3.Connection, path: Path) -> None:
    finding = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if finding != "ok":
        raise StateError(f"ledger {path} is damaged: {finding}", hint=DAMAGED)


def _warn_of_a_copy(file: SqliteRows, path: Path) -> None:
    """A process that ends in any way leaves its -wal file or a clean file: this is a copy, or one that lost what was written last."""
    seq, _ = file.journal_head()
    last = max((entry.at_ms for entry in file.journal_after(seq - 1)), default=0)
    when = datetime.fromtimestamp(last / 1000, UTC).isoformat(" ", "seconds")
    log.warning("ledger %s is a copy of one in use, or lost its -wal file: what was spent after %s is not in it", path, when)


def _in_use(path: Path, lock: IO[str]) -> str:
    lock.seek(0)
    owner = lock.read(20).strip()
    return f"ledger {path} is in use by another process" + (f" ({owner})" if owner.isdigit() else "")
