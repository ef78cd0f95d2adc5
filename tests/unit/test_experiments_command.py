"""The command line of experiments: places that cannot be used, exit codes, and what the report does before and beside its work."""

from __future__ import annotations

import asyncio
import errno
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from edge.core.errors import ConfigError, EdgeError, UsageError
from tests.unit.experiment_world import make_results
from tests.unit.test_experiments_spec import CHOSEN
from tools.experiments import command, report, show
from tools.experiments.__main__ import main
from tools.experiments.cells import Cell, expand
from tools.experiments.findings import Findings
from tools.experiments.held_out import write_whole
from tools.experiments.places import require_writable, told_with
from tools.experiments.queue import Board, CellProcess, Ended, OnProgress, _last_words
from tools.experiments.report import _BEGIN, _END, Report
from tools.experiments.run_cell import BUSY, DONE, FAILED, STOPPED
from tools.experiments.spec import load_spec

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
    """Launches no process: cells end with these codes in turn, those that are done with a result."""

    def __init__(self, codes: list[int], results: Path) -> None:
        self._codes = iter(codes)
        self._results = results

    async def __call__(self, cell: Cell, on_progress: OnProgress, stop: asyncio.Event) -> Ended:
        code = next(self._codes)
        if code == DONE:
            make_results([cell], self._results)
        if code == STOPPED:
            stop.set()
        return Ended(cell, code, "its last words")


def _run(folder: Path, spec: str, *options: str) -> int:
    places = ["--results", str(folder / "results"), "--work", str(folder / "work"), "--chosen", str(folder / "chosen.json")]
    return main(["run", spec, *places, *options])


@pytest.mark.parametrize(
    ("codes", "ends"),
    [
        ([DONE, DONE], 0),
        ([DONE, BUSY], 75),
        ([BUSY, FAILED], 1),
        ([DONE, STOPPED], 130),
        ([STOPPED, DONE], 130),
        ([FAILED, STOPPED], 1),
    ],
)
def test_the_exit_code_says_whether_all_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codes: list[int], ends: int
) -> None:
    cells = Cells(codes, tmp_path / "results")
    monkeypatch.setattr(command, "CellProcess", lambda work, results: cells)
    assert _run(tmp_path, _spec(tmp_path)) == ends


def test_what_others_run_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    cells = Cells([DONE, BUSY], tmp_path / "results")
    monkeypatch.setattr(command, "CellProcess", lambda work, results: cells)
    assert _run(tmp_path, _spec(tmp_path)) == 75
    assert "not done: 1 cell that another run is at" in capsys.readouterr().err


def test_cells_that_wait_for_a_choice_are_not_all_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"learning.method": "grpo", "learning.assist_rewards": "@chosen"}
    assert _run(tmp_path, _spec(tmp_path, settings=settings)) == 75
    told = capsys.readouterr()
    assert "not yet: the assistance reward of grpo for nano-edge on group1 is not chosen" in told.out
    assert "not done: cells that wait for 1 assistance reward to be chosen" in told.err
    assert _run(tmp_path, _spec(tmp_path, settings=settings), "--list") == 0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--seeds", "7"], "--seeds: no experiment here has the seed 7; there is: 0, 1"),
        (["--max-hours", "nan"], "--max-hours must be more than 0, not nan"),
        (["--max-hours", "-1"], "--max-hours must be more than 0, not -1"),
    ],
)
def test_options_that_mean_nothing_are_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], told: str
) -> None:
    assert _run(tmp_path, _spec(tmp_path), *options) == 2
    assert told in capsys.readouterr().err


def test_a_model_that_is_not_here_is_told_by_the_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(tmp_path, _spec(tmp_path, models=["nano-egde"]), "--list") == 1
    assert "models.0: nano-egde: no such model file" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["--work", "--results", "--chosen"])
def test_a_place_that_cannot_be_written_to_is_told_before_a_cell_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrong: str
) -> None:
    monkeypatch.setattr(command, "CellProcess", lambda work, results: Cells([], results))
    (tmp_path / "file").write_text("", encoding="utf-8")
    search = _spec(tmp_path, table="assist-rewards", figure=[], vary={"learning.assist_reward": [0.1]})
    assert _run(tmp_path, search, wrong, str(tmp_path / "file" / "below" / "it")) == 2
    assert f"error: {wrong} {tmp_path / 'file' / 'below'}" in capsys.readouterr().err


