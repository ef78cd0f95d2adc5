"""`python -m tools.simulate run | explore | compare | sweep | validate | validate-fleet`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from edge.core.errors import ConfigError, EdgeError, UsageError
from tools.simulate.faults.command import add_explore
from tools.simulate.fleet.run import add_run
from tools.simulate.reports.compare import add_compare
from tools.simulate.sweeps.command import add_sweep
from tools.simulate.validation.command import add_validate
from tools.simulate.vectorised.validate import add_validate as add_validate_fleet

_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; what it refuses, or cannot read, is one line and 2, what fails one line and 1, Ctrl-C 130."""
    chosen = _parser().parse_args(arguments)
    try:
        code: int = chosen.play(chosen)
        return code
    except EdgeError as error:
        print(f"{error}; {error.hint}" if error.hint else str(error), file=sys.stderr)
        return UsageError.exit_code if isinstance(error, ConfigError) else error.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.simulate", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    add_run(commands)
    add_compare(commands)
    add_sweep(commands)
    add_explore(commands)
    add_validate_fleet(commands)
    add_validate(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
