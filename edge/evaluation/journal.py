"""What an interrupted evaluation had judged. Knows one JSON Lines file; knows nothing of how items are judged.

The first line names the evaluation (all that its verdicts depend on, and the tag of its cloud calls), every further line is one judged
item. Items whose cloud call failed are not kept, so that they are asked again. A last line that a kill cut off is dropped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edge.core.errors import StateError
from edge.core.files import drop_cut_line
from edge.evaluation.judged import Judged

_FIRST_LINE, _NEXT_LINE = b'{"evaluation": ', b'{"item": '


class Journal:
    """An open journal. `known` is what it held; `tag` the tag under which its evaluation began. Close it, and remove it at the end."""

    def __init__(self, path: Path, evaluation: Mapping[str, Any], tag: str) -> None:
        """Open, or create with this tag. Raises StateError: another evaluation's, damaged (FILE:LINE), or not writable."""
        self.path = path
        self.tag = tag
        self.known: dict[str, Judged] = {}
        wanted = json.loads(json.dumps(evaluation))
        try:
            begun = self._read(wanted)
            self._stream = path.open("a", encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise StateError(f"{path} cannot be used to keep what was judged: {error}") from error
        if not begun:
            self._write({"evaluation": wanted, "tag": tag})

    def add(self, key: str, judged: Judged) -> None:
        """Keep one item."""
        if not judged.failure:
            self._write({"item": key, "judged": judged.to_json()})

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        self._stream.close()

    def remove(self) -> None:
        """Close and delete: the evaluation is complete."""
        self.close()
        self.path.unlink(missing_ok=True)

    def _write(self, line: Mapping[str, Any]) -> None:
        self._stream.write(json.dumps(line) + "\n")
        self._stream.flush()

    def _read(self, wanted: Mapping[str, Any]) -> bool:
        """Take over what the file holds; False when it is new."""
        drop_cut_line(self.path, _FIRST_LINE, _NEXT_LINE)
        content = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        if content and not content.endswith("\n"):
            raise StateError(f"{self.path}:{content.count(chr(10)) + 1}: not a line of an evaluation's journal", hint=self._hint)
        lines = content.split("\n")[:-1]
        for number, line in enumerate(lines, 1):
            self._take(number, line, wanted)
        return bool(lines)

    def _take(self, number: int, line: str, wanted: Mapping[str, Any]) -> None:
        try:
            entry = json.loads(line)
            if number == 1:
                self._check(entry["evaluation"], wanted)
                self.tag = str(entry["tag"])
            else:
                self.known[str(entry["item"])] = Judged.from_json(entry["judged"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StateError(f"{self.path}:{number}: not a line of an evaluation's journal", hint=self._hint) from error

    def _check(self, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
        for name in sorted({*found, *wanted}):
            if found.get(name) != wanted.get(name):
                was, now = found.get(name), wanted.get(name)
                raise StateError(f"{self.path} keeps another evaluation: {name} was {was!r} and is {now!r}", hint=self._hint)

    @property
    def _hint(self) -> str:
        return "remove the file to start anew, or write the report to another one"
