"""`python -m tools.simulate run SCENARIO.yaml`: play a scenario, judge it by its own assertions, write what was found."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, ProgressColumn, Task
from rich.table import Table
from rich.text import Text

from edge.core.errors import EdgeError
from tools.places import check_files, put
from tools.simulate.fleet.scenario import HOUR_S, FleetScenario, load_scenario, scenario_of
from tools.simulate.fleet.world import FleetWorld
from tools.simulate.reports.assertions import evaluate, holds
from tools.simulate.reports.page import write_report
from tools.simulate.reports.quantities import several
from tools.simulate.reports.result import SimulationResult
from tools.simulate.reports.tables import group_columns
from tools.simulate.virtual.disk import scratch_folder
from tools.simulate.virtual.loop import Deadlock
from tools.svg import require_matplotlib

_VIOLATIONS_SHOWN = 10


class Stuck(EdgeError):
    """The world came to no end; the message says who waits for what."""


def add_command(commands: Any) -> None:
    """The subcommand, for argparse's subparsers."""
    command = commands.add_parser("run", help="play a scenario with the real agent and the real coordinator in virtual time")
    command.add_argument("scenario", type=Path, metavar="SCENARIO.yaml", help="see tools/simulate/README.md")
    command.add_argument("--seed", type=int, help="instead of the scenario's")
    command.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="sets", help="a value that wins over the file's"
    )
    command.add_argument("--json", type=Path, metavar="FILE", help="write the result; the same seed gives the same bytes")
    command.add_argument("--html", type=Path, metavar="FILE", help="write the report with its plots")
    command.set_defaults(play=run)


def run(chosen: argparse.Namespace) -> int:
    """Play, report and write; 0 when all that the scenario states holds, else 1. Raises EdgeError for what cannot be played."""
    seed = [] if chosen.seed is None else [f"seed={chosen.seed}"]
    scenario = load_scenario(chosen.scenario, [*chosen.sets, *seed])
    if chosen.html is not None:
        require_matplotlib()
    check_files(chosen.json, chosen.html, read=[chosen.scenario])
    began = time.perf_counter()  # noqa: TID251 - how long a person waits
    result, violations, events = play(scenario, chosen.scenario.stem, sys.stderr.isatty())
    result = judged(result, scenario)
    _report(result, violations)
    waited = time.perf_counter() - began  # noqa: TID251
    print(f"{scenario.lasts_h:g} h of {several(scenario.devices, 'device')} in {waited:.1f} s, {events} events", file=sys.stderr)
    if chosen.json is not None:
        put(result.to_json(), chosen.json)
    if chosen.html is not None:
        write_report(result, chosen.html)
    return 0 if holds(result) else 1


def run_scenario(scenario: Mapping[str, Any], seed: int) -> SimulationResult:
    """What a sweep plays: a scenario as it is written, with this seed. Raises ConfigError for one that does not keep to the schema."""
    checked = scenario_of({**scenario, "seed": seed})
    return judged(play(checked, "sweep", show_progress=False)[0], checked)


def play(scenario: FleetScenario, name: str, show_progress: bool) -> tuple[SimulationResult, list[str], int]:
    """The result, what the ledger and the devices disagree on, and how many events there were. `show_progress`: draw a progress line.

    Raises Stuck for a world that comes to no end, UsageError for an unknown device or link.
    """
    with scratch_folder() as folder:
        world = FleetWorld(scenario, name, Path(folder))
        with _progress(world, show_progress):
            try:
                result = world.run()
            except Deadlock as error:
                raise Stuck(f"the simulated world is stuck: {error}") from error
        return result, world.found, world.loop.steps


def judged(result: SimulationResult, scenario: FleetScenario) -> SimulationResult:
    """With what the scenario asserts."""
    return msgspec.structs.replace(result, assertions=evaluate(result, scenario.assertions))


def _report(result: SimulationResult, violations: Sequence[str]) -> None:
    console = Console()
    heads, rows = group_columns(result)
    table = Table("", *heads)
    for words, cells in rows:
        table.add_row(words, *cells)
    console.print(table)
    for each in result.assertions:
        mark = "[green]holds[/green]" if each.holds else "[red]fails[/red]"
        console.print(f"{mark}  {escape(each.sentence)}: {escape(each.found)}", soft_wrap=True)
    for line in violations[:_VIOLATIONS_SHOWN]:
        console.print(f"[red]violation[/red]  {escape(line)}", soft_wrap=True)
    if len(violations) > _VIOLATIONS_SHOWN:
        console.print(f"... and {len(violations) - _VIOLATIONS_SHOWN} more")


def _progress(world: FleetWorld, show_progress: bool) -> Progress:
    """A line that says how far the world is, drawn by a thread that only reads."""

    class HowFar(ProgressColumn):
        def render(self, task: Task) -> Text:
            hours = world.loop.time() / HOUR_S
            return Text(f"{hours:6.2f} of {world.scenario.lasts_h:g} h, {world.loop.steps} events")

    progress = Progress(HowFar(), console=Console(stderr=True), transient=True, refresh_per_second=1, disable=not show_progress)
    progress.add_task("")
    return progress
