"""A ledger store of every kind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from coordinator.ledger.stores.memory import MemoryLedgerStore
from coordinator.ledger.stores.postgres import PostgresLedgerStore
from coordinator.ledger.stores.postgres import open_read_only as open_postgres_read_only
from coordinator.ledger.stores.sqlite import SqliteLedgerStore, open_read_only
from coordinator.ledger.stores.store import LedgerStore
from coordinator.ledger.verify import VerifyReport, verify
from tests.worlds.ledger_requests import NOW
from tests.worlds.postgres_server import PostgresServer
from tools.simulate.virtual.disk import Disk, DiskStore

Verify = Callable[[], VerifyReport]
Opened = tuple[LedgerStore, Verify]


@pytest.fixture(params=["memory", "sqlite", "postgres", "simulated"])
async def opened(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opened]:
    if request.param == "memory":
        memory = MemoryLedgerStore(NOW)
        yield memory, lambda: verify(memory.tables)
        return
    if request.param == "postgres":
        async with opened_postgres(request.getfixturevalue("postgres_server")) as opened:
            yield opened
        return
    if request.param == "simulated":
        disk = Disk(asyncio.get_running_loop(), random.Random(0))
        simulated = await DiskStore.open(disk, NOW)
        yield simulated, lambda: verify(disk.tables)
        await simulated.aclose()
        return
    path = tmp_path / "ledger.sqlite3"
    store = await SqliteLedgerStore.open(path, NOW)

    def verify_path() -> VerifyReport:
        with open_read_only(path) as rows:
            return verify(rows)

    yield store, verify_path
    await store.aclose()


@asynccontextmanager
async def opened_postgres(server: PostgresServer) -> AsyncIterator[Opened]:
    dsn = await server.clean_ledger()
    store = await PostgresLedgerStore.open(dsn, NOW)

    def verify_database() -> VerifyReport:
        with open_postgres_read_only(dsn) as rows:
            return verify(rows)

    yield store, verify_database
    await store.aclose()


@pytest.fixture
async def store(opened: tuple[LedgerStore, Verify]) -> AsyncIterator[LedgerStore]:
    """The store; after each test its journal must prove its tables."""
    store, verified = opened
    yield store
    assert (await asyncio.to_thread(verified)).lines()[0].startswith("verified")
