"""Places of results: whether one can be written is known before the work, a file comes to it in one move, and is read by its format."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from edge.core.errors import EdgeError, UsageError
from edge.core.files import open_regular, write_atomically

T = TypeVar("T")
_HINT = "choose another place"


class _Head(msgspec.Struct):
    """What is read first, so that a file of another format is told from a damaged one."""

    format: int


def check_files(*paths: Path | None, read: Sequence[Path] = ()) -> None:
    """Raises UsageError, in one line, for a file that could not be written (None: none is wanted), and where two are the same one or one
    that is `read`."""
    wanted = [path for path in paths if path is not None]
    for path in wanted:
        _check_file(path)
    for one, other in combinations([*read, *wanted], 2):
        if other in wanted and os.path.realpath(one) == os.path.realpath(other) and not _is_special(one):
            raise UsageError(f"{other} is named for two files", hint="give each a name of its own")


def check_folder(path: Path, option: str) -> None:
    """Raises UsageError, in one line that names the option, where no files can be written into this folder, which need not be there yet."""
    _check_room(f"{option} {path}", path)


def _check_room(name: str, folder: Path) -> None:
    """Whether something can be made in the folder, or in what of its path is there; `name`: what is refused."""
    folder = folder.absolute()
    there = next(each for each in (folder, *folder.parents) if each.exists() or each.is_symlink())
    if not there.is_dir():
        raise UsageError(f"{name} cannot be written: {there} is no folder", hint=_HINT)
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise UsageError(f"{name} cannot be written: {error.strerror or error}", hint=_HINT) from None


def put(content: str | bytes, path: Path) -> None:
    """Write the file in one move, and make its folder; a link stays, and a pipe or a device is written through. Raises EdgeError, in one
    line."""
    target = _target(path)
    try:
        if _is_special(target):
            target.write_bytes(content.encode() if isinstance(content, str) else content)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, content)
    except OSError as error:
        raise EdgeError(f"{path} cannot be written: {error.strerror or error}", hint=_HINT) from error


def put_json(value: Any, path: Path) -> None:
    """Write a value as JSON, indented, as `read_json` reads one with a `format`. Raises EdgeError, in one line."""
    put(msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n", path)


def read_json(path: Path, kind: type[T], number: int, *, hint: str) -> T:
    """What a file says that was written in this format. Raises UsageError, in one line; `hint`: which command writes such files."""
    try:
        with open_regular(path) as file:
            text = file.read()
        found = msgspec.json.decode(text, type=_Head).format
        if found != number:
            raise UsageError(f"{path} has format {found}, and this program reads format {number}", hint=hint)
        return msgspec.json.decode(text, type=kind)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}", hint=hint) from None
    except msgspec.DecodeError as error:
        raise UsageError(f"{path} is another kind of file or damaged: {error}", hint=hint) from None


def _check_file(path: Path) -> None:
    if path.is_dir() or not path.name:
        raise UsageError(f"{path} is a folder, not a file", hint="give the name of a file in it")
    target = _target(path)
    if not _is_special(target):
        _check_room(str(path), target.parent)
    elif not os.access(target, os.W_OK):
        raise UsageError(f"{path} cannot be written", hint=_HINT)


def _target(path: Path) -> Path:
    """The file that a link means, any other path as it is."""
    return Path(os.path.realpath(path)) if path.is_symlink() and not _is_special(path) else path


def _is_special(path: Path) -> bool:
    """Whether it is there and no plain file that another may take the place of."""
    return path.exists() and not path.is_file()
