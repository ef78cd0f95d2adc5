"""How a process ended, in words."""

from __future__ import annotations

import signal

_CRASHES = ("SIGSEGV", "SIGILL", "SIGBUS", "SIGFPE", "SIGABRT", "SIGTRAP")


def exit_name(code: int) -> str:
    """The signal that ended it, else the code."""
    try:
        return signal.Signals(-code).name if code < 0 else str(code)
    except ValueError:
        return str(code)


def has_crashed(code: int) -> bool:
    """Whether it ended by a fault of its own program, which comes again when it is started again."""
    return exit_name(code) in _CRASHES
