"""Finds a task source by the name a person writes. Knows names; knows nothing of items."""

from __future__ import annotations

from pathlib import Path

from edge.core.errors import TaskFileError, UsageError
from edge.tasks.jsonl import JsonLinesSource
from edge.tasks.practice import FAMILIES, GROUPS
from edge.tasks.practice_source import PracticeSource
from edge.tasks.source import TaskSource


def open_source(name: str) -> TaskSource:
    """`practice:FAMILY` or the path of a .jsonl file. Raises UsageError for an unknown family, TaskFileError for a bad file."""
    if name.startswith("practice:"):
        family = name.removeprefix("practice:")
        if family not in FAMILIES and family not in GROUPS:
            raise UsageError(f"unknown practice family {family!r}", hint=f"known: {', '.join([*FAMILIES, *GROUPS])}")
        return PracticeSource(family)
    path = Path(name).expanduser()
    if not path.is_file():
        raise TaskFileError(f"{name}: no such task file", hint="give a .jsonl file or practice:arith")
    return JsonLinesSource(path)
