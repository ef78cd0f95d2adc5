"""Task items from a JSON Lines file. Knows the schema; knows nothing of learning.

One object a line:

| key | type | default |
|---|---|---|
| question | text | required |
| answer | text or number | required (for `choice`: letter, index from 0, or option text) |
| task | text | "math"; the label whose τ and λ apply |
| kind | "math", "choice" or "program" | "math" |
| options | list of texts | [] (required for `choice`) |
| level | whole number >= 0 | 0 |
| max_steps | whole number >= 1 | the task label's limit, else 4 |
| split | "train" or "test" | by a hash of the question: one in ten is "test" |
| id | text | from the question's hash |

Blank lines are skipped; unknown keys are refused, so that a typing error is not silently ignored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from edge.core.errors import TaskFileError
from edge.core.rng import stream
from edge.core.types import AnswerKind, Split, TaskItem
from edge.dagrpo.hyperparameters import STEP_LIMITS

_KEYS = {"question", "answer", "task", "kind", "options", "level", "max_steps", "split", "id"}
_DEFAULT_STEP_LIMIT = 4
_TEST_SHARE = 10


class JsonLinesSource:
    """A TaskSource over one file; the training stream is reshuffled on every pass, seeded."""

    def __init__(self, path: Path) -> None:
        """Reads and checks the whole file. Raises TaskFileError naming file and line."""
        self._path = path
        items = read_items(path)
        self._train = tuple(item for item in items if item.split == "train")
        self._test = tuple(item for item in items if item.split == "test")

    @property
    def name(self) -> str:
        """The file's path."""
        return str(self._path)

    def train(self, seed: int, start: int = 0) -> Iterator[TaskItem]:
        """Endless training stream from position `start`. Raises TaskFileError when the file has no training item."""
        if not self._train:
            raise TaskFileError(f"{self._path}: no training item", hint='leave "split" out or add lines with "split": "train"')
        return self._shuffled(seed, start)

    def test(self, limit: int) -> Sequence[TaskItem]:
        """The first `limit` held-out items in file order."""
        return self._test[:limit]

    def _shuffled(self, seed: int, start: int) -> Iterator[TaskItem]:
        epoch, skip = divmod(start, len(self._train))
        while True:
            order = list(self._train)
            stream(seed, "jsonl", epoch).shuffle(order)
            yield from order[skip:]
            epoch, skip = epoch + 1, 0


def read_items(path: Path) -> list[TaskItem]:
    """All items of the file in order. Raises TaskFileError with FILE:LINE for the first bad line, or when there is no item."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TaskFileError(f"{path}: cannot be read ({error})", hint="give the path of a UTF-8 JSON Lines file") from error
    items = [_item(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not items:
        raise TaskFileError(
            f"{path}: no task item in the file", hint='one JSON object a line, e.g. {"question": "2+3?", "answer": 5}'
        )
    _refuse_repeated_ids(items, path)
    return items


def _refuse_repeated_ids(items: Sequence[TaskItem], path: Path) -> None:
    seen: set[str] = set()
    for item in items:
        if item.id in seen:
            raise TaskFileError(f"{path}: id {item.id!r} occurs twice", hint="remove the repeated question or give it its own id")
        seen.add(item.id)


def _item(line: str, where: str) -> TaskItem:
    record = _record(line, where)
    question = _text(record, "question", where)
    kind = _choice(record, "kind", [kind.value for kind in AnswerKind], "math", where)
    task = _text(record, "task", where, default="math")
    digest = hashlib.sha256(question.encode()).hexdigest()
    options = _options(record, where)
    if kind == "choice" and len(options) < 2:
        raise TaskFileError(f'{where}: a "choice" item needs "options" with at least two texts')
    hashed_split = "test" if int(digest[:8], 16) % _TEST_SHARE == 0 else "train"
    return TaskItem(
        id=_text(record, "id", where, default=f"jsonl/{digest[:16]}"),
        task=task,
        family="jsonl",
        level=_whole(record, "level", where, default=0, least=0),
        split=cast(Split, _choice(record, "split", ["train", "test"], hashed_split, where)),
        question=question,
        answer=_answer(record, where),
        kind=AnswerKind(kind),
        max_steps=_whole(record, "max_steps", where, default=STEP_LIMITS.get(task, _DEFAULT_STEP_LIMIT), least=1),
        options=options,
    )


def _record(line: str, where: str) -> Mapping[str, Any]:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise TaskFileError(f"{where}: not valid JSON ({error.msg} at column {error.colno})") from error
    if not isinstance(record, dict):
        raise TaskFileError(f"{where}: expected a JSON object, found {type(record).__name__}")
    unknown = sorted(set(record) - _KEYS)
    if unknown:
        raise TaskFileError(f"{where}: unknown key {unknown[0]!r}", hint=f"known keys: {', '.join(sorted(_KEYS))}")
    return record


def _text(record: Mapping[str, Any], key: str, where: str, default: str | None = None) -> str:
    value = record.get(key, default)
    if not isinstance(value, str) or not value.strip():
        raise TaskFileError(f'{where}: "{key}" must be a non-empty text')
    return value


def _answer(record: Mapping[str, Any], where: str) -> str:
    value = record.get("answer")
    if isinstance(value, bool) or not isinstance(value, str | int | float) or not str(value).strip():
        raise TaskFileError(f'{where}: "answer" must be a non-empty text or a number')
    return str(value)


def _options(record: Mapping[str, Any], where: str) -> tuple[str, ...]:
    value = record.get("options", [])
    if not isinstance(value, list) or not all(isinstance(option, str) and option for option in value):
        raise TaskFileError(f'{where}: "options" must be a list of texts')
    return tuple(value)


def _whole(record: Mapping[str, Any], key: str, where: str, *, default: int, least: int) -> int:
    value = record.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise TaskFileError(f'{where}: "{key}" must be a whole number >= {least}')
    return value


def _choice(record: Mapping[str, Any], key: str, known: Sequence[str], default: str, where: str) -> str:
    value = record.get(key, default)
    if value not in known:
        raise TaskFileError(f'{where}: "{key}" must be one of {", ".join(known)}, not {value!r}')
    return str(value)
