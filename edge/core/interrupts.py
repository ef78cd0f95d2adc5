"""Ctrl-C at moments that no command can catch: while its modules are imported, in a callback, while the interpreter ends.

It imports next to nothing, since it is the first that a command loads. What comes before it, Python's own start, is not in our hands.
"""

from __future__ import annotations

import os
import sys
from types import TracebackType

INTERRUPTED = 130


def end_quietly() -> None:
    """From now on an interrupt that nobody catches ends the process with 130 and without a traceback."""
    sys.excepthook = _uncaught
    sys.unraisablehook = _dropped


def is_interrupt(error: BaseException) -> bool:
    """Also where it was raised again as something else, as Python 3.11 does of what comes while a class is made."""
    return isinstance(error, KeyboardInterrupt) or isinstance(error.__cause__, KeyboardInterrupt)


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if is_interrupt(error):
        raise SystemExit(INTERRUPTED)
    sys.__excepthook__(kind, error, trace)


def _dropped(unraisable: sys.UnraisableHookArgs) -> None:
    """Python shows and forgets what callbacks raise, as that of a module's import lock: the interrupt would be lost."""
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        os._exit(INTERRUPTED)
    sys.__unraisablehook__(unraisable)
