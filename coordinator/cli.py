"""The `edge-coordinator` command. Importing it loads nothing; `main` decides what to load and turns every failure into one line.

Exit codes: 0 done, 1 failed (also a ledger that does not verify), 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence

from edge.core.interrupts import INTERRUPTED, end_quietly, is_interrupt

TYPE_CHECKING = False
if TYPE_CHECKING:  # an import of typing takes long enough to be interrupted
    from typing import Any

_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    if argv is None:
        end_quietly()  # before anything takes time
    from edge.core.errors import EdgeError
    from edge.core.log import quiet_transport

    quiet_transport()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _invoke(arguments)
        sys.stdout.flush()
        return code
    except EdgeError as error:
        return _fail(error.with_hint, error.exit_code)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return 0
    except Exception as error:
        if isinstance(error, OSError) and error.filename is None and error.errno in _UNWRITABLE:
            _drop_output()
            return _fail(f"the output cannot be written: {error.strerror}; make room, or write it elsewhere", 1)
        if _is_usage_error(error):
            return _usage(error)
        if is_interrupt(error):
            return INTERRUPTED
        if os.environ.get("EDGE_COORDINATOR_DEBUG") == "1":
            raise
        return _fail(f"unexpected {type(error).__name__}: {error}; set EDGE_COORDINATOR_DEBUG=1 to see the traceback", 1)


def _drop_output() -> None:
    """What cannot be written any more is not tried again when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _invoke(arguments: list[str]) -> int:
    from coordinator.commands.main import app

    result = app(args=arguments, prog_name="edge-coordinator", standalone_mode=False)
    return result if isinstance(result, int) else 0


def _is_usage_error(error: Exception) -> bool:
    """Whether the command-line parser raised it."""
    return hasattr(error, "format_message") and hasattr(error, "exit_code")


def _usage(error: Any) -> int:
    message = error.format_message().strip()
    if not message or "\n" in message:  # the parser's answer to a bare command is its whole help page
        print(message or "see --help", file=sys.stderr)
        return 2
    context = getattr(error, "ctx", None)
    return _fail(f"{message.rstrip('.')}; see {context.command_path if context else 'edge-coordinator'} --help", 2)


def _fail(message: str, exit_code: int) -> int:
    from coordinator.redact import redacted

    print(f"error: {redacted(' '.join(message.split()))}", file=sys.stderr)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
