"""One record of a file of tasks, read field by field.

Every complaint is a TaskFileError that names file, line or row, and field.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edge.core.errors import TaskFileError
from edge.core.formatting import shown


@dataclass(frozen=True, slots=True)
class Record:
    """The fields of one record; `where` is FILE:LINE, or FILE: row N where a file has no lines."""

    fields: Mapping[str, Any]
    where: str

    @classmethod
    def of(cls, value: object, where: str) -> Record:
        """A record from a JSON value. Raises TaskFileError when it is not an object."""
        if not isinstance(value, dict):
            raise TaskFileError(f"{where}: expected a JSON object, found {shown(json.dumps(value))}")
        return cls(value, where)

    def text(self, key: str, default: str | None = None) -> str:
        """A text that is not blank."""
        value = self.fields.get(key, default)
        if not isinstance(value, str) or not value.strip():
            raise self.bad(key, "must be a non-empty text")
        return value

    def optional_text(self, key: str) -> str:
        """A text, "" where it is absent or null."""
        value = self.fields.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self.bad(key, "must be a text")
        return value

    def whole(self, key: str, *, default: int, least: int, most: int) -> int:
        """A whole number from `least` to `most`."""
        value = self.fields.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.bad(key, f"must be a whole number from {least} to {most}")
        return int(value)

    def one_of(self, key: str, known: Sequence[str], default: str) -> str:
        """One of the known words."""
        value = self.fields.get(key, default)
        if value not in known:
            raise self.bad(key, f"must be one of {', '.join(known)}, not {shown(repr(value))}")
        return str(value)

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts, () where it is absent."""
        value = self.fields.get(key, [])
        if not isinstance(value, list) or not all(isinstance(text, str) and text for text in value):
            raise self.bad(key, "must be a list of texts")
        return tuple(value)

    def bad(self, key: str, complaint: str) -> TaskFileError:
        """The error for a field."""
        return TaskFileError(f'{self.where}: "{key}" {complaint}')


class _AsWritten:
    """A number of which `str` is the text in the file: an answer of 1.50 is not rewritten to 1.5."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text


class _Int(_AsWritten, int):
    pass


class _Float(_AsWritten, float):
    pass


def parsed_json(text: str, where: str) -> object:
    """The JSON value of a text; `str` of its numbers is as they are written.

    Raises TaskFileError with the column of what is wrong, for a key that an object has twice, and for texts that are not Unicode.
    """

    def object_of(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            key, times = Counter(key for key, _ in pairs).most_common(1)[0]
            raise TaskFileError(f"{where}: the key {shown(key)!r} occurs {times} times in one object", hint="give it once")
        return fields

    try:
        value: object = json.loads(text, parse_int=_Int, parse_float=_Float, object_pairs_hook=object_of)
        code = lone_surrogate(value) if "\\u" in text else None
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise TaskFileError(f"{where}: not valid JSON ({error.msg} at {line}column {error.colno})") from error
    except RecursionError as error:
        raise TaskFileError(f"{where}: not valid JSON (nested too deeply)") from error
    except ValueError as error:  # Python's limit against texts that take for ever to become a number
        complaint = f"a number of more than {sys.get_int_max_str_digits()} digits"
        raise TaskFileError(f"{where}: {complaint}", hint="shorten it, or write it as a text in quotes") from error
    if code is not None:
        raise TaskFileError(
            f"{where}: half a character (\\u{code:04x} without its other half)", hint="remove it, or write the whole character"
        )
    return value


def lone_surrogate(value: object) -> int | None:
    """The code of the first surrogate without its other half in a JSON value's texts, which no output can hold; None without any."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        return ord(error.object[error.start])
    return None
