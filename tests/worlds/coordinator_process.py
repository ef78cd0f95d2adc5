"""Real processes: an `edge-coordinator serve` child, and its commands."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from edge.rpc.grpc_client import ClientPolicy, GrpcCoordinatorClient
from tests.worlds.upstream_server import Upstream
from tests.worlds.warm_commands import run_command

START_TIMEOUT_S = 60.0
CHARGE_UUSD = 10 + 2 * 5
"""Of a call of `settings_for` that `good_reply` answers."""


def settings_for(server: Upstream, **changes: Any) -> dict[str, Any]:
    """A configuration with that upstream at 1 micro-USD per input and 2 per output token."""
    alias = {
        "provider": "openai_compatible",
        "model": "m",
        "base_url": server.base_url,
        "price_in_uusd_per_mtok": 1_000_000,
        "price_out_uusd_per_mtok": 2_000_000,
        **changes.pop("upstream", {}),
    }
    return {"upstreams": {"default": alias}, **changes}


_OF_A_STOP = re.compile(r"stopping(, the parent is gone)?(: waiting for [1-9]\d* calls?)?$|stopped$", re.MULTILINE)


class CoordinatorProcess:
    """A child running `python -m coordinator serve`."""

    def __init__(self, folder: Path, settings: dict[str, Any], *arguments: str) -> None:
        self.folder = folder
        self.address = f"unix:{folder}/c.sock"
        self.state = folder / "state"
        self._config = folder / "coordinator.yaml"
        self._config.write_text(yaml.safe_dump(settings))
        self._arguments = arguments
        self.serving_line = ""
        self.environment: dict[str, str] = {}
        self.process: asyncio.subprocess.Process

    async def start(self) -> str:
        """Start it and return its SERVING line."""
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "coordinator", "serve", "--config", str(self._config)),
            *("--listen", self.address, "--state", str(self.state), *self._arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **self.environment},
        )
        assert self.process.stdout is not None
        async with asyncio.timeout(START_TIMEOUT_S):
            line = (await self.process.stdout.readline()).decode().strip()
        if not line:
            raise AssertionError(f"the coordinator did not start: {(await self.stop()).strip()}")
        self.serving_line = line
        return line

    def reconfigure(self, settings: dict[str, Any] | str) -> None:
        """Rewrite the configuration file and signal the process to reload it."""
        self._config.write_text(settings if isinstance(settings, str) else yaml.safe_dump(settings))
        self.process.send_signal(signal.SIGHUP)

    async def kill_9(self) -> None:
        """As if the power went."""
        self.process.kill()
        await self.process.wait()

    async def stop(self, number: int = signal.SIGTERM) -> str:
        """Stop it and wait; returns its stderr without the two lines of every stop."""
        if self.process.returncode is None:
            self.process.send_signal(number)
        _, stderr = await asyncio.wait_for(self.process.communicate(), START_TIMEOUT_S)
        self.log = stderr.decode()
        lines = self.log.splitlines(keepends=True)
        return "".join(line for line in lines if not _OF_A_STOP.search(line))


@asynccontextmanager
async def coordinator_process(folder: Path, settings: dict[str, Any], *arguments: str) -> AsyncIterator[CoordinatorProcess]:
    """A running child process that is always ended at the end."""
    child = CoordinatorProcess(folder, settings, *arguments)
    await child.start()
    try:
        yield child
    finally:
        if child.process.returncode is None:
            child.process.kill()
        await child.process.communicate()


async def command(*arguments: str) -> tuple[int, str, str]:
    """Run `edge-coordinator ARGUMENTS`; exit code, stdout, stderr."""
    return await asyncio.to_thread(run_command, "coordinator", *arguments)


async def balances(state: Path) -> dict[str, dict[str, Any]]:
    """`budget show --json` by budget key."""
    code, stdout, stderr = await command("budget", "show", "--json", "--state", str(state))
    assert code == 0, stderr
    return {row["key"]: row for row in json.loads(stdout)["budgets"]}


def ledger_rows(state: Path, query: str) -> list[dict[str, Any]]:
    """What a query finds in the ledger's file, also while a coordinator uses it."""
    with contextlib.closing(sqlite3.connect(f"file:{state / 'ledger.sqlite3'}?mode=ro", uri=True)) as database:
        database.row_factory = sqlite3.Row
        return [dict(row) for row in database.execute(query)]


def is_running(pid: int) -> bool:
    """Whether a process is there and not a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not (stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] == "Z")


def client_of(child: CoordinatorProcess, **policy: Any) -> GrpcCoordinatorClient:
    return GrpcCoordinatorClient(child.address, policy=ClientPolicy(**policy))


async def verify(child: CoordinatorProcess) -> None:
    code, stdout, stderr = await command("ledger", "verify", "--state", str(child.state))
    assert code == 0, stdout + stderr
