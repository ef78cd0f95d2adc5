"""The ledger in one SQLite file. Knows files, the writer thread and group commit; knows nothing of what the rows mean.

One thread owns the one connection that writes. It drains its queue, runs everything over rows in memory where a refused operation leaves
nothing behind, writes what changed in one transaction (WAL, synchronous=FULL), and only then tells the callers. A second process is refused
by a lock file beside the ledger.
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
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import quote

from coordinator import failpoints
from coordinator.ledger import Ledger
from coordinator.stores.buffered import BufferedTables
from coordinator.stores.changes import ChangeFeed
from coordinator.stores.migrations import LEDGER, History, migrate_sqlite_file, migrated_copy
from coordinator.stores.reach import NOTHING, Reach
from coordinator.stores.sqlite_tables import SCHEMA, SqliteTables
from coordinator.stores.transactions import TransactingStore
from coordinator.stores.trouble import DAMAGED, Writability, advice, cannot_open_file, not_written
from edge.core.errors import CoordinatorError, CoordinatorUnavailable, StateError

log = logging.getLogger(__name__)
T = TypeVar("T")
StorePath = str | os.PathLike[str]
PAGES_OF_COMMIT = 8
"""A commit changes about so many pages of the file, and one more for each operation: counted in the write-ahead log."""


@dataclass(frozen=True, slots=True)
class SqliteSettings:
    """How the store waits and batches: seconds to wait for a foreign lock on the file, most operations per commit; and its schema.

    After a commit of `crowd` operations or more, the next one waits `gather_s` for others to come along. What the write-ahead log holds is
    moved into the file after about `checkpoint_pages` pages, when nobody waits for the commit any more.
    """

    busy_timeout_s: float = 2.0
    max_batch: int = 512
    crowd: int = 4
    gather_s: float = 0.002
    checkpoint_pages: int = 2000
    schema: History = LEDGER


@dataclass(slots=True)
class _Job:
    """One operation: what to run, and the future of the loop that awaits it."""

    work: Callable[[Ledger], Any]
    future: asyncio.Future[Any]
    value: Any = None
    error: Exception | None = None

    def deliver(self) -> None:
        """Tell the caller; on its own loop."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.value)


class SqliteLedgerStore(TransactingStore):
    """LedgerStore over one SQLite file; make it with `open`."""

    def __init__(self, writer: _Writer) -> None:
        self._writer = writer
        self.feed = writer.feed
        self._closed = False

    @classmethod
    async def open(cls, path: StorePath, now: float, settings: SqliteSettings | None = None) -> SqliteLedgerStore:
        """Open or create the file, start a new epoch and sweep what the last one left.

        Raises StateError: in use by another process, damaged, of another version, or in a folder that cannot be written.
        """
        writer = _Writer(Path(path), settings or SqliteSettings())
        await asyncio.wrap_future(writer.start(now))
        return cls(writer)

    @property
    def commits(self) -> int:
        """Commits so far; `operations / commits` is the mean size of a batch."""
        return self._writer.commits

    @property
    def operations(self) -> int:
        """Operations committed so far."""
        return self._writer.operations

    async def transact(self, work: Callable[[Ledger], T], reach: Reach = NOTHING) -> T:
        """Run one transaction on the writer thread."""
        if self._closed:
            raise _unavailable("the ledger is closed")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._writer.jobs.put(_Job(work, future))
        return await future

    async def aclose(self) -> None:
        """Finish what is queued, mark the file clean and close it. Safe to call twice."""
        if not self._closed:
            self._closed = True
            self._writer.jobs.put(None)
            self.feed.close()
        await asyncio.to_thread(self._writer.join)


