"""Measured processes: run to their end or as servers until a block ends, watched, and ended with all their children.

Every process gets its own session. When this process is killed, the kernel ends the measured one (on Linux), but not its children unless
they ask for the same.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from edge.core.errors import EdgeError

REPOSITORY = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 180.0
OnLine = Callable[[float, str], None]
"""Called every second: seconds so far, and the last line the process wrote."""
_PR_SET_PDEATHSIG = 1
_GRACE_S = 10.0
_CHECK_S = 1.0
_READY_CHECK_S = 0.005


class ProcessFailed(EdgeError):
    """A measured process that ended badly, took too long or did not get ready."""


def run_child(
    command: Sequence[str],
    *,
    log: Path,
    environment: Mapping[str, str],
    folder: Path,
    on_line: OnLine = lambda seconds, line: None,
    timeout_s: float = 7200.0,
) -> float:
    """Run a command to its end and return its seconds; its output goes to `log`. Raises ProcessFailed with the last lines."""
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with log.open("wb") as stream:
        process = _started(command, environment, folder, output=stream, errors=subprocess.STDOUT)
        try:
            code = _watch(process, log, began, on_line, timeout_s)
        finally:
            end_session(process)
    if code:
        raise ProcessFailed(f"{Path(command[0]).name} ended with {code}: {last_line(log)}", hint=f"see {log}")
    return time.monotonic() - began


def _watch(process: subprocess.Popen[bytes], log: Path, began: float, on_line: OnLine, timeout_s: float) -> int:
    while True:
        try:
            return process.wait(_CHECK_S)
        except subprocess.TimeoutExpired:
            seconds = time.monotonic() - began
            if seconds > timeout_s:
                raise ProcessFailed(f"no result after {timeout_s:.0f} s: {last_line(log)}", hint=f"see {log}") from None
            on_line(seconds, last_line(log))


@dataclass(frozen=True, slots=True)
class Server:
    """A running server: its process, its ready line, and the seconds from its start to that line."""

    process: subprocess.Popen[bytes]
    ready: Mapping[str, Any]
    start_s: float

    @property
    def pid(self) -> int:
        """Of the process that was started."""
        return self.process.pid


@contextlib.contextmanager
def running(
    command: Sequence[str],
    log: Path,
    *,
    ready: Callable[[], bool] | None = None,
    environment: Mapping[str, str] | None = None,
    folder: Path = REPOSITORY,
) -> Iterator[Server]:
    """A server until the block ends. It is ready when it has printed a line of JSON, or `ready` returns True. Raises ProcessFailed."""
    began = time.monotonic()
    with log.open("wb") as errors:
        output = subprocess.PIPE if ready is None else errors
        process = _started(command, {**os.environ, **(environment or {})}, folder, output=output, errors=errors)
        try:
            announced = _first_line(process, log) if ready is None else _until(ready, process, log)
            yield Server(process, announced, time.monotonic() - began)
        finally:
            end_session(process)
            if process.stdout is not None:
                process.stdout.close()


@contextlib.contextmanager
def on_cores(cores: Collection[int] | None) -> Iterator[None]:
    """What is started in the block runs on these cores only; None: wherever this process may."""
    if cores is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def announce(fields: Mapping[str, Any]) -> None:
    """Report to the parent process that this one is ready."""
    print(json.dumps(fields), flush=True)


def _first_line(process: subprocess.Popen[bytes], log: Path) -> Mapping[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise ProcessFailed(f"a server did not start: {last_line(log)}", hint=f"see {log}")
    announced: Mapping[str, Any] = json.loads(line)
    return announced


def _until(ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> Mapping[str, Any]:
    end = time.monotonic() + START_TIMEOUT_S
    while not ready():
        if process.poll() is not None or time.monotonic() > end:
            raise ProcessFailed(f"a server did not get ready: {last_line(log)}", hint=f"see {log}")
        time.sleep(_READY_CHECK_S)
    return {}


def _started(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, *, output: Any, errors: Any
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        env=dict(environment),
        cwd=folder,
        start_new_session=True,
        preexec_fn=end_with_parent(),
    )


def end_session(process: subprocess.Popen[bytes]) -> None:
    """End the rest of a process's session: SIGTERM, then SIGKILL. Safe to call on a finished one."""
    _signal(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)
    _signal(process.pid, signal.SIGKILL)
    process.wait()


def last_line(log: Path) -> str:
    """The last non-empty line of a log, at most 300 characters; carriage returns count as line ends."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 4096))
            lines = file.read().decode("utf-8", "replace").replace("\r", "\n").split("\n")
    except OSError:
        return ""
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")


def _signal(session: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(session, number)


def end_with_parent() -> Callable[[], None] | None:
    """For Popen's `preexec_fn`: asks the kernel to end the new process when its parent dies. None where there is no such kernel."""
    return _ask_for_end if sys.platform == "linux" else None


def _ask_for_end() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def own(module: str, *arguments: str) -> tuple[str, ...]:
    """The command of one of our own processes, by its name under tools.bench."""
    return (sys.executable, "-m", f"tools.bench.{module}", *arguments)


@contextlib.contextmanager
def scratch_folder(job: Mapping[str, Any]) -> Iterator[Path]:
    """The job's `scratch`, empty; removed when the block succeeds and kept for inspection otherwise."""
    scratch = Path(job["scratch"])
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    yield scratch
    shutil.rmtree(scratch, ignore_errors=True)


def free_port() -> int:
    """A free port of loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answers(url: str) -> bool:
    """Whether something serves this address."""
    with contextlib.suppress(OSError), urlopen(url, timeout=5.0) as reply:
        return int(reply.status) == 200
    return False


def cpu_s(pid: int) -> float:
    """Processor seconds, user and system, of a process and all its descendants, ended ones that were waited for too."""
    times = [process.cpu_times() for process in _tree(pid)]
    return sum(float(each.user + each.system + each.children_user + each.children_system) for each in times)


def memory_mib(pid: int) -> float:
    """Resident MiB of a process and all its descendants; shared pages count once for each."""
    return float(sum(process.memory_info().rss for process in _tree(pid))) / 2**20


def _tree(pid: int) -> list[Any]:
    import psutil

    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]