def test_a_full_place_is_a_failure_and_no_wrong_usage() -> None:
    told = r"--out x: cannot be written to \(No space left on device\)"
    with pytest.raises(EdgeError, match=told) as caught, told_with("--out", Path("x")):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.exit_code == 1


def test_a_folder_is_made_and_left_empty(tmp_path: Path) -> None:
    require_writable(tmp_path / "a" / "b", "--out")
    assert list((tmp_path / "a" / "b").iterdir()) == []
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UsageError, match="it is no folder"):
        require_writable(tmp_path / "file", "--out")


async def test_a_cell_whose_folder_cannot_be_made_has_failed_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    (cell, *_) = expand(load_spec("lambda"), {}).cells

    def hears(cell: Cell, line: Mapping[str, Any]) -> None: ...

    ended = await CellProcess(tmp_path / "file", tmp_path)(cell, hears, asyncio.Event())
    assert ended.code == FAILED
    assert ended.words == f"{tmp_path / 'file' / cell.key}: Not a directory"


def test_a_process_that_wrote_nothing_leaves_a_reason_and_not_the_words_of_one_before(tmp_path: Path) -> None:
    log = tmp_path / "cell.log"
    log.write_text("error: of before\n", encoding="utf-8")
    assert _last_words(log, log.stat().st_size) == f"it wrote nothing into {log}"
    assert _last_words(log, 0) == "error: of before"


def test_progress_ends_without_time_left_or_nobody_at_work() -> None:
    (cell, *_) = expand(load_spec("lambda"), {}).cells
    board = Board([cell], 0.0)
    board.ends(Ended(cell, DONE))
    assert board.line(10.0, 0.0) == "1 of 1 cell, 0 steps, 0.00 steps/s"


@pytest.mark.parametrize("verb", ["table", "figure", "report"])
@pytest.mark.parametrize(("name", "told"), [("none", "no such folder"), ("file", "is no folder")])
def test_results_that_are_no_folder_are_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str, name: str, told: str
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert main([verb, "--results", str(tmp_path / name)]) == 2
    assert f"error: --results {tmp_path / name}: {told}" in capsys.readouterr().err


def test_a_list_takes_no_file_for_results(tmp_path: Path) -> None:
    assert main(["run", _spec(tmp_path), "--list", "--results", str(tmp_path / "two.yaml")]) == 2


def test_figures_that_cannot_be_written_are_told_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "two.yaml" / "figures"
    assert main(["figure", _spec(tmp_path), "--results", str(tmp_path), "--out", str(out)]) == 2
    assert f"--out {out}: cannot be written to (it is no folder)" in capsys.readouterr().err


def test_files_of_no_cell_are_named_and_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    results, spec = tmp_path / "results", _spec(tmp_path)
    make_results(expand(load_spec(spec), {}).cells, results)
    show.tell_strays([expand(load_spec(spec), {})], results)
    assert capsys.readouterr().err == ""
    (results / "of-before.json").write_text("{}", encoding="utf-8")
    assert main(["table", spec, "--results", str(results)]) == 0
    assert capsys.readouterr().err == f"1 file in {results} of no cell of any experiment: of-before.json\n"
    assert (results / "of-before.json").exists()
    monkeypatch.setattr(report, "spec_names", lambda: ["schedules"])
    monkeypatch.setattr(report, "with_main_table", lambda text, findings: text)
    assert main([*_report(tmp_path, "Nothing.\n"), "--results", str(results)]) == 0
    assert "3 files in" in capsys.readouterr().err


def _report(folder: Path, template: str) -> list[str]:
    (folder / "template").write_text(template, encoding="utf-8")
    out = folder / "new" / "REPORT.md"
    return ["report", "--template", str(folder / "template"), "--out", str(out), "--data", str(NO_DATA)]


def test_the_project_s_page_of_results_is_left_beside_other_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = tmp_path / "README.md"
    text = f"{_BEGIN}\nold\n{_END}\n"
    readme.write_text(text, encoding="utf-8")
    (tmp_path / "results").mkdir()
    monkeypatch.setattr(report, "RESULTS_PAGE", readme)
    command = [*_report(tmp_path, "Nothing.\n"), "--results", str(tmp_path / "results")]
    assert main(command) == 0
    assert readme.read_text(encoding="utf-8") == text
    assert main([*command, "--readme", str(readme)]) == 0
    assert "old" not in readme.read_text(encoding="utf-8")
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    readme.write_text(text, encoding="utf-8")
    assert main(command) == 0
    assert readme.read_text(encoding="utf-8") == text, "the report lies elsewhere"
    monkeypatch.setattr(report, "REPORT", tmp_path / "new" / "REPORT.md")
    assert main(command) == 0
    assert "old" not in readme.read_text(encoding="utf-8")


