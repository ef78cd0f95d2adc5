"""Task files in a watched folder. Knows which files are there, what they hold and which are bad; knows nothing of steps or labels.

The folder is looked at between steps, on a thread of its own: a large file must not keep people waiting. A file is known by its
content, so that a touched one is not new; one that changed while it was read, or ends in the middle of a line, may still be being
written and is tried again at the next look.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from edge.agent.mine import OwnItem, own_item
from edge.core.errors import TaskFileError
from edge.core.names import shown
from edge.core.types import AnswerKind
from edge.tasks.jsonl import read_items

MOST_FILES = 200
MOST_BYTES = 64 << 20
MOST_ITEMS = 100_000
"""Of one file; every item is looked at before each step of one's own use."""


@dataclass(frozen=True, slots=True)
class _Look:
    """What a file looked like: size and time of change say if it must be read again, the digest if it is another one."""

    size: int
    changed_ns: int
    digest: str
    items: tuple[OwnItem, ...]
    problem: str = ""
    more: str = ""


class WatchedFolder:
    """The `*.jsonl` files of one folder."""

    def __init__(self, folder: Path, notice: Callable[[str], None]) -> None:
        """`notice` is told once of each bad file (and again when its content changes), and when the folder cannot be read."""
        self.folder = folder
        self.items: tuple[OwnItem, ...] = ()
        """Of every good file at the last look, files in the order of their names; a question that stands in several counts once."""
        self.problems: dict[str, str] = {}
        """What was wrong with the bad files, by name."""
        self._notice = notice
        self._looking = asyncio.Lock()
        self._notices: list[str] = []
        self._looks: dict[Path, _Look] = {}
        self._half: dict[Path, tuple[int, int]] = {}
        self._said = ""

    async def look(self) -> None:
        """Read what has changed. `items` is another object only when something has."""
        async with self._looking:
            items = await asyncio.to_thread(self._items)
            if items is not None:
                self.items = items
            self.problems = {path.name: look.problem for path, look in sorted(self._looks.items()) if look.problem}
            told, self._notices = self._notices, []
        for text in told:
            self._notice(text)

    def _items(self) -> tuple[OwnItem, ...] | None:
        """None where every file holds what it held."""
        before = {path: look.digest for path, look in self._looks.items()}
        self._look()
        if before == {path: look.digest for path, look in self._looks.items()}:
            return None
        found: dict[tuple[str, str, str], OwnItem] = {}
        for path in sorted(self._looks):
            for one in self._looks[path].items:
                found.setdefault((one.item.task, one.item.question, one.item.answer), one)
        return tuple(found.values())

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
            self._looks[path] = replace(known, size=seen[0], changed_ns=seen[1])
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
        judged = [item for item in items if item.kind is not AnswerKind.FEEDBACK]
        if not judged:
            return _Look(*seen, digest, (), "has only items without an answer, which nobody can judge")
        more = f"has {len(judged)} items; the first {MOST_ITEMS} are used" if len(judged) > MOST_ITEMS else ""
        return _Look(*seen, digest, tuple(own_item(item, sent=True) for item in judged[:MOST_ITEMS]), more=more)

    def _take(self, path: Path, look: _Look) -> None:
        known = self._looks.get(path)
        self._looks[path] = look
        if look.problem and (known is None or known.problem != look.problem or known.digest != look.digest):
            told = look.problem.removeprefix(f"{path}: ").removeprefix(f"{path}:")
            where = ":" if look.problem.startswith(f"{path}:") and not look.problem.startswith(f"{path}: ") else ": "
            self._notices.append(f"{shown(path.name)}{where}{told}; the file is left out until it changes")
        if look.more:
            self._notices.append(f"{shown(path.name)}: {look.more}")

    def _say_once(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._notices.append(text)
