"""The commands: selection and order of cells, exit codes, stopping; tables, the report, and unusable places."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from edge.core.errors import ConfigError
from tests.unit.test_experiments_spec import CHOSEN
from tests.worlds.experiment import make_results
from tools.experiments import run
from tools.experiments.__main__ import main
from tools.experiments.cells import Cell, expand
from tools.experiments.chosen import read_chosen
from tools.experiments.figures import draw_figures
from tools.experiments.findings import ExperimentFindings
from tools.experiments.report import RESULTS_PAGE, insertions, with_insertions
from tools.experiments.run import Board, CellEnd, CellPace, CellProcess, OnProgress, run_all
from tools.experiments.run_cell import BUSY, DONE, FAILED, STOPPED
from tools.experiments.spec import load_spec

CELLS = expand(load_spec("lambda"), {}).cells
NO_DATA = Path("there-is-no-such-folder")
_SPEC = {
    "name": "two",
    "about": "Two cells.",
    "models": ["nano-edge"],
    "seeds": [0, 1],
    "phases": {"a": [{"source": "group1", "steps": 2}]},
    "evaluate": {"items": 0},
    "table": "methods",
    "figure": ["schedules"],
}


def _spec(folder: Path, **changes: Any) -> str:
    path = folder / "two.yaml"
    path.write_text(yaml.safe_dump({**_SPEC, **changes}), encoding="utf-8")
    return str(path)


class Cells:
    """Launches no process: cells end with these codes in turn (then: done), those that are done with a result."""

    def __init__(self, results: Path | None = None, codes: list[int] | None = None, stop_after: int | None = None) -> None:
        self._codes = iter(codes or [])
        self._results = results
        self._stop_after = stop_after
        self.order: list[str] = []
        self.together = self.most = 0

    async def __call__(self, cell: Cell, on_progress: OnProgress, stop: asyncio.Event) -> CellEnd:
        self.order.append(cell.key)
        self.together += 1
        self.most = max(self.most, self.together)
        on_progress(cell, {"part": "learning", "steps_done": 0, "steps": cell.steps})
        await asyncio.sleep(0)
        self.together -= 1
        code = next(self._codes, DONE)
        if code == DONE and self._results is not None:
            make_results([cell], self._results)
        if code == STOPPED or len(self.order) == self._stop_after:
            stop.set()
        return CellEnd(cell, code, "its last words")


def _run(folder: Path, spec: str, *options: str) -> int:
    places = ["--results", str(folder / "results"), "--work", str(folder / "work"), "--chosen", str(folder / "chosen.json")]
    return main(["run", spec, *places, *options])


# -- run -------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("codes", "ends"),
    [
        ([DONE, DONE], 0),
        ([DONE, BUSY], 75),
        ([BUSY, FAILED], 1),
        ([DONE, STOPPED], 130),
        ([FAILED, STOPPED], 1),
    ],
)
def test_exit_code_reports_whether_all_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codes: list[int], ends: int
) -> None:
    monkeypatch.setattr(run, "CellProcess", lambda work, results: Cells(results, codes))
    assert _run(tmp_path, _spec(tmp_path)) == ends


def test_only_cells_without_a_result_are_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, cells = _spec(tmp_path), Cells(tmp_path / "results")
    first, second = expand(load_spec(spec), {}).cells
    make_results([first], tmp_path / "results")
    monkeypatch.setattr(run, "CellProcess", lambda work, results: cells)
    assert [_run(tmp_path, spec) for _ in range(2)] == [0, 0]
    assert cells.order == [second.key]


async def _all(cells: Cells, jobs: int = 1) -> tuple[Board, list[CellEnd]]:
    board, ended = Board(CELLS, jobs, CellPace()), list[CellEnd]()
    await run_all(board, cells, asyncio.Event(), ended.append)
    return board, ended


async def test_cells_are_run_in_order_a_few_at_a_time_and_a_failed_one_does_not_stop_the_others() -> None:
    cells = Cells(codes=[DONE, FAILED, BUSY])
    board, ended = await _all(cells, jobs=3)
    assert cells.order == [cell.key for cell in CELLS] and cells.most == 3
    assert (len(ended), board.done, board.failed) == (len(CELLS), len(CELLS) - 2, 1)


async def test_no_cell_is_started_after_a_stop() -> None:
    cells = Cells(stop_after=2)
    board, _ = await _all(cells)
    assert cells.order == [cell.key for cell in CELLS[:2]] and board.done == 2


async def test_cell_stopped_before_it_handles_signals_counts_as_stopped_not_failed(tmp_path: Path) -> None:
    stop = asyncio.Event()
    stop.set()
    ended = await CellProcess(tmp_path, tmp_path / "results")(CELLS[0], lambda of, line: None, stop)
    assert (ended.code, ended.words) == (STOPPED, "")


def test_only_selects_cells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["--only", "nano-edge.*.da-grpo.s[02]-*", "--results", str(tmp_path)]
    assert main(["run", "table", "--list", *chosen]) == 0
    keys = [line.split()[-1] for line in capsys.readouterr().out.splitlines() if " steps  nano-edge." in line]
    assert len(keys) == 8 and {key.split(".")[-1][:2] for key in keys} == {"s0", "s2"}


def test_cells_waiting_for_a_choice_are_not_all_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = _spec(tmp_path, settings={"learning.method": "grpo", "learning.objective.assist_rewards": "@chosen"})
    assert _run(tmp_path, spec) == 75
    assert "the assistance reward of grpo for nano-edge on group1" in capsys.readouterr().out
    assert _run(tmp_path, spec, "--list") == 0


def test_complete_grid_search_writes_its_choice(tmp_path: Path) -> None:
    """Nothing is left to run; with one result less, or without the other grid's, nothing is chosen."""
    grid, chosen = expand(load_spec("assist-reward"), {}), tmp_path / "chosen.json"
    other = expand(load_spec("assist-reward-gapg"), {})
    make_results([*grid.cells, *other.cells[1:]], tmp_path / "results")
    assert _run(tmp_path, "assist-reward") == 0
    assert not chosen.exists()
    make_results(other.cells, tmp_path / "results")
    assert _run(tmp_path, "assist-reward") == 0
    assert not expand(load_spec("table"), read_chosen(chosen)).waits_for


