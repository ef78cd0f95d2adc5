"""`python -m tools.simulate run | explore | compare | sweep | validate`. Knows the command line only."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from edge.core.errors import EdgeError
from tools.simulate.faults.explore import Tally, explore
from tools.simulate.fleet.run import add_run
from tools.simulate.reports.compare import add_compare
from tools.simulate.sweeps.command import add_sweep
from tools.simulate.validation.command import add_validate

_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; what it refuses is one line and 2, what fails one line and 1, Ctrl-C 130."""
    chosen = _parser().parse_args(arguments)
    try:
        code: int = chosen.play(chosen)
        return code
    except EdgeError as error:
        print(f"{error}; {error.hint}" if error.hint else str(error), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.simulate", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    add_run(commands)
    add_compare(commands)
    add_sweep(commands)
    _add_explore(commands)
    add_validate(commands)
    return parser


def _add_explore(commands: Any) -> None:
    command = commands.add_parser("explore", help="fault scenarios of the coordinator in virtual time, one for each seed")
    command.add_argument("--seeds", type=int, default=1000, help="how many")
    command.add_argument("--start", type=int, default=0, help="the first one")
    command.add_argument("--story", type=int, default=60, help="lines of the story of a violation", metavar="LINES")
    command.add_argument("--brief", action="store_true", help="without the counts of each invariant, fault and feature")
    command.set_defaults(play=_explore)


def _explore(chosen: argparse.Namespace) -> int:
    """Play seeds until one violates an invariant; 0 when nothing was found, 1 at the first violation."""
    tally = explore(range(chosen.start, chosen.start + chosen.seeds), _progress)
    print(f"\r{tally.line()}")
    if not chosen.brief:
        print("\n".join(tally.table()))
    if tally.violating is not None:
        print(tally.violating.story(chosen.story))
        print(f"again: python -m tools.simulate explore --start {tally.violating.seed} --seeds 1")
        return 1
    return 0


def _progress(tally: Tally) -> None:
    if tally.seeds % 50 == 0 and sys.stderr.isatty():
        print(f"\r{tally.seeds} seeds", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
