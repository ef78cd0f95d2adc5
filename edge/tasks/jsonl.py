"""Task items from a person's own file: JSON Lines, or CSV with a header.

One object a line, or one row:

| key | type | default |
|---|---|---|
| question, answer | text; text or number | required but for `feedback`; `choice`: letter, index from 0, or text; `program`: its tests |
| prompt, completion | texts | in their place |
| messages | list of messages | in their place: a conversation that ends with the answer (edge.tasks.forms) |
| tests | text, texts, or object | `program` only, for `answer`: Python text, asserts, or {"inputs": [...], "outputs": [...]} |
| label, or task | text | "chat"; the label whose τ and λ apply |
| kind | the name of an AnswerKind (edge.core.types) | what the answer looks like (edge.tasks.forms.fitting_kind) |
| form | "reasoned" or "plain" | reasoned for `program`, and for `math` and `choice` of a label with 100 questions or more; else plain |
| options | list of texts; in CSV separated by a bar | [] (2 to 20 for `choice`) |
| preamble | text | ""; `program` only: code put before what the model writes |
| level | whole number from 0 to 1000 | 0 |
| max_steps | whole number from 1 to 1000 | the task label's limit, else 4 |
| split | "train" or "test" | of a label with 100 questions or more one in ten is "test", by a hash |
| solution | text | ""; a worked solution in the response format |
| family | text | "jsonl" or "csv"; what a report groups by |
| id | text | from the question's hash |

Blank lines are skipped; unknown keys are rejected, so that a typing error is not silently ignored. `edge-agent tasks sample --json` writes
this schema. Byte order marks are passed over wherever they are, as in files that were joined end to end. A line that repeats an earlier one
counts once; the same question with another answer is an error. A number as an answer is kept as the text in the file.

Where a person names the columns (keys) of texts and answers, all others are passed over (edge.tasks.texts): a question may be put to each
text, and where few answers occur, they are its options. The label is then the name of the answers' column.

An answer of which nobody stated the kind, and which is too long to be compared, makes an open item: of kind feedback, with the answer as
the one that is known to be right (edge.core.answer_key.OwnKey). It is learned from and never held out.
"""

from __future__ import annotations

import ast
import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast, get_args

from edge.core.answer_key import MOST_SHORT_WORDS, OwnKey, is_short, without_invisible
from edge.core.choices import MOST_OPTIONS, first_number, listed_options, reference_option, two_readings
from edge.core.columns import Columns
from edge.core.errors import TaskFileError
from edge.core.formatting import counted, shown
from edge.core.limits import OWN_LABEL, TASK_LABEL_FORM, is_task_label
from edge.core.types import AnswerKind, FormName, Split, TaskItem
from edge.dagrpo.format import check_format
from edge.dagrpo.hyperparameters import STEP_LIMITS
from edge.dagrpo.prompts import TextQuestion
from edge.tasks.forms import FORM_KEYS, Exchange, exchange_of, fitting_kind, refuse_tools
from edge.tasks.program_tests import why_not_judged
from edge.tasks.record import Record, parsed_json
from edge.tasks.source import ListedItems
from edge.tasks.table import SUFFIXES as TABLES
from edge.tasks.table import table_records
from edge.tasks.texts import texts_of

SUFFIXES = (".jsonl", *TABLES)
"""How the names of task files end; a file of any other name is read as JSON Lines."""
_FIELDS = (
    "question",
    "answer",
    "task",
    "kind",
    "form",
    "options",
    "preamble",
    "level",
    "max_steps",
    "split",
    "solution",
    "family",
    "id",
)
_KEYS = {*_FIELDS, *FORM_KEYS, "tests", "label"}
_DEFAULT_STEP_LIMIT = 4
_TEST_SHARE = 10
_MOST_STEPS = _MOST_LEVELS = 1000
_NAMED = 3
_EXAMPLE = '{"question": "2+3?", "answer": 5}'
FEWEST_TO_HOLD_OUT = 100
"""Of a label with fewer questions none is held out unless the file states it: a tenth of them would measure little, and who writes down
thirty facts wants all of them learned."""


