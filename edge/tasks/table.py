"""Records from a CSV file: a header that names the columns, then one question a row."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
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
_OTHER_NAMES = "name the two columns to read with --question and --answer"
_SEPARATOR_LINE = re.compile(r'\s*"?sep=[^\r\n]*', re.IGNORECASE)
"""A first line that gives Excel the delimiter."""
_NAMELESS = re.compile(r"unnamed: [\d.]+")
"""What pandas calls a column without a name."""


def table_records(path: Path, text: str, known: Collection[str], wanted: Sequence[str] = ()) -> Iterator[Record]:
    """The rows in order, cells without blanks at their ends; empty cells are no fields. `options` are separated by |.

    The delimiter is the one of comma, semicolon and tab under which the header names a question and its answer. `known`: the names that a
    column may have. One without a name must be empty, or be first and hold whole numbers: a table's index. The header may come again,
    as in files joined end to end. `wanted`: these two columns hold question and answer; they are fields also
    where they are empty, and all others are passed over. Raises TaskFileError with FILE:LINE.
    """
    text = _SEPARATOR_LINE.sub("", text, count=1) if _SEPARATOR_LINE.match(text) else text
    if not text.strip():
        return
    wanted = tuple(map(str.lower, wanted))
    pairs, known = ((wanted,), wanted) if wanted else (_PAIRS, known)
    rows = _rows(path, text, _delimiter(path, text, pairs))
    first, header = next(rows)
    columns = [name if name in wanted or not wanted else "" for name in _names(header)]
    if unknown := [(place, name) for place, name in enumerate(columns, 1) if name and name not in known]:
        place, name = unknown[0]
        hint = f"remove it, or {_OTHER_NAMES}; known columns: {', '.join(sorted(known))}"
        raise TaskFileError(f"{path}:{first}: unknown column {shown(name)!r}, number {place} of the header", hint=hint)
    if twice := sorted({name for name in columns if name and columns.count(name) > 1}):
        raise TaskFileError(f"{path}:{first}: the column {shown(twice[0])!r} is there twice", hint="remove one of them")
    index_columns = next(place for place, name in enumerate(columns) if name)
    for line, cells in rows:
        where = f"{path}:{line}"
        names = _names(cells)
        if names == _names(header):
            continue
        if _is_header(names, pairs) and {*names} <= {*known, ""}:
            raise TaskFileError(
                f"{where}: another header than in line {first}", hint="make a file of its own of the rows under each header"
            )
        if len(cells) > len(columns):
            raise TaskFileError(
                f"{where}: {len(cells)} cells, but the header names {len(columns)} columns",
                hint="put a text that holds the delimiter in double quotes",
            )
        fields: dict[str, Any] = dict.fromkeys(wanted, "")
        for place, (name, cell) in enumerate(zip(columns, map(str.strip, cells), strict=False)):
            if name and cell:
                fields[name] = cell if wanted else _value(name, cell)
            elif cell and not wanted and not (place < index_columns and cell.isdecimal()):
                hint = "name the column in the header, or empty it"
                raise TaskFileError(f"{where}: a cell in column {place + 1}, which has no name", hint=hint)
        yield Record(fields, where)


def _names(cells: Sequence[str]) -> list[str]:
    """The cells as names of columns."""
    return [_NAMELESS.sub("", cell.strip().lower()) for cell in cells]


def _is_header(names: Collection[str], pairs: Sequence[Sequence[str]]) -> bool:
    return any(set(pair) <= set(names) for pair in pairs)


def _delimiter(path: Path, text: str, pairs: Sequence[Sequence[str]]) -> str:
    number, first_line = next((number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip())
    headers = {mark: next(csv.reader([first_line], delimiter=mark, skipinitialspace=True)) for mark in _DELIMITERS}
    for delimiter, header in headers.items():
        if _is_header(_names(header), pairs):
            return delimiter
    if pairs != _PAIRS:
        header = max(headers.values(), key=len)
        missing = next(name for name in pairs[0] if name not in _names(header))
        raise no_column(f"{path}:{number}", missing, header)
    raise TaskFileError(
        f"{path}:{number}: the header names no question and answer (it is {shown(first_line)!r})",
        hint=f"{_HEADER}, separated by {', '.join(_DELIMITERS.values())}; {_OTHER_NAMES}",
    )


def no_column(where: str, missing: str, names: Iterable[str]) -> TaskFileError:
    """The error for a column, or a key, that is not there."""
    there = ", ".join(shown(name.strip()) for name in names if name.strip())
    hint = f"give --question the column of the texts and --answer that of their answers; there are {there}"
    return TaskFileError(f"{where}: there is no column {shown(missing)!r}", hint=hint)


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
