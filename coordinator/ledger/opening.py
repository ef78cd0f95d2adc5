"""Which store a configuration means: the part of `bootstrap` that names the stores. Knows settings and classes; knows nothing of rows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.config import StorageConfig
from edge.core.clock import Clock
from edge.core.errors import ConfigError
from edge.core.install import install_extra

if TYPE_CHECKING:
    from coordinator.ledger.stores.store import LedgerStore
    from coordinator.ledger.verify import LedgerRows


async def open_store(storage: StorageConfig, file: Path, clock: Clock) -> LedgerStore:
    """The configured ledger; `file` is where a SQLite one lies. Raises StateError, ConfigError."""
    if storage.backend == "memory":
        from coordinator.ledger.stores.memory import MemoryLedgerStore

        return MemoryLedgerStore(clock.now())
    if storage.backend == "postgres":
        _require_asyncpg()
        from coordinator.ledger.stores.postgres import PostgresLedgerStore, PostgresSettings

        return await PostgresLedgerStore.open(
            postgres_dsn(storage), clock.now(), PostgresSettings(replica_lease_s=storage.replica_lease_s)
        )
    from coordinator.ledger.stores.sqlite import SqliteLedgerStore

    return await SqliteLedgerStore.open(file, clock.now())


@contextmanager
def open_rows(storage: StorageConfig, file: Path) -> Iterator[LedgerRows]:
    """The configured ledger's rows as of now, for reading, also while coordinators write. Raises StateError, ConfigError."""
    if storage.backend == "memory":
        raise ConfigError("a ledger in memory cannot be read from outside", hint="choose storage.backend sqlite or postgres")
    if storage.backend == "postgres":
        _require_asyncpg()
        from coordinator.ledger.stores.postgres_rows import open_read_only as open_postgres

        with open_postgres(postgres_dsn(storage)) as rows:
            yield rows
        return
    from coordinator.ledger.stores.sqlite import open_read_only

    with open_read_only(file) as tables:
        yield tables


def postgres_dsn(storage: StorageConfig) -> str:
    """Where the database is, from the configuration or the environment variable it names. Raises ConfigError."""
    if storage.dsn_env is None:
        return storage.dsn or ""
    dsn = os.environ.get(storage.dsn_env, "")
    if not dsn:
        raise ConfigError(
            f"the environment variable {storage.dsn_env} is not set", hint="storage.dsn_env names it: postgresql://..."
        )
    return dsn


def _require_asyncpg() -> None:
    from importlib.util import find_spec

    if find_spec("asyncpg") is None:
        raise ConfigError("storage.backend postgres needs asyncpg", hint=install_extra("postgres"))