class JsonLinesSource(ListedItems):
    """A TaskSource over one file, held-out items in file order. `notes`, `states_split` and `asked` as of a TaskFile."""

    def __init__(self, path: Path, columns: Columns | None = None) -> None:
        """Reads and checks the whole file, as `read_file` does."""
        file = read_file(path, columns)
        self.notes = file.notes
        self.states_split = file.states_split
        self.asked = file.asked
        hint = 'leave "split" out or add lines with "split": "train"'
        super().__init__(file.items, name=str(path), order_name="jsonl", hint=hint)

    def to_measure(self) -> ListedItems:
        """What is evaluated: the held-out items, and of a label that holds none out all, unless the file itself states the split."""
        held_out = {item.task for item in self.test_items}
        whole = [item for item in self.train_items if item.task not in held_out and not is_open(item)]
        if self.states_split or not whole:
            return self
        items = [*self.test_items, *(replace(item, split="test") for item in whole)]
        return ListedItems(items, name=self.name, order_name="jsonl", hint="")


@dataclass(frozen=True, slots=True)
class TaskFile:
    """All items of a file in order.

    `notes`: what a person should know of them, a line each; `states_split`: whether the file itself has any held out or not; `asked`: what
    is asked about each of its texts, where it has texts and no questions.
    """

    items: tuple[TaskItem, ...]
    notes: tuple[str, ...]
    states_split: bool
    asked: TextQuestion | None = None


def read_file(path: Path, columns: Columns | None = None) -> TaskFile:
    """Reads and checks the whole file, of which `columns` are the texts and their answers. Raises TaskFileError with FILE:LINE for the
    first bad line, or when there is no item."""
    is_table = path.suffix.lower() in TABLES
    try:
        text = path.read_bytes().decode("utf-8").replace("\ufeff", "")
    except (OSError, UnicodeDecodeError) as error:
        hint = "save it as CSV in UTF-8" if is_table else "give the path of a UTF-8 JSON Lines or CSV file"
        raise TaskFileError(f"{path}: cannot be read ({error})", hint=hint) from error
    if columns is not None and is_table:
        columns = replace(columns, question=columns.question.lower(), answer=columns.answer.lower())
    wanted = () if columns is None else (columns.question, columns.answer)
    family, records = ("csv", table_records(path, text, _KEYS, wanted)) if is_table else ("jsonl", _json_records(path, text))
    texts = None if columns is None else texts_of(path, list(records), columns)
    read = [(record, _item(record, family)) for record in (texts.records if texts else records)]
    if not read:
        example = "a header and one question a row" if is_table else f"one JSON object a line, e.g. {_EXAMPLE}"
        raise TaskFileError(f"{path}: no task item in the file", hint=example)
    first: dict[str, tuple[Record, TaskItem]] = {}
    for record, item in read:
        earlier, same = first.setdefault(item.id, (record, item))
        if item != same:
            what = f"id {shown(item.id)!r}" if "id" in record.fields else f"the question {shown(item.question)!r}"
            raise TaskFileError(
                f"{record.where}: {what} occurs twice, first in line {earlier.where.rpartition(':')[2]}, with other content",
                hint="remove one of them or give it its own id",
            )
    items = [item for _, item in first.values()]
    repeats, states_split = len(read) - len(items), any("split" in record.fields for record, _ in read)
    if not states_split:
        sizes = Counter(item.task for item in items)
        items = [item if sizes[item.task] >= FEWEST_TO_HOLD_OUT else _by_heart(item) for item in items]
    notes = (
        f"{counted(repeats, 'line repeats', 'lines repeat')} an earlier one, which counts once" if repeats else "",
        *(texts.notes if texts else ()),
        _note_on_long_answers(items),
        _note_on_tests(items),
    )
    return TaskFile(tuple(items), tuple(filter(None, notes)), states_split, texts.asked if texts else None)


def _by_heart(item: TaskItem) -> TaskItem:
    """An item that is memorised, not an example of a rule: nothing to hold out, and nothing to work out unless the file does."""
    plain = item.form is None and not item.solution and item.kind in (AnswerKind.MATH, AnswerKind.CHOICE)
    return replace(item, split="train", form="plain" if plain else item.form)


