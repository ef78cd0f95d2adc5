"""One record of a file of tasks, read field by field.

Every complaint is a TaskFileError that names file, line or row, and field.
"""

from __future__ import annotations

import json
import sys
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
            raise TaskFileError(f"{where}: expected a JSON object, found {type(value).__name__}")
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
        return value

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


def parsed_json(text: str, where: str) -> object:
    """The JSON value of a text. Raises TaskFileError with the column of what is wrong, and for texts that are not Unicode."""
    try:
        value: object = json.loads(text)
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
