"""`python -m tools.simulate compare A.json B.json`: two runs side by side."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tools.places import read_json
from tools.simulate.reports.result import FORMAT, SimulationResult
from tools.simulate.reports.tables import differences


def add_command(commands: Any) -> None:
    """The subcommand, for argparse's subparsers."""
    command = commands.add_parser("compare", help="the figures of two runs side by side")
    command.add_argument("first", type=Path, metavar="A.json", help="what a run wrote")
    command.add_argument("second", type=Path, metavar="B.json", help="what another one wrote")
    command.set_defaults(play=compare)


def compare(chosen: argparse.Namespace) -> int:
    """Print the figures side by side; 0. Raises UsageError for files that cannot be compared."""
    first, second = read_result(chosen.first), read_result(chosen.second)
    Console().print(_table(first, second, f"A {chosen.first.name}", f"B {chosen.second.name}"))
    return 0


def read_result(path: Path) -> SimulationResult:
    """A run's JSON. Raises UsageError, in one line, where there is none or it is of another format."""
    return read_json(path, SimulationResult, FORMAT, hint="python -m tools.simulate run writes such files with --json")


def _table(first: SimulationResult, second: SimulationResult, name_a: str, name_b: str) -> Table:
    title = f"{first.scenario} (seed {first.seed}) and {second.scenario} (seed {second.seed})"
    table = Table(title=escape(title), box=box.SIMPLE, pad_edge=False, collapse_padding=True)
    table.add_column("", no_wrap=True)
    for name in (name_a, name_b, "B less A"):
        table.add_column(escape(name), justify="right", no_wrap=name == "B less A")
    for row in differences(first, second):
        table.add_row(*map(escape, (row.name, row.first, row.second, row.difference)))
    return table
