"""`python -m tools.simulate sweep scenario.yaml --vary KEY=A,B`: many runs, and what differs."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from edge.core.errors import EdgeError, UsageError
from tools.arguments import positive
from tools.places import check_folder, put_json
from tools.simulate.fleet.scenario import load_scenario, scenario_of
from tools.simulate.reports.assertions import holds
from tools.simulate.sweeps.engines import ENGINES, Failed, Finished, kept, opened, play_all
from tools.simulate.sweeps.plan import SweepRun, Variation, ingredients_of, runs_of
from tools.simulate.sweeps.summary import Combination, rows_of, table_of

PLAYER = "tools.simulate.fleet.run:run_scenario"


def add_command(commands: Any) -> None:
    """The subcommand, for argparse's subparsers."""
    command = commands.add_parser(
        "sweep", help="a scenario with varied values and several seeds, run by run; goes on where it was stopped"
    )
    command.add_argument("scenario", type=Path, help="the scenario's YAML")
    command.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="KEY=A,B",
        help="groups.laptops.questions_per_day=10,30 (* for all groups); may be repeated, and left out with --seeds",
    )
    command.add_argument(
        "--seeds", type=positive, default=1, help="runs of each combination, with seeds from the scenario's own on (1)"
    )
    command.add_argument(
        "--jobs", type=positive, help="runs at once (as many as there are processors; with ray: as the cluster has room)"
    )
    command.add_argument("--engine", choices=ENGINES, default="processes", help="processes of this machine, or Ray")
    command.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where results are kept, with sweep.json")
    command.set_defaults(play=sweep)


def sweep(chosen: argparse.Namespace, *, player: str = PLAYER) -> int:
    """Play all combinations, report and write what they found; 0 where every run gave a result and does what the scenario states, else 1.

    Raises UsageError, ConfigError for what cannot be played, before anything is.
    """
    scenario = load_scenario(chosen.scenario).model_dump(mode="json", exclude_unset=True)
    variations = [Variation.of(text) for text in chosen.vary]
    if not variations and chosen.seeds == 1:
        raise UsageError("nothing is varied", hint="--vary groups.laptops.questions_per_day=10,30,60, or --seeds 3")
    check_folder(chosen.out, "--out")
    runs = [
        replace(run, ingredients=ingredients_of(scenario_of(run.scenario))) for run in runs_of(scenario, variations, chosen.seeds)
    ]
    ends = _played(runs, chosen, player)
    _report(ends, variations, chosen.out)
    return 0 if all(isinstance(end, Finished) and holds(end.result) for end in ends) else 1


def _played(runs: Sequence[SweepRun], chosen: argparse.Namespace, player: str) -> list[Finished | Failed]:
    console = Console(stderr=True)
    done = sum(kept(chosen.out, run) is not None for run in runs)
    if done:
        console.print(f"{done} of {len(runs)} runs are in {escape(str(chosen.out))} already", soft_wrap=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("runs", total=len(runs))
        count = 0

        def ended(end: Finished | Failed) -> None:
            nonlocal count
            count += 1
            progress.advance(bar)
            said = f"failed: {end.why}" if isinstance(end, Failed) else "done"
            progress.console.print(escape(f"{count}/{len(runs)} {end.run.label}: {said}"), soft_wrap=True, highlight=False)

        try:
            return asyncio.run(_play(runs, chosen, player, ended))
        except KeyboardInterrupt:
            console.print("stopped; finished runs are kept: the same command goes on", soft_wrap=True)
            raise


async def _play(
    runs: Sequence[SweepRun], chosen: argparse.Namespace, player: str, ended: Callable[[Finished | Failed], None]
) -> list[Finished | Failed]:
    async with opened(chosen.engine, player) as engine:
        return await play_all(runs, chosen.out, engine, chosen.jobs or engine.at_once, ended)


def _report(ends: Sequence[Finished | Failed], variations: Sequence[Variation], folder: Path) -> None:
    finished, console = [end for end in ends if isinstance(end, Finished)], Console()
    if not finished:
        raise EdgeError(f"no run gave a result; the first: {next(end.why for end in ends if isinstance(end, Failed))}")
    rows = rows_of(finished)
    console.print(_table(*table_of(rows, variations)))
    _write_json(folder / "sweep.json", finished, rows)
    console.print(escape(f"every figure by seed: {folder / 'sweep.json'}"), soft_wrap=True)


def _table(heads: Sequence[str], cells: Sequence[Sequence[str]]) -> Table:
    """Heads are broken where there is no room; cells are not."""
    table = Table(title="means over the seeds", box=box.SIMPLE, padding=(0, 1))
    for place, head in enumerate(heads):
        table.add_column(escape(head), justify="right", overflow="fold", min_width=max(len(row[place]) for row in cells))
    for row in cells:
        table.add_row(*map(escape, row))
    return table


def _write_json(path: Path, finished: Sequence[Finished], rows: Sequence[Combination]) -> None:
    """Figures of each combination by seed, and which file holds which run."""
    found = {
        "runs": [
            {"settings": dict(end.run.settings), "seed": end.run.seed, "file": end.run.file_name,
             "holds": holds(end.result)}
            for end in finished
        ],
        "rows": [{"values": list(row.values), "seeds": list(row.seeds), "figures": row.figures} for row in rows],
    }  # fmt: skip
    put_json(found, path)
