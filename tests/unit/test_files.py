"""Atomically replaced files, and JSON lines truncated by a killed writer."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.core.files import drop_cut_line, replacing, replacing_folder, write_atomically


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


def test_file_is_replaced_as_a_whole_without_leftovers(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write_atomically(file, "old")
    write_atomically(file, "new ü")
    write_atomically(tmp_path / "bytes", b"\x00")
    assert file.read_text(encoding="utf-8") == "new ü" and (tmp_path / "bytes").read_bytes() == b"\x00"
    assert {path.name for path in tmp_path.iterdir()} == {"file", "bytes"}


def test_mode_follows_the_umask_or_is_exactly_as_given(tmp_path: Path, umask: None) -> None:
    write_atomically(tmp_path / "plain", "x")
    write_atomically(tmp_path / "private", "x", mode=0o600)
    write_atomically(tmp_path / "shared", "x", mode=0o666)
    assert [mode_of(tmp_path / name) for name in ("plain", "private", "shared")] == [0o640, 0o600, 0o666]


def test_private_file_is_never_readable_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(os, "fsync", lambda number: seen.append(stat.S_IMODE(os.fstat(number).st_mode)))
    file = tmp_path / "token"
    file.write_text("old")
    file.chmod(0o644)
    write_atomically(file, "new", mode=0o600)
    assert seen[0] == 0o600 and mode_of(file) == 0o600


@pytest.mark.parametrize("call", ["fsync", "fchmod", "replace"])
def test_failure_leaves_the_old_file_and_no_temporary_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    file = tmp_path / "file"
    file.write_text("old")
    monkeypatch.setattr(*((Path, "replace", full) if call == "replace" else (os, call, full)))
    with pytest.raises(OSError, match="No space"):
        write_atomically(file, "new", mode=0o600)
    assert file.read_text() == "old" and [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_file_is_synced_before_the_rename_and_the_folder_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, synced = tmp_path / "file", []
    monkeypatch.setattr(
        os, "fsync", lambda number: synced.append((str(Path(f"/proc/self/fd/{number}").readlink()), file.exists()))
    )
    write_atomically(file, "new")
    (draft, existed), (folder, exists) = synced
    assert Path(draft).parent == tmp_path and not existed and (folder, exists) == (str(tmp_path), True)


def test_two_concurrent_writers_do_not_disturb_each_other(tmp_path: Path) -> None:
    file = tmp_path / "file"
    with replacing(file) as one, replacing(file) as other:
        one.write_text("one")
        other.write_text("other")
    assert file.read_text() == "one" and [path.name for path in tmp_path.iterdir()] == ["file"]


def test_folder_is_replaced_as_a_whole_and_leftovers_of_a_killed_writer_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (tmp_path / ".folder.draft").mkdir()
    (tmp_path / ".folder.draft" / "left").write_text("x")
    folder.mkdir()
    (folder / "old").write_text("x")
    with replacing_folder(folder) as draft:
        (draft / "sub").mkdir()
        (draft / "sub" / "new").write_text("x")
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == ["folder", "folder/sub", "folder/sub/new"]


def test_folder_whose_block_fails_stays_unchanged(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "old").write_text("x")

    def half() -> None:
        with replacing_folder(folder) as draft:
            (draft / "new").write_text("x")
            raise ValueError("half")

    with pytest.raises(ValueError, match="half"):
        half()
    assert [path.name for path in tmp_path.rglob("*")] == ["folder", "old"]


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        (b"", b""),
        (b'{"a": 1}\n', b'{"a": 1}\n'),
        (b'{"a": 1}\n{"a', b'{"a": 1}\n'),
        (b'{"a": 1}\n{"b": 2', b'{"a": 1}\n'),
        (b'{"a": 1}\n{"b": "\xc3', b'{"a": 1}\n'),
        (b'{"', b""),
        (b"somebody's notes", b"somebody's notes"),
        (b'{"a": 1}\nnotes', b'{"a": 1}\nnotes'),
        (b'{"other": 1', b'{"other": 1'),
    ],
)
def test_only_a_cut_line_of_its_kind_is_dropped(tmp_path: Path, content: bytes, kept: bytes) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_bytes(content)
    drop_cut_line(file, b'{"a": ', b'{"b": ')
    assert file.read_bytes() == kept


def test_missing_file_is_not_created(tmp_path: Path) -> None:
    drop_cut_line(tmp_path / "lines.jsonl", b"{")
    assert not list(tmp_path.iterdir())