def test_a_report_goes_behind_a_link_and_never_in_the_place_of_a_device_or_pipe(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    command = [*_report(tmp_path, "Nothing.\n"), "--results", str(tmp_path / "results"), "--out"]
    (tmp_path / "link.md").symlink_to(tmp_path / "real.md")
    assert main([*command, str(tmp_path / "link.md")]) == 0
    assert (tmp_path / "link.md").is_symlink() and (tmp_path / "real.md").read_text(encoding="utf-8").startswith("Nothing.")
    os.mkfifo(tmp_path / "pipe")
    assert main([*command, str(tmp_path / "pipe")]) == 2
    assert (tmp_path / "pipe").is_fifo()
    with pytest.raises(OSError, match="no regular file"):
        write_whole(tmp_path / "pipe", "text")


def test_a_router_that_cannot_be_trained_here_is_told_before_a_cell_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("edge.app.engines.installed", lambda _engine: False)
    assert _run(tmp_path, _spec(tmp_path, methods={"mine": {}}, routers=["mine"])) == 2
    assert "cells such as nano-edge.group1.da-grpo.s0-" in (told := capsys.readouterr().err)
    assert "train a router, which is an ONNX file, but ONNX is not installed" in told and "onnx" in told.rpartition(";")[2]


def test_what_is_said_to_nobody_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr("sys.stderr", Gone())
    command._say("3 of 4 cells")


async def test_a_cell_that_is_stopped_before_it_listens_is_stopped_and_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cell, *_) = expand(load_spec("lambda"), {}).cells
    stop = asyncio.Event()
    stop.set()
    ended = await CellProcess(tmp_path, tmp_path / "results")(cell, lambda of, line: None, stop)
    assert (ended.code, ended.words) == (STOPPED, "")


def test_the_report_makes_its_folder_and_tells_what_it_is_doing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "results").mkdir()
    assert main([*_report(tmp_path, "{{ table schedules }}\n"), "--results", str(tmp_path / "results")]) == 0
    told = capsys.readouterr().err.splitlines()
    assert told[0].startswith("reading the results of ")
    assert told.count("making the tables of schedules") == 1
    assert (tmp_path / "new" / "REPORT.md").is_file()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--template", "none"], "--template none: cannot be read (No such file or directory)"),
        (["--out", "tests"], "--out tests: is a folder"),
        (["--out", "pyproject.toml/R.md"], "--out pyproject.toml: cannot be written to (it is no folder)"),
        (["--readme", "none"], "--readme none: cannot be read (No such file or directory)"),
        (["--readme", "pyproject.toml"], "--readme pyproject.toml: has no place for the main table"),
    ],
)
def test_what_the_report_cannot_read_or_write_is_told_before_its_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str], told: str
) -> None:
    monkeypatch.setattr(report, "Findings", None)
    monkeypatch.chdir(Path(__file__).resolve().parents[2])
    assert main([*_report(tmp_path, "Nothing.\n"), "--results", str(tmp_path), *options]) == 2
    assert f"error: {told}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{{ table schedules: Nonesuch }}", "no table of schedules begins with Nonesuch"),
        ("{{ table schedules }} x", "{{ begins no mark here"),
        ("x {{hours}}", "{{ begins no mark here"),
        ("{{ table }}", "table of which experiment?"),
    ],
)
def test_a_mark_that_gives_nothing_is_told_with_its_line(tmp_path: Path, line: str, told: str) -> None:
    (tmp_path / "template").write_text(f"# Title\n{line}\n", encoding="utf-8")
    every = {"schedules": Findings.of(load_spec("schedules"), CHOSEN, tmp_path)}
    with pytest.raises(ConfigError) as caught:
        Report(every, CHOSEN, NO_DATA, tmp_path, tmp_path).filled(tmp_path / "template")
    assert str(caught.value) == f"{tmp_path / 'template'}:2: {told}"
    assert caught.value.hint
