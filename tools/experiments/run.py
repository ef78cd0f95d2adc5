"""`run`: the cells of experiments without a result, a few at a time, each in its own process.

The same command resumes after an interruption. It first prints the cells and the expected time, from finished cells where there are some.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fnmatch
import json
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edge.app.engines import require_onnx
from edge.cli.exits import stop_on_signals
from edge.core.errors import EdgeError, UsageError
from edge.core.formatting import counted, shown
from tools.experiments.cells import Cell, Grid, expand, shared
from tools.experiments.chosen import read_chosen, write_chosen
from tools.experiments.result import Result, read_result, result_file
from tools.experiments.run_cell import BUSY, DONE, FAILED, STOPPED
from tools.experiments.spec import Spec, load_spec, spec_names
from tools.places import check_folder, put

_ROOT = Path(__file__).resolve().parents[2]
_REPORT_EVERY_S = 60.0
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS")
_STEP_S, _EVALUATION_S, _START_S = 3.0, 45.0, 10.0
"""Guesses for two x86 cores, one thread a cell."""


def run(arguments: argparse.Namespace) -> int:
    """Run the missing cells; 0 when all is done, 1 when a cell failed, 130 when stopped, 75 when something is left."""
    if arguments.jobs < 1:
        raise UsageError(f"--jobs must be at least 1, not {arguments.jobs}")
    if arguments.results.exists():
        require_folder(arguments.results)
    plan = RunPlan.of(arguments)
    print("\n".join(plan.lines(arguments.jobs, every_cell=arguments.list)), flush=True)
    if arguments.list:
        return 0
    _require_what_is_needed(plan, arguments)
    code = asyncio.run(_run(plan, arguments))
    _choose(plan, arguments.results, arguments.chosen)
    elsewhere = [cell for cell in plan.missing if not result_file(cell, arguments.results).is_file()]
    if code == DONE and elsewhere:
        _print(
            f"not done: {counted(len(elsewhere), 'cell')} that another run is at; the same command shows whether they are done"
        )
    if code == DONE and plan.waits_for:
        _print(f"not done: cells that wait for {counted(len(plan.waits_for), 'assistance reward')} to be chosen")
    return code or (BUSY if elsewhere or plan.waits_for else DONE)


def _require_what_is_needed(plan: RunPlan, arguments: argparse.Namespace) -> None:
    """Raises UsageError or EdgeError where results could not be written or routers not trained."""
    if plan.missing:
        check_folder(arguments.work, "--work")
        check_folder(arguments.results, "--results")
    if any(_searches(grid.spec) for grid in plan.grids):
        check_folder(arguments.chosen.parent, "--chosen")
    if routed := [cell.key for cell in plan.missing if cell.router]:
        require_onnx(f"{counted(len(routed), 'cell')} such as {routed[0]} train a router, which is an ONNX file")


def require_folder(results: Path) -> None:
    """Raises UsageError for results that are no folder or cannot be read."""
    try:
        next(results.iterdir(), None)
    except OSError as error:
        raise UsageError(f"--results {results}: {error.strerror}", hint="give the folder that results were written to") from error


# -- what there is to do ---------------------------------------------------------------------------------------------------------------


@dataclass
class CellPace:
    """Seconds of a cell's step by model, method and source, from finished cells; the rest of a cell counts once for each phase."""

    step_s: dict[tuple[str, str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    phase_s: list[float] = field(default_factory=list)

    def learn(self, result: Result) -> None:
        """Count a finished cell."""
        cell, cost = result.cell, result.body["cost"]
        if cell.steps:
            for phase in cell.phases:
                self.step_s[cell.model, cell.method, phase.source].append(cost["training"]["seconds"] / cell.steps)
        rest = max(0.0, cost["wall_s"] - cost["training"]["seconds"])
        self.phase_s.append(rest / max(1, len(cell.phases)))

    def cell_s(self, cell: Cell) -> float:
        """Seconds that a cell takes from its beginning to its end."""
        rest = _mean(self.phase_s, _EVALUATION_S if cell.evaluate.items else 0.0)
        steps = sum(phase.steps * self._step_s(cell, phase.source) for phase in cell.phases)
        return _START_S + steps + rest * max(1, len(cell.phases))

    def _step_s(self, cell: Cell, source: str) -> float:
        """Of this model, method and source where it is known, else of any."""
        every = [value for values in self.step_s.values() for value in values]
        return _mean(self.step_s.get((cell.model, cell.method, source)) or every, _STEP_S)


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def hours(seconds: float) -> str:
    """`40 s`, `12 min` or `3.4 h`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The selected cells, those with results, and the choices needed to name the others."""

    grids: tuple[Grid, ...]
    cells: tuple[Cell, ...]
    waits_for: tuple[str, ...]
    results: dict[str, Result]
    pace: CellPace

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> RunPlan:
        """The plan of the command line. Raises UsageError, ConfigError."""
        only, chosen = arguments.only, read_chosen(arguments.chosen)
        grids = tuple(expand(load_spec(name, to_run=True), chosen) for name in arguments.specs or spec_names())
        every = shared(grids)
        meant = [cell for cell in every if only is None or fnmatch.fnmatchcase(cell.key, only)]
        waits = dict.fromkeys(what for grid in grids for what in grid.waits_for)
        if not meant and (only is not None or not waits):
            raise UsageError(f"no cell matches {shown(str(only))}", hint="--list without --only shows their keys")
        results = {cell.key: result for cell in every if (result := read_result(cell, arguments.results)) is not None}
        pace = CellPace()
        for result in results.values():
            pace.learn(result)
        return cls(grids, tuple(meant), tuple(waits) if only is None else (), results, pace)

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
        share = "" if jobs == 1 else f", {hours(seconds / jobs)} with {jobs} at a time"
        done = len(self.cells) - len(missing)
        return [
            *cells,
            *waits,
            f"{counted(len(self.cells), 'cell')}, {done} done; to do: {counted(len(missing), 'cell')}, {counted(steps, 'step')}, "
            f"{hours(seconds)} of one core{share} ({basis})",
        ]

    def _cell_line(self, cell: Cell) -> str:
        mark = "done" if cell.key in self.results else f"{hours(self.pace.cell_s(cell))}"
        return f"{mark:>7}  {cell.steps:>5} steps  {cell.key}"


def _choose(plan: RunPlan, results: Path, file: Path) -> None:
    """When every grid search (the project's and those that were run) is complete, write their choices."""
    if not any(_searches(grid.spec) for grid in plan.grids):
        return
    grids = [*(expand(spec, {}) for spec in _grid_searches()), *(grid for grid in plan.grids if _searches(grid.spec))]
    found = [read_result(cell, results) for cell in shared(grids)]
    complete = [result for result in found if result is not None]
    if len(complete) == len(found):
        write_chosen(complete, file)
        _print(f"every grid search is complete; the chosen values are in {file.name}")


def _grid_searches() -> list[Spec]:
    """The project's own."""
    return [spec for spec in map(load_spec, spec_names()) if _searches(spec)]


def _searches(spec: Spec) -> bool:
    return spec.table == "assist-rewards"


# -- running it ------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CellEnd:
    """How a cell's process ended: its exit code, and its last output where it failed."""

    cell: Cell
    code: int
    words: str = ""

    def line(self) -> str:
        """For a person."""
        words = {DONE: "done", STOPPED: "stopped", BUSY: "is being run elsewhere"}
        return f"{self.cell.key}: {words.get(self.code) or f'failed ({self.code}): {self.words}'}"


OnProgress = Callable[[Cell, Mapping[str, Any]], None]
Launch = Callable[[Cell, OnProgress, asyncio.Event], Awaitable[CellEnd]]
"""Runs a cell to its end, or to its next safe point once the event is set."""


@dataclass
class Board:
    """The state of the running cells. `steps_done`: by cell key, including earlier runs; `parts`: the current part of each."""

    cells: Sequence[Cell]
    jobs: int
    pace: CellPace
    ended: list[CellEnd] = field(default_factory=list)
    steps_done: dict[str, int] = field(default_factory=dict)
    parts: dict[str, str] = field(default_factory=dict)

    def progressed(self, cell: Cell, line: Mapping[str, Any]) -> None:
        """A line of progress."""
        self.parts[cell.key] = str(line["part"])
        if line["part"] == "learning":
            self.steps_done[cell.key] = int(line["steps_done"])

    def ends(self, ended: CellEnd) -> None:
        """A cell's process has ended."""
        self.ended.append(ended)
        self.parts.pop(ended.cell.key, None)

    @property
    def done(self) -> int:
        """Cells that have a result."""
        return sum(one.code == DONE for one in self.ended)

    @property
    def failed(self) -> int:
        """Cells that ended in no other way."""
        return sum(one.code not in (DONE, BUSY, STOPPED) for one in self.ended)

    def line(self) -> str:
        """For a person: `3 of 20 cells, about 1.4 h left: KEY 50 (learning)`."""
        over = {one.cell.key for one in self.ended}
        waiting = [cell for cell in self.cells if cell.key not in over]
        left_s = sum((1.0 - self.steps_done.get(cell.key, 0) / max(1, cell.steps)) * self.pace.cell_s(cell) for cell in waiting)
        at_work = ", ".join(f"{key} {self.steps_done.get(key, 0)} ({part})" for key, part in sorted(self.parts.items()))
        trouble = f", {self.failed} failed" if self.failed else ""
        left = f", about {hours(left_s / self.jobs)} left" if waiting else ""
        return f"{self.done} of {counted(len(self.cells), 'cell')}{trouble}{left}{f': {at_work}' if at_work else ''}"


async def _run(plan: RunPlan, arguments: argparse.Namespace) -> int:
    stop = asyncio.Event()
    board = Board(plan.missing, arguments.jobs, plan.pace)

    def on_end(ended: CellEnd) -> None:
        if ended.code == DONE and (result := read_result(ended.cell, arguments.results)) is not None:
            plan.pace.learn(result)
        _print(ended.line())
        _print(board.line())

    def stopping() -> None:
        stop.set()
        _print("stopping after the steps under way; the same command goes on from here")

    async def report() -> None:
        while True:
            await asyncio.sleep(_REPORT_EVERY_S)
            _print(board.line())

    with stop_on_signals(stopping):
        reporting = asyncio.create_task(report())
        try:
            await run_all(board, CellProcess(arguments.work, arguments.results), stop, on_end)
        finally:
            reporting.cancel()
    if board.failed:
        return FAILED
    return STOPPED if stop.is_set() and board.done < len(board.cells) else DONE


async def run_all(board: Board, launch: Launch, stop: asyncio.Event, on_end: Callable[[CellEnd], None]) -> None:
    """Run the board's cells in order; once `stop` is set no further one is begun. A failed cell does not stop the others."""
    waiting = iter(board.cells)

    async def worker() -> None:
        for cell in waiting:
            if stop.is_set():
                return
            board.parts[cell.key] = "starting"
            ended = await launch(cell, board.progressed, stop)
            board.ends(ended)
            on_end(ended)

    async with asyncio.TaskGroup() as group:
        for _ in range(board.jobs):
            group.create_task(worker())


@dataclass(frozen=True, slots=True)
class CellProcess:
    """Launches cells as processes on one thread, with low priority. Their output goes to `cell.log` of their folders."""

    work: Path
    results: Path

    async def __call__(self, cell: Cell, on_progress: OnProgress, stop: asyncio.Event) -> CellEnd:
        """Run a cell; see `Launch`. Where the system refuses its folder or process, it has failed."""
        try:
            return await self._run(cell, on_progress, stop)
        except EdgeError as error:
            return CellEnd(cell, FAILED, error.with_hint)
        except OSError as error:
            return CellEnd(cell, FAILED, f"{error.filename or self.work}: {error.strerror or error}")

    async def _run(self, cell: Cell, on_progress: OnProgress, stop: asyncio.Event) -> CellEnd:
        folder = self.work / cell.key
        folder.mkdir(parents=True, exist_ok=True)
        put(json.dumps(cell.to_json(), indent=1) + "\n", folder / "cell.json")
        with (folder / "cell.log").open("ab") as log:
            written_before = log.tell()
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tools.experiments", "cell", str(folder / "cell.json"), "--results", str(self.results),
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=log,
                env={**os.environ, **dict.fromkeys(_THREADS, "1"), "PYTHONPATH": str(_ROOT)},
                start_new_session=True,
            )  # fmt: skip
            stopping = asyncio.create_task(_stop_with(process, stop))
            try:
                assert process.stdout is not None
                async for line in process.stdout:
                    if line.startswith(b"{"):
                        on_progress(cell, json.loads(line))
                code = await process.wait()
                if stop.is_set() and code == -signal.SIGTERM:  # before it could listen to signals
                    code = STOPPED
            finally:
                stopping.cancel()
                if process.returncode is None:
                    process.terminate()
                    await process.wait()
        return CellEnd(cell, code, "" if code in (DONE, STOPPED, BUSY) else _last_words(folder / "cell.log", written_before))


async def _stop_with(process: asyncio.subprocess.Process, stop: asyncio.Event) -> None:
    await stop.wait()
    process.terminate()


def _last_words(log: Path, written_before: int) -> str:
    """The last line that was written after the first `written_before` bytes; of a killed process there is none."""
    lines = log.read_bytes()[written_before:].decode("utf-8", errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else f"it wrote nothing into {log}"


def _print(line: str) -> None:
    """Print, if anybody still reads it: a run continues without."""
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)
