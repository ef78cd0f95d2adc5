"""Properties of the PostgreSQL store only: several replicas on one ledger, failing closed and recovering, one journal row for all."""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from msgspec import structs

from coordinator.ledger.accounts import Amount, AmountLimits, BudgetRow, BudgetTerms, CallState, Reserved
from coordinator.ledger.stores import postgres
from coordinator.ledger.stores.changes import EVERYTHING
from coordinator.ledger.stores.postgres import PostgresLedgerStore, PostgresSettings, open_read_only
from coordinator.ledger.stores.schema import VERSION
from coordinator.ledger.stores.trouble import STEADY_WRITES
from coordinator.ledger.tables import TASK
from coordinator.ledger.transitions import Ledger
from coordinator.ledger.verify import VerifyReport, verify
from edge.core.errors import BudgetExhausted, CoordinatorError, CoordinatorUnavailable, StateError
from tests.worlds.ledger_requests import FLEET, NOW, close_request, open_request, reserve_request, settlement
from tests.worlds.postgres_server import PostgresServer

QUICK = PostgresSettings(replica_lease_s=3.0)


@pytest.fixture
async def dsn(postgres_server: PostgresServer) -> str:
    return await postgres_server.clean_ledger()


@asynccontextmanager
async def replica(dsn: str, settings: PostgresSettings = QUICK) -> AsyncIterator[PostgresLedgerStore]:
    store = await PostgresLedgerStore.open(dsn, NOW, settings)
    try:
        yield store
    finally:
        await store.aclose()


@pytest.fixture
async def store(dsn: str) -> AsyncIterator[PostgresLedgerStore]:
    async with replica(dsn) as store:
        yield store
    report = await verified(dsn)
    assert report.ok, report.differences


async def verified(dsn: str) -> VerifyReport:
    def read() -> VerifyReport:
        with open_read_only(dsn) as rows:
            return verify(rows)

    return await asyncio.to_thread(read)


async def until(holds: Callable[[], Any]) -> Any:
    """Wait for something to become true."""
    async with asyncio.timeout(30.0):
        while not (found := await holds()):
            await asyncio.sleep(0.05)
    return found


async def test_colliding_replicas_never_exceed_a_limit_and_lose_nothing(dsn: str, store: PostgresLedgerStore) -> None:
    tight = BudgetTerms(FLEET, AmountLimits(calls=37))
    async with replica(dsn) as second, replica(dsn) as third:
        stores = (store, second, third)

        async def ask(number: int) -> object:
            await asyncio.sleep(0.001 * (number % 7))
            key = f"k{number}"
            mine = stores[number % 3]
            outcome = await mine.reserve(reserve_request(key, budgets=[tight]))
            return (
                await stores[(number + 1) % 3].settle(settlement(key, charge=Amount(1, number, number)))
                if number % 2
                else outcome
            )

        outcomes = await asyncio.gather(*(ask(number) for number in range(120)), return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, BudgetExhausted)]
    assert len(outcomes) - len(refused) == 37, [outcome for outcome in outcomes if isinstance(outcome, Exception)][:3]
    assert len(refused) == 83
    used = (await store.get_budget("d1", "math", [tight])).budgets[0].used
    assert used.calls == 37


async def test_running_calls_of_a_live_replica_survive_the_start_of_another(dsn: str, store: PostgresLedgerStore) -> None:
    await store.reserve(reserve_request(lease_until=NOW + 600.0))
    async with replica(dsn) as other:
        assert await other.sweep(NOW + 1.0) == ()
    assert (await store.settle(settlement())).applied


async def test_calls_of_a_stopped_replica_are_in_doubt_at_the_next_start(dsn: str) -> None:
    async with replica(dsn) as first:
        await first.reserve(reserve_request(lease_until=NOW + 600.0))
    async with replica(dsn) as second:
        assert (await second.get_call("d1", "k1")).state is CallState.IN_DOUBT


