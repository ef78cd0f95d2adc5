"""The folders that a command is given: whether they can be read or written, before hours of work."""

from __future__ import annotations

import tempfile
from pathlib import Path

from edge.core.errors import UsageError


def require_folder(results: Path) -> None:
    """Raises UsageError for results that are no folder or cannot be read."""
    try:
        next(results.iterdir(), None)
    except OSError as error:
        raise UsageError(f"--results {results}: {error.strerror}", hint="give the folder that results were written to") from error


def require_writable(folder: Path, option: str) -> None:
    """Make the folder where there is none, and write into it once. Raises UsageError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".probe-"):
            pass
    except OSError as error:
        hint = "give a folder that you may write to"
        raise UsageError(f"{option} {folder}: cannot be written to ({error.strerror})", hint=hint) from error
