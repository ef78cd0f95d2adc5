"""Finds a task source by the name a person writes.

`practice:FAMILY`, `general` (edge.tasks.general), a data set's name (`gsm8k`: from the hub), `NAME:PATH` (from a local folder or file),
`hf:OWNER/NAME` for the same data sets by their hub id, or the path of a task file (.jsonl, .csv, .tsv).
"""

from __future__ import annotations

from pathlib import Path

from edge.core.columns import Columns
from edge.core.errors import TaskFileError, UsageError
from edge.core.formatting import shown
from edge.tasks import general
from edge.tasks.datasets.catalogue import DATA_SETS, DataSet
from edge.tasks.datasets.source import DataSetSource
from edge.tasks.jsonl import JsonLinesSource
from edge.tasks.practice import FAMILIES, GROUPS, PracticeSource
from edge.tasks.source import TaskSource


def open_source(name: str, columns: Columns | None = None) -> TaskSource:
    """The source called `name`; of a task file `columns` are learned from. Raises UsageError for a name that cannot be meant,
    TaskFileError for what cannot be read."""
    if columns is not None and not is_own(name):
        hint = "leave out --question, --answer and --ask (in a configuration: of the phase)"
        raise UsageError(f"{shown(name)}: only your own task files have columns to choose from", hint=hint)
    kind, colon, rest = name.partition(":")
    if colon and kind == "practice":
        if rest not in FAMILIES and rest not in GROUPS:
            raise UsageError(f"unknown practice family {shown(rest)!r}", hint=f"known: {', '.join([*FAMILIES, *GROUPS])}")
        return PracticeSource(rest)
    if name == general.LABEL:
        return general.general_source()
    data_set = data_set_of(name)
    if data_set is None:
        return _task_file(name, columns)
    if not colon or kind == "hf":
        return DataSetSource.from_hub(data_set, name)
    if not rest:
        raise UsageError("no path after the colon", hint="write NAME:PATH, or NAME alone for the hub")
    return DataSetSource(data_set, _expanded(rest), name)


def is_own(name: str) -> bool:
    """Whether a source is a person's own: a task file, or use of the agent; not the practice world or a data set."""
    return not name.startswith("practice:") and name != general.LABEL and data_set_of(name) is None


def data_set_of(name: str) -> DataSet | None:
    """The data set that a source's name means, not opened; None for any other source. Raises UsageError for an unknown `hf:` name."""
    kind, colon, rest = name.partition(":")
    if not colon or kind != "hf":
        return DATA_SETS.get(kind)
    wanted = rest.strip("/").lower()
    found = [one for one in DATA_SETS.values() if wanted in (one.hub.lower(), f"{one.hub}/{one.config}".lower())]
    if not found:
        known = ", ".join(dict.fromkeys(one.hub for one in DATA_SETS.values()))
        raise UsageError(f"hf:{shown(rest)}: not a data set this program knows the schema of", hint=f"known: {known}")
    if len(found) > 1:
        raise UsageError(f"hf:{rest} has several parts", hint=f"choose one: {', '.join(one.name for one in found)}")
    return found[0]


def own_file(name: str, columns: Columns | None = None) -> JsonLinesSource | None:
    """The task file that a source's name means, read; None for practice and data sets. Raises UsageError, TaskFileError."""
    return _task_file(name, columns) if is_own(name) else None


def _task_file(name: str, columns: Columns | None) -> JsonLinesSource:
    path = _expanded(name)
    try:
        is_file, is_folder = path.is_file(), path.is_dir()
    except OSError as error:
        raise TaskFileError(
            f"{shown(name)}: cannot be a task file ({error.strerror})",
            hint="give the path of a .jsonl or .csv file that you may read",
        ) from error
    if is_folder:
        hint = f"give a .jsonl or .csv file in it, or NAME:FOLDER for a data set ({', '.join(DATA_SETS)})"
        raise TaskFileError(f"{shown(name)}: is a folder, not a task file", hint=hint)
    if not is_file:
        known = ", ".join([*(f"practice:{name}" for name in (*FAMILIES, *GROUPS)), *DATA_SETS])
        raise TaskFileError(f"{shown(name)}: no such task file", hint=f"give a .jsonl or .csv file, or one of {known}")
    return JsonLinesSource(path, columns)


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:  # ~NAME of nobody on this machine
        raise UsageError(f"{shown(path)}: no such user's folder", hint="write the path without ~") from error