async def test_replica_sees_the_changes_of_another(dsn: str, store: PostgresLedgerStore) -> None:
    heard = asyncio.create_task(anext(store.changes()))
    await asyncio.sleep(0)
    async with replica(dsn) as other:
        await other.reserve(reserve_request(device="far"))
        assert await asyncio.wait_for(heard, 60.0) == ("far", "math")


async def test_transaction_without_declared_keys_discovers_them(store: PostgresLedgerStore) -> None:
    request = reserve_request(step=0, cache_key="c")
    await store.transact(lambda ledger: ledger.open_step(open_request()))
    assert isinstance(await store.transact(lambda ledger: ledger.reserve(request)), Reserved)
    assert (await store.transact(lambda ledger: ledger.settle(settlement()))).applied
    assert (await store.transact(lambda ledger: ledger.close_step(close_request()))).closed


async def test_two_reads_of_one_transaction_see_one_snapshot(dsn: str, store: PostgresLedgerStore) -> None:
    """Another replica writes between the two; the version of the task and the holds of the budget must still belong together."""
    await store.reserve(reserve_request("k0"))
    others: list[threading.Thread] = []

    def read_both(ledger: Ledger) -> tuple[int, int]:
        task = ledger.tables.tasks.get("d1", "math")
        if not others:
            others.append(threading.Thread(target=lambda: asyncio.run(_reserve_elsewhere(dsn))))
            others[0].start()
            others[0].join()
        budget = ledger.tables.budgets.get(FLEET)
        assert task is not None and budget is not None
        return task.version, budget.reserved.calls

    assert await store.transact(read_both, frozenset({(TASK, "d1", "math")})) == (2, 2)


async def _reserve_elsewhere(dsn: str) -> None:
    async with replica(dsn) as other:
        await other.reserve(reserve_request("k1"))


async def test_deleted_replica_registers_again(dsn: str, postgres_server: PostgresServer) -> None:
    async with replica(dsn, replace(QUICK, replica_lease_s=0.6)) as store:
        await postgres_server.execute(dsn, "DELETE FROM replica")
        connection = await asyncpg.connect(dsn)
        living = "SELECT count(*) FROM replica WHERE lease_until > clock_timestamp()"
        await until(lambda: connection.fetchval(living))
        await connection.close()
        await store.reserve(reserve_request(lease_until=NOW + 600.0))
        async with replica(dsn) as other:
            assert await other.sweep(NOW) == ()
        assert (await store.settle(settlement())).applied


async def test_a_refused_change_does_not_touch_the_others_of_its_batch(store: PostgresLedgerStore) -> None:
    over = BudgetRow(FLEET, AmountLimits(calls=1), AmountLimits(calls=1), Amount(), Amount(2, 0, 0))
    asked = [
        store.reserve(reserve_request("k1")),
        store.transact(lambda ledger: ledger.tables.budgets.put(structs.replace(over, key="bad"))),
        store.reserve(reserve_request("k2")),
    ]
    first, bad, last = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(first, Reserved)
    assert isinstance(last, Reserved)
    assert isinstance(bad, CoordinatorError)
    assert "inconsistent" in str(bad)


async def test_unencodable_value_fails_its_own_operation_and_reveals_no_driver_text(
    store: PostgresLedgerStore,
) -> None:
    asked = [store.reserve(reserve_request(key, step=2**63 if key == "bad" else -1)) for key in ("k1", "bad", "k2")]
    first, bad, last = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(first, Reserved)
    assert isinstance(last, Reserved)
    assert type(bad) is CoordinatorError
    assert str(bad) == "the ledger refused an inconsistent change"


@pytest.mark.parametrize(
    ("statement", "refusal"),
    [
        ("UPDATE budget SET reserved_calls = 1001", "violates check constraint"),
        ("UPDATE budget SET limit_uusd = committed_uusd + reserved_uusd - 1", "violates check constraint"),
        ("UPDATE attempt SET charged_tokens = hold_tokens + 1", "violates check constraint"),
        ("UPDATE journal SET body = '{}'", "append-only"),
        ("DELETE FROM journal", "append-only"),
        ("TRUNCATE journal", "append-only"),
        ("INSERT INTO journal_head VALUES (false, 9, '')", "violates check constraint"),
    ],
)
async def test_the_database_itself_refuses_overspend_and_edits_of_the_journal(
    postgres_server: PostgresServer, dsn: str, store: PostgresLedgerStore, statement: str, refusal: str
) -> None:
    await store.reserve(reserve_request())
    with pytest.raises(asyncpg.PostgresError, match=refusal):
        await postgres_server.execute(dsn, statement)


