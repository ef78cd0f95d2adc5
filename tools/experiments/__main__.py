"""`python -m tools.experiments questions | card | run | table | report | month | dial`: the command line."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edge.cli.exits import ending
from edge.core.errors import ModelFileError, UsageError
from edge.core.files import open_regular
from edge.core.formatting import counted
from tools.experiments import card, dial, month
from tools.experiments.cells import Cell, expand, shared
from tools.experiments.chosen import CHOSEN_FILE, read_chosen
from tools.experiments.contestants import DATA
from tools.experiments.figures import FIGURES, draw_figures
from tools.experiments.findings import ExperimentFindings
from tools.experiments.questions import QUESTIONS, write_questions
from tools.experiments.report import REPORT, RESULTS_PAGE, insertions, missing_line, tables_of, with_insertions
from tools.experiments.result import RESULTS, strays
from tools.experiments.run import require_folder, run
from tools.experiments.run_cell import run_cell
from tools.experiments.spec import Spec, load_spec, spec_names
from tools.places import check_folder, put

WORK = Path("runs") / "experiments"
_NICE = 10
_STRAYS_NAMED = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 1 when a measured claim does not hold or something failed, 2 for wrong usage, with one line of explanation.

    `run` also ends with 75 where cells are left to others or waiting, and with 130 where it was stopped.
    """
    chosen = _parser().parse_args(arguments)
    return ending(lambda: int(chosen.play(chosen)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.experiments", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, play: Any, about: str, *, specs: bool = False, chosen: bool = True) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=about)
        one.set_defaults(play=play)
        if specs:
            one.add_argument("specs", nargs="*", metavar="SPEC", help="names or files (none: every specification)")
        one.add_argument("--results", type=Path, default=RESULTS, help="folder of finished results")
        if chosen:
            one.add_argument("--chosen", type=Path, default=CHOSEN_FILE, help="file of the chosen assistance rewards")
        return one

    one = command("run", run, "run the cells of experiments; goes on where it was cut", specs=True)
    one.add_argument("--jobs", type=int, default=1, help="cells at a time, each on one thread")
    one.add_argument("--only", metavar="GLOB", help="cells whose key matches, such as 'nano-edge.*'")
    one.add_argument("--list", action="store_true", help="only show the cells, what they need, and which are done")
    one.add_argument("--work", type=Path, default=WORK, help="folder in which cells work")

    one = commands.add_parser("questions", help="write the public questions that experiments with a public model ask")
    one.set_defaults(play=play_questions)
    one.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    one.add_argument("--out", type=Path, default=QUESTIONS, help="folder of the task files (default: where specifications look)")

    one = commands.add_parser("card", help="what a model can by itself, and whether it knows when it is wrong")
    one.set_defaults(play=card.play)
    card.add_arguments(one)

    one = command("cell", play_cell, "run one cell here; for run", chosen=False)
    one.add_argument("file", type=Path, help="the cell's cell.json")

    one = command(
        "table", play_table, "tables of experiments from their results; what is missing is shown as missing", specs=True
    )
    one.add_argument("--data", type=Path, default=DATA, help="folder of the paper's published numbers (absent: no reference)")

    one = command("report", play_report, "make the tables and figures of REPORT.md and docs/results.md anew from the results")
    one.add_argument("files", nargs="*", type=Path, metavar="FILE", help="other texts with marks, each filled where it lies")
    one.add_argument("--data", type=Path, default=DATA, help="folder of the paper's published numbers (absent: no reference)")
    one.add_argument("--figures", type=Path, help="folder in which figures are drawn (default: figures, next to the first file)")

    one = commands.add_parser("month", help="a month's budget, spent by several rules on the answers of a cell")
    one.set_defaults(play=month.play)
    one.add_argument("result", type=Path, help="the cell's file in results")

    one = commands.add_parser("dial", help="does the budget dial hold its rate on a frozen model, and what is each rate worth?")
    one.set_defaults(play=play_dial)
    rates = ", ".join(map(str, dial.RATES))
    one.add_argument("--rate", type=float, action="append", help=f"may be repeated (default: {rates})")
    one.add_argument("--questions", type=int, default=200)
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--set", action="append", default=[], metavar="K=V", help="a setting of the agent; may be repeated")
    return parser


def play_questions(arguments: argparse.Namespace) -> int:
    """Write them and print their paths."""
    check_folder(arguments.out, "--out")
    for path in write_questions(arguments.data, arguments.out):
        print(f"wrote {path}", flush=True)
    return 0


def play_cell(arguments: argparse.Namespace) -> int:
    """Run one cell in this process, its progress as JSON lines."""
    os.nice(_NICE)
    cell = Cell.from_json(json.loads(_read(arguments.file, "run writes such files")))
    return run_cell(cell, arguments.file.parent.parent, arguments.results, lambda line: print(json.dumps(line), flush=True))


def play_table(arguments: argparse.Namespace) -> int:
    """Print the tables."""
    require_folder(arguments.results)
    specs, chosen = _specs(arguments.specs), read_chosen(arguments.chosen)
    _report_strays([*map(load_spec, spec_names()), *specs], arguments)
    for spec in specs:
        findings = ExperimentFindings.of(spec, chosen, arguments.results)
        print(f"# {spec.name}: {spec.about}\n")
        tables = tables_of(findings, arguments.data, chosen).values()
        print("\n\n".join(table.to_markdown() for named in tables for table in named))
        print(f"\n{missing_line(findings)}\n", flush=True)
    return 0


def play_report(arguments: argparse.Namespace) -> int:
    """Fill the marks of the report and of the page of results, or of other files, and print their paths."""
    require_folder(arguments.results)
    if not arguments.files and [arguments.results.resolve(), arguments.chosen.resolve()] != [RESULTS, CHOSEN_FILE]:
        raise UsageError("the project's own pages show its own results", hint="give a FILE with marks for other ones")
    files: list[Path] = arguments.files or [REPORT, RESULTS_PAGE]
    texts = {path: _read(path, "give a text file with marks") for path in files}
    for path in files:
        check_folder(path.parent, "FILE")
    chosen, specs = read_chosen(arguments.chosen), [load_spec(name) for name in spec_names()]
    _report_strays(specs, arguments)
    every = {spec.name: ExperimentFindings.of(spec, chosen, arguments.results) for spec in specs}
    figures = arguments.figures or files[0].parent / FIGURES.name
    drawn = {name: draw_figures(findings, figures) for name, findings in every.items()}
    for path, text in texts.items():
        made = insertions(every, chosen, arguments.data, drawn, path.parent, text)
        put(with_insertions(text, made, path), path)
        print(f"wrote {path}", flush=True)
    return 0


def _read(path: Path, hint: str) -> str:
    try:
        with open_regular(path) as file:
            return file.read().decode("utf-8")
    except (ModelFileError, OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})", hint=hint) from error


def play_dial(arguments: argparse.Namespace) -> int:
    """The dial on a real model, in a state folder that is thrown away."""
    if arguments.questions < 2:
        raise UsageError(f"--questions must be at least 2, not {arguments.questions}", hint="a rate is also moved half way")
    rates = tuple(arguments.rate or dial.RATES)
    with tempfile.TemporaryDirectory() as folder:
        work = dial.measure(Path(folder) / "state", rates, arguments.questions, arguments.seed, arguments.set, print)
        runs = asyncio.run(work)
    return 0 if all(run.held for run in runs) else 1


def _specs(names: Sequence[str]) -> list[Spec]:
    """The specifications that have a table. Raises UsageError where none has."""
    found = [spec for spec in map(load_spec, names or spec_names()) if spec.table]
    if not found:
        raise UsageError(f"{', '.join(names)}: no table is named there", hint="add the key table to the specification")
    return found


def _report_strays(specs: Sequence[Spec], arguments: argparse.Namespace) -> None:
    """Name the result files that belong to no cell; not while cells without a name wait, whose they may be."""
    grids = [expand(spec, read_chosen(arguments.chosen)) for spec in {spec.name: spec for spec in specs}.values()]
    found = [] if any(grid.waits_for for grid in grids) else strays(shared(grids), arguments.results)
    if found:
        more = f" and {len(found) - _STRAYS_NAMED} more" if len(found) > _STRAYS_NAMED else ""
        _print(
            f"{counted(len(found), 'file')} in {arguments.results} of no cell of any experiment: {', '.join(found[:_STRAYS_NAMED])}{more}"
        )


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