class _Writer:
    """The thread that owns the connection."""

    def __init__(self, path: Path, settings: SqliteSettings) -> None:
        self.jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self.feed = ChangeFeed()
        self._path = path
        self._settings = settings
        self._epoch = 0
        self._inode = 0
        self._connection: sqlite3.Connection | None = None
        self._tables: BufferedTables | None = None
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._serve, name="ledger-writer", daemon=True)
        self._opened_at = 0.0
        self._last_batch = 0
        self._pages_in_log = 0
        self._never = threading.Event()
        self._writability = Writability()
        self.commits = 0
        self.operations = 0

    def start(self, now: float) -> Future[None]:
        """Start the thread; the future is done when the file is open, or holds why it is not."""
        self._opened_at = now
        self._thread.start()
        return self._ready

    def join(self) -> None:
        """Wait for the thread to end."""
        self._thread.join()

    def _serve(self) -> None:
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(exclusive_lock(self._path))
                self._open()
            except Exception as error:
                self._disconnect()
                stack.close()  # who is told may try again at once
                self._ready.set_exception(_as_state_error(self._path, error))
                return
            self._ready.set_result(None)
            while self._run_batch(self._next_batch()):
                pass
            self._close()

    def _next_batch(self) -> list[_Job | None]:
        """Wait for one job and take along what else is queued.

        Where the last ones came together, so will the next: they are given a moment to, because a commit costs the same for many.
        """
        batch = [self.jobs.get()]
        if self._last_batch >= self._settings.crowd and batch[0] is not None:
            self._never.wait(self._settings.gather_s)
        with contextlib.suppress(queue.Empty):
            while batch[-1] is not None and len(batch) < self._settings.max_batch:
                batch.append(self.jobs.get_nowait())
        self._last_batch = len(batch)
        return batch

    def _run_batch(self, batch: list[_Job | None]) -> bool:
        """Run and commit; False when the store is to be closed."""
        jobs = [job for job in batch if job is not None]
        if jobs:
            self._commit_or_abandon(jobs)
            _deliver(jobs)
            self._checkpoint(len(jobs))
        return batch[-1] is not None

    def _checkpoint(self, operations: int) -> None:
        """Move the write-ahead log into the file now and then. One that fails is tried again: the log itself is durable."""
        self._pages_in_log += PAGES_OF_COMMIT + operations
        if self._pages_in_log < self._settings.checkpoint_pages or self._connection is None:
            return
        self._pages_in_log = 0
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def _commit_or_abandon(self, jobs: list[_Job]) -> None:
        """Commit all together; where the file refuses a row, each by itself, so that only the one that wrote it fails."""
        try:
            self._commit(jobs)
        except (sqlite3.IntegrityError, ValueError, OverflowError) as error:
            self._disconnect()
            if len(jobs) == 1:
                rule = str(error) if isinstance(error, sqlite3.IntegrityError) else type(error).__name__
                log.error("the ledger refused an inconsistent change: %s", rule)
                jobs[0].value, jobs[0].error = None, CoordinatorError("the ledger refused an inconsistent change")
                return
            for job in jobs:
                self._commit_or_abandon([job])
        except (sqlite3.Error, OSError) as error:
            self._abandon(jobs, error)

    def _commit(self, jobs: list[_Job]) -> None:
        tables = self._connected()
        ledger = Ledger(tables, self._epoch)
        for job in jobs:
            _run(tables, ledger, job)
        if not tables.is_written:
            changed = self._write(tables)
            self.commits += 1
            self._writability.wrote()
            self.feed.publish(changed)
        self.operations += len(jobs)

    def _write(self, tables: BufferedTables) -> set[tuple[str, str]]:
        """One transaction of the file."""
        assert self._connection is not None
        self._connection.execute("BEGIN IMMEDIATE")
        changed = tables.write()
        failpoints.reach("before_commit")
        self._connection.execute("COMMIT")
        failpoints.reach("after_commit")
        return changed

    def _abandon(self, jobs: list[_Job], error: Exception) -> None:
        """Nothing of the batch happened; the next batch starts on a fresh connection."""
        self._disconnect()
        self._writability.failed(f"{self._path}: {error} ({advice(error)})")
        for job in jobs:
            job.value, job.error = None, not_written()

    def _connected(self) -> BufferedTables:
        """The rows; over a fresh connection after a failure. Raises OSError when the file was removed or replaced."""
        if self._path.stat().st_ino != self._inode:
            raise OSError(f"{self._path} was replaced")
        if self._tables is None:
            self._connection = _connect(self._path, self._settings)
            self._tables = BufferedTables(SqliteTables(self._connection))
        return self._tables

    def _disconnect(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None
        self._tables = None

    def _open(self) -> None:
        """Check what is there, or make it; then begin this process's epoch."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        _make_private(self._path)
        has_wal = _has_content(self._path.with_name(f"{self._path.name}-wal"))  # reading a copy leaves an empty one
        _prepare_file(self._path, self._settings)
        self._connection = connection = _connect(self._path, self._settings)
        self._inode = self._path.stat().st_ino
        file = SqliteTables(connection)
        if file.meta("epoch") and not file.meta("stopped_cleanly"):
            _check_integrity(connection, self._path)
            if not has_wal:
                _tell_of_a_copy(file, self._path)
        self._epoch = file.meta("epoch") + 1
        connection.execute("BEGIN IMMEDIATE")
        file.put_meta("epoch", self._epoch)
        file.put_meta("stopped_cleanly", 0)
        self._tables = BufferedTables(file)
        Ledger(self._tables, self._epoch).recover(self._opened_at)
        self._tables.keep()
        self._tables.write()
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint")  # so that the file alone, too, says that it is in use

    def _close(self) -> None:
        with contextlib.suppress(sqlite3.Error, OSError):
            self._connected()
            connection = self._connection
            assert connection is not None
            connection.execute("BEGIN IMMEDIATE")
            SqliteTables(connection).put_meta("stopped_cleanly", 1)
            connection.execute("COMMIT")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._disconnect()


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
def open_read_only(path: StorePath) -> Iterator[SqliteTables]:
    """The rows as of now, for reading, also while a coordinator writes. Raises StateError when there is no such ledger."""
    file = Path(path)
    if not file.is_file():
        raise StateError(f"there is no ledger at {file}")
    connection: sqlite3.Connection | None = None
    try:
        connection = sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True, isolation_level=None)
        connection = _as_read_now(connection, file)
        connection.execute("BEGIN")
        yield SqliteTables(connection)
    except sqlite3.Error as error:
        raise cannot_open_file(file, error, reading=True) from error
    finally:
        if connection is not None:
            connection.close()


def copy_file(path: Path, copy: Path) -> None:
    """The ledger as it is now in a new file, also while a coordinator writes; there whole and on the disk, or not at all.

    Raises StateError: no such ledger, a file of that name, or one that cannot be written.
    """
    if not path.is_file():
        raise StateError(f"there is no ledger at {path}")
    if copy.exists():
        raise StateError(f"{copy} exists already", hint="name a new file")
    partial = copy.with_name(copy.name + ".part")
    try:
        partial.unlink(missing_ok=True)
        partial.touch(mode=0o600)
        _copy_rows(path, partial)
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        partial.rename(copy)
    except OSError as error:
        raise StateError(f"{copy} cannot be written: {error.strerror or error}") from error
    except sqlite3.Error as error:
        raise StateError(f"ledger {path} cannot be copied to {copy}: {error}", hint=advice(error)) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _copy_rows(path: Path, copy: Path) -> None:
    """In one step, which sees one state of a ledger that goes on being written."""
    with contextlib.ExitStack() as stack:
        source = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)
        stack.callback(source.close)
        target = sqlite3.connect(copy)
        stack.callback(target.close)
        source.backup(target)
        target.execute("PRAGMA journal_mode = DELETE")  # one file, with none beside it


def _connect(path: Path, settings: SqliteSettings) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=settings.busy_timeout_s, isolation_level=None, cached_statements=256)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    return connection


def _run(tables: BufferedTables, ledger: Ledger, job: _Job) -> None:
    """Run one operation; its refusal undoes only itself. A failing database raises, for the whole batch."""
    job.value, job.error = None, None
    try:
        job.value = job.work(ledger)
    except sqlite3.Error:
        raise
    except Exception as error:  # the refusal belongs to whoever awaits it
        job.error = error
        tables.roll_back()
    else:
        tables.keep()


def _deliver(jobs: list[_Job]) -> None:
    """Tell the callers, with one wake-up per event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Job]] = defaultdict(list)
    for job in jobs:
        by_loop[job.future.get_loop()].append(job)
    for loop, ready in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_deliver_all, ready)


