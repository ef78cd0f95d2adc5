"""`python -m tools.experiments run | table | figure | report | dial`. Knows the command line only."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from edge.cli.exits import ending
from tools.experiments import dial
from tools.experiments.command import add_cell, add_run
from tools.experiments.report import add_report
from tools.experiments.show import add_figure, add_table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 1 when what it measures does not hold or something failed, 2 for wrong usage, with one line that says why.

    `run` also ends with 75 where something is left to others or waits, and with 130 where it was stopped.
    """
    chosen = _parser().parse_args(arguments)
    return ending(lambda: int(chosen.play(chosen)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.experiments", description=__doc__)
    experiments = parser.add_subparsers(dest="experiment", required=True)
    rates = experiments.add_parser(
        "dial", help="does the budget dial hold its rate on a frozen model, and what is each rate worth?"
    )
    rates.add_argument("--out", type=Path, default=Path("runs/dial"), help="folder for dial.json and dial.png")
    rates.add_argument(
        "--rate", type=float, action="append", help=f"may be repeated (default: {', '.join(map(str, dial.RATES))})"
    )
    rates.add_argument("--questions", type=int, default=200)
    rates.add_argument("--seed", type=int, default=0)
    rates.add_argument(
        "--trained",
        type=Path,
        metavar="STATE",
        help="a state folder of which a copy is measured, with the adapter that serves there",
    )
    rates.add_argument("--set", action="append", default=[], metavar="K=V", help="a setting of the agent; may be repeated")
    rates.set_defaults(play=run_dial)
    add_run(experiments)
    add_cell(experiments)
    add_table(experiments)
    add_figure(experiments)
    add_report(experiments)
    return parser


def run_dial(arguments: argparse.Namespace) -> int:
    """The dial on a real model, in a state folder that is thrown away."""
    chosen = tuple(arguments.rate or dial.RATES)
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state"
        if arguments.trained is not None:
            shutil.copytree(arguments.trained, state, ignore=shutil.ignore_patterns("*.sock"))
        runs = asyncio.run(dial.measure(state, chosen, arguments.questions, arguments.seed, arguments.set, _tell))
    dial.write(arguments.out, runs, {"questions": arguments.questions, "seed": arguments.seed, "settings": arguments.set})
    _tell(f"wrote {arguments.out / 'dial.json'} and {arguments.out / 'dial.png'}")
    return 0 if all(run.held for run in runs) else 1


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
