"""`python -m tools.simulate explore --seeds N --start S`: play seeds until one violates an invariant. Knows the command line only."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tools.simulate.faults.explore import Tally, explore


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 when nothing was found, 1 at the first violation."""
    parser = argparse.ArgumentParser(prog="python -m tools.simulate", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("explore", help="fault scenarios of the coordinator in virtual time, one for each seed")
    command.add_argument("--seeds", type=int, default=1000, help="how many")
    command.add_argument("--start", type=int, default=0, help="the first one")
    command.add_argument("--story", type=int, default=60, help="lines of the story of a violation", metavar="LINES")
    command.add_argument("--brief", action="store_true", help="without the counts of each invariant, fault and feature")
    chosen = parser.parse_args(arguments)
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
