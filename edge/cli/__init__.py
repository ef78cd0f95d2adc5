"""The `edge-agent` command. Importing it loads nothing; `main` decides what to load."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    from edge.cli.exits import run_command

    return run_command(argv)
