"""The role of a sandbox: what is asked of one, the limits of a run, and the process in it."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from edge.core.errors import EdgeError, UsageError
from edge.verifiers.sandbox.inside.limits import THREADS

ENVIRONMENT = {"PYTHONHASHSEED": "0", "MALLOC_ARENA_MAX": "2"}
"""All that a process inside finds in its environment: fixed hashes, so that a verdict can be repeated, and compact memory for threads."""
_SHORTEST_S, _LONGEST_S = 0.001, 86_400.0


class SandboxError(EdgeError):
    """A sandbox that does not start: a fault of this machine, never of the program inside."""


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """What one process may use. Wall time counts from when its interpreter is up; memory is address space.

    Raises UsageError for a wall time that is not between a millisecond and a day.
    """

    wall_s: float = 5.0
    memory_mib: int = 512
    threads: int = 64
    output_bytes: int = 4 << 20
    file_mib: int = 8
    open_files: int = 64

    def __post_init__(self) -> None:
        if not _SHORTEST_S <= self.wall_s <= _LONGEST_S:  # false for NaN
            raise UsageError(
                f"a program's time limit must be between {_SHORTEST_S} and {_LONGEST_S:.0f} seconds, not {self.wall_s}"
            )

    def rlimits(self) -> dict[str, int]:
        """The same for setrlimit, by the names of its constants. CPU time is a second limit, should nobody watch the wall clock."""
        return {
            "RLIMIT_CPU": int(self.wall_s) + 2,
            "RLIMIT_AS": self.memory_mib << 20,
            "RLIMIT_FSIZE": self.file_mib << 20,
            "RLIMIT_NOFILE": self.open_files,
            "RLIMIT_CORE": 0,
            "RLIMIT_MEMLOCK": 0,
            "RLIMIT_MSGQUEUE": 0,
        }


@dataclass(frozen=True, slots=True)
class Protection:
    """What a sandbox holds back, and what it does not, each in a few words."""

    holds: tuple[str, ...]
    lacks: tuple[str, ...] = ()

    @property
    def isolates(self) -> bool:
        """Whether it protects at all."""
        return bool(self.holds)


@dataclass(frozen=True, slots=True)
class Streams:
    """Descriptors that become 0, 1 and 2 of the process inside; the caller keeps and closes its own."""

    stdin: int
    stdout: int
    stderr: int


class Confined:
    """One process in its sandbox: a child of this one, with everything in there in one process group or PID namespace."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def wait(self, timeout_s: float) -> int | None:
        """The exit status (128 + signal, or negative, for one ended by a signal), or None when it still runs after `timeout_s` seconds."""
        try:
            return self.process.wait(max(timeout_s, 0.0))
        except subprocess.TimeoutExpired:
            return None

    def excess(self, limits: SandboxLimits) -> str:
        """What is used beyond the limits right now, of those that the kernel does not hold itself: a reason, or "".

        Here the threads of the process, from procfs.
        """
        try:
            found = Path(f"/proc/{self.pid()}/status").read_bytes().partition(b"\nThreads:")[2].split(maxsplit=1)
        except OSError:
            return ""
        return THREADS if found and int(found[0]) > limits.threads else ""

    def pid(self) -> int:
        """The process that runs the interpreter; 0 while that is not known."""
        return self.process.pid

    def kill(self) -> None:
        """End everything in there and wait until it is gone. May be repeated."""
        self.process.kill()
        self.process.wait()


class Sandbox(Protocol):
    """Starts single-use Python interpreters in isolation. Safe to call from several threads.

    The thread that starts one must live as long as it does: Linux ends it with that thread, so that nothing outlives a killed agent.
    """

    name: str
    protection: Protection
    same_python: bool
    """Whether the interpreter inside is the one we run on, so that compiled code can be sent."""

    def start(self, boot: str, streams: Streams, limits: SandboxLimits) -> Confined:
        """An interpreter that runs the statement `boot` with nothing but these streams. Raises SandboxError."""
        ...


def launched(what: str, command: Sequence[str], streams: Streams, **options: Any) -> subprocess.Popen[bytes]:
    """A process with these streams and ENVIRONMENT alone, in a session of its own; `options` of Popen prevail. Raises SandboxError."""
    options = {"env": ENVIRONMENT, "cwd": "/", "start_new_session": "process_group" not in options, **options}
    try:
        return subprocess.Popen(command, stdin=streams.stdin, stdout=streams.stdout, stderr=streams.stderr, **options)
    except OSError as error:
        raise SandboxError(f"{what} does not start: {error.strerror}") from error
