"""Task items from a JSON Lines file.

One object a line:

| key | type | default |
|---|---|---|
| question | text | required |
| answer | text or number | required but for `feedback`; `choice`: letter, index from 0, or option text; `program`: its tests |
| tests | text, texts, or object | `program` only, for `answer`: Python text, asserts, or {"inputs": [...], "outputs": [...]} |
| task | text | "math"; the label whose τ and λ apply |
| kind | "math", "choice", "program" or "feedback" | "math" |
| options | list of texts | [] (2 to 10 for `choice`) |
| preamble | text | ""; `program` only: code put before what the model writes |
| level | whole number from 0 to 1000 | 0 |
| max_steps | whole number from 1 to 1000 | the task label's limit, else 4 |
| split | "train" or "test" | by a hash of the question: one in ten is "test" |
| solution | text | ""; a worked solution in the response format |
| family | text | "jsonl"; what a report groups by |
| id | text | from the question's hash |

Blank lines are skipped; unknown keys are rejected, so that a typing error is not silently ignored. `edge-agent tasks sample --json` writes
this schema. A byte order mark at the beginning is passed over.
"""

from __future__ import annotations

import ast
import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from edge.core.choices import chosen_option
from edge.core.errors import TaskFileError
from edge.core.formatting import shown
from edge.core.types import AnswerKind, Split, TaskItem
from edge.dagrpo.hyperparameters import STEP_LIMITS
from edge.tasks.record import Record, parsed_json
from edge.tasks.source import ListedItems

_FIELDS = ("question", "answer", "task", "kind", "options", "preamble", "level", "max_steps", "split", "solution", "family", "id")
_KEYS = {*_FIELDS, "tests"}
_DEFAULT_STEP_LIMIT = 4
_TEST_SHARE = 10
_MOST_OPTIONS = 10
_MOST_STEPS = _MOST_LEVELS = 1000


class JsonLinesSource(ListedItems):
    """A TaskSource over one file, held-out items in file order."""

    def __init__(self, path: Path) -> None:
        """Reads and checks the whole file. Raises TaskFileError naming file and line."""
        hint = 'leave "split" out or add lines with "split": "train"'
        super().__init__(read_items(path), name=str(path), order_name="jsonl", hint=hint)


def read_items(path: Path) -> list[TaskItem]:
    """All items of the file in order. Raises TaskFileError with FILE:LINE for the first bad line, or when there is no item."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskFileError(f"{path}: cannot be read ({error})", hint="give the path of a UTF-8 JSON Lines file") from error
    items = [_item(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not items:
        raise TaskFileError(
            f"{path}: no task item in the file", hint='one JSON object a line, e.g. {"question": "2+3?", "answer": 5}'
        )
    for name, count in Counter(item.id for item in items).items():
        if count > 1:
            raise TaskFileError(
                f"{path}: id {shown(name)!r} occurs twice", hint="remove the repeated question or give it its own id"
            )
    return items


def as_record(item: TaskItem) -> dict[str, Any]:
    """The line's object for an item; reading it gives the item back. What is at its default is left out."""
    record = {key: getattr(item, key) for key in _FIELDS} | {"kind": item.kind.value, "options": list(item.options)}
    return {key: value for key, value in record.items() if value not in ("", [])}


