"""Bubblewrap: a process in its own namespaces with an almost empty file system.

bwrap itself is started with an all but empty environment, because `--clearenv` alone leaves the caller's readable in /proc/1/environ;
and /proc is not mounted at all. The root is read-only, so that no file can be written.

When this process is killed, `--die-with-parent` ends bwrap and the program. bwrap's inner process, while it is still being made, waits
without end for an outer one that has been killed at the wrong moment; so all are started in the group of a guard: a shell that does
nothing but wait for the end of a pipe, which comes with our end, and then kills its own group. Who leaves that group must have a way of
its own to end with us (`boot.LOADER` watches whether we are still there).
"""

from __future__ import annotations

import os
import platform
import re
import select
import shutil
import signal
import subprocess
import threading
import weakref
from contextlib import suppress

from edge.verifiers.sandbox.inside.filters import known_machine, program_filter
from edge.verifiers.sandbox.interpreter import Interpreter, this_interpreter
from edge.verifiers.sandbox.role import Confined, Protection, SandboxError, SandboxLimits, Streams, launched

_NAMESPACES = ("--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
_SESSION = ("--die-with-parent", "--new-session", "--as-pid-1", "--hostname", "sandbox", "--cap-drop", "ALL")
_END_S = 10.0
_WAIT = "trap '' HUP INT TERM; read -r nothing; kill -KILL 0"
_CHILD = re.compile(rb'"child-pid": (\d+)')  # in the first write; the rest of this JSON comes later


class Bubblewrap:
    """Sandboxes by the bwrap command."""

    name = "bubblewrap"
    same_python = True
    protection = Protection(
        holds=(
            "network",
            "files (sees Python's standard library and system libraries), writing anywhere",
            "environment",
            "other processes",
            "new processes",
            "memory, CPU and wall time, threads, output",
            "rare system calls (seccomp)",
        ),
        lacks=("faults of the kernel itself", "timing and cache side channels"),
    )

    def __init__(self, command: str | None = None) -> None:
        """`command` is bwrap's path. Raises SandboxError where there is none."""
        found = command or shutil.which("bwrap")
        if found is None:
            raise SandboxError("bubblewrap is not installed (no command bwrap)", hint="install the package bubblewrap")
        self._command = found
        self._interpreter = this_interpreter()
        self._guard = _Guard()
        machine = platform.machine()
        self._filter = program_filter(machine) if known_machine(machine) else None

    def start(self, boot: str, streams: Streams, limits: SandboxLimits) -> Confined:
        """Start bwrap with the interpreter inside. Raises SandboxError."""
        info, info_end = os.pipe()
        handed = [info_end]
        try:
            options = [*_NAMESPACES, *_SESSION, *_file_system(self._interpreter), "--info-fd", str(info_end)]
            if self._filter is not None:
                handed.append(_readable(self._filter))
                options += ["--seccomp", str(handed[-1])]
            command = [self._command, *options, "--", *self._interpreter.command(boot)]
            process = launched("bubblewrap", command, streams, pass_fds=handed, process_group=self._guard.group())
        except OSError as error:  # of a pipe or the guard
            os.close(info)
            raise SandboxError(f"bubblewrap does not start: {error.strerror}") from error
        except SandboxError:
            os.close(info)
            raise
        finally:
            for fd in handed:
                os.close(fd)
        return _Wrapped(process, info)


def _file_system(python: Interpreter) -> list[str]:
    """Mounts: the interpreter's files and two devices; then the root becomes read-only."""
    options: list[str] = []
    for target, place in python.links:
        options += ["--symlink", target, place]
    for path in (*python.library_folders, python.stdlib, python.binary, *python.library_files):
        options += ["--ro-bind", path, path]
    for path in python.hidden:
        options += ["--tmpfs", path, "--remount-ro", path]
    for device in ("/dev/null", "/dev/urandom"):
        options += ["--dev-bind", device, device]
    return [*options, "--chdir", "/", "--remount-ro", "/"]


def _readable(content: bytes) -> int:
    """A descriptor from which this content can be read once (it fits into a pipe)."""
    readable, writable = os.pipe()
    os.write(writable, content)
    os.close(writable)
    return readable


class _Wrapped(Confined):
    """bwrap outside and process 1 of the sandbox inside; when that one ends, the kernel ends everything in there."""

    def __init__(self, process: subprocess.Popen[bytes], info: int) -> None:
        super().__init__(process)
        self._info: int | None = info
        self._inner = 0

    def pid(self) -> int:
        """Process 1 of the sandbox by its number out here; there is no other, since the filter refuses new ones."""
        return self._reported(0.0)

    def _reported(self, timeout_s: float) -> int:
        """The process that bwrap reports as soon as it has made its child; 0 when it has not yet, or never did."""
        if self._inner == 0 and self._info is not None and _ready(self._info, timeout_s):
            found = _CHILD.search(os.read(self._info, 4096))
            self._inner = int(found[1]) if found else 0
        return self._inner

    def kill(self) -> None:
        """Kill process 1 inside; bwrap ends after it, when all of the namespace is gone.

        bwrap itself must not go first: a child that it has made a moment ago does not yet end with it.
        """
        inner = self._reported(_END_S) if self.process.poll() is None else 0
        if inner and self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(inner, signal.SIGKILL)
        else:
            self.process.kill()
        try:
            self.process.wait(timeout=_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self._info is not None:
            os.close(self._info)
            self._info = None


def _ready(fd: int, timeout_s: float) -> bool:
    """Whether there is something to read, or the end."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(1000 * timeout_s))


class _Guard:
    """A process group that ends with this process. The shell in it starts when it is first asked for; safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = 0
        self._shell: subprocess.Popen[bytes] | None = None

    def group(self) -> int:
        """The number of the group. Raises OSError when there is no shell."""
        with self._lock:
            if self._shell is None or self._owner != os.getpid() or self._shell.poll() is not None:
                self._shell = subprocess.Popen(
                    ["/bin/sh", "-c", _WAIT],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={},
                    cwd="/",
                    process_group=0,
                )
                self._owner = os.getpid()
                weakref.finalize(self, _end, self._shell, self._owner)
            return self._shell.pid


def _end(shell: subprocess.Popen[bytes], owner: int) -> None:
    """Let the shell end the group; a process forked from ours does not end it."""
    assert shell.stdin is not None
    with suppress(OSError):
        shell.stdin.close()
    if owner == os.getpid():
        shell.wait()
