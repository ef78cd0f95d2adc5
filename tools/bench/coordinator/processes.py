"""Servers as processes: started, found ready, looked at and ended. Knows processor time and memory of a process with all its descendants.

Knows nothing of what the servers do.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge.core.errors import EdgeError
from tools.bench.table.children import end_session, end_with_parent, last_line
from tools.bench.table.parts import REPOSITORY

START_TIMEOUT_S = 180.0
PAUSE_S = 0.005


class ServerFailed(EdgeError):
    """A server that ended or did not get ready."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server: its process, what it said when it was ready, and the seconds from its start to that."""

    process: subprocess.Popen[bytes]
    told: Mapping[str, Any]
    start_s: float

    @property
    def pid(self) -> int:
        """Of the process that was started."""
        return self.process.pid


def say(told: Mapping[str, Any]) -> None:
    """Tell whoever started this process that it is ready."""
    print(json.dumps(told), flush=True)


@contextlib.contextmanager
def running(
    command: Sequence[str],
    log: Path,
    *,
    ready: Callable[[], bool] | None = None,
    environment: Mapping[str, str] | None = None,
    folder: Path = REPOSITORY,
) -> Iterator[Server]:
    """A server until the block ends. It is ready when it has said a line of JSON, and `ready` answers True. Raises ServerFailed."""
    began = time.monotonic()
    with log.open("wb") as errors:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if ready is None else errors,
            stderr=errors,
            env={**os.environ, **(environment or {})},
            cwd=folder,
            start_new_session=True,
            preexec_fn=end_with_parent(),
        )
        try:
            told = _told(process, log) if ready is None else _until(ready, process, log)
            yield Server(process, told, time.monotonic() - began)
        finally:
            end_session(process)
            if process.stdout is not None:
                process.stdout.close()


def kill(server: Server) -> None:
    """SIGKILL, and wait for the end."""
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()


def _told(process: subprocess.Popen[bytes], log: Path) -> Mapping[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise ServerFailed(f"a server did not start: {last_line(log)}", hint=f"see {log}")
    told: Mapping[str, Any] = json.loads(line)
    return told


def _until(ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> Mapping[str, Any]:
    end = time.monotonic() + START_TIMEOUT_S
    while not ready():
        if process.poll() is not None or time.monotonic() > end:
            raise ServerFailed(f"a server did not get ready: {last_line(log)}", hint=f"see {log}")
        time.sleep(PAUSE_S)
    return {}


def own(module: str, *arguments: str) -> tuple[str, ...]:
    """The command of one of our processes."""
    return (sys.executable, "-m", f"tools.bench.coordinator.{module}", *arguments)


def free_port() -> int:
    """A port of loopback that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def cpu_s(pid: int) -> float:
    """Processor seconds, user and system, of a process and all its descendants, ended ones that were waited for too."""
    return sum(_times(process) for process in _tree(pid))


def memory_mib(pid: int) -> float:
    """Resident MiB of a process and all its descendants; shared pages count once for each."""
    return float(sum(process.memory_info().rss for process in _tree(pid))) / 2**20


def _tree(pid: int) -> list[Any]:
    import psutil

    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def _times(process: Any) -> float:
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)
