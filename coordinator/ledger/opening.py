"""The configured ledger: opened to serve, or to be read from outside. The only place that names concrete stores."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from coordinator.config import ServerConfig, StorageConfig
from edge.core.clock import Clock, SystemClock
from edge.core.errors import ConfigError
from edge.core.install import install_extra

if TYPE_CHECKING:
    from coordinator.ledger.stores.store import LedgerStore
    from coordinator.ledger.verify import LedgerRows, VerifyReport

log = logging.getLogger(__name__)
T = TypeVar("T")
LEDGER_FILE = "ledger.sqlite3"


def ledger_path(config: ServerConfig) -> Path:
    """Where a SQLite ledger lies."""
    return config.state_folder / LEDGER_FILE


async def open_store(config: ServerConfig, clock: Clock) -> LedgerStore:
    """The configured ledger. Raises StateError, ConfigError."""
    from coordinator.ledger.accounts import amount_text

    folder = config.state_folder
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(f"cannot make the state folder {folder}: {error.strerror}") from error
    if config.storage.backend == "memory":
        from coordinator.ledger.stores.memory import MemoryLedgerStore

        return MemoryLedgerStore(clock.now())
    store: LedgerStore
    if config.storage.backend == "postgres":
        dsn = _postgres_dsn(config.storage)
        from coordinator.ledger.stores.postgres import PostgresLedgerStore, PostgresSettings

        settings = PostgresSettings(replica_lease_s=config.storage.replica_lease_s)
        store = await PostgresLedgerStore.open(dsn, clock.now(), settings)
    else:
        from coordinator.ledger.stores.sqlite import SqliteLedgerStore

        store = await SqliteLedgerStore.open(ledger_path(config), clock.now())
    if store.recovered:
        calls = amount_text("calls", len(store.recovered))
        charged = amount_text("uusd", sum(each.attempt.charged.uusd for each in store.recovered))
        listed = "`edge-coordinator calls --in-state in_doubt` lists them"
        log.warning("%s of an earlier run had no end and cost their hold, %s; %s", calls, charged, listed)
    return store


def in_ledger(config: ServerConfig, do: Callable[[LedgerStore], Awaitable[T]]) -> T:
    """Do something in the configured ledger while no coordinator of this state folder runs; one in PostgreSQL may be in use elsewhere.

    Raises StateError when it is in use or cannot be opened, ConfigError where it is in memory.
    """
    if config.storage.backend == "memory":
        raise ConfigError("a ledger in memory is gone with its coordinator, and none runs", hint="start it first")

    async def opened() -> T:
        store = await open_store(config, SystemClock())
        try:
            return await do(store)
        finally:
            await store.aclose()

    return asyncio.run(opened())


@contextmanager
def open_rows(config: ServerConfig) -> Iterator[LedgerRows]:
    """The configured ledger's rows as of now, for reading, also while coordinators write. Raises StateError, ConfigError."""
    if config.storage.backend == "memory":
        raise ConfigError("a ledger in memory cannot be read from outside", hint="choose storage.backend sqlite or postgres")
    if config.storage.backend == "postgres":
        dsn = _postgres_dsn(config.storage)
        from coordinator.ledger.stores.postgres import open_read_only as open_postgres

        with open_postgres(dsn) as rows:
            yield rows
        return
    from coordinator.ledger.stores.sqlite import open_read_only

    with open_read_only(ledger_path(config)) as tables:
        yield tables


async def verify_store(store: LedgerStore, config: ServerConfig) -> VerifyReport:
    """Verify a ledger while it is in use, holding up no transaction unless it is in memory. Raises StateError, ConfigError."""
    from coordinator.ledger.stores.memory import MemoryLedgerStore
    from coordinator.ledger.verify import verify

    def as_of_now() -> VerifyReport:
        with open_rows(config) as rows:
            return verify(rows)

    return verify(store.tables) if isinstance(store, MemoryLedgerStore) else await asyncio.to_thread(as_of_now)


def _postgres_dsn(storage: StorageConfig) -> str:
    """Where the database is, from the configuration or the environment variable it names. Raises ConfigError, also without asyncpg."""
    from importlib.util import find_spec

    if find_spec("asyncpg") is None:
        raise ConfigError("storage.backend postgres needs asyncpg", hint=install_extra("postgres"))
    if storage.dsn_env is None:
        return storage.dsn or ""
    dsn = os.environ.get(storage.dsn_env, "")
    if not dsn:
        raise ConfigError(
            f"the environment variable {storage.dsn_env} is not set", hint="storage.dsn_env names it: postgresql://..."
        )
    return dsn