async def test_locked_head_refuses_calls_and_recovers_when_released(dsn: str) -> None:
    async with replica(dsn, replace(QUICK, lock_timeout_s=0.2)) as store:
        holder = await asyncpg.connect(dsn)
        async with holder.transaction():
            await holder.execute("SELECT 1 FROM journal_head FOR UPDATE")
            with pytest.raises(CoordinatorUnavailable) as refused:
                await store.reserve(reserve_request())
            assert refused.value.reason == "LEDGER_UNAVAILABLE"
        await holder.close()
        assert await store.reserve(reserve_request()) == Reserved(1, "d1|k1|1")


async def test_crashed_server_refuses_calls_and_keeps_everything_acknowledged(
    postgres_server: PostgresServer, dsn: str, store: PostgresLedgerStore, caplog: pytest.LogCaptureFixture
) -> None:
    await store.reserve(reserve_request())
    heard = asyncio.create_task(anext(store.changes()))
    await asyncio.to_thread(postgres_server.stop, at_once=True)
    with pytest.raises(CoordinatorUnavailable) as refused:
        await store.reserve(reserve_request("k2"))
    assert refused.value.reason == "LEDGER_UNAVAILABLE"
    with pytest.raises(CoordinatorUnavailable) as refused:
        await store.reserve(reserve_request("k2"))
    assert str(refused.value) == "the ledger cannot be written"  # no word of where the database is
    await asyncio.to_thread(postgres_server.start)
    assert (await store.settle(settlement())).applied
    for number in range(STEADY_WRITES):
        await store.reserve(reserve_request(f"later{number}"))
    messages = [record.getMessage() for record in caplog.records if record.name == "coordinator.ledger.stores.trouble"]
    assert len(messages) == 2 and "can be written again" in messages[1]
    assert isinstance(await store.reserve(reserve_request("k2")), Reserved)
    assert await asyncio.wait_for(heard, 60.0) in {("", ""), ("d1", "math")}


async def test_read_only_server_refuses_calls_and_recovers_when_writable(
    postgres_server: PostgresServer, dsn: str, store: PostgresLedgerStore
) -> None:
    """As after a failover to a standby that is not promoted yet."""
    name = dsn.split("@/")[1].split("?")[0]
    cut = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}' AND pid <> pg_backend_pid()"
    await store.reserve(reserve_request())
    await postgres_server.execute(
        postgres_server.dsn("postgres"), f"ALTER DATABASE {name} SET default_transaction_read_only = on"
    )
    await postgres_server.execute(dsn, cut)
    for _ in range(2):
        with pytest.raises(CoordinatorUnavailable) as refused:
            await store.reserve(reserve_request("k2"))
        assert refused.value.reason == "LEDGER_UNAVAILABLE"
    await postgres_server.execute(postgres_server.dsn("postgres"), f"ALTER DATABASE {name} RESET default_transaction_read_only")
    assert isinstance(await store.reserve(reserve_request("k2")), Reserved)
    assert (await store.settle(settlement())).applied


async def test_what_runs_beside_the_batches_goes_on_after_any_failure(
    postgres_server: PostgresServer, dsn: str, store: PostgresLedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver's own bug, as its InternalClientError is, must not end the heartbeat or the listener."""
    name, tries, connect = dsn.split("@/")[1].split("?")[0], itertools.count(1), postgres.connect
    both_again = asyncio.Event()

    async def failing(*args: Any) -> Any:
        if (number := next(tries)) <= 2:
            raise asyncpg.InternalClientError("got result for unknown protocol state")
        if number == 4:
            both_again.set()
        return await connect(*args)

    monkeypatch.setattr(postgres, "connect", failing)
    async with aclosing(store.changes()) as changes:
        heard = asyncio.ensure_future(anext(changes))
        await postgres_server.execute(
            dsn, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}' AND pid <> pg_backend_pid()"
        )
        assert await asyncio.wait_for(heard, 60.0) == EVERYTHING
    await asyncio.wait_for(both_again.wait(), 60.0)


