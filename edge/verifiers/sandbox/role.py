"""The role of a sandbox: what is asked of one, and the limits of a run."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from edge.core.errors import EdgeError, UsageError
from edge.verifiers.sandbox.inside.reasons import THREADS

_SHORTEST_S, _LONGEST_S = 0.001, 86_400.0


class SandboxError(EdgeError):
    """A sandbox that does not start: a fault of this machine, never of the program inside."""


@dataclass(frozen=True, slots=True)
class Limits:
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
        """Check the wall time."""
        if not _SHORTEST_S <= self.wall_s <= _LONGEST_S:  # false for NaN
            raise UsageError(
                f"a program's time limit must be between {_SHORTEST_S} and {_LONGEST_S:.0f} seconds, not {self.wall_s}"
            )

    @property
    def cpu_s(self) -> int:
        """Seconds of CPU time after which the kernel ends the process; behind the wall clock, should nobody watch it."""
        return int(self.wall_s) + 2

    def rlimits(self) -> dict[str, int]:
        """The same for setrlimit, by the names of its constants."""
        return {
            "RLIMIT_CPU": self.cpu_s,
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


class Confined(Protocol):
    """One process in its sandbox."""

    def poll(self) -> int | None:
        """The exit status (128 + signal, or negative, for one ended by a signal), or None while it runs."""
        ...

    def wait(self, timeout_s: float) -> int | None:
        """The exit status once it has ended, or None when it still runs after `timeout_s` seconds."""
        ...

    def excess(self, limits: Limits) -> str:
        """What is used beyond the limits right now, of those that the kernel does not hold itself: a reason, or ""."""
        ...

    def kill(self) -> None:
        """End everything in there and wait until it is gone. May be repeated."""
        ...


class Sandbox(Protocol):
    """Starts single-use Python interpreters in isolation. Safe to call from several threads.

    The thread that starts one must live as long as it does: Linux ends it with that thread, so that nothing outlives a killed agent.
    """

    name: str
    protection: Protection
    same_python: bool
    """Whether the interpreter inside is the one we run on, so that compiled code can be sent."""

    def start(self, boot: str, streams: Streams, limits: Limits) -> Confined:
        """An interpreter that runs the statement `boot` with nothing but these streams. Raises SandboxError."""
        ...


class OwnProcess:
    """A confined process that is a child of this one, with everything in there in one process group or PID namespace."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def poll(self) -> int | None:
        """Exit status or None."""
        return self.process.poll()

    def wait(self, timeout_s: float) -> int | None:
        """Exit status or None."""
        try:
            return self.process.wait(max(timeout_s, 0.0))
        except subprocess.TimeoutExpired:
            return None

    def excess(self, limits: Limits) -> str:
        """Threads of the process, from procfs."""
        return THREADS if threads_of(self.pid()) > limits.threads else ""

    def pid(self) -> int:
        """The process that runs the interpreter; 0 while that is not known."""
        return self.process.pid

    def kill(self) -> None:
        """End it and reap it."""
        self.process.kill()
        self.process.wait()


def threads_of(pid: int) -> int:
    """Threads of a process by its procfs entry; 0 where there is none."""
    try:
        found = Path(f"/proc/{pid}/status").read_bytes().partition(b"\nThreads:")[2].split(maxsplit=1)
    except OSError:
        return 0
    return int(found[0]) if found else 0
