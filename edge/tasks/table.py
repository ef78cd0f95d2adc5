"""Records from a CSV file: a header that names the columns, then one question a row."""

from __future__ import annotations

import csv
import io
import re
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
_SEPARATOR_LINE = re.compile(r'\s*"?sep=[^\r\n]*', re.IGNORECASE)
"""A first line that gives Excel the delimiter."""
_NAMELESS = re.compile(r"unnamed: [\d.]+")
"""What pandas calls a column without a name."""


def table_records(path: Path, text: str, known: Collection[str]) -> Iterator[Record]:
    """The rows in order, cells without blanks at their ends; empty cells are no fields. `options` are separated by |.

    The delimiter is the one of comma, semicolon and tab under which the header names a question and its answer. `known`: the names that a
    column may have. One without a name must be empty, or be first and hold whole numbers: a table's index. The header may come again,
    as in files joined end to end. Raises TaskFileError with FILE:LINE.
    """
    text = _SEPARATOR_LINE.sub("", text, count=1) if _SEPARATOR_LINE.match(text) else text
    if not text.strip():
        return
    rows = _rows(path, text, _delimiter(path, text))
    first, header = next(rows)
    columns = _names(header)
    if unknown := [(place, name) for place, name in enumerate(columns, 1) if name and name not in known]:
        place, name = unknown[0]
        hint = f"remove it or name it otherwise; known columns: {', '.join(sorted(known))}"
        raise TaskFileError(f"{path}:{first}: unknown column {shown(name)!r}, number {place} of the header", hint=hint)
    if twice := sorted({name for name in columns if name and columns.count(name) > 1}):
        raise TaskFileError(f"{path}:{first}: the column {shown(twice[0])!r} is there twice", hint="remove one of them")
    index_columns = next(place for place, name in enumerate(columns) if name)
    for line, cells in rows:
        where = f"{path}:{line}"
        names = _names(cells)
        if names == columns:
            continue
        if _is_header(names) and {*names} <= {*known, ""}:
            raise TaskFileError(
                f"{where}: another header than in line {first}", hint="make a file of its own of the rows under each header"
            )
        if len(cells) > len(columns):
            raise TaskFileError(
                f"{where}: {len(cells)} cells, but the header names {len(columns)} columns",
                hint="put a text that holds the delimiter in double quotes",
            )
        fields = dict[str, Any]()
        for place, (name, cell) in enumerate(zip(columns, map(str.strip, cells), strict=False)):
            if name and cell:
                fields[name] = _value(name, cell)
            elif cell and not (place < index_columns and cell.isdecimal()):
                hint = "name the column in the header, or empty it"
                raise TaskFileError(f"{where}: a cell in column {place + 1}, which has no name", hint=hint)
        yield Record(fields, where)


def _names(cells: Sequence[str]) -> list[str]:
    """The cells as names of columns."""
    return [_NAMELESS.sub("", cell.strip().lower()) for cell in cells]


def _is_header(names: Collection[str]) -> bool:
    return any(set(pair) <= set(names) for pair in _PAIRS)


def _delimiter(path: Path, text: str) -> str:
    number, first_line = next((number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip())
    for delimiter in _DELIMITERS:
        if _is_header([name.strip().strip('"').strip().lower() for name in first_line.split(delimiter)]):
            return delimiter
    raise TaskFileError(
        f"{path}:{number}: the header names no question and answer (it is {shown(first_line)!r})",
        hint=f"{_HEADER}, separated by {', '.join(_DELIMITERS.values())}",
    )


def _rows(path: Path, text: str, delimiter: str) -> Iterator[tuple[int, Sequence[str]]]:
    """The rows that are not empty, each with the line on which it begins; blanks around a quoted cell do not count."""
    end, blank = rf"{delimiter}\r\n", rf"[^\S{delimiter}\r\n]*+"
    spaced = re.compile(rf'(?:\A|(?<=[{end}])){blank}("(?:[^"]|"")*+"){blank}(?=[{end}]|\Z)')
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    reader, line = csv.reader(io.StringIO(spaced.sub(r"\1", text), newline=""), delimiter=delimiter, strict=True), 1
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        hint = "close a double quote that begins a cell, and write one inside quotes twice"
        raise TaskFileError(f"{path}:{line}: not CSV ({error})", hint=hint) from error


def _value(name: str, cell: str) -> Any:
    if name == "options":
        return [option.strip() for option in cell.split("|") if option.strip()]
    return int(cell) if name in _NUMBERS and cell.isascii() and cell.isdigit() and len(cell) < 10 else cell