def _deliver_all(jobs: list[_Job]) -> None:
    for job in jobs:
        job.deliver()


def _prepare_file(path: Path, settings: SqliteSettings) -> None:
    """Make the tables in an empty file; bring those of an older version to this one, with a backup beside the file. Raises StateError.

    The caller holds the file's lock, and no connection is open.
    """
    schema = settings.schema
    with contextlib.closing(_connect(path, settings)) as connection:
        if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0:
            connection.executescript(f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version = {LEDGER.version}; COMMIT;")
        found = _version(connection)
        older = found < schema.version and _is_ledger(connection)
        _check_integrity(connection, path) if older else _require_version(connection, path, schema)
    if not older:
        return
    backup = migrate_sqlite_file(path, found, schema)
    log.warning(
        "ledger %s was brought from version %d to %d; as it was before it lies at %s", path, found, schema.version, backup
    )


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _is_ledger(connection: sqlite3.Connection) -> bool:
    named = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name IN ('journal', 'budget', 'attempt', 'meta')"
    return _version(connection) >= 1 and bool(connection.execute(named).fetchone()[0] == 4)


def _require_version(connection: sqlite3.Connection, path: Path, schema: History = LEDGER) -> None:
    found = _version(connection)
    if found == schema.version:
        return
    if found < schema.version or not _is_ledger(connection):
        raise StateError(
            f"{path} is not a ledger of version 1 to {schema.version} (found {found})", hint="choose another ledger file"
        )
    known = f"newer than {schema.version}, the newest this program knows"
    raise StateError(f"ledger {path} is of version {found}, {known}", hint="update this program or choose another ledger file")


def _as_read_now(connection: sqlite3.Connection, path: Path) -> sqlite3.Connection:
    """The connection itself, or for a ledger of an older version a copy in memory that was brought up to date; the file stays as it is."""
    found = _version(connection)
    if found >= LEDGER.version or not _is_ledger(connection):
        _require_version(connection, path)
        return connection
    copy = migrated_copy(connection, found)
    connection.close()
    return copy


def _check_integrity(connection: sqlite3.Connection, path: Path) -> None:
    finding = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if finding != "ok":
        raise StateError(f"ledger {path} is damaged: {finding}", hint=DAMAGED)


def _has_content(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _tell_of_a_copy(file: SqliteTables, path: Path) -> None:
    """A process that ends in any way leaves its -wal file or a clean file: this is a copy, or one that lost what was written last."""
    seq, _ = file.journal_head()
    last = max((entry.at_ms for entry in file.journal_after(seq - 1)), default=0)
    when = datetime.fromtimestamp(last / 1000, UTC).isoformat(" ", "seconds")
    log.warning("ledger %s is a copy of one in use, or lost its -wal file: what was spent after %s is not in it", path, when)


def _in_use(path: Path, lock: IO[str]) -> str:
    lock.seek(0)
    owner = lock.read(20).strip()
    return f"ledger {path} is in use by another process" + (f" ({owner})" if owner.isdigit() else "")


def _as_state_error(path: Path, error: Exception) -> StateError:
    return error if isinstance(error, StateError) else cannot_open_file(path, error)


def _unavailable(message: str) -> CoordinatorUnavailable:
    return CoordinatorUnavailable(message, reason="LEDGER_UNAVAILABLE", retry_after_s=1.0)