class CuttingProxy:
    """A proxy between store and server; when armed, it forwards the next writing statement and cuts before the reply."""

    def __init__(self, target: str) -> None:
        self._target = target
        self.cut_next_write = False
        self.cuts = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.current_task())  # type: ignore[arg-type]
        from_server, to_server = await asyncio.open_unix_connection(self._target)
        cutting = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._there(reader, to_server, cutting))
                group.create_task(self._back(from_server, writer, cutting))
        finally:
            to_server.close()
            writer.close()

    async def _there(self, reader: asyncio.StreamReader, to_server: asyncio.StreamWriter, cutting: asyncio.Event) -> None:
        while data := await reader.read(1 << 16):
            if self.cut_next_write and b'"kind":"reserve"' in data:
                self.cut_next_write = False
                cutting.set()
            to_server.write(data)
        to_server.close()

    async def _back(self, from_server: asyncio.StreamReader, writer: asyncio.StreamWriter, cutting: asyncio.Event) -> None:
        while data := await from_server.read(1 << 16):
            if cutting.is_set():
                self.cuts += 1
                break
            writer.write(data)
        writer.close()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def test_connection_lost_after_a_commit_does_not_fail_the_commit(dsn: str) -> None:
    """The statement was executed but its reply was lost; the journal shows the outcome, and the caller gets it."""
    with tempfile.TemporaryDirectory() as folder:
        server_folder = dsn.split("host=")[1]
        proxy = CuttingProxy(f"{server_folder}/.s.PGSQL.5432")
        server = await asyncio.start_unix_server(proxy.serve, f"{folder}/.s.PGSQL.5432")
        async with replica(dsn.replace(server_folder, folder)) as store:
            await store.reserve(reserve_request("warm"))
            proxy.cut_next_write = True
            assert await store.reserve(reserve_request()) == Reserved(1, "d1|k1|1")
            assert proxy.cuts == 1
            assert (await store.settle(settlement())).applied
        server.close()
        await proxy.stop()
    assert (await verified(dsn)).ok


async def test_empty_database_becomes_a_ledger_when_replicas_start_at_the_same_time(postgres_server: PostgresServer) -> None:
    dsn = await postgres_server.empty_database()
    stores = await asyncio.gather(*(PostgresLedgerStore.open(dsn, NOW) for _ in range(3)))
    assert isinstance(await stores[0].reserve(reserve_request()), Reserved)
    await asyncio.gather(*(store.aclose() for store in stores))
    assert (await verified(dsn)).ok


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (f"UPDATE ledger_version SET version = {VERSION + 1}", "newer than"),
        ("ALTER TABLE ledger_version RENAME TO alembic_version", "earlier development version; commit 037616aa"),
        ("DROP TABLE ledger_version", "not a ledger's"),
    ],
)
async def test_a_database_of_another_version_or_program_is_refused_in_one_line(
    postgres_server: PostgresServer, statement: str, message: str
) -> None:
    dsn = await postgres_server.ledger_database()
    await postgres_server.execute(dsn, statement)
    with pytest.raises(StateError, match=message) as refused:
        await PostgresLedgerStore.open(dsn, NOW)
    assert "\n" not in str(refused.value)
    with pytest.raises(StateError, match=message):
        await verified(dsn)


async def test_unreachable_server_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="cannot be opened") as refused:
        await PostgresLedgerStore.open(f"postgresql://nobody@/none?host={tmp_path}", NOW, QUICK)
    assert "\n" not in str(refused.value)
    assert os.environ.get("PGPASSWORD", "-") not in str(refused.value)
