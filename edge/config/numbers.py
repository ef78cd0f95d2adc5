"""The numbers of a section and where each comes from.

A path names a number as `memory_mib` or `speeds/1.5B-Q4_K_M/decode/4`: an element of a list goes by its `model` or its `rows`. A source
is given for a path or for the beginning of several; the longest beginning that fits a number holds for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

_NAMES = ("model", "rows")


def numbers(section: BaseModel) -> Iterator[tuple[str, float]]:
    """(path, value) of every number that is there."""
    yield from _numbers(section.model_dump(mode="json"), "")


def check_sources(section: BaseModel, named: Iterable[str]) -> None:
    """Raise ValueError where a source is given for no number of the section, or two for the same."""
    paths, seen = [path for path, _ in numbers(section)], set[str]()
    for of in named:
        if of in seen:
            raise ValueError(f"sources has {of} twice")
        if not any(path == of or path.startswith(f"{of}/") for path in paths):
            raise ValueError(f"sources has {of}, but there is no such number")
        seen.add(of)


def _numbers(data: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(data, Mapping):
        for key, value in data.items():
            if key not in _NAMES:
                yield from _numbers(value, f"{path}/{key}" if path else key)
    elif isinstance(data, Sequence) and not isinstance(data, str):
        for element in data:
            name = next((element[key] for key in _NAMES if key in element), None) if isinstance(element, Mapping) else None
            if name is not None:
                values = {key: value for key, value in element.items() if key not in _NAMES}
                yield from _numbers(values["tokens_per_s"] if set(values) == {"tokens_per_s"} else values, f"{path}/{name}")
    elif isinstance(data, (int, float)) and not isinstance(data, bool):
        yield path, data
