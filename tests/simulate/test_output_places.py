"""Where results go: what cannot be written is reported before anything is played, and leaves nothing behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge.core.errors import EdgeError
from tests.worlds.fleet import group, scenario
from tools.places import put
from tools.simulate.__main__ import main
from tools.simulate.fleet import run as fleet_run


@pytest.fixture
def day(tmp_path: Path) -> Path:
    path = tmp_path / "day.yaml"
    path.write_text(scenario(group(), lasts_h=1).model_dump_json(exclude_unset=True), encoding="utf-8")
    return path


def test_a_file_is_put_in_its_place_whole_and_a_link_is_written_through(tmp_path: Path) -> None:
    put(b"one", tmp_path / "new" / "x")
    (tmp_path / "link").symlink_to(tmp_path / "new" / "x")
    before = (tmp_path / "new" / "x").stat().st_ino
    put("två", tmp_path / "link")
    assert (tmp_path / "new" / "x").read_text(encoding="utf-8") == "två"
    assert (tmp_path / "new" / "x").stat().st_ino != before  # in one move
    assert (tmp_path / "link").is_symlink()
    assert [each.name for each in (tmp_path / "new").iterdir()] == ["x"]
    (tmp_path / "dangling").symlink_to(tmp_path / "later")
    put(b"three", tmp_path / "dangling")
    assert (tmp_path / "later").read_bytes() == b"three"
    with pytest.raises(EdgeError, match="cannot be written"):
        put(b"three", tmp_path / "new" / "x" / "y")


def test_a_pipe_is_written_through_also_behind_a_link(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        put("one", tmp_path / "link")
        assert os.read(reader, 9) == b"one"
    finally:
        os.close(reader)
    assert (tmp_path / "pipe").is_fifo() and (tmp_path / "link").is_symlink()


def test_a_command_whose_output_cannot_be_written_does_not_begin(
    tmp_path: Path, day: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_run, "play", None)
    folder = str(tmp_path)
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "nowhere")
    for arguments in (
        ["run", day, "--json", folder],
        ["run", day, "--json", day / "deeper" / "x.json"],
        ["run", day, "--json", dangling / "x.json"],
        ["run", day, "--html", folder],
        ["run", day, "--json", tmp_path / "x", "--html", tmp_path / "x"],
        ["run", day, "--json", day],
        ["sweep", day, "--vary", "groups.laptops.dial=0.1", "--out", day],
    ):
        assert main([str(each) for each in arguments]) == 2, arguments
        printed = capsys.readouterr()
        assert (printed.err.count("\n"), printed.out) == (1, ""), arguments


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert {"run", "sweep", "explore", "validate"} <= set(capsys.readouterr().out.split())
