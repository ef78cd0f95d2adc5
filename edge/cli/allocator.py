"""Memory allocator settings for commands that train.

glibc gives every tensor above 32 MiB back to the system after each use and takes fresh pages for the next one, which costs more than
the arithmetic. Its settings are read before the process starts, so the command is started again, once, with them. One arena,
because a second thread's arena cannot hold such blocks at all (measured: 94 thousand page faults without it, none with it).

With EDGE_AGENT_ALLOCATOR=lean in the environment large blocks do go back to the system: the heap has no holes then (measured at the shape
of a 0.5B model: 100 to 200 MB less), and an update takes 20 to 50 % longer.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping

from edge.core.errors import UsageError
from edge.core.formatting import shown

_TRAINING = frozenset({"run", "learn"})
FLAG = "EDGE_AGENT_ALLOCATOR"
SETTINGS = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
    "MALLOC_TOP_PAD_": str(1 << 28),
}
LEAN_SETTINGS = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(1 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 20)}
LEAN, _TUNED = "lean", "tuned"


def restart_with_tuned_allocator() -> None:
    """Replace this process by the same command with the settings; returns where that is not needed or not possible.

    Raises UsageError for an allocator that is not known.
    """
    chosen = os.environ.get(FLAG, "")
    if chosen not in ("", LEAN, _TUNED):
        raise UsageError(f"{FLAG}={shown(chosen)}: no such setting", hint=f"set it to {LEAN}, or leave it unset")
    is_glibc = sys.platform == "linux" and platform.libc_ver()[0] == "glibc"
    if not wants_tuning(sys.argv[1:], os.environ, glibc=is_glibc):
        return
    settings = LEAN_SETTINGS if chosen == LEAN else SETTINGS
    arguments = [sys.executable, *sys.orig_argv[1:]]  # the full path, or the environment's packages would not be found
    environment = {**settings, **os.environ, FLAG: chosen or _TUNED}
    os.execve(sys.executable, arguments, environment)  # noqa: S606 - our own command line, unchanged


def wants_tuning(arguments: list[str], environment: Mapping[str, str], *, glibc: bool) -> bool:
    """Whether this command trains, under glibc, and neither we nor the user have chosen an allocator yet."""
    trains = bool(arguments) and arguments[0] in _TRAINING and not {"--help", "--no-learn"} & set(arguments)
    asked = environment.get(FLAG) == LEAN and "MALLOC_MMAP_THRESHOLD_" not in environment
    chosen = bool(environment.get(FLAG)) or "LD_PRELOAD" in environment
    return trains and glibc and (asked or not chosen)
