"""`run` and `cell` of `python -m tools.experiments`. Knows the command line and the order of things; knows nothing of learning."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fnmatch
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge.app.engines import require_onnx
from edge.cli.exits import stop_on_signals
from edge.core.clock import SystemClock
from edge.core.errors import UsageError
from edge.core.formatting import counted, shown
from tools.experiments.cells import Cell, Grid, expand, shared
from tools.experiments.chosen import CHOSEN_FILE, read_chosen, write_chosen
from tools.experiments.compute import Pace
from tools.experiments.places import require_folder, require_writable
from tools.experiments.queue import Board, CellProcess, Ended, run_all, tell_now_and_then, told_hours
from tools.experiments.result import RESULTS, Result, read_result, result_file
from tools.experiments.run_cell import BUSY, DONE, FAILED, STOPPED, run_cell
from tools.experiments.spec import Spec, load_spec, spec_names

WORK = Path("runs") / "experiments"
_TELL_EVERY_S = 60.0
_NICE = 10


def add_run(commands: Any) -> None:
    """`run SPEC...`"""
    run = commands.add_parser("run", help="run the cells of experiments; goes on where it was cut")
    run.add_argument("specs", nargs="*", metavar="SPEC", help="names or files (none: every specification)")
    run.add_argument("--jobs", type=int, default=1, help="cells at a time, each on one thread")
    run.add_argument("--only", metavar="GLOB", help="cells whose key matches, such as 'nano-edge.*'")
    run.add_argument("--seeds", type=_seeds, help="only these seeds, as 0,1")
    run.add_argument("--max-hours", type=float, metavar="H", help="stop cleanly after so many hours")
    run.add_argument("--list", action="store_true", help="only show the cells, what they need, and which are done")
    run.add_argument("--work", type=Path, default=WORK, help="folder in which cells work")
    run.add_argument("--results", type=Path, default=RESULTS, help="folder of finished results")
    run.add_argument("--chosen", type=Path, default=CHOSEN_FILE, help="file of the chosen assistance rewards")
    run.set_defaults(play=play_run)


def add_cell(commands: Any) -> None:
    """`cell FILE`: what `run` starts for each cell."""
    cell = commands.add_parser("cell", help="run one cell here; for run")
    cell.add_argument("file", type=Path, help="the cell's cell.json")
    cell.add_argument("--results", type=Path, default=RESULTS)
    cell.set_defaults(play=play_cell)


def play_cell(arguments: argparse.Namespace) -> int:
    """Run one cell in this process, telling its progress as JSON lines."""
    os.nice(_NICE)
    cell = Cell.from_json(json.loads(arguments.file.read_text(encoding="utf-8")))
    return run_cell(cell, arguments.file.parent.parent, arguments.results, _tell)


def play_run(arguments: argparse.Namespace) -> int:
    """Run what is not done yet; 0 when all is done, 1 when a cell failed, 130 when stopped before the end, 75 when something is left."""
    _require_sense(arguments)
    plan = Plan.of(arguments)
    print("\n".join(plan.lines(arguments.jobs, every_cell=arguments.list)), flush=True)
    if arguments.list:
        return 0
    _require_room(plan, arguments)
    code = asyncio.run(_run(plan, arguments))
    _choose(plan, arguments.results, arguments.chosen)
    return code or _code_of_what_is_left(plan, arguments.results)


def _require_sense(arguments: argparse.Namespace) -> None:
    """Raises UsageError for options that mean nothing."""
    if arguments.jobs < 1:
        raise UsageError(f"--jobs must be at least 1, not {arguments.jobs}")
    if arguments.max_hours is not None and not arguments.max_hours > 0:
        raise UsageError(f"--max-hours must be more than 0, not {arguments.max_hours:g}")
    require_folder(arguments.results, "--results", made_later=True)


def _require_room(plan: Plan, arguments: argparse.Namespace) -> None:
    """Raises UsageError, EdgeError where what is run could not write its results or train its routers."""
    if plan.missing:
        require_writable(arguments.work, "--work")
        require_writable(arguments.results, "--results")
    if any(_searches(grid.spec) for grid in plan.grids):
        require_writable(arguments.chosen.parent, "--chosen")
    if routed := [cell.key for cell in plan.missing if cell.router]:
        require_onnx(f"{counted(len(routed), 'cell')} such as {routed[0]} train a router, which is an ONNX file")


def _code_of_what_is_left(plan: Plan, results: Path) -> int:
    """BUSY, and words, where others run cells or cells wait for a choice; else DONE."""
    elsewhere = [cell for cell in plan.missing if not result_file(cell, results).is_file()]
    if elsewhere:
        _say(f"not done: {counted(len(elsewhere), 'cell')} that another run is at; the same command tells whether they are done")
    if plan.waits_for:
        _say(f"not done: cells that wait for {counted(len(plan.waits_for), 'assistance reward')} to be chosen")
    return BUSY if elsewhere or plan.waits_for else DONE


@dataclass(frozen=True, slots=True)
class Plan:
    """The cells that are meant, those of them that have results, and what must be chosen before the others can be named."""

    grids: tuple[Grid, ...]
    cells: tuple[Cell, ...]
    waits_for: tuple[str, ...]
    results: dict[str, Result]
    pace: Pace

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Plan:
        """What the command line means. Raises UsageError, ConfigError."""
        chosen = read_chosen(arguments.chosen)
        grids = tuple(expand(load_spec(name, to_run=True), chosen) for name in arguments.specs or spec_names())
        _require_seeds(grids, arguments.seeds)
        meant = [cell for cell in shared(grids) if _is_meant(cell, arguments.only, arguments.seeds)]
        if not meant and (arguments.only is not None or not any(grid.waits_for for grid in grids)):
            raise UsageError(f"no cell matches {shown(str(arguments.only))}", hint="--list without --only shows their keys")
        every = {cell.key: read_result(cell, arguments.results) for cell in shared(grids)}
        results = {key: result for key, result in every.items() if result is not None}
        waits = dict.fromkeys(what for grid in grids for what in grid.waits_for)
        return cls(grids, tuple(meant), tuple(waits) if arguments.only is None else (), results, Pace.of(results.values()))

    @property
    def missing(self) -> list[Cell]:
        """The cells that have no result yet."""
        return [cell for cell in self.cells if cell.key not in self.results]

    def lines(self, jobs: int, *, every_cell: bool) -> list[str]:
        """The budget of compute before anything begins."""
        missing = self.missing
        steps, seconds = sum(cell.steps for cell in missing), sum(map(self.pace.cell_s, missing))
        cells = [self._cell_line(cell) for cell in self.cells] if every_cell else []
        searches = " ".join(spec.name for spec in _grid_searches())
        waits = [f"not yet: {what} is not chosen; run {searches} first" for what in self.waits_for]
        basis = "measured on finished cells" if self.pace.phase_s else "guessed; no cell is finished yet"
        share = "" if jobs == 1 else f", {told_hours(seconds / jobs)} with {jobs} at a time"
        done = len(self.cells) - len(missing)
        return [
            *cells,
            *waits,
            f"{counted(len(self.cells), 'cell')}, {done} done; to do: {counted(len(missing), 'cell')}, {counted(steps, 'step')}, "
            f"{told_hours(seconds)} of one core{share} ({basis})",
        ]

    def _cell_line(self, cell: Cell) -> str:
        mark = "done" if cell.key in self.results else f"{told_hours(self.pace.cell_s(cell))}"
        return f"{mark:>7}  {cell.steps:>5} steps  {cell.key}"


async def _run(plan: Plan, arguments: argparse.Namespace) -> int:
    clock, stop, missing = SystemClock(), asyncio.Event(), plan.missing
    board = Board(missing, clock.monotonic())

    def left_s() -> float:
        ended = {one.cell.key for one in board.ended}
        waiting = [cell for cell in missing if cell.key not in ended]
        shares = (1.0 - board.steps_done.get(cell.key, 0) / max(1, cell.steps) for cell in waiting)
        alone_s = sum(share * plan.pace.cell_s(cell) for share, cell in zip(shares, waiting, strict=True))
        return alone_s / float(arguments.jobs)

    def told(ended: Ended) -> None:
        if ended.code == DONE and (result := read_result(ended.cell, arguments.results)) is not None:
            plan.pace.learn(result)
        _say(_ended_line(ended))
        _say(board.line(clock.monotonic(), left_s()))

    def stopping() -> None:
        stop.set()
        _say("stopping after the steps under way; the same command goes on from here")

    telling = asyncio.create_task(tell_now_and_then(board, clock, left_s, _say, _TELL_EVERY_S))
    with stop_on_signals(stopping):
        limit_s = math.inf if arguments.max_hours is None else arguments.max_hours * 3600
        ending = asyncio.create_task(_after(limit_s, stopping))
        try:
            await run_all(missing, arguments.jobs, CellProcess(arguments.work, arguments.results), board, stop, told)
        finally:
            telling.cancel()
            ending.cancel()
    if any(ended.code not in (DONE, STOPPED, BUSY) for ended in board.ended):
        return FAILED
    return STOPPED if stop.is_set() and board.done < len(missing) else 0


async def _after(seconds: float, act: Callable[[], None]) -> None:
    if seconds < math.inf:
        await asyncio.sleep(seconds)
        act()


def _choose(plan: Plan, results: Path, file: Path) -> None:
    """When every grid search is complete, those of the project and those that were run, write what they have chosen."""
    if not any(_searches(grid.spec) for grid in plan.grids):
        return
    grids = [*(expand(spec, {}) for spec in _grid_searches()), *(grid for grid in plan.grids if _searches(grid.spec))]
    found = [read_result(cell, results) for cell in shared(grids)]
    complete = [result for result in found if result is not None]
    if len(complete) == len(found):
        write_chosen(complete, file)
        _say(f"every grid search is complete; the chosen values are in {file.name}")


def _grid_searches() -> list[Spec]:
    """The project's own."""
    return [spec for spec in map(load_spec, spec_names()) if _searches(spec)]


def _searches(spec: Spec) -> bool:
    return spec.table == "assist-rewards"


def _require_seeds(grids: Sequence[Grid], seeds: Sequence[int] | None) -> None:
    """Raises UsageError for a seed that no experiment has."""
    known = sorted({seed for grid in grids for seed in grid.spec.seeds})
    if unknown := [seed for seed in seeds or () if seed not in known]:
        raise UsageError(f"--seeds: no experiment here has the seed {unknown[0]}", hint=f"there is: {', '.join(map(str, known))}")


def _is_meant(cell: Cell, only: str | None, seeds: Sequence[int] | None) -> bool:
    if seeds is not None and cell.phases and cell.seed not in seeds:
        return False
    return only is None or fnmatch.fnmatchcase(cell.key, only)


def _ended_line(ended: Ended) -> str:
    words = {DONE: "done", STOPPED: "stopped", BUSY: "is being run elsewhere"}
    return f"{ended.cell.key}: {words.get(ended.code) or f'failed ({ended.code}): {ended.words}'}"


def _seeds(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text} is no list of seeds, as 0,1") from error


def _tell(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


def _say(line: str) -> None:
    """To whoever still reads it: a run goes on without."""
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)
