"""A real PostgreSQL server for tests: its own data folder and Unix socket, started once, stopped at the end; never as root.

Found on PATH or where Debian keeps it; `make system` installs it. Its databases are copies of one with the ledger's tables.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

MISSING = "no PostgreSQL server program (initdb, postgres) on PATH or in /usr/lib/postgresql: `make system` or apt-get install postgresql"
OPTIONS = {
    "listen_addresses": "",
    "fsync": "off",  # the machine is not going to lose power in a test; a killed process loses nothing without it
    "max_connections": "60",
    "shared_buffers": "16MB",
    "autovacuum": "off",
    "log_min_messages": "warning",
}

WIPE = f"""
SET session_replication_role = replica;  -- the journal's own triggers would refuse
TRUNCATE budget, call, attempt, step, task_state, shared_dual, dual_member, device, set_limits, journal, replica RESTART IDENTITY;
UPDATE journal_head SET seq = 0, hash = '{"0" * 64}';
"""


def find_programs() -> Path | None:
    """The folder that holds `postgres` and `initdb`."""
    on_path = shutil.which("postgres")
    folders = [Path(on_path).resolve().parent] if on_path else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    folders += sorted(Path("/opt/homebrew/opt").glob("postgresql*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "initdb").exists() and (folder / "postgres").exists()), None)


class PostgresServer:
    """A running server. `dsn` of a database is all a store needs."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs = programs
        self._folder = folder
        self._numbers = itertools.count()
        self._template = ""
        self._shared = ""
        self._process: subprocess.Popen[bytes] | None = None

    def make(self) -> None:
        """Make the data folder."""
        if os.geteuid() == 0:
            shutil.chown(self._folder, *_user())
        command = [
            *("initdb", "-D", str(self._folder / "data"), "-U", "edge", "-A", "trust", "-E", "UTF8"),
            *("--locale=C", "-N"),
        ]
        subprocess.run(self._as_user(command), check=True, capture_output=True, cwd=self._folder)

    def start(self) -> None:
        """Start it and wait until it answers."""
        options = [part for name, value in OPTIONS.items() for part in ("-c", f"{name}={value}")]
        command = ["postgres", "-D", str(self._folder / "data"), "-k", str(self._folder), *options]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(self._as_user(command), stdout=log, stderr=log, cwd=self._folder)
        self._until_answered()

    def stop(self, *, at_once: bool = False) -> None:
        """Stop it: disconnect the clients (SIGINT, fast shutdown), or as if it had crashed (SIGQUIT)."""
        if self._process is not None:
            self._process.send_signal(3 if at_once else 2)
            self._process.wait(120)
            self._process = None

    def dsn(self, database: str) -> str:
        """Where a database is."""
        return f"postgresql://edge@/{database}?host={self._folder}"

    async def empty_database(self) -> str:
        """A new database without any table; its dsn."""
        return await self._create("template0")

    async def ledger_database(self) -> str:
        """A new database with the ledger's tables and no rows; its dsn."""
        if not self._template:
            from coordinator.ledger.stores.schema import create_in_postgres

            dsn = await self.empty_database()
            connection = await self._connect(dsn)
            await create_in_postgres(connection)
            await connection.close()
            self._template = dsn.split("@/")[1].split("?")[0]
        return await self._create(self._template)

    async def clean_ledger(self) -> str:
        """The ledger database for tests that keep its schema and close what they open, emptied; returns its dsn."""
        self._shared = self._shared or await self.ledger_database()
        await self.execute(self._shared, WIPE)
        return self._shared

    async def execute(self, dsn: str, sql: str) -> str:
        """Run SQL as the server's owner."""
        connection = await self._connect(dsn)
        try:
            return str(await connection.execute(sql))
        finally:
            await connection.close()

    async def _create(self, template: str) -> str:
        name = f"t{next(self._numbers)}"
        await self.execute(self.dsn("postgres"), f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.dsn(name)

    async def _connect(self, dsn: str):  # type: ignore[no-untyped-def]
        import asyncpg

        return await asyncpg.connect(dsn, timeout=60.0)

    def _until_answered(self) -> None:
        asking = [str(self._programs / "pg_isready"), "-q", "-h", str(self._folder)]
        for _ in range(1200):
            assert self._process is not None and self._process.poll() is None, (self._folder / "log").read_text()
            if subprocess.run(asking, check=False).returncode == 0:
                return
            threading.Event().wait(0.1)
        raise AssertionError((self._folder / "log").read_text())

    def _as_user(self, command: list[str]) -> list[str]:
        full = [str(self._programs / command[0]), *command[1:]]
        if os.geteuid() != 0:
            return full
        user, group = _user()
        return ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", *full]


def _user() -> tuple[int, int]:
    """PostgreSQL refuses to run as root: the user created by the package, or `nobody`."""
    import pwd

    names = {entry.pw_name: (entry.pw_uid, entry.pw_gid) for entry in pwd.getpwall()}
    return names.get("postgres") or names["nobody"]


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """The server of this test run; tests that need it are skipped where there is none."""
    programs = find_programs()
    if programs is None:
        pytest.skip(MISSING)
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    server = PostgresServer(programs, folder)
    try:
        server.make()
        server.start()
        yield server
    finally:
        server.stop(at_once=True)
        shutil.rmtree(folder, ignore_errors=True)