def test_untrainable_router_is_refused_before_a_cell_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("edge.app.engines.installed", lambda _engine: False)
    assert _run(tmp_path, _spec(tmp_path, methods={"mine": {}}, routers=["mine"])) == 2
    assert "nano-edge.group1.da-grpo.s0-" in (err := capsys.readouterr().err) and "onnx" in err


# -- wrong usage -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["run", "tabel"], "tabel"),
        (["run", "lambda-paper", "--only", "nothing*"], "nothing*"),
        (["run", "table", "--jobs", "0"], "--jobs"),
        (["report"], "FILE"),
        (["report", "none.md"], "none.md"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], names: str
) -> None:
    monkeypatch.chdir(Path(__file__).resolve().parents[2])
    assert main([*arguments, "--results", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert names in line


def test_a_dial_that_cannot_be_measured_is_refused_before_anything_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tools.experiments.dial.measure", None)
    assert main(["dial", "--questions", "1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--questions" in line


@pytest.mark.parametrize("wrong", ["--work", "--results", "--chosen"])
def test_unwritable_place_is_refused_before_a_cell_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrong: str
) -> None:
    cells = Cells()
    monkeypatch.setattr(run, "CellProcess", lambda work, results: cells)
    search = _spec(tmp_path, table="assist-rewards", figure=[], vary={"learning.objective.assist_reward": [0.1]})
    assert _run(tmp_path, search, wrong, str(tmp_path / "two.yaml" / "below" / "it")) == 2
    assert wrong in capsys.readouterr().err and not cells.order


# -- table, report ---------------------------------------------------------------------------------------------------------------------


def _report(folder: Path, text: str, every: dict[str, ExperimentFindings]) -> str:
    drawn = {name: draw_figures(findings, folder) for name, findings in every.items()}
    return with_insertions(text, insertions(every, CHOSEN, NO_DATA, drawn, folder, text), folder / "text.md")


def test_report_replaces_the_text_between_its_marks_only(tmp_path: Path) -> None:
    every = {}
    for name in ("schedules", "lambda-paper"):
        make_results(expand(load_spec(name), CHOSEN).cells, tmp_path / "results")
        every[name] = ExperimentFindings.of(load_spec(name), CHOSEN, tmp_path / "results")
    marks = ("table schedules", "figure schedules", "compute", "setting", "further experiments")
    text = "A paragraph.\n\n" + "\n".join(f"<!-- insert {mark} -->\nold\n<!-- end -->" for mark in marks) + "\n\nAnother.\n"
    filled = _report(tmp_path, text, every)
    assert filled == _report(tmp_path, filled, every)
    assert filled.startswith("A paragraph.\n") and filled.endswith("\n\nAnother.\n") and "old" not in filled
    assert "| rising " in filled and "(schedules-schedules.svg)" in filled and "commit 0123456789ab" in filled
    assert "### lambda-paper" in filled and "### schedules" not in filled
    rows = {
        line.split("|")[1].strip(): int(line.split("|")[2])
        for line in filled.splitlines()
        if line.count("|") == 6 and "." in line
    }
    assert rows["all"] == len({**every["schedules"].results, **every["lambda-paper"].results}), "a shared cell counts once"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("# Title\n<!-- insert table tabel -->\n<!-- end -->\n", "table tabel"),
        ("# Title\n<!-- insert setting -->\nA paragraph that would be lost.\n", "without an end"),
        ("<!-- insert compute -->\n<!-- insert setting -->\n<!-- end -->\n", "without an end"),
    ],
)
def test_unknown_or_unclosed_mark_is_refused_with_its_line(tmp_path: Path, text: str, names: str) -> None:
    every = {"schedules": ExperimentFindings.of(load_spec("schedules"), CHOSEN, tmp_path)}
    with pytest.raises(ConfigError, match=rf"text\.md:2: .*{names}"):
        _report(tmp_path, text, every)


def test_report_into_a_device_is_refused_before_anything_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "results").mkdir()
    figures = tmp_path / "figures"
    assert main(["report", "/dev/null", "--results", str(tmp_path / "results"), "--figures", str(figures)]) == 2
    assert "/dev/null" in capsys.readouterr().err and not figures.exists()


def test_other_results_do_not_change_the_projects_pages(tmp_path: Path) -> None:
    before = RESULTS_PAGE.read_bytes()
    text = tmp_path / "text.md"
    text.write_text("<!-- insert setting -->\n<!-- end -->\n", encoding="utf-8")
    (tmp_path / "results").mkdir()
    assert main(["report", str(text), "--results", str(tmp_path / "results")]) == 0
    assert "No cell has been measured yet." in text.read_text(encoding="utf-8")
    assert RESULTS_PAGE.read_bytes() == before


def test_the_pages_have_the_tables_of_the_results() -> None:
    from tools.experiments.main_tables import summary_table
    from tools.experiments.report import REPORT

    for name in ("table", "moods"):
        summary = summary_table(ExperimentFindings.of(load_spec(name), read_chosen())).to_markdown()
        for page in (RESULTS_PAGE, REPORT):
            assert summary in page.read_text(encoding="utf-8"), "run python -m tools.experiments report"
