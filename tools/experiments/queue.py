"""Running many cells, a few at a time, each in a process of its own. Knows processes, their progress lines and stopping; knows nothing of
what a cell does.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edge.core.clock import Clock
from edge.core.formatting import counted
from tools.experiments.cells import Cell
from tools.experiments.held_out import write_whole
from tools.experiments.run_cell import BUSY, DONE, FAILED, STOPPED

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS")
_LITTLE_ROOM = 1 << 16
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a cell's process ended: its exit code, and its last words where it failed."""

    cell: Cell
    code: int
    words: str = ""


OnProgress = Callable[[Cell, Mapping[str, Any]], None]
Launch = Callable[[Cell, OnProgress, asyncio.Event], Awaitable[Ended]]
"""Runs a cell to its end, or to its next safe point once the event is set."""


@dataclass
class Board:
    """What is known of the cells at work. `steps_done`: by cell key, also those of earlier runs."""

    cells: Sequence[Cell]
    began: float
    ended: list[Ended] = field(default_factory=list)
    steps_done: dict[str, int] = field(default_factory=dict)
    first_steps: dict[str, int] = field(default_factory=dict)
    parts: dict[str, str] = field(default_factory=dict)

    def hears(self, cell: Cell, line: Mapping[str, Any]) -> None:
        """A line of progress."""
        self.parts[cell.key] = str(line["part"])
        if line["part"] == "learning":
            self.steps_done[cell.key] = int(line["steps_done"])
            self.first_steps.setdefault(cell.key, int(line["steps_done"]))

    def ends(self, ended: Ended) -> None:
        """A cell's process has ended."""
        self.ended.append(ended)
        self.parts.pop(ended.cell.key, None)
        if ended.code == DONE:
            self.steps_done[ended.cell.key] = ended.cell.steps

    @property
    def done(self) -> int:
        """Cells that have a result."""
        return sum(one.code == DONE for one in self.ended)

    def steps_made(self) -> int:
        """Steps made since the beginning."""
        return sum(done - self.first_steps.get(key, done) for key, done in self.steps_done.items())

    def line(self, now: float, left_s: float) -> str:
        """For a person: `3 of 20 cells, 412 steps, 0.61 steps/s, about 1.4 h left: KEY (learning)`; no more than is left to tell."""
        made, took = self.steps_made(), max(1e-9, now - self.began)
        at_work = ", ".join(f"{key} {self.steps_done.get(key, 0)} ({part})" for key, part in sorted(self.parts.items()))
        failed = sum(one.code not in (DONE, BUSY, STOPPED) for one in self.ended)
        trouble = f", {failed} failed" if failed else ""
        rate = f"{counted(made, 'step')}, {made / took:.2f} steps/s"
        waits = len(self.ended) < len(self.cells)
        left = f", about {told_hours(left_s)} left" if waits else ""
        return f"{self.done} of {counted(len(self.cells), 'cell')}{trouble}, {rate}{left}{f': {at_work}' if at_work else ''}"


def told_hours(seconds: float) -> str:
    """`40 s`, `12 min` or `3.4 h`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


async def run_all(
    cells: Sequence[Cell], jobs: int, launch: Launch, board: Board, stop: asyncio.Event, told: Callable[[Ended], None]
) -> None:
    """Run the cells in order, `jobs` at a time; once `stop` is set no further one is begun. A failed cell does not stop the others."""
    waiting = iter(cells)

    async def worker() -> None:
        for cell in waiting:
            if stop.is_set():
                return
            board.parts[cell.key] = "starting"
            ended = await launch(cell, board.hears, stop)
            board.ends(ended)
            told(ended)

    async with asyncio.TaskGroup() as group:
        for _ in range(jobs):
            group.create_task(worker())


@dataclass(frozen=True, slots=True)
class CellProcess:
    """Launches cells as processes on one thread, with low priority. What they say goes into `cell.log` of their folders."""

    work: Path
    results: Path

    async def __call__(self, cell: Cell, on_progress: OnProgress, stop: asyncio.Event) -> Ended:
        """Run a cell; see `Launch`. Where the system refuses its folder or process, it has failed."""
        try:
            return await self._run(cell, on_progress, stop)
        except OSError as error:
            return Ended(cell, FAILED, f"{error.filename or self.work}: {error.strerror or error}")

    async def _run(self, cell: Cell, on_progress: OnProgress, stop: asyncio.Event) -> Ended:
        folder = self.work / cell.key
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "cell.json", json.dumps(cell.to_json(), indent=1) + "\n")
        with (folder / "cell.log").open("ab") as log:
            said_before = log.tell()
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tools.experiments", "cell", str(folder / "cell.json"), "--results", str(self.results),
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=log,
                env={**os.environ, **dict.fromkeys(_THREADS, "1"), "PYTHONPATH": str(_ROOT)},
                start_new_session=True,
            )  # fmt: skip
            stopping = asyncio.create_task(_stop_with(process, stop))
            try:
                await _listen(process, lambda line: on_progress(cell, line))
                code = await process.wait()
                if stop.is_set() and code == -signal.SIGTERM:  # before it could listen to signals
                    code = STOPPED
            finally:
                stopping.cancel()
                if process.returncode is None:
                    process.terminate()
                    await process.wait()
        return Ended(cell, code, "" if code in (DONE, STOPPED, BUSY) else _last_words(folder / "cell.log", said_before))


async def _stop_with(process: asyncio.subprocess.Process, stop: asyncio.Event) -> None:
    await stop.wait()
    process.terminate()


async def _listen(process: asyncio.subprocess.Process, on_line: Callable[[Mapping[str, Any]], None]) -> None:
    assert process.stdout is not None
    async for line in process.stdout:
        if line.startswith(b"{"):
            on_line(json.loads(line))


def _last_words(log: Path, said_before: int) -> str:
    """The last line that was written after so many bytes; where there is none, why that may be."""
    lines = log.read_bytes()[said_before:].decode("utf-8", errors="replace").strip().splitlines()
    if lines:
        return lines[-1][:300]
    full = shutil.disk_usage(log.parent).free < _LITTLE_ROOM
    return f"no room is left in {log.parent}" if full else f"it wrote nothing into {log}"


async def tell_now_and_then(
    board: Board, clock: Clock, left: Callable[[], float], say: Callable[[str], None], every_s: float
) -> None:
    """Say how it goes, again and again, until cancelled."""
    while True:
        await asyncio.sleep(every_s)
        say(board.line(clock.monotonic(), left()))
