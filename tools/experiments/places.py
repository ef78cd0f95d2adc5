"""The folders and files that a command is given: whether they can be read or written, told before anything is worked out."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edge.core.errors import EdgeError, UsageError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_PROBE = bytes(4096)


def require_folder(folder: Path, option: str, *, made_later: bool = False) -> None:
    """Raises UsageError, naming the option, for a folder that is none or cannot be read; `made_later`: it need not be there."""
    try:
        is_there, is_folder = os.path.lexists(folder), folder.is_dir()
    except OSError as error:
        raise UsageError(f"{option} {folder}: {error.strerror}", hint="give a folder that you may read") from error
    if not is_there and not made_later:
        raise UsageError(f"{option} {folder}: no such folder", hint="give the one that results were written to")
    if is_there and not is_folder:
        raise UsageError(f"{option} {folder}: is no folder", hint="give the one that results were written to")
    if is_there and not os.access(folder, os.R_OK | os.X_OK):
        raise UsageError(f"{option} {folder}: cannot be read", hint="give a folder that you may read")


def require_writable(folder: Path, option: str) -> None:
    """Make the folder where there is none, and write into it once. Raises as `told_with`."""
    with told_with(option, folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".probe-") as probe:
            probe.write(_PROBE)


@contextmanager
def told_with(option: str, place: Path) -> Iterator[None]:
    """Tells what the system refuses in one line with the option. Raises UsageError, EdgeError where there is no room."""
    try:
        yield
    except OSError as error:
        kind, hint = (
            (EdgeError, "make room there") if error.errno in _FULL else (UsageError, "give a place that you may write to")
        )
        why = "it is no folder" if isinstance(error, (FileExistsError, NotADirectoryError)) else error.strerror or str(error)
        raise kind(f"{option} {place}: cannot be written to ({why})", hint=hint) from error
