"""macOS: sandbox-exec with a profile that denies everything it does not name.

Written after the profiles that ship with macOS; not yet run on a machine. `choice.probe` decides there whether it is used. macOS
enforces no limit of address space, so the parent checks the memory in use while it waits.
"""

from __future__ import annotations

import importlib.util
import platform
import shutil
import sys
from collections.abc import Iterable

from edge.core.install import install_extra
from edge.verifiers.sandbox.inside.limits import MEMORY, THREADS
from edge.verifiers.sandbox.interpreter import Interpreter, this_interpreter
from edge.verifiers.sandbox.role import Confined, Protection, SandboxError, SandboxLimits, Streams, launched

_READABLE = (
    "/usr/lib",
    "/System/Library",
    "/System/Volumes/Preboot/Cryptexes",
    "/opt/homebrew/opt",
    "/opt/homebrew/Cellar",
    "/usr/local/opt",
)


class SandboxExec:
    """Sandboxes by the sandbox-exec command."""

    name = "sandbox-exec"
    same_python = True
    protection = Protection(
        holds=(
            "network",
            "content of files (reads Python and system libraries), writing anywhere",
            "environment",
            "signals to other processes",
            "new processes",
            "CPU and wall time, output; memory and threads as far as they are seen 20 times a second",
        ),
        lacks=(
            "whether a path exists",
            "sudden use of much memory",
            "faults of the kernel itself",
            "timing and cache side channels",
        ),
    )

    def __init__(self) -> None:
        """Raises SandboxError on other systems, or where psutil is missing, which watches the memory."""
        command = shutil.which("sandbox-exec")
        if platform.system() != "Darwin" or command is None:
            raise SandboxError("sandbox-exec is a part of macOS")
        if importlib.util.find_spec("psutil") is None:
            raise SandboxError("sandbox-exec needs psutil to watch the memory", hint=install_extra("agent"))
        self._interpreter = this_interpreter()
        self._command = (command, "-p", profile(self._interpreter, sys.base_prefix))

    def start(self, boot: str, streams: Streams, limits: SandboxLimits) -> Confined:
        """Start the interpreter under the profile. Raises SandboxError."""
        return _Watched(launched("sandbox-exec", [*self._command, *self._interpreter.command(boot)], streams))


def profile(python: Interpreter, prefix: str) -> str:
    """Read the interpreter and system libraries, run the interpreter, write to /dev/null; nothing else. Later rules win."""
    return "\n".join(
        (
            "(version 1)",
            "(deny default)",
            f"(allow process-exec (subpath {_quoted(prefix)}) (literal {_quoted(python.binary)}))",
            "(allow file-read-metadata)",
            f"(allow file-read* {_paths('subpath', (prefix, python.stdlib, *_READABLE))})",
            f"(allow file-read* {_paths('literal', (python.binary, '/', '/dev/null', '/dev/urandom', '/dev/random'))})",
            f"(deny file-read* {_paths('subpath', python.hidden)})" if python.hidden else "",
            '(allow file-write-data (literal "/dev/null"))',
            "(allow sysctl-read)",
            "(allow signal (target self))",
        )
    )


def _paths(kind: str, paths: Iterable[str]) -> str:
    return " ".join(f"({kind} {_quoted(path)})" for path in paths)


def _quoted(path: str) -> str:
    escaped = path.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


class _Watched(Confined):
    def excess(self, limits: SandboxLimits) -> str:
        """Memory and threads in use now."""
        import psutil

        try:
            process = psutil.Process(self.process.pid)
            memory, threads = process.memory_info().rss, process.num_threads()
        except psutil.Error:
            return ""
        if memory > limits.memory_mib << 20:
            return MEMORY
        return THREADS if threads > limits.threads else ""
