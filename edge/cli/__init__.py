"""The `edge-agent` command. Importing it loads nothing; `main` decides what to load."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted.

    With no `argv` it is the process's own, which may be started again with a tuned allocator.
    """
    if argv is None:
        from edge.core.interrupts import end_quietly

        end_quietly()  # before anything takes time
    from edge.cli.exits import ending
    from edge.core.log import quiet_transport

    quiet_transport()

    def invoke() -> int:
        from edge.cli.allocator import restart_with_tuned_allocator
        from edge.cli.app import app

        if argv is None:
            restart_with_tuned_allocator()
        result = app(args=list(sys.argv[1:] if argv is None else argv), prog_name="edge-agent", standalone_mode=False)
        return result if isinstance(result, int) else 0

    return ending(invoke)