def _note_on_long_answers(items: Sequence[TaskItem]) -> str:
    opened = [item for item in items if is_open(item)]
    if not opened:
        return ""
    return (
        f"of {len(items)} answers {len(opened)} {'is' if len(opened) == 1 else 'are'} longer than {MOST_SHORT_WORDS} words (the first: to "
        f"{shown(opened[0].question)!r}), so that nobody can judge another one; to have it judged, give a number, an option or a few words"
    )


def _note_on_tests(items: Sequence[TaskItem]) -> str:
    programs = [item for item in items if item.kind is AnswerKind.PROGRAM]
    failing = [(item, reason) for item in programs if (reason := why_not_judged(item.answer, item.preamble))]
    if not failing:
        return ""
    named = "; ".join(f"{shown(item.question)!r}: {reason}" for item, reason in failing[:_NAMED])
    return f"the tests of {len(failing)} of {len(programs)} programs cannot be passed here, change or remove them ({named})"


def as_record(item: TaskItem) -> dict[str, Any]:
    """The line's object for an item; reading it gives the item back. What is at its default is left out."""
    record = {key: getattr(item, key) for key in _FIELDS} | {"kind": item.kind.value, "options": list(item.options)}
    if is_open(item):
        record["answer"] = shown_answer(item)
    if item.context:
        asked, answer = (
            {"role": "user", "content": record.pop("question")},
            {"role": "assistant", "content": record.pop("answer")},
        )
        record = {"messages": [*map(asdict, item.context), asked, answer], **record}
    return {key: value for key, value in record.items() if value not in ("", [], None)}


def shown_answer(item: TaskItem) -> str:
    """The answer for people: the text that is known to be right, where the item holds more than that; "" where a person judges."""
    key = OwnKey.from_json(item.answer) if item.kind is AnswerKind.FEEDBACK else None
    return item.answer if key is None else "\n".join(key.right)


def is_open(item: TaskItem) -> bool:
    """Whether a right answer is known, and nobody can judge another one."""
    key = OwnKey.from_json(item.answer) if item.kind is AnswerKind.FEEDBACK else None
    return key is not None and not key.closed


def _json_records(path: Path, text: str) -> Iterator[Record]:
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        if line.strip():
            where = f"{path}:{number}"
            try:
                yield Record.of(parsed_json(line, where), where)
            except TaskFileError as error:
                other = (
                    ""
                    if path.suffix.lower() in SUFFIXES
                    else f"a file that does not end in {', '.join(TABLES)} is read as JSON Lines: "
                )
                raise TaskFileError(str(error), hint=error.hint or f"{other}write {_EXAMPLE} on each line") from error


def _item(record: Record, family: str) -> TaskItem:
    refuse_tools(record)
    if unknown := sorted(set(record.fields) - _KEYS):
        raise TaskFileError(f"{record.where}: unknown key {shown(unknown[0])!r}", hint=f"known keys: {', '.join(sorted(_KEYS))}")
    asked = exchange_of(record)
    declared = record.fields.get("kind")
    kind = None if declared is None else AnswerKind(record.one_of("kind", [kind.value for kind in AnswerKind], ""))
    task = _label(record)
    context = [text for message in asked.context for text in (message.role, message.content)]
    digest = hashlib.sha256("\x1f".join((*context, asked.question)).encode("utf-8", "surrogatepass")).hexdigest()
    preamble = record.optional_text("preamble")
    if preamble and kind is not AnswerKind.PROGRAM:
        raise record.bad("preamble", 'belongs to items of kind "program"')
    kind, answer, options = _judged(record, asked, kind)
    max_steps = record.whole("max_steps", default=STEP_LIMITS.get(task, _DEFAULT_STEP_LIMIT), least=1, most=_MOST_STEPS)
    worked = asked.written if asked.written and check_format(asked.written, max_steps).ok else ""
    held_out = int(digest[:8], 16) % _TEST_SHARE == 0
    split = cast(Split, record.one_of("split", ["train", "test"], "test" if held_out else "train"))
    item = TaskItem(
        id=record.text("id", default=f"{family}/{digest[:16]}"),
        task=task,
        family=record.text("family", default=family),
        level=record.whole("level", default=0, least=0, most=_MOST_LEVELS),
        split=split,
        question=asked.question,
        answer=answer,
        kind=kind,
        max_steps=max_steps,
        options=options,
        solution=record.optional_text("solution") or worked,
        preamble=preamble,
        context=asked.context,
        form=cast(FormName, record.one_of("form", get_args(FormName), "")) if "form" in record.fields else None,
    )
    if item.form == "plain" and kind is AnswerKind.PROGRAM:
        raise record.bad("form", "of a program is reasoned")
    if not is_open(item):
        return item
    if record.fields.get("split") == "test":
        raise record.bad(asked.answer_key, 'is too long to be judged, so it cannot be held out: shorten it, or leave out "split"')
    return replace(item, split="train")


