"""Landlock: a process that gives up its rights before the program comes.

For Linux without bubblewrap. It needs no right to make namespaces and works for root as well, since Landlock binds root too. There is
no own view of the file system: what is forbidden can still be seen to exist.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

from edge.verifiers.sandbox.boot import confining
from edge.verifiers.sandbox.inside.filters import known_machine, program_filter
from edge.verifiers.sandbox.interpreter import this_interpreter
from edge.verifiers.sandbox.role import Confined, Protection, SandboxError, SandboxLimits, Streams, launched


class Landlock:
    """Sandboxes by Landlock, seccomp and resource limits, with own network, IPC and user namespaces where those are allowed."""

    name = "landlock"
    same_python = True
    protection = Protection(
        holds=(
            "network",
            "content of files (reads Python's standard library and system libraries), writing anywhere",
            "environment",
            "signals to and memory of other processes",
            "new processes",
            "memory, CPU and wall time, threads, output",
            "rare system calls (seccomp)",
        ),
        lacks=("whether a path exists, its size and owner", "faults of the kernel itself", "timing and cache side channels"),
    )

    def __init__(self) -> None:
        """Raises SandboxError where the kernel or the processor is not supported."""
        if platform.system() != "Linux" or not known_machine(platform.machine()):
            raise SandboxError("Landlock is a part of Linux on x86-64 and arm64")
        from edge.verifiers.sandbox.inside.confine import OWN_PID, landlock_version

        if landlock_version() < 1:
            raise SandboxError("this kernel has no Landlock (Linux 5.13 or newer, enabled at boot)")
        self._interpreter = python = this_interpreter()
        entries = python.stdlib_entries()
        folders = [*python.library_folders, *(path for path in entries if Path(path).is_dir())]
        own_files = [path for path in entries if not Path(path).is_dir()]
        files = [*python.library_files, *own_files, "/dev/urandom", "/etc/ld.so.cache"]
        self._rights = f"{folders!r}, {files!r}, [{python.stdlib!r}], {program_filter(platform.machine(), own_pid=OWN_PID)!r}"

    def start(self, boot: str, streams: Streams, limits: SandboxLimits) -> Confined:
        """Start the interpreter, which confines itself before it reads anything. Raises SandboxError."""
        script = f"{confining()}\nconfine({os.getpid()}, {self._rights})\n{boot}"
        return Confined(launched("the interpreter", self._interpreter.command(script), streams))
