"""The ledger in PostgreSQL, for several coordinators at once. Knows connections, batches and who lives; knows nothing of what rows mean.

One task per process drains its queue: it fetches what the whole batch can touch in one statement, runs the batch in memory, and writes
all changes with the journal in a second one, which is the whole transaction (READ COMMITTED, synchronous_commit on). That statement first
moves the journal's head, the one row all writers lock, and does nothing if the head has moved since: then the batch runs again under that
lock. So no lock is ever held over the network unless replicas really collide, there is one order of locks, and one chain of hashes.

A replica lives while its row in `replica` has a lease by the database's clock, which all share; attempts of living replicas are not swept.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from typing import Any, ParamSpec, TypeVar

import asyncpg

from coordinator.ledger.journal import JournalEntry
from coordinator.ledger.stores.buffered import BufferedTables
from coordinator.ledger.stores.changes import EVERYTHING, ChangeFeed
from coordinator.ledger.stores.postgres_statements import (
    CHANNEL,
    NOTHING,
    Fetched,
    Missing,
    Reach,
    Want,
    reach_of,
    read_statement,
    restored,
    write_statement,
)
from coordinator.ledger.stores.schema import create_in_postgres, has_postgres_ledger
from coordinator.ledger.stores.store import LedgerOperation, LedgerStore, PendingOperation
from coordinator.ledger.stores.trouble import Writability, not_written
from coordinator.ledger.tables import ORPHANED_ATTEMPTS, Table
from coordinator.ledger.transitions import Ledger
from edge.core.errors import CoordinatorError, StateError

log = logging.getLogger(__name__)
T = TypeVar("T")
Row = TypeVar("Row")
PAGE = 2_000
P = ParamSpec("P")
_BEAT = """INSERT INTO replica (epoch, name, lease_until) OVERRIDING SYSTEM VALUE
  VALUES ($1, $2, clock_timestamp() + make_interval(secs => $3))
  ON CONFLICT (epoch) DO UPDATE SET lease_until = excluded.lease_until"""
_JOIN = "INSERT INTO replica (name, lease_until) VALUES ($1, clock_timestamp() + make_interval(secs => $2)) RETURNING epoch"
_FORGET = """DELETE FROM replica r WHERE r.lease_until < clock_timestamp() - interval '1 hour'
  AND NOT EXISTS (SELECT 1 FROM attempt a WHERE a.epoch = r.epoch AND a.state = 'dispatched')"""
DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError)
"""What a database that is away, slow, full or broken raises."""
_LOST_CONNECTION = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.OperatorInterventionError,
    OSError,
    TimeoutError,
)
"""After these nobody knows whether the statement was committed."""
_REFUSALS = (
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.DataError,
    asyncpg.ProgramLimitExceededError,
    UnicodeError,
    OverflowError,
)
"""What is the fault of one operation's content: a rule it breaks, or a value that cannot be encoded, kept or indexed."""
# Every question of a batch is a handful of look-ups by key. A plan kept from when a table was small must not scan it once it is large.
_POINT_LOOKUPS = dict.fromkeys(("enable_seqscan", "enable_hashjoin", "enable_mergejoin"), "off")


@dataclass(frozen=True, slots=True)
class PostgresSettings:
    """How a replica waits, batches and lives."""

    max_batch: int = 512
    """Most operations of a commit."""
    lock_timeout_s: float = 5.0
    statement_timeout_s: float = 10.0
    connect_timeout_s: float = 5.0
    replica_lease_s: float = 15.0
    """Renewed at a third of it."""
    name: str = "edge-coordinator"
    """Its name in `replica` and `pg_stat_activity`."""


class HeadMoved(Exception):
    """Another replica wrote between this batch's reading and its writing."""


@dataclass(slots=True, eq=False)
class _ReplicaOperation(PendingOperation):
    """And what it can touch."""

    reach: Reach = NOTHING


