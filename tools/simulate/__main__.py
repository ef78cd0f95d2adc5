"""`python -m tools.simulate run | explore | compare | sweep | validate | validate-fleet`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from edge.cli.exits import ending
from edge.core.errors import ConfigError, UsageError
from tools.simulate.faults.explore import add_explore
from tools.simulate.fleet.run import add_run
from tools.simulate.reports.compare import add_compare
from tools.simulate.sweeps.command import add_sweep
from tools.simulate.validation.command import add_validate
from tools.simulate.vectorised.validate import add_validate as add_validate_fleet


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code, as `edge-agent` ends; a file that cannot be read is wrong use here."""
    parser = argparse.ArgumentParser(prog="python -m tools.simulate", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for add in (add_run, add_compare, add_sweep, add_explore, add_validate_fleet, add_validate):
        add(commands)
    chosen = parser.parse_args(arguments)

    def play() -> int:
        try:
            return int(chosen.play(chosen))
        except ConfigError as error:
            raise UsageError(str(error), hint=error.hint) from error

    return ending(play)


if __name__ == "__main__":
    sys.exit(main())
