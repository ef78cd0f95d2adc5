"""Task sources as specifications write them: their short names, whether they are there, the labels of their items. Fetches nothing."""

from __future__ import annotations

from edge.core.errors import TaskFileError
from edge.tasks.jsonl import JsonLinesSource
from edge.tasks.practice import FAMILIES, GROUPS
from edge.tasks.registry import data_set_of, open_source


def full_source(name: str) -> str:
    """As the agent's configuration writes it: practice groups and families have short names."""
    return f"practice:{name}" if name in {*FAMILIES, *GROUPS} else name


def labels_of(name: str) -> frozenset[str]:
    """The task labels of a source's items. A file or folder is looked at, a data set of the hub is only known by its name.

    Raises UsageError for a name that cannot be meant, TaskFileError for what is not there or cannot be read.
    """
    full = full_source(name)
    data_set = data_set_of(full)
    if data_set is not None:
        if not full.startswith("hf:") and ":" in full:
            open_source(full)
        return frozenset({data_set.task})
    source = open_source(full)
    if isinstance(source, JsonLinesSource):
        return frozenset(item.task for item in (*source.train_items, *source.test_items))
    return frozenset({next(iter(source.train(0))).task})


def require_held_out(name: str) -> None:
    """Raises as `labels_of`, and TaskFileError for a file of which no item is held out."""
    labels_of(name)
    if data_set_of(full_source(name)) is None:
        source = open_source(full_source(name))
        if not source.test(1):
            raise TaskFileError(f"{name}: no item is held out", hint='add lines with "split": "test"')
