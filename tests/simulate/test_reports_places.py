"""Where results go: what cannot be written is told before anything is played, and leaves nothing behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge.core.errors import EdgeError, UsageError
from tests.simulate.fleet_worlds import group, scenario
from tests.simulate.sample_results import sample_result
from tools.simulate.__main__ import main
from tools.simulate.fleet import run as fleet_run
from tools.simulate.reports.places import check_files, check_folder, put


@pytest.fixture
def day(tmp_path: Path) -> Path:
    path = tmp_path / "day.yaml"
    path.write_text(scenario(group(), lasts_h=1).model_dump_json(exclude_unset=True), encoding="utf-8")
    return path


def test_a_file_in_a_folder_that_is_not_there_yet_can_be_written_and_looking_makes_nothing(tmp_path: Path) -> None:
    check_files(tmp_path / "a" / "b" / "x.json", None, tmp_path / "a" / "x.html")
    check_folder(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("", "is a folder, not a file"),
        ("there", "is a folder, not a file"),
        ("file/x.json", "is no folder"),
        ("file/deeper/x.json", "is no folder"),
        ("dangling/x.json", "is no folder"),
    ],
)
def test_what_cannot_be_a_file_is_refused(tmp_path: Path, named: str, says: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "there").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=says):
        check_files(tmp_path / named)


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="a folder in which nobody can make a file")
def test_a_folder_in_which_nothing_can_be_made_is_refused() -> None:
    with pytest.raises(UsageError, match=r"/proc/x.html cannot be written"):
        check_files(Path("/proc/x.html"))
    with pytest.raises(UsageError, match="/proc/new cannot be written"):
        check_folder(Path("/proc/new"))


def test_one_place_is_not_for_two_files_nor_that_of_one_that_is_read(tmp_path: Path) -> None:
    (tmp_path / "day.yaml").touch()
    with pytest.raises(UsageError, match="is named for two files"):
        check_files(tmp_path / "x", tmp_path / "sub" / ".." / "x")
    with pytest.raises(UsageError, match=r"day.yaml is named for two files"):
        check_files(None, tmp_path / "day.yaml", read=[tmp_path / "day.yaml"])
    check_files(Path(os.devnull), Path(os.devnull))


def test_a_file_is_put_in_its_place_whole_and_a_link_is_written_through(tmp_path: Path) -> None:
    put(b"one", tmp_path / "new" / "x")
    (tmp_path / "link").symlink_to(tmp_path / "new" / "x")
    put(b"two", tmp_path / "link")
    assert (tmp_path / "new" / "x").read_bytes() == b"two"
    assert (tmp_path / "link").is_symlink()
    assert [each.name for each in (tmp_path / "new").iterdir()] == ["x"]
    with pytest.raises(EdgeError, match="cannot be written"):
        put(b"three", tmp_path / "new" / "x" / "y")


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_a_run_whose_output_cannot_be_written_does_not_begin(
    tmp_path: Path, day: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setattr(fleet_run, "play", None)
    assert main(["run", str(day), option, str(tmp_path)]) == 2
    assert main(["run", str(day), "--json", str(tmp_path / "x"), "--html", str(tmp_path / "x")]) == 2
    assert main(["run", str(day), option, str(day)]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 3
    assert "Traceback" not in told


def test_figures_are_told_even_where_the_file_cannot_be_written_in_the_end(
    tmp_path: Path, day: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(content: bytes, path: Path) -> None:
        raise EdgeError(f"{path} cannot be written: No space left on device")

    monkeypatch.setattr(fleet_run, "put", full)
    assert main(["run", str(day), "--json", str(tmp_path / "x.json")]) == 1
    told = capsys.readouterr()
    assert "Half answered within" in told.out
    assert "No space left" in told.err


def test_a_comparison_and_a_sweep_are_refused_before_anything_is_read_or_played(
    tmp_path: Path, day: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.json").write_bytes(sample_result().to_json())
    assert main(["compare", str(tmp_path / "a.json"), str(tmp_path / "a.json"), "--html", str(tmp_path)]) == 2
    assert main(["compare", str(tmp_path / "a.json"), str(tmp_path / "a.json"), "--html", str(tmp_path / "a.json")]) == 2
    assert main(["sweep", str(day), "--vary", "groups.laptops.dial=0.1", "--out", str(day)]) == 2
    assert main(["validate-fleet", str(day), "--exact", str(tmp_path)]) == 2
    told = capsys.readouterr()
    assert told.err.count("\n") == 4
    assert told.out == ""
