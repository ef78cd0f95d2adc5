"""The embedded coordinator: a child process on a Unix socket.

The child's ledger and configuration live in the state folder, so that the budget survives restarts. It is started with
`--exit-with-parent`, so that a killed agent leaves no coordinator behind; one that is still settling holds the ledger's lock for a
moment, and the start is tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from edge.config.schema import AgentConfig
from edge.core.clock import Clock
from edge.core.errors import CoordinatorUnavailable
from edge.core.events import EventSink
from edge.core.files import replacing
from edge.core.formatting import exit_name, has_crashed
from edge.core.units import BUDGET_UNITS
from edge.state.events import Notice

MAX_SOCKET_PATH = 100
"""Bytes; the system's limit is 104 to 108."""
_PROBE_S = 0.05
_STOP_S = 10.0
_CRASH_HINT = "edge-agent doctor checks whether llama.cpp runs on this processor"
_RESTART_S = (0.2, 0.5, 1.0, 2.0, 5.0)
_HEALTHY_S = 30.0
"""A child that ran this long starts with a clean count of failures."""
_UPSTREAM_FIELDS = (
    "model", "path", "base_url", "api_key", "api_key_env", "price_in_uusd_per_mtok", "price_out_uusd_per_mtok", "tokens_field",
    "allow_plaintext", "threads",
)  # fmt: skip
_DUAL_FIELDS = ("controller", "dual_scope", "dual_init", "dual_lr", "dual_proportional", "dual_window", "dual_ceiling")

Probe = Callable[[], Awaitable[bool]]


def socket_path(folder: Path) -> Path:
    """Where the child listens: in its folder, or in a short private one of the temporary folder when that path is too long."""
    path = folder / "coordinator.sock"
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH:
        return path
    short = _short_folder(folder)
    short.mkdir(mode=0o700, exist_ok=True)
    if short.stat().st_uid != os.getuid():
        raise CoordinatorUnavailable(f"{short} belongs to another user", hint="set XDG_RUNTIME_DIR to a folder of yours")
    return short / "coordinator.sock"


def _short_folder(folder: Path) -> Path:
    name = hashlib.blake2b(os.fsencode(folder.resolve()), digest_size=6).hexdigest()
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    base = Path(runtime) if runtime and Path(runtime).is_dir() else Path(tempfile.gettempdir())
    return base / f"edge-agent-{os.getuid()}-{name}"


def embedded_settings(config: AgentConfig) -> dict[str, Any]:
    """The child's configuration, in the coordinator's own schema."""
    embedded, budget = config.coordinator.embedded, config.budget
    upstream = {name: getattr(embedded, name) for name in _UPSTREAM_FIELDS}
    upstream |= {"provider": embedded.upstream, "deadline_s": config.coordinator.call_deadline_s}
    task = {name: getattr(config.learning.control, name) for name in _DUAL_FIELDS}
    task |= {"step_credit_kappa": embedded.step_credit_kappa, "target_rate_from_device": True}
    limits = {unit.limit: getattr(budget, unit.limit) for unit in BUDGET_UNITS}
    limits["window"] = budget.period
    return {
        "upstreams": {config.coordinator.model_alias: {key: value for key, value in upstream.items() if value is not None}},
        "tasks": {"*": task},
        "budgets": {"device": limits},
        "service": {"drain_grace_s": _STOP_S - 2.0},
    }


def coordinator_command() -> list[str]:
    """How the coordinator is started: the module next to this package, else the console script. Raises CoordinatorUnavailable."""
    if importlib.util.find_spec("coordinator") is not None:
        return [sys.executable, "-c", "import sys; from coordinator.cli import main; sys.exit(main())"]
    script = shutil.which("edge-coordinator")
    if script is None:
        raise CoordinatorUnavailable(
            "the coordinator is not installed", hint="install the [coordinator] extra or give --coordinator"
        )
    return [script]


