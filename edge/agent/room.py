"""Room on the disk for the next learning step. Knows free space and whether a folder can be written; knows nothing of steps.

Beside the free space that the system tells, a failure counts: a quota or a file system that has become read-only is told by no number.
After one there is room again only when as much as a step needs could be written.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

LEAST_BYTES = 16 * 2**20
_PROBE = ".room"


class DiskRoom:
    """Whether a folder has room for what a step writes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._has_failed = False

    def shortage(self) -> str:
        """Why no step may begin, or "" where there is room."""
        needed, free = self._needed(), self._free()
        if free < needed:
            return f"no space on {self._folder}: {_mib(free)} MiB free, a step needs {_mib(needed)} MiB"
        if self._has_failed and not self._can_write(needed):
            return f"no space on {self._folder}: it cannot be written"
        self._has_failed = False
        return ""

    def was_missing(self) -> bool:
        """Whether a step that has just failed may have done so for want of room; remembered until there is room again."""
        self._has_failed = bool(self.shortage()) or not self._can_write(self._needed())
        return self._has_failed

    def _needed(self) -> int:
        """Twice the newest checkpoint: the next one is written beside it, and the database needs some, too."""
        newest = max((self._folder / "checkpoints").glob("[!.]*"), default=None)
        size = 0 if newest is None else sum(_size(file) for file in newest.rglob("*"))
        return max(LEAST_BYTES, 2 * size)

    def _free(self) -> int:
        try:
            return shutil.disk_usage(self._folder).free
        except OSError:
            return 0

    def _can_write(self, count: int) -> bool:
        probe = self._folder / _PROBE
        try:
            with probe.open("wb") as file:
                _reserve(file.fileno(), count)
            return True
        except OSError:
            return False
        finally:
            _removed(probe)


def _reserve(descriptor: int, count: int) -> None:
    """Take so many bytes of the disk; where the system cannot promise them, write one."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, count)
    else:
        os.write(descriptor, b"0")
        os.fsync(descriptor)


def _removed(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return


def _size(file: Path) -> int:
    try:
        return file.stat().st_size if file.is_file() else 0
    except OSError:
        return 0


def _mib(count: int) -> int:
    return count // 2**20
