"""A folder of task files that are learned from as they come, change and go."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from edge.core.errors import TaskFileError
from edge.core.formatting import shown
from edge.learning.own_items import OwnItem, own_item
from edge.tasks.jsonl import SUFFIXES, read_file

MOST_FILES = 200
MOST_BYTES = 64 << 20
MOST_ITEMS = 100_000
"""Of one file; every item is checked before each step of one's own use."""


@dataclass(frozen=True, slots=True)
class _File:
    """A file as it was read: size and time of change show whether it must be read again, the digest whether it is another one.

    `problem`: why none of it is used; `notes`: what a person should know of its items.
    """

    size: int
    changed_ns: int
    digest: str
    items: tuple[OwnItem, ...] = ()
    problem: str = ""
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class WatchedFolder:
    """The task files of one folder (edge.tasks.jsonl.SUFFIXES).

    `notice` is called once for each bad file (and again when its content changes), and when the folder cannot be read.
    """

    folder: Path
    notice: Callable[[str], None]
    items: tuple[OwnItem, ...] = field(default=(), init=False)
    """Of every good file at the last check, files in the order of their names; a question that occurs in several counts once."""
    _checking: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _notices: list[str] = field(default_factory=list, init=False)
    _files: dict[Path, _File] = field(default_factory=dict, init=False)
    _half: dict[Path, tuple[int, int]] = field(default_factory=dict, init=False)
    _folder_problem: str = field(default="", init=False)

    async def check(self) -> None:
        """Read what has changed. `items` is another object only when something has."""
        async with self._checking:
            items = await asyncio.to_thread(self._read_changed)
            if items is not None:
                self.items = items
            notices, self._notices = self._notices, []
        for text in notices:
            self.notice(text)

    def _read_changed(self) -> tuple[OwnItem, ...] | None:
        """None where every file holds what it held."""
        before = {path: file.digest for path, file in self._files.items()}
        problem, paths = "", []
        try:
            paths = sorted(
                path for path in self.folder.iterdir() if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
            )
        except OSError as error:
            problem = (
                f"{self.folder}: the folder of task files cannot be read ({error.strerror}); make it, or change use.tasks_folder"
            )
        if len(paths) > MOST_FILES:
            problem = f"{self.folder}: {len(paths)} task files; the first {MOST_FILES} by name are used"
        if problem and problem != self._folder_problem:
            self._notices.append(problem)
        self._folder_problem = problem
        for gone in set(self._files) - set(paths[:MOST_FILES]):
            del self._files[gone]
        for path in paths[:MOST_FILES]:
            self._check_file(path)
        if before == {path: file.digest for path, file in self._files.items()}:
            return None
        found: dict[tuple[str, str, str], OwnItem] = {}
        for path in sorted(self._files):
            for one in self._files[path].items:
                found.setdefault((one.item.task, one.item.question, one.item.answer), one)
        return tuple(found.values())

    def _check_file(self, path: Path) -> None:
        known = self._files.get(path)
        try:
            before = path.stat()
            if not path.is_file() or (known and (known.size, known.changed_ns) == (before.st_size, before.st_mtime_ns)):
                return
            content = path.read_bytes() if before.st_size <= MOST_BYTES else b""
            after = path.stat()
        except OSError as error:
            self._take(path, _File(-1, -1, "", problem=f"cannot be read ({error.strerror})"))
            return
        seen = (after.st_size, after.st_mtime_ns)
        if (before.st_size, before.st_mtime_ns) != seen:
            return
        if not content.endswith((b"\n", b"}")) and self._half.get(path) != seen:
            self._half[path] = seen  # a last line without an end may still grow: it is given until the next check
            return
        self._half.pop(path, None)
        digest = hashlib.sha256(content).hexdigest()
        if known and known.digest == digest:
            self._files[path] = replace(known, size=seen[0], changed_ns=seen[1])
        else:
            self._take(path, _read(path, seen, digest))

    def _take(self, path: Path, file: _File) -> None:
        known, self._files[path] = self._files.get(path), file
        if file.problem and (known is None or known.problem != file.problem or known.digest != file.digest):
            problem = file.problem.removeprefix(f"{path}: ").removeprefix(f"{path}:")
            where = ":" if file.problem.startswith(f"{path}:") and not file.problem.startswith(f"{path}: ") else ": "
            self._notices.append(f"{shown(path.name)}{where}{problem}; the file is left out until it changes")
        self._notices += [f"{shown(path.name)}: {note}" for note in file.notes]


def _read(path: Path, seen: tuple[int, int], digest: str) -> _File:
    if seen[0] > MOST_BYTES:
        return _File(*seen, digest, problem=f"larger than {MOST_BYTES >> 20} MiB")
    try:
        file = read_file(path)
    except TaskFileError as error:
        return _File(*seen, digest, problem=str(error))
    answered = [item for item in file.items if item.answer]
    if not answered:
        return _File(*seen, digest, problem="has only items without an answer, which nobody can judge")
    most = (f"has {len(answered)} items; the first {MOST_ITEMS} are used",) if len(answered) > MOST_ITEMS else ()
    return _File(*seen, digest, tuple(own_item(item, sent=True) for item in answered[:MOST_ITEMS]), notes=(*file.notes, *most))