class EmbeddedCoordinator:
    """Starts the child and keeps it running until `aclose`."""

    def __init__(
        self,
        folder: Path,
        settings: dict[str, Any],
        probe: Probe,
        sink: EventSink,
        clock: Clock,
        *,
        start_timeout_s: float = 30.0,
        command: Sequence[str] | None = None,
    ) -> None:
        """`folder` is the child's state folder; `probe` returns whether the service is SERVING."""
        self._folder = folder
        self._settings = settings
        self._probe = probe
        self._sink = sink
        self._clock = clock
        self._start_timeout_s = start_timeout_s
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._watching: asyncio.Task[None] | None = None
        self._stopping = False
        self._crash = ""
        self._signalled: int | None = None

    @property
    def pid(self) -> int | None:
        """The child's process id while it runs."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def start(self) -> None:
        """Start the child and wait until it serves. Raises CoordinatorUnavailable with the child's last words, or that it crashed.

        A child that is only slow goes on starting, and is reached later.
        """
        self._write_settings()
        self._watching = asyncio.create_task(self._keep_running(), name="embedded-coordinator")
        try:
            async with asyncio.timeout(self._start_timeout_s):
                await self._until_serving()
        except CoordinatorUnavailable:
            await self.aclose()
            raise
        except TimeoutError as error:
            if self.pid is None:
                await self.aclose()
            reason = self._last_words() or f"not serving after {self._start_timeout_s:g} s"
            raise CoordinatorUnavailable(
                f"the embedded coordinator did not start: {reason}", hint=f"see {self.log_file}"
            ) from error

    async def aclose(self) -> None:
        """Ask the child to settle and stop; kill it when it does not. Safe to call twice."""
        self._stopping = True
        if self.pid is not None:
            await self._stop_child()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            self._watching = None
        with contextlib.suppress(OSError):  # a socket that still lies there, or a folder that was never made, is left alone
            _short_folder(self._folder).rmdir()

    async def hold_to(self, limits: Mapping[str, Any]) -> None:
        """Hold the device to other limits, as `budgets.device` of the coordinator's configuration has them: a child that runs reads its
        configuration again, one that is started later begins with it."""
        self._settings = {**self._settings, "budgets": {"device": dict(limits)}}
        self._signalled = None
        if self._watching is not None:  # also for a child that is just being started again
            self._write_config()
        await self.take_up()

    async def take_up(self) -> None:
        """Have a child that serves read again what was written last, once. One that does not serve yet would end at the signal, and may
        have read the file before it was written: a later call signals it."""
        pid = self.pid
        if pid is not None and pid != self._signalled and await self._probe() and pid == self.pid:
            self._signalled = pid
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGHUP)

    @property
    def log_file(self) -> Path:
        """What the child writes."""
        return self._folder / "coordinator.log"

    async def _until_serving(self) -> None:
        """Raises CoordinatorUnavailable when the child crashes, as it would again."""
        while self.pid is None or not await self._probe():
            if self._crash:
                raise CoordinatorUnavailable(f"the embedded coordinator crashed ({self._crash})", hint=_CRASH_HINT)
            await asyncio.sleep(_PROBE_S)

    async def _keep_running(self) -> None:
        """Start the child, and again whenever it ends by itself, more slowly each time in a row."""
        failures = 0
        while not self._stopping:
            began = self._clock.monotonic()
            code = await self._run_once()
            if self._stopping:
                return
            failures = 1 if self._clock.monotonic() - began > _HEALTHY_S else failures + 1
            self._crash = exit_name(code) if has_crashed(code) else ""
            words = _CRASH_HINT if self._crash else self._last_words()
            ended = f"{'crashed' if self._crash else 'ended'} ({exit_name(code)})"
            self._sink.emit(Notice(f"the embedded coordinator {ended}; starting it again. {words}".strip(), self._clock.now()))
            await asyncio.sleep(_RESTART_S[min(failures, len(_RESTART_S)) - 1])

    async def _run_once(self) -> int:
        listen = socket_path(self._folder)
        arguments = ["serve", "--config", str(self._config_file), "--listen", f"unix:{listen}", "--state", str(self._folder)]
        with self.log_file.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(self._command or coordinator_command()),
                *arguments,
                "--exit-with-parent",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return await self._process.wait()

    async def _stop_child(self) -> None:
        process = self._process
        assert process is not None
        try:
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        except ProcessLookupError:
            return
        except TimeoutError:
            process.kill()
            await process.wait()

    @property
    def _config_file(self) -> Path:
        return self._folder / "coordinator.yaml"

    def _write_settings(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.log_file.touch(mode=0o600)
        self.log_file.chmod(0o600)
        self.log_file.write_bytes(b"")
        self._write_config()

    def _write_config(self) -> None:
        text = "# Written by the agent at each start; settings belong into the agent's own configuration.\n"
        with replacing(self._config_file) as unfinished:
            unfinished.touch(mode=0o600)
            unfinished.write_text(text + yaml.safe_dump(self._settings, sort_keys=False), encoding="utf-8")

    def _last_words(self) -> str:
        try:
            lines = self.log_file.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1][:300] if lines else ""
