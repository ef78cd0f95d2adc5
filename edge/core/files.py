"""Files on disk: opened only where they are regular, written whole or not at all, and JSON lines that a killed writer has cut."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from edge.core.errors import ModelFileError


def open_regular(path: Path) -> BinaryIO:
    """A file opened to read bytes. Raises OSError where it cannot be, ModelFileError for a folder, pipe, socket or device.

    A pipe that nobody writes to does not block.
    """
    if path.is_dir():
        raise ModelFileError(f"{path}: not a file", hint="give the path of one file")
    number = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise ModelFileError(f"{path}: not a regular file", hint="give the path of one file")
    return os.fdopen(number, "rb")


def write_atomically(path: Path, data: str | bytes, *, mode: int | None = None) -> None:
    """Replace the file by `data` (text as UTF-8), so that it is the old or the new one whenever the process or the machine stops.

    `mode`: exactly these permissions, from the first byte on; by default what the umask leaves. Raises OSError.
    """
    with replacing(path) as draft:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else mode)
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(data.encode("utf-8") if isinstance(data, str) else data)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path next to `path` at which the block writes a file; it takes the place of `path` when the block ends well.

    The file is on the disk before it is renamed, and the rename before this returns. Whatever fails, `path` is as it was and nothing is
    left next to it. Each writer has a path of its own, so that several may write at once: the last one stays. Raises OSError.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.draft")
    try:
        yield draft
        sync(draft)
        draft.replace(path)
        sync(path.parent)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """A new, empty folder next to `path` that takes its place, with all that the block puts into it, when the block ends well.

    Everything is on the disk before the rename. There may be one writer only: what a killed one has left is removed first. Raises OSError.
    """
    draft = path.with_name(f".{path.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        yield draft
        for file in sorted(draft.rglob("*")):
            sync(file)
        sync(draft)
        if path.exists():
            shutil.rmtree(path)
        draft.rename(path)
        sync(path.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def sync(path: Path) -> None:
    """Hand a file, or the names in a folder, to the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def drop_cut_line(path: Path, *starts: bytes) -> None:
    """Remove the last line of a JSON Lines file where it has no end, as a killed writer leaves it.

    `starts`: how lines of this kind begin. What begins otherwise is somebody else's and stays. No file: nothing happens. Raises OSError.
    """
    if not path.exists():
        return
    with path.open("r+b") as stream:
        content = stream.read()
        whole = content.rfind(b"\n") + 1
        tail = content[whole:]
        if tail and any(tail.startswith(start) or start.startswith(tail) for start in starts):
            stream.truncate(whole)
