"""A file that appears complete or not at all."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edge.core.errors import ModelFileError, UsageError
from edge.core.files import replacing


@contextmanager
def new_file(out: Path, *, force: bool) -> Iterator[Path]:
    """A temporary path next to `out` to write to; renamed to `out` at the end, removed when the body raises.

    Raises UsageError when `out` exists and not `force`, ModelFileError when it cannot be written.
    """
    check_free(out, force=force)
    try:
        with replacing(out) as draft:
            yield draft
    except OSError as error:
        hint = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "check the folder and its permissions"
        raise ModelFileError(f"{out}: cannot be written ({error.strerror or error})", hint=hint) from error


def check_free(out: Path, *, force: bool) -> None:
    """Raises UsageError when `out` is taken and not `force`, or has no folder to lie in."""
    if out.is_dir():
        raise UsageError(f"{out}: is a folder", hint="give the name of a file")
    if out.exists() and not force:
        raise UsageError(f"{out}: exists already", hint="give another name, or --force to replace it")
    if not out.parent.is_dir():
        raise UsageError(f"{out.parent}: no such folder", hint="make it first")
