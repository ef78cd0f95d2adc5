"""Running many cells: order, progress, failures, stopping; what they are expected to cost. No process is started here."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from edge.core.formatting import counted
from tests.unit.experiment_world import made_result, make_results
from tools.experiments.__main__ import main
from tools.experiments.cells import Cell, expand
from tools.experiments.chosen import read_chosen
from tools.experiments.compute import Pace
from tools.experiments.queue import Board, Ended, OnProgress, run_all, told_hours
from tools.experiments.result import Result, result_file
from tools.experiments.run_cell import BUSY, DONE, STOPPED
from tools.experiments.spec import load_spec

CELLS = expand(load_spec("lambda"), {}).cells


class Launcher:
    """Runs cells at once; `codes` by key, the rest are done. Remembers the order and how many were at work together."""

    def __init__(self, codes: Mapping[str, int] | None = None, stop_after: int | None = None) -> None:
        self.codes = codes or {}
        self.stop_after = stop_after
        self.order: list[str] = []
        self.together = self.most = 0

    async def __call__(self, cell: Cell, on_progress: OnProgress, stop: asyncio.Event) -> Ended:
        self.order.append(cell.key)
        self.together += 1
        self.most = max(self.most, self.together)
        on_progress(cell, {"part": "learning", "steps_done": 0, "steps": cell.steps})
        await asyncio.sleep(0)
        on_progress(cell, {"part": "learning", "steps_done": cell.steps, "steps": cell.steps})
        if self.stop_after is not None and len(self.order) >= self.stop_after:
            stop.set()
        self.together -= 1
        return Ended(cell, self.codes.get(cell.key, DONE), "its last words")


async def _run(launcher: Launcher, jobs: int = 2) -> tuple[Board, list[Ended]]:
    board, told = Board(CELLS, 0.0), list[Ended]()
    await run_all(CELLS, jobs, launcher, board, asyncio.Event(), told.append)
    return board, told


async def test_cells_are_run_in_order_a_few_at_a_time() -> None:
    launcher = Launcher()
    board, told = await _run(launcher, jobs=3)
    assert launcher.order == [cell.key for cell in CELLS]
    assert launcher.most == 3
    assert board.done == len(told) == len(CELLS)


async def test_a_failed_cell_does_not_stop_the_others_and_is_told() -> None:
    board, told = await _run(Launcher({CELLS[1].key: 1}))
    assert board.done == len(CELLS) - 1
    assert [one.words for one in told if one.code == 1] == ["its last words"]
    assert "1 failed" in board.line(10.0, 0.0)


async def test_no_cell_is_begun_after_a_stop() -> None:
    launcher = Launcher(stop_after=2)
    board, _ = await _run(launcher, jobs=1)
    assert launcher.order == [cell.key for cell in CELLS[:2]]
    assert board.done == 2


async def test_what_runs_elsewhere_or_was_stopped_is_no_failure() -> None:
    board, _ = await _run(Launcher({CELLS[0].key: BUSY, CELLS[1].key: STOPPED}))
    assert "failed" not in board.line(10.0, 0.0)
    assert board.done == len(CELLS) - 2


def test_progress_tells_cells_speed_and_time_left() -> None:
    cell = next(cell for cell in CELLS if cell.steps)
    board = Board(CELLS, began=100.0)
    board.hears(cell, {"part": "learning", "steps_done": 20, "steps": cell.steps})  # resumed: those were made before
    board.hears(cell, {"part": "learning", "steps_done": 50, "steps": cell.steps})
    line = board.line(now=160.0, left_s=7200.0)
    assert line == f"0 of {len(CELLS)} cells, 30 steps, 0.50 steps/s, about 2.0 h left: {cell.key} 50 (learning)"


@pytest.mark.parametrize(("seconds", "told"), [(90, "2 min"), (3599, "60 min"), (5400, "1.5 h")])
def test_hours_are_told_shortly(seconds: float, told: str) -> None:
    assert told_hours(seconds) == told


def test_the_pace_is_measured_on_finished_cells_like_these() -> None:
    cell = next(cell for cell in CELLS if cell.steps)
    body: dict[str, Any] = made_result(cell)
    body["cost"]["wall_s"] = 2.5 * cell.steps + 60.0
    guessed, measured = Pace(), Pace.of([Result(cell, body)])
    assert guessed.cell_s(cell) > cell.steps * 2.5
    assert measured.cell_s(cell) == pytest.approx(10.0 + 2.5 * cell.steps + 60.0)


def test_the_budget_of_compute_is_told_before_anything_begins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_results(CELLS[:3], tmp_path)
    assert main(["run", "lambda", "--list", "--jobs", "2", "--results", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.lstrip().startswith("done ") for line in lines) == 3
    to_do = counted(len(CELLS) - 3, "cell")
    assert lines[-1].startswith(f"{len(CELLS)} cells, 3 done; to do: {to_do}, ")
    assert "of one core" in lines[-1]
    assert "with 2 at a time (measured on finished cells)" in lines[-1]


def test_only_and_seeds_choose_among_the_cells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = ["--results", str(tmp_path)]
    assert main(["run", "table", "--list", "--only", "nano-edge.*.da-grpo.*", "--seeds", "0,2", *results]) == 0
    keys = [line.split()[-1] for line in capsys.readouterr().out.splitlines() if " steps  nano-edge." in line]
    assert len(keys) == 8
    assert {key.split(".")[-1][:2] for key in keys} == {"s0", "s2"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", "tabel"], "tabel: no such experiment; there is: "),
        (["run", "lambda-paper", "--only", "nothing*"], "no cell matches nothing*; --list without --only shows their keys"),
        (["run", "table", "--jobs", "0"], "--jobs must be at least 1, not 0"),
        (["figure", "assist-reward"], "assist-reward: no figure is named there; add the key figure to the specification"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    assert main([*arguments, "--results", str(tmp_path)]) == 2
    assert told in capsys.readouterr().err


def test_a_complete_grid_search_writes_what_it_has_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is left to run; with one result less, or without the other grid's, nothing is chosen."""
    grid, chosen = expand(load_spec("assist-reward"), {}), tmp_path / "chosen.json"
    other = expand(load_spec("assist-reward-gapg"), {})
    make_results([*grid.cells[1:], *other.cells], tmp_path)
    run = ["run", "assist-reward", "--results", str(tmp_path), "--chosen", str(chosen), "--work", str(tmp_path / "work")]
    assert main([*run, "--list"]) == 0
    assert not chosen.exists()
    make_results(grid.cells, tmp_path)
    result_file(other.cells[0], tmp_path).unlink()
    assert main(run) == 0
    assert not chosen.exists()
    make_results(other.cells, tmp_path)
    assert main(run) == 0
    assert "the chosen values are in chosen.json" in capsys.readouterr().err
    assert not expand(load_spec("table"), read_chosen(chosen)).waits_for