def _label(record: Record) -> str:
    if "label" in record.fields and "task" in record.fields:
        raise record.bad("label", 'is another word for "task": give one of them')
    key = "label" if "label" in record.fields else "task"
    label = record.text(key, default=OWN_LABEL)
    if key == "label" and not is_task_label(label):
        raise record.bad(key, f"must be {TASK_LABEL_FORM}")
    return label


def _judged(record: Record, asked: Exchange, kind: AnswerKind | None) -> tuple[AnswerKind, str, tuple[str, ...]]:
    """How the answer is judged, its text (a program's tests, an open question's key), and a choice's options."""
    if "tests" in record.fields:
        return AnswerKind.PROGRAM, _tests(record, asked, kind), ()
    options = record.texts("options")
    if kind is AnswerKind.FEEDBACK and asked.answer is None:
        return kind, "", options
    answer = _answer_text(record, asked)
    if kind is None:
        kind, options = fitting_kind(asked.question, answer, options)
    if kind is AnswerKind.CHOICE:
        listed = listed_options(asked.question)
        options = options or (listed.options if listed else ())
        _check_choice(record, asked, answer, options)
    if kind is AnswerKind.PROGRAM:
        _check_tests(record, asked.answer_key, answer)
    if kind is AnswerKind.FEEDBACK and OwnKey.from_json(answer) is None:
        answer = OwnKey("text", (answer,), closed=is_short(answer)).to_json()
    return kind, answer, options


def _answer_text(record: Record, asked: Exchange) -> str:
    value = asked.answer
    if isinstance(value, bool) or not isinstance(value, str | int | float) or not without_invisible(str(value)).strip():
        raise record.bad(asked.answer_key, "must be a non-empty text or a number")
    if isinstance(value, float) and not math.isfinite(value):
        raise record.bad(
            asked.answer_key, f"must be a number, not {value}; where this word is the answer, write it as a text in quotes"
        )
    return str(value)


def _check_choice(record: Record, asked: Exchange, answer: str, options: tuple[str, ...]) -> None:
    if not 2 <= len(options) <= MOST_OPTIONS:
        raise TaskFileError(f'{record.where}: a "choice" item needs "options" with 2 to {MOST_OPTIONS} texts')
    if two := two_readings(answer, options):
        readings = " or ".join(f'"{chr(ord("A") + index)}) {shown(options[index])}"' for index in two)
        raise record.bad(
            asked.answer_key, f"{answer.strip()!r} is the letter of one option and the text of another: write {readings}"
        )
    named = reference_option(asked.question, answer, options)
    if named is None:
        first = first_number(asked.question, options) or 0
        last = chr(ord("A") + len(options) - 1)
        known = f"give a letter from A to {last}, an index from {first} to {first + len(options) - 1}, or the text of one option"
        raise record.bad(
            asked.answer_key, f"names none of the {len(options)} options, or more than one ({shown(answer)!r}): {known}"
        )
    if [option.strip() for option in options].count(options[named].strip()) > 1:
        raise record.bad("options", f"has {shown(options[named])!r} twice, so that nobody can answer with it: change one of them")


def _tests(record: Record, asked: Exchange, kind: AnswerKind | None) -> str:
    """The text that judges a program, from any form of `tests`."""
    if kind is not AnswerKind.PROGRAM:
        raise record.bad("tests", 'belongs to items of kind "program"')
    if asked.answer is not None:
        raise record.bad("tests", f'is given in place of "{asked.answer_key}": give one of them')
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
