"""Measured processes. Knows how they are started, watched and ended; knows nothing of what they measure.

Every process gets a session of its own and is ended with all of it when this one leaves by an exception or a signal it can handle. When
this one is killed outright, the kernel ends the process itself (on Linux), but not what that has started and not told the same.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from edge.core.errors import EdgeError

Tell = Callable[[float, str], None]
"""Told every second: seconds so far, and the last line the process wrote."""

_PR_SET_PDEATHSIG = 1
_GRACE_S = 10.0
_LOOK_S = 1.0


class ChildFailed(EdgeError):
    """A measured process that ended badly or took too long."""


def run_child(
    command: Sequence[str],
    *,
    log: Path,
    environment: Mapping[str, str],
    folder: Path,
    tell: Tell = lambda seconds, line: None,
    timeout_s: float = 7200.0,
) -> float:
    """Run a command to its end and return its seconds; what it writes goes to `log`. Raises ChildFailed with its last words."""
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with log.open("wb") as stream:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd=folder,
            start_new_session=True,
            preexec_fn=end_with_parent(),
        )
        try:
            code = _watch(process, log, began, tell, timeout_s)
        finally:
            end_session(process)
    if code:
        raise ChildFailed(f"{Path(command[0]).name} ended with {code}: {last_line(log)}", hint=f"see {log}")
    return time.monotonic() - began


def end_session(process: subprocess.Popen[bytes]) -> None:
    """End what is left of a process's session: politely, then not. Safe to call on one that is over."""
    _signal(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)
    _signal(process.pid, signal.SIGKILL)
    process.wait()


def last_line(log: Path) -> str:
    """The last line of a log that says something, at most 300 characters; carriage returns count as line ends."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 4096))
            lines = file.read().decode("utf-8", "replace").replace("\r", "\n").split("\n")
    except OSError:
        return ""
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")


def _watch(process: subprocess.Popen[bytes], log: Path, began: float, tell: Tell, timeout_s: float) -> int:
    while True:
        try:
            return process.wait(_LOOK_S)
        except subprocess.TimeoutExpired:
            seconds = time.monotonic() - began
            if seconds > timeout_s:
                raise ChildFailed(f"no result after {timeout_s:.0f} s: {last_line(log)}", hint=f"see {log}") from None
            tell(seconds, last_line(log))


def _signal(session: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(session, number)


def end_with_parent() -> Callable[[], None] | None:
    """For Popen's `preexec_fn`: asks the kernel to end the new process when its parent dies. None where there is no such kernel."""
    return _ask_for_end if sys.platform == "linux" else None


def _ask_for_end() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