class PostgresLedgerStore(LedgerStore):
    """LedgerStore over a PostgreSQL database; make it with `open`. Belongs to one event loop."""

    def __init__(self, dsn: str, settings: PostgresSettings) -> None:
        self.feed = ChangeFeed()
        self.commits = 0
        self.operations = 0
        self.conflicts = 0
        self._dsn = dsn
        self._settings = settings
        self._jobs: asyncio.Queue[_ReplicaOperation | None] = asyncio.Queue()
        self._writing: asyncpg.Connection[Any] | None = None
        self._epoch = 0
        self._written: tuple[int, str] | None = None  # the head this batch makes; None while it has written nothing
        self.writability = Writability()
        self._closed = False
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(cls, dsn: str, now: float, settings: PostgresSettings | None = None) -> PostgresLedgerStore:
        """Connect, make the tables where there are none, join the replicas and sweep what those that are gone have left.

        Raises StateError: unreachable, of another version, or not ours.
        """
        store = cls(dsn, settings or PostgresSettings())
        try:
            await store._start(now)
        except DRIVER_ERRORS as error:
            await store.aclose()
            raise cannot_open(error) from error
        except BaseException:
            await store.aclose()
            raise
        return store

    async def transact(self, work: Callable[[Ledger], T], reach: Reach = NOTHING) -> T:
        """Run one transaction."""
        if self._closed:
            raise not_written("the ledger is closed")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put_nowait(_ReplicaOperation(work, future, reach=reach))
        return await future

    async def perform(self, operation: LedgerOperation[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run one operation, with all that it can touch fetched at once."""
        return await self.transact(methodcaller(operation.name, *args, **kwargs), reach_of(operation.name, *args, **kwargs))

    async def aclose(self) -> None:
        """Finish what is queued, leave the replicas and disconnect. Safe to call twice."""
        if not self._closed:
            self._closed = True
            self._jobs.put_nowait(None)
            self.feed.close()
        if self._tasks:
            await asyncio.wait(self._tasks[:1])  # the writer ends by itself, after what was queued
        for task in self._tasks[1:]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._leave()

    async def _start(self, now: float) -> None:
        connection = await self._connected()
        if not await has_postgres_ledger(connection):
            await create_in_postgres(connection)
        self._epoch = await connection.fetchval(_JOIN, self._settings.name, self._settings.replica_lease_s)
        ready = asyncio.Event()
        self._tasks = [
            asyncio.create_task(self._serve(), name="ledger-writer"),
            asyncio.create_task(self._again(self._live, min(1.0, self._settings.replica_lease_s / 3)), name="ledger-heartbeat"),
            asyncio.create_task(self._again(partial(self._listen, ready), 0.2), name="ledger-listener"),
        ]
        orphans = frozenset({(ORPHANED_ATTEMPTS, self._epoch)})
        self.recovered = await self.transact(lambda ledger: ledger.recover(now), orphans)
        await ready.wait()

    async def _leave(self) -> None:
        """What this run still holds is nobody's from now on."""
        connection, self._writing = self._writing, None
        if connection is None or connection.is_closed():
            return
        with contextlib.suppress(*DRIVER_ERRORS):
            await connection.execute("DELETE FROM replica WHERE epoch = $1", self._epoch)
        with contextlib.suppress(*DRIVER_ERRORS):
            await connection.close(timeout=self._settings.connect_timeout_s)

    # batches -------------------------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        """Run batches until the store is closed."""
        last: _ReplicaOperation | None
        while True:
            *_, last = batch = await self._next_batch()
            jobs = [job for job in batch if job is not None]
            await self._run_batch(jobs)
            for job in jobs:
                job.release()
            if last is None:
                return

    async def _next_batch(self) -> list[_ReplicaOperation | None]:
        """Wait for one job and take along what else is queued."""
        batch = [await self._jobs.get()]
        while batch[-1] is not None and len(batch) < self._settings.max_batch and not self._jobs.empty():
            batch.append(self._jobs.get_nowait())
        return batch

    async def _run_batch(self, jobs: list[_ReplicaOperation]) -> None:
        """Run and commit; on return every job has its value or its error."""
        try:
            await self._commit(jobs)
        except _REFUSALS as error:
            await self._blame(jobs, error)
        except Exception as error:
            if not isinstance(error, DRIVER_ERRORS):
                log.error("a batch of the ledger failed unexpectedly: %s", type(error).__name__)
            self._disconnect()
            self.writability.failed(_one_line(error))
            for job in jobs:
                job.fail(not_written())

    async def _blame(self, jobs: list[_ReplicaOperation], error: Exception) -> None:
        """The database refused a batch, which then did not happen: find the operation by running each by itself."""
        if len(jobs) == 1:
            rule = getattr(error, "constraint_name", None) or type(error).__name__
            log.error("the ledger refused an inconsistent change: %s", rule)
            jobs[0].fail(CoordinatorError("the ledger refused an inconsistent change"))
            return
        for job in jobs:  # in their order: later ones may have seen what earlier ones wrote
            await self._run_batch([job])

    async def _commit(self, jobs: list[_ReplicaOperation]) -> None:
        """Run the batch as one transaction. A connection lost while it was being written is no answer: the journal has it."""
        self._written = None
        try:
            await self._transaction(jobs)
        except _LOST_CONNECTION:
            if self._written is None or not await self._was_committed(self._written):
                raise
        if self._written is not None:
            self.commits += 1
            self.writability.wrote()
            self.operations += len(jobs)

    async def _transaction(self, jobs: list[_ReplicaOperation]) -> None:
        """First without a lock; if another replica was quicker, again under it."""
        connection = await self._connected()
        try:
            await self._run(connection, jobs)
        except HeadMoved:
            self.conflicts += 1
            async with connection.transaction():  # from here on no other writer can overtake
                await connection.execute("SELECT 1 FROM journal_head FOR UPDATE")
                await self._run(connection, jobs)

    async def _run(self, connection: asyncpg.Connection[Any], jobs: list[_ReplicaOperation]) -> None:
        """Fetch, run, write. Raises HeadMoved."""
        fetched, wants = Fetched(), frozenset[Want]().union(*(job.reach for job in jobs))
        while True:
            await self._fetch(connection, wants, fetched)
            tables = BufferedTables(fetched)
            ledger = Ledger(tables, self._epoch)
            try:
                for job in jobs:
                    job.run(ledger, tables)
            except Missing as missing:  # all operations run again, with more rows of the same head
                wants = frozenset({missing.want})
            else:
                return await self._write(connection, tables, fetched.head)

    async def _fetch(self, connection: asyncpg.Connection[Any], wants: Reach, fetched: Fetched) -> None:
        first = not fetched.known
        statement, asked = read_statement(wants)
        seq, head_hash, *answers = await connection.fetchrow(statement.sql, *statement.values)  # type: ignore[misc]
        if first:
            fetched.head = (seq, head_hash)
        elif fetched.head != (seq, head_hash):
            raise HeadMoved
        fetched.add(wants, asked, answers)

    async def _write(self, connection: asyncpg.Connection[Any], tables: BufferedTables, head: tuple[int, str]) -> None:
        self._written = None
        batch = tables.take()
        statement = write_statement(batch, head)
        if statement is None:
            return
        if batch.journal:  # a batch without an entry cannot be found again; its callers get the failure
            self._written = tables.journal_head()
        moved, _ = await connection.fetchrow(statement.sql, *statement.values)  # type: ignore[misc]
        if not moved:
            raise HeadMoved

    async def _was_committed(self, head: tuple[int, str]) -> bool:
        """The connection went away while a commit was under way: whether it happened. Its last entry's hash is like no other."""
        self._disconnect()
        connection = await self._connected()
        return bool(await connection.fetchval("SELECT 1 FROM journal WHERE seq = $1 AND hash = $2", *head))

    # connections ---------------------------------------------------------------------------------------------------------------

    async def _connected(self) -> asyncpg.Connection[Any]:
        if self._writing is None or self._writing.is_closed():
            self._writing = await connect(self._dsn, self._settings, _POINT_LOOKUPS)
        return self._writing

    def _disconnect(self) -> None:
        if self._writing is not None:
            self._writing.terminate()
            self._writing = None

    # who lives, what changed ---------------------------------------------------------------------------------------------------

    async def _again(self, work: Callable[[], Awaitable[None]], pause_s: float) -> None:
        """Do it anew whenever it fails, until cancelled: without its lease a replica is taken for dead, and its holds are charged."""
        logged = set[str]()
        while True:
            try:
                await work()
            except DRIVER_ERRORS:  # its connection is lost; the writer's log says so
                pass
            except Exception as error:
                if (kind := type(error).__name__) not in logged:  # it may fail alike several times a second
                    log.error("work next to the ledger's batches failed unexpectedly and is tried again: %s", kind)
                    logged.add(kind)
            await asyncio.sleep(pause_s)

    async def _live(self) -> None:
        """Renew this replica's lease, over a connection of its own: a long batch must not look like a death."""
        connection = await connect(self._dsn, self._settings, _POINT_LOOKUPS)
        try:
            while True:
                await connection.execute(_BEAT, self._epoch, self._settings.name, self._settings.replica_lease_s)
                await connection.execute(_FORGET)
                await asyncio.sleep(self._settings.replica_lease_s / 3)
        finally:
            connection.terminate()

    async def _listen(self, ready: asyncio.Event) -> None:
        """Hand on what any replica wrote. After a gap everything may have changed."""
        connection = await connect(self._dsn, self._settings)
        gone = asyncio.Event()
        try:
            connection.add_termination_listener(lambda _: gone.set())
            await connection.add_listener(CHANNEL, lambda *notice: self.feed.publish([tuple(json.loads(str(notice[3])))]))
            if ready.is_set():
                self.feed.publish([EVERYTHING])
            ready.set()
            while not gone.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(gone.wait(), self._settings.replica_lease_s)
                await connection.execute("SELECT 1")  # a peer that vanished without a word is noticed
        finally:
            connection.terminate()


async def connect(dsn: str, settings: PostgresSettings, more: Mapping[str, str] | None = None) -> asyncpg.Connection[Any]:
    """A connection whose commits are durable and whose waits end, with `more` server settings. Raises what the driver raises."""
    options = {
        "application_name": settings.name,
        "synchronous_commit": "on",
        "default_transaction_isolation": "read committed",
        "jit": "off",
        "lock_timeout": str(round(settings.lock_timeout_s * 1000)),
        "statement_timeout": str(round(settings.statement_timeout_s * 1000)),
        "idle_in_transaction_session_timeout": str(round(settings.statement_timeout_s * 1000)),
        **dict(zip(("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count"), ("10", "5", "3"), strict=True)),
        **(more or {}),
    }
    client_timeout_s = settings.statement_timeout_s + settings.lock_timeout_s
    return await asyncpg.connect(
        dsn, timeout=settings.connect_timeout_s, command_timeout=client_timeout_s, server_settings=options
    )


def cannot_open(error: Exception) -> StateError:
    """A driver's error as one line with what to do."""
    hint = "check storage.dsn, the user's rights, and that the server is running"
    return StateError(f"the ledger in PostgreSQL cannot be opened: {_one_line(error)}", hint=hint)


def _one_line(error: Exception) -> str:
    """An error's text without line breaks and without what a driver quotes of rows."""
    return " ".join(str(error).split("\n", 1)[0].split()) or type(error).__name__


# Reading from outside: for a program without an event loop, or a thread without one, which brings its own ----------------------------


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
        except DRIVER_ERRORS as error:
            raise cannot_open(error) from error


async def _opened(dsn: str) -> asyncpg.Connection[Any]:
    settings = PostgresSettings(name="edge-coordinator ledger", statement_timeout_s=600.0)
    connection = await connect(dsn, settings)
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
