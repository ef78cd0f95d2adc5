"""`table` and `figure` of `python -m tools.experiments`. Knows which experiment has which of them; computes nothing."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edge.core.errors import UsageError
from edge.core.formatting import counted
from tools.experiments import dynamics
from tools.experiments.cells import ChosenRewards, Grid, expand, shared
from tools.experiments.chosen import CHOSEN_FILE, read_chosen
from tools.experiments.contestants import TABLES
from tools.experiments.dialled import dial_table
from tools.experiments.figures import FIGURES, draw_figures
from tools.experiments.findings import Findings
from tools.experiments.own_ability import over_steps_table
from tools.experiments.paper_tables import paper_tables
from tools.experiments.places import require_folder, require_writable, told_with
from tools.experiments.priced import price_table
from tools.experiments.published import DATA, read_published
from tools.experiments.result import RESULTS, strays
from tools.experiments.spec import Spec, load_spec, spec_names
from tools.experiments.tables import Table

_STRAYS_NAMED = 5


def add_table(commands: Any) -> None:
    """`table SPEC...`"""
    table = commands.add_parser("table", help="tables of experiments from their results; what is missing is shown as missing")
    table.add_argument("specs", nargs="*", metavar="SPEC", help="names or files (none: every specification)")
    table.add_argument("--results", type=Path, default=RESULTS, help="folder of finished results")
    table.add_argument("--chosen", type=Path, default=CHOSEN_FILE, help="file of the chosen assistance rewards")
    table.add_argument("--data", type=Path, default=DATA, help="folder of the paper's published numbers (absent: no reference)")
    table.set_defaults(play=play_table)


def add_figure(commands: Any) -> None:
    """`figure SPEC...`"""
    figure = commands.add_parser("figure", help="figures of experiments from their results")
    figure.add_argument("specs", nargs="*", metavar="SPEC", help="names or files (none: every specification)")
    figure.add_argument("--results", type=Path, default=RESULTS, help="folder of finished results")
    figure.add_argument("--chosen", type=Path, default=CHOSEN_FILE, help="file of the chosen assistance rewards")
    figure.add_argument("--out", type=Path, default=FIGURES, help="folder of the pictures")
    figure.add_argument("--format", choices=("png", "svg"), default="png", help="form of the pictures")
    figure.set_defaults(play=play_figure)


def play_table(arguments: argparse.Namespace) -> int:
    """Print the tables."""
    require_folder(arguments.results, "--results")
    specs = _specs(arguments.specs, of="table")
    every = {spec.name: spec for spec in [*map(load_spec, spec_names()), *specs]}
    tell_strays([expand(spec, read_chosen(arguments.chosen)) for spec in every.values()], arguments.results)
    for spec in specs:
        findings = Findings.of(spec, read_chosen(arguments.chosen), arguments.results)
        print(f"# {spec.name}: {spec.about}\n")
        print("\n\n".join(table.to_markdown() for table in tables_of(findings, arguments.data, read_chosen(arguments.chosen))))
        print(f"\n{missing_line(findings)}\n", flush=True)
    return 0


def play_figure(arguments: argparse.Namespace) -> int:
    """Draw the figures and print their paths."""
    require_folder(arguments.results, "--results")
    specs = _specs(arguments.specs, of="figure")
    require_writable(arguments.out, "--out")
    for spec in specs:
        findings = Findings.of(spec, read_chosen(arguments.chosen), arguments.results)
        with told_with("--out", arguments.out):
            drawn = draw_figures(findings, arguments.out, arguments.format)
        for path in drawn:
            print(path, flush=True)
        if not drawn:
            print(f"{spec.name}: nothing to draw yet; run {spec.name} first", flush=True)
    return 0


def tables_of(findings: Findings, data: Path, chosen: ChosenRewards) -> list[Table]:
    """The tables of an experiment's kind. Raises EdgeError."""
    match findings.spec.table:
        case "paper":
            return paper_tables(findings, {name: read_published(data, name) for name in TABLES})
        case "assist-rewards":
            return dynamics.assist_table(findings, chosen)
        case "lambda":
            return dynamics.lambda_table(findings)
        case "schedules":
            return dynamics.schedule_table(findings)
        case "sensitivity":
            return dynamics.sensitivity_table(findings)
        case "rates":
            return [*dynamics.rates_table(findings), *dial_table(findings)]
        case "over-steps":
            return [over_steps_table(findings)]
        case "prices":
            return price_table(findings)
        case _:
            return dynamics.methods_table(findings)


def missing_line(findings: Findings) -> str:
    """How much of an experiment is there."""
    cells, missing = len(findings.grid.cells), findings.missing()
    waits = f"; {counted(len(findings.grid.waits_for), 'assistance reward')} not chosen yet" if findings.grid.waits_for else ""
    return f"{cells - missing} of {counted(cells, 'cell')} measured{waits}."


def tell_strays(grids: Sequence[Grid], folder: Path) -> None:
    """Name the files that belong to no cell in one line on stderr; not while cells without a name wait, whose they may be."""
    found = [] if any(grid.waits_for for grid in grids) else strays(shared(grids), folder)
    if found:
        told = _some(found)
        print(f"{counted(len(found), 'file')} in {folder} of no cell of any experiment: {told}", file=sys.stderr, flush=True)


def _some(names: Sequence[str]) -> str:
    more = len(names) - _STRAYS_NAMED
    return ", ".join(names[:_STRAYS_NAMED]) + (f" and {more} more" if more > 0 else "")


def _specs(names: Sequence[str], of: str) -> list[Spec]:
    specs = [load_spec(name) for name in names or spec_names()]
    found = [spec for spec in specs if getattr(spec, of)]
    if not found:
        raise UsageError(f"{', '.join(names)}: no {of} is named there", hint=f"add the key {of} to the specification")
    return found
