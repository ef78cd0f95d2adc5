"""Records from a CSV file: a header that names the columns, then one question a row."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from edge.core.errors import TaskFileError
from edge.core.formatting import shown
from edge.tasks.record import Record

SUFFIXES = (".csv", ".tsv")
_DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab"}
_PAIRS = (("question", "answer"), ("question", "tests"), ("prompt", "completion"))
_NUMBERS = ("level", "max_steps")
_HEADER = "let its first line name the columns question and answer, or prompt and completion"


def table_records(path: Path, text: str, known: Collection[str]) -> Iterator[Record]:
    """The rows in order, cells without blanks at their ends; empty cells are no fields. `options` are separated by |.

    The delimiter is the one of comma, semicolon and tab under which the header names a question and its answer. `known`: the names that a
    column may have; one without a name must be empty. Raises TaskFileError with FILE:LINE.
    """
    if not text.strip():
        return
    rows = _rows(path, text, _delimiter(path, text))
    first, header = next(rows)
    columns = [name.strip().lower() for name in header]
    if unknown := [(place, name) for place, name in enumerate(columns, 1) if name and name not in known]:
        place, name = unknown[0]
        hint = f"remove it or name it otherwise; known columns: {', '.join(sorted(known))}"
        raise TaskFileError(f"{path}:{first}: unknown column {shown(name)!r}, number {place} of the header", hint=hint)
    if twice := sorted({name for name in columns if name and columns.count(name) > 1}):
        raise TaskFileError(f"{path}:{first}: the column {shown(twice[0])!r} stands there twice", hint="remove one of them")
    for line, cells in rows:
        where = f"{path}:{line}"
        if len(cells) > len(columns):
            raise TaskFileError(
                f"{where}: {len(cells)} cells, but the header names {len(columns)} columns",
                hint="put a text that holds the delimiter in double quotes",
            )
        if nameless := [
            place for place, (name, cell) in enumerate(zip(columns, cells, strict=False), 1) if not name and cell.strip()
        ]:
            hint = "name the column in the header, or empty it"
            raise TaskFileError(f"{where}: a cell in column {nameless[0]}, which has no name", hint=hint)
        fields = {name: _value(name, cell) for name, cell in zip(columns, map(str.strip, cells), strict=False) if cell}
        yield Record(fields, where)


def _delimiter(path: Path, text: str) -> str:
    first_line = next((line for line in text.splitlines() if line.strip()), "")
    for delimiter in _DELIMITERS:
        names = [name.strip(' "').lower() for name in first_line.split(delimiter)]
        if any(set(pair) <= set(names) for pair in _PAIRS):
            return delimiter
    raise TaskFileError(
        f"{path}:1: the header names no question and answer (it is {shown(first_line)!r})",
        hint=f"{_HEADER}, separated by {', '.join(_DELIMITERS.values())}",
    )


def _rows(path: Path, text: str, delimiter: str) -> Iterator[tuple[int, Sequence[str]]]:
    """The rows that are not empty, each with the line on which it begins."""
    reader, line = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True), 1
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise TaskFileError(f"{path}:{line}: not CSV ({error})", hint="write a double quote inside quotes twice") from error


def _value(name: str, cell: str) -> Any:
    if name == "options":
        return [option.strip() for option in cell.split("|") if option.strip()]
    return int(cell) if name in _NUMBERS and cell.isascii() and cell.isdigit() and len(cell) < 10 else cell
