"""YAML files of the simulation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from edge.config.loader import Resolved, refusal, resolve
from edge.core.errors import ConfigError

FileT = TypeVar("FileT", bound=BaseModel)


def read(schema: type[FileT], path: Path, sets: Sequence[str] = (), example: str = "") -> Resolved[FileT]:
    """The file by its schema; `sets` are `key=value` texts that win over it, `example` is one.

    Raises ConfigError with one line: file and line (the file alone for what is not in it), or the option, the key, and what is allowed.
    """
    try:
        return resolve(schema, files=[path], sets=sets, example=example)
    except ConfigError as error:
        text = str(error)
        raise refusal(text if text.startswith((str(path), "--")) else f"{path}: {text}", error.hint) from error


def from_folder(name_or_path: str, folder: Path, known: Path) -> str:
    """What a file in `folder` names: a name as it is, or a path that begins at the folder."""
    is_path = "/" in name_or_path or bool(Path(name_or_path).suffix) or (folder / name_or_path).is_file()
    return str(folder.resolve() / name_or_path) if is_path and not is_known(name_or_path, known) else name_or_path


def is_known(name_or_path: str, known: Path) -> bool:
    """Whether it is the name of a YAML file of the folder `known`."""
    return "/" not in name_or_path and (known / f"{name_or_path}.yaml").is_file()
