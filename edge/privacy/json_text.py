"""The strings inside a JSON text. Knows JSON and texts that are JSON themselves; knows nothing of what is done to the strings.

Arguments of tools are JSON inside a string of JSON: they are walked too, so that what is put there is escaped as it must be.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

Change = Callable[[str, bool], str]
"""From a string, and whether it is a name that programs use, to what stands in its place."""
_MOST_DEPTH = 200
_NAME_KEYS = frozenset({"name"})


def changed_json(text: str, change: Change) -> str:
    """The JSON text with its strings changed; the very same text where none is. Raises ValueError for what is not JSON, or too deep."""
    value = _loaded(text)
    after = _changed(value, change, 0, is_name=False)
    return text if after == value else json.dumps(after, ensure_ascii=False, separators=(",", ":"))


def strings_in(text: str) -> list[str]:
    """Every string, name and number of a JSON text, inner JSON texts taken apart. Raises ValueError as `changed_json`."""
    return list(_strings(_loaded(text), 0))


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("the JSON text is nested too deeply") from error


def _changed(value: Any, change: Change, depth: int, *, is_name: bool) -> Any:
    if depth > _MOST_DEPTH:
        raise ValueError("the JSON text is nested too deeply")
    if isinstance(value, dict):
        return {change(key, True): _changed(inner, change, depth + 1, is_name=key in _NAME_KEYS) for key, inner in value.items()}
    if isinstance(value, list):
        return [_changed(inner, change, depth + 1, is_name=is_name) for inner in value]
    if isinstance(value, str):
        return _changed_string(value, change, depth, is_name=is_name)
    if isinstance(value, int | float) and not isinstance(value, bool):
        shown = json.dumps(value)
        after = change(shown, False)
        return value if after == shown else after
    return value


def _changed_string(value: str, change: Change, depth: int, *, is_name: bool) -> str:
    inner = _inner(value)
    if inner is None:
        return change(value, is_name)
    after = _changed(inner, change, depth + 1, is_name=False)
    return value if after == inner else json.dumps(after, ensure_ascii=False)


def _inner(text: str) -> Any:
    """The object or list that a string is the JSON text of, else None."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict | list) else None


def _strings(value: Any, depth: int) -> Iterator[str]:
    if depth > _MOST_DEPTH:
        raise ValueError("the JSON text is nested too deeply")
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _strings(inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner, depth + 1)
    elif isinstance(value, str):
        inner = _inner(value)
        yield from [value] if inner is None else _strings(inner, depth + 1)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield json.dumps(value)
