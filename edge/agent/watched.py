"""Task files in a watched folder. Knows which files are there, what they hold and which are bad; knows nothing of steps or labels.

The folder is looked at between steps. A file is known by its content, so that a touched one is not new; one that changed while it was read,
or ends in the middle of a line, may still be being written and is tried again at the next look.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edge.core.errors import TaskFileError
from edge.core.names import shown
from edge.core.types import AnswerKind, TaskItem
from edge.tasks.jsonl import read_items

MOST_FILES = 200
MOST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class _Look:
    """What a file looked like: size and time of change say if it must be read again, the digest if it is another one."""

    size: int
    changed_ns: int
    digest: str
    items: tuple[TaskItem, ...]
    problem: str = ""


class WatchedFolder:
    """The `*.jsonl` files of one folder."""

    def __init__(self, folder: Path, notice: Callable[[str], None]) -> None:
        """`notice` is told once of each bad file (and again when its content changes), and when the folder cannot be read."""
        self.folder = folder
        self._notice = notice
        self._looks: dict[Path, _Look] = {}
        self._half: dict[Path, tuple[int, int]] = {}
        self._said = ""

    def items(self) -> list[TaskItem]:
        """The items of every good file, files in the order of their names; a question that stands in several counts once."""
        self._look()
        found: dict[tuple[str, str, str], TaskItem] = {}
        for path in sorted(self._looks):
            for item in self._looks[path].items:
                found.setdefault((item.task, item.question, item.answer), item)
        return list(found.values())

    @property
    def problems(self) -> dict[str, str]:
        """What is wrong with the bad files, by name."""
        return {path.name: look.problem for path, look in sorted(self._looks.items()) if look.problem}

    @property
    def files(self) -> int:
        """How many good files there are."""
        return sum(not look.problem for look in self._looks.values())

    def _look(self) -> None:
        try:
            paths = sorted(path for path in self.folder.iterdir() if path.suffix == ".jsonl" and not path.name.startswith("."))
        except OSError as error:
            self._say_once(f"{self.folder}: the folder of task files cannot be read ({error.strerror})")
            self._looks.clear()
            return
        if len(paths) > MOST_FILES:
            self._say_once(f"{self.folder}: {len(paths)} task files; the first {MOST_FILES} by name are used")
        else:
            self._said = ""
        for gone in set(self._looks) - set(paths[:MOST_FILES]):
            del self._looks[gone]
        for path in paths[:MOST_FILES]:
            self._look_at(path)

    def _look_at(self, path: Path) -> None:
        try:
            before = path.stat()
            known = self._looks.get(path)
            if not path.is_file() or (known and (known.size, known.changed_ns) == (before.st_size, before.st_mtime_ns)):
                return
            content = path.read_bytes() if before.st_size <= MOST_BYTES else b""
            after = path.stat()
        except OSError as error:
            self._take(path, _Look(-1, -1, "", (), f"cannot be read ({error.strerror})"))
            return
        seen = (after.st_size, after.st_mtime_ns)
        if (before.st_size, before.st_mtime_ns) != seen or self._may_be_half(path, content, seen):
            return
        digest = hashlib.sha256(content).hexdigest()
        if known and known.digest == digest:
            self._looks[path] = _Look(*seen, digest, known.items, known.problem)
        else:
            self._take(path, self._read(path, seen, digest))

    def _may_be_half(self, path: Path, content: bytes, seen: tuple[int, int]) -> bool:
        """A last line without an end may still grow: it is given until the next look."""
        if content.endswith((b"\n", b"}")) or self._half.get(path) == seen:
            self._half.pop(path, None)
            return False
        self._half[path] = seen
        return True

    def _read(self, path: Path, seen: tuple[int, int], digest: str) -> _Look:
        if seen[0] > MOST_BYTES:
            return _Look(*seen, digest, (), f"larger than {MOST_BYTES >> 20} MiB")
        try:
            items = read_items(path)
        except TaskFileError as error:
            return _Look(*seen, digest, (), str(error))
        judged = tuple(item for item in items if item.kind is not AnswerKind.FEEDBACK)
        if not judged:
            return _Look(*seen, digest, (), "has only items without an answer, which nobody can judge")
        return _Look(*seen, digest, judged)

    def _take(self, path: Path, look: _Look) -> None:
        known = self._looks.get(path)
        self._looks[path] = look
        if look.problem and (known is None or known.problem != look.problem or known.digest != look.digest):
            told = look.problem.removeprefix(f"{path}: ").removeprefix(f"{path}:")
            where = ":" if look.problem.startswith(f"{path}:") and not look.problem.startswith(f"{path}: ") else ": "
            self._notice(f"{shown(path.name)}{where}{told}; the file is left out until it changes")

    def _say_once(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._notice(text)
