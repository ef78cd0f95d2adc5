"""`python -m tools.simulate run | sweep | explore | validate`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from edge.cli.exits import ending
from edge.core.errors import ConfigError, UsageError

_COMMANDS = {
    "run": "tools.simulate.fleet.run",
    "sweep": "tools.simulate.sweeps.command",
    "explore": "tools.simulate.faults.explore",
    "validate": "tools.simulate.validate",
}
"""The module of each command; the chosen one's alone is imported."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code, as `edge-agent` ends; a file that cannot be read is wrong use here."""
    parser = argparse.ArgumentParser(prog="python -m tools.simulate", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    words = sys.argv[1:] if arguments is None else arguments
    for name in words[:1] if words and words[0] in _COMMANDS else _COMMANDS:
        import_module(_COMMANDS[name]).add_command(commands)
    chosen = parser.parse_args(words)

    def play() -> int:
        try:
            return int(chosen.play(chosen))
        except ConfigError as error:
            raise UsageError(str(error), hint=error.hint) from error

    return ending(play)


if __name__ == "__main__":
    sys.exit(main())
