"""`python -m tools.simulate sweep scenario.yaml --vary KEY=A,B`: many runs, and what differs."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import yaml
from pydantic import ValidationError
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from edge.core.errors import EdgeError, UsageError
from edge.core.files import open_regular
from tools.simulate.fleet.files import from_folder
from tools.simulate.fleet.scenario import HARDWARE, Scenario, load_scenario
from tools.simulate.reports.assertions import holds
from tools.simulate.reports.drawing import require_matplotlib
from tools.simulate.reports.page import write_page
from tools.simulate.reports.places import check_folder, put
from tools.simulate.sweeps.engines import ENGINES, Failed, Finished, kept, opened, play_all
from tools.simulate.sweeps.plan import Job, Variation, ingredients_of, jobs_of
from tools.simulate.sweeps.summary import Row, charts_of, rows_of, short_table_of, table_of

RUN = "tools.simulate.fleet.run:run_scenario"
Check = Callable[[Mapping[str, Any]], str]


def add_sweep(commands: Any) -> None:
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
        "--seeds", type=_positive, default=1, help="runs of each combination, with seeds from the scenario's own on (1)"
    )
    command.add_argument(
        "--jobs", type=_positive, help="runs at once (as many as there are processors; with ray: as the cluster has room)"
    )
    command.add_argument("--engine", choices=ENGINES, default="processes", help="processes of this machine, or Ray")
    command.add_argument(
        "--out", type=Path, required=True, metavar="FOLDER", help="where results are kept, with sweep.html and sweep.json"
    )
    command.set_defaults(play=sweep)


def sweep(chosen: argparse.Namespace, *, run: str = RUN, check: Check | None = None) -> int:
    """Play all combinations, tell and write what they found; 0 where every run gave a result and does what the scenario states, else 1.

    `check` refuses a scenario that cannot be played, and tells what its result depends on besides.
    """
    require_matplotlib()
    scenario = read_scenario(chosen.scenario)
    variations = [Variation.of(text) for text in chosen.vary]
    if not variations and chosen.seeds == 1:
        raise UsageError("nothing is varied", hint="--vary groups.laptops.questions_per_day=10,30,60, or --seeds 3")
    check_folder(chosen.out)
    look = check or partial(check_scenario, path=chosen.scenario)
    jobs = [replace(job, ingredients=look(job.scenario)) for job in jobs_of(scenario, variations, chosen.seeds)]
    _make(chosen.out)
    ends = _played(jobs, chosen, run)
    _tell(ends, variations, chosen.out, chosen.scenario.stem)
    return 0 if all(isinstance(end, Finished) and holds(end.result) for end in ends) else 1


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror or error}", hint="choose another place") from None


def read_scenario(path: Path) -> dict[str, Any]:
    """The scenario as it is written, with paths that begin where the file is. Raises UsageError in one line."""
    try:
        with open_regular(path) as file:
            read = yaml.safe_load(file)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}", hint="give a scenario's YAML") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(read, dict):
        raise UsageError(f"{path} is no scenario", hint="see tools/simulate/README.md")
    return _at_home(read, path.parent)


def _at_home(scenario: dict[str, Any], folder: Path) -> dict[str, Any]:
    groups = scenario.get("groups")
    for group in groups if isinstance(groups, list) else []:
        for key, known in HARDWARE.items():
            if isinstance(group, dict) and isinstance(group.get(key), str):
                group[key] = from_folder(group[key], folder, known)
    return scenario


def check_scenario(scenario: Mapping[str, Any], path: Path | None = None) -> str:
    """What a scenario's result depends on besides. Raises UsageError, ConfigError in one line for one that does not keep to the schema;
    with file and line where that is so of the file at `path` already."""
    try:
        Scenario.model_validate(scenario)
    except ValidationError as error:
        if path is not None:
            load_scenario(path)
        first = error.errors(include_url=False)[0]
        raise UsageError(
            f"{'.'.join(map(str, first['loc'])) or 'scenario'}: {first['msg']}", hint="see --vary and the scenario"
        ) from None
    return ingredients_of(scenario)


def _played(jobs: Sequence[Job], chosen: argparse.Namespace, run: str) -> list[Finished | Failed]:
    console = Console(stderr=True)
    done = sum(kept(chosen.out, job) is not None for job in jobs)
    if done:
        console.print(f"{done} of {len(jobs)} runs are in {escape(str(chosen.out))} already", soft_wrap=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("runs", total=len(jobs))
        count = 0

        def ended(end: Finished | Failed) -> None:
            nonlocal count
            count += 1
            progress.advance(bar)
            said = f"failed: {end.why}" if isinstance(end, Failed) else "done"
            progress.console.print(escape(f"{count}/{len(jobs)} {end.job.label}: {said}"), soft_wrap=True, highlight=False)

        try:
            return asyncio.run(_play(jobs, chosen, run, ended))
        except KeyboardInterrupt:
            console.print("stopped; finished runs are kept: the same command goes on", soft_wrap=True)
            raise


async def _play(
    jobs: Sequence[Job], chosen: argparse.Namespace, run: str, ended: Callable[[Finished | Failed], None]
) -> list[Finished | Failed]:
    async with opened(chosen.engine, run) as engine:
        return await play_all(jobs, chosen.out, engine, chosen.jobs or engine.at_once, ended)


def _tell(ends: Sequence[Finished | Failed], variations: Sequence[Variation], folder: Path, name: str) -> None:
    runs, console = [end for end in ends if isinstance(end, Finished)], Console()
    if not runs:
        raise EdgeError(f"no run gave a result; the first: {next(end.why for end in ends if isinstance(end, Failed))}")
    rows = rows_of(runs)
    console.print(_table(*short_table_of(rows, variations)))
    heads, cells = table_of(rows, variations)
    failed = [(end.job.label, end.why) for end in ends if isinstance(end, Failed)]
    _write_json(folder / "sweep.json", runs, rows)
    write_page(
        folder / "sweep.html", "sweep.html", charts=lambda: charts_of(rows, variations), name=name, about=runs[0].result.about,
        variations=variations, heads=heads, rows=cells, failed=failed, runs=len(runs),
    )  # fmt: skip
    console.print(escape(f"page: {folder / 'sweep.html'}"), soft_wrap=True)


def _table(heads: Sequence[str], cells: Sequence[Sequence[str]]) -> Table:
    """Heads are broken where there is no room; cells are not."""
    table = Table(title="means over the seeds", box=box.SIMPLE, padding=(0, 1))
    for place, head in enumerate(heads):
        table.add_column(escape(head), justify="right", overflow="fold", min_width=max(len(row[place]) for row in cells))
    for row in cells:
        table.add_row(*map(escape, row))
    return table


def _write_json(path: Path, runs: Sequence[Finished], rows: Sequence[Row]) -> None:
    """Figures of each combination by seed, and which file holds which run."""
    found = {
        "runs": [
            {"settings": dict(run.job.settings), "seed": run.job.seed, "file": run.job.file_name,
             "holds": holds(run.result)}
            for run in runs
        ],
        "rows": [{"values": list(row.values), "seeds": list(row.seeds), "figures": row.figures} for row in rows],
    }  # fmt: skip
    text = msgspec.json.format(json.dumps(found, default=str, sort_keys=True, ensure_ascii=False), indent=1)
    put(f"{text}\n".encode(), path)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number