def _item(line: str, where: str) -> TaskItem:
    record = Record.of(parsed_json(line, where), where)
    if unknown := sorted(set(record.fields) - _KEYS):
        raise TaskFileError(f"{where}: unknown key {shown(unknown[0])!r}", hint=f"known keys: {', '.join(sorted(_KEYS))}")
    question = record.text("question")
    kind = AnswerKind(record.one_of("kind", [kind.value for kind in AnswerKind], "math"))
    task = record.text("task", default="math")
    digest = hashlib.sha256(question.encode("utf-8", "surrogatepass")).hexdigest()
    hashed_split = "test" if int(digest[:8], 16) % _TEST_SHARE == 0 else "train"
    preamble = record.optional_text("preamble")
    if preamble and kind is not AnswerKind.PROGRAM:
        raise record.bad("preamble", 'belongs to items of kind "program"')
    return TaskItem(
        id=record.text("id", default=f"jsonl/{digest[:16]}"),
        task=task,
        family=record.text("family", default="jsonl"),
        level=record.whole("level", default=0, least=0, most=_MOST_LEVELS),
        split=cast(Split, record.one_of("split", ["train", "test"], hashed_split)),
        question=question,
        answer=_answer(record, kind),
        kind=kind,
        max_steps=record.whole("max_steps", default=STEP_LIMITS.get(task, _DEFAULT_STEP_LIMIT), least=1, most=_MOST_STEPS),
        options=_options(record, kind),
        solution=record.optional_text("solution"),
        preamble=preamble,
    )


def _answer(record: Record, kind: AnswerKind) -> str:
    if "tests" in record.fields:
        return _tests(record, kind)
    if kind is AnswerKind.FEEDBACK and "answer" not in record.fields:
        return ""
    value = record.fields.get("answer")
    if isinstance(value, bool) or not isinstance(value, str | int | float) or not str(value).strip():
        raise record.bad("answer", "must be a non-empty text or a number")
    if isinstance(value, float) and not math.isfinite(value):
        raise record.bad("answer", f"must be a number, not {value}; where this word is the answer, write it as a text in quotes")
    if kind is AnswerKind.CHOICE:
        options = _options(record, kind)
        named = chosen_option(str(value), options)
        if named is None:
            last = chr(ord("A") + len(options) - 1)
            known = f"give a letter from A to {last}, an index from 0 to {len(options) - 1}, or the text of one option"
            raise record.bad(
                "answer", f"names none of the {len(options)} options, or more than one ({shown(str(value))!r}): {known}"
            )
        if [option.strip() for option in options].count(options[named].strip()) > 1:
            raise record.bad(
                "options", f"has {shown(options[named])!r} twice, so that nobody can answer with it: change one of them"
            )
    if kind is AnswerKind.PROGRAM:
        _check_tests(record, "answer", str(value))
    return str(value)


def _tests(record: Record, kind: AnswerKind) -> str:
    """The text that judges a program, from any form of `tests`."""
    if kind is not AnswerKind.PROGRAM:
        raise record.bad("tests", 'belongs to items of kind "program"')
    if "answer" in record.fields:
        raise record.bad("tests", 'stands in place of "answer": give one of them')
    value = record.fields["tests"]
    if isinstance(value, list) and value and all(isinstance(line, str) for line in value):
        value = "\n".join(value)
    if isinstance(value, dict):
        value = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, str) or not value.strip():
        raise record.bad("tests", 'must be Python text, a list of texts, or an object with "inputs" and "outputs"')
    _check_tests(record, "tests", value)
    return value


def _check_tests(record: Record, key: str, text: str) -> None:
    """Raises TaskFileError unless the text is Python, or a JSON object with as many inputs as outputs."""
    if text.lstrip().startswith("{"):
        pairs = parsed_json(text, f'{record.where}: "{key}"')
        inputs, outputs = (pairs.get("inputs"), pairs.get("outputs")) if isinstance(pairs, Mapping) else (None, None)
        if not (isinstance(inputs, list) and isinstance(outputs, list) and 0 < len(inputs) == len(outputs)):
            raise record.bad(key, 'must have the lists "inputs" and "outputs", equally long and not empty')
        return
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise record.bad(key, f"must be Python ({error})") from error


def _options(record: Record, kind: AnswerKind) -> tuple[str, ...]:
    options = record.texts("options")
    if kind is AnswerKind.CHOICE and not 2 <= len(options) <= _MOST_OPTIONS:
        raise TaskFileError(f'{record.where}: a "choice" item needs "options" with 2 to {_MOST_OPTIONS} texts')
    return options
