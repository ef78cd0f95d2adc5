"""Texts to be sorted: a file's columns of a person's choice as records of a task file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edge.core.answer_key import is_short, plain_words
from edge.core.choices import MOST_OPTIONS, naming_answer
from edge.core.columns import Columns
from edge.core.errors import TaskFileError
from edge.core.formatting import counted, shown
from edge.core.limits import OWN_LABEL, is_task_label
from edge.dagrpo.prompts import MOST_TEXT_CHARS, TextQuestion
from edge.tasks.record import Record
from edge.tasks.table import no_column

_ROWS_OF_AN_OPTION = 3
"""Answers are options where each occurs this often on average."""
_NO_LABEL = re.compile(r"[^a-z0-9._:+-]+")
_ANY_LABEL = "texts"


@dataclass(frozen=True, slots=True)
class Texts:
    """The records, what is asked about each text (None: the texts are questions), and what a person should know, a line each."""

    records: tuple[Record, ...]
    asked: TextQuestion | None = None
    notes: tuple[str, ...] = ()


def texts_of(path: Path, records: Sequence[Record], columns: Columns) -> Texts:
    """Texts and answers in the columns of these names. Where few different answers occur, they are the options of each text.

    Raises TaskFileError with FILE:LINE for a column that is not there or a cell that is empty, and where all answers are the same.
    """
    if columns.question == columns.answer:
        raise TaskFileError(
            f"{path}: column {shown(columns.answer)!r} cannot be both question and answer", hint="name two columns"
        )
    rows = [(_cell(record, columns.question), _cell(record, columns.answer), record.where) for record in records]
    spelling = dict[str, str]()  # of answers that differ in case or blanks alone the most frequent one counts
    for answer, _ in Counter(answer for _, answer, _ in rows).most_common():
        spelling.setdefault(plain_words(answer), answer)
    answers = sorted(spelling.values(), key=lambda answer: (int(answer) if answer.isdecimal() else 0, answer.casefold()))
    if len(rows) > 1 and len(answers) == 1:
        raise TaskFileError(
            f"{path}: every answer in column {shown(columns.answer)!r} is {shown(answers[0])!r}, so there is nothing to choose",
            hint="name another column with --answer",
        )
    often = len(answers) * _ROWS_OF_AN_OPTION <= len(rows)
    few = often and len(answers) <= MOST_OPTIONS and all(map(is_short, answers))
    if not few and not columns.ask:
        return Texts(tuple(Record({"question": text, "answer": answer}, where) for text, answer, where in rows))
    asked = TextQuestion(columns.ask, tuple(answers) if few else ())
    every = {"label": _label(columns.answer), "form": "plain", **({"kind": "choice", "options": answers} if few else {})}
    right: dict[str, set[str]] = {}
    for text, answer, _ in rows:
        right.setdefault(asked.about(text), set()).add(spelling[plain_words(answer)])
    found = []
    for text, _, where in rows:
        question = asked.about(text)
        answer, *others = right[question]
        if not others:
            found.append(
                Record(
                    {
                        "question": question,
                        "answer": naming_answer(question, answers, answers.index(answer)) if few else answer,
                        **every,
                    },
                    where,
                )
            )
    doubtful, long = sum(len(one) > 1 for one in right.values()), sum(len(text) > MOST_TEXT_CHARS for text, _, _ in rows)
    notes = {
        f"{counted(doubtful, 'text comes', 'texts come')} with several answers, so that none counts: left out": doubtful,
        f"{counted(long, 'text is', 'texts are')} longer than {MOST_TEXT_CHARS:,} characters: their middles are left out": long,
        f"{len(answers):,} different answers in {len(rows):,} rows are too many or too long to choose from: each is learned as a text; "
        f"options are at most {MOST_OPTIONS} answers of a few words, each in {_ROWS_OF_AN_OPTION} rows on average": not few,
    }
    return Texts(tuple(found), asked, tuple(note for note, holds in notes.items() if holds))


def _cell(record: Record, name: str) -> str:
    """A text or an answer, as a text."""
    if name not in record.fields:
        raise no_column(record.where, name, record.fields)
    value = record.fields[name]
    if isinstance(value, bool):
        return str(value).lower()
    if value is not None and not isinstance(value, str | int | float):
        raise record.bad(name, "must be a text or a number")
    text = "" if value is None else str(value).strip()
    if not text:
        raise TaskFileError(f"{record.where}: {shown(name)!r} is empty", hint="fill it in, or remove the row")
    return text


def _label(column: str) -> str:
    """The label of what a column of this name answers; never that of questions that have none."""
    label = _NO_LABEL.sub("-", column.lower()).strip("-")[:64]
    return label if is_task_label(label) and label != OWN_LABEL else _ANY_LABEL
