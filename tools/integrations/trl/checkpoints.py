"""TRL's checkpoints in the folder of a run: which of them are complete.

transformers writes a checkpoint in place, `trainer_state.json` last, so that a kill, a power cut or a full disk leaves one with missing,
empty or truncated files.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

_NAME = re.compile(r"checkpoint-(\d+)")
_STATE = "trainer_state.json"
_WEIGHTS = ("model*.safetensors", "adapter_model*", "pytorch_model*", "global_step*")
_OPTIMIZER = ("optimizer*", "*-optimizer.pt", "global_step*")
_PACKED = frozenset({".pt", ".pth", ".bin"})
_BROKEN = "broken-"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One checkpoint: the step it was written after, and where."""

    step: int
    folder: Path

    def is_whole(self) -> bool:
        """Whether training can resume from it: the trainer's state, weights and optimizer exist, and no file is truncated."""
        state = _json(self.folder / _STATE)
        if not isinstance(state, dict) or state.get("global_step") != self.step:
            return False
        there = _any(self.folder, _WEIGHTS) and _any(self.folder, _OPTIMIZER)
        return there and all(_file_is_whole(path) for path in self.folder.rglob("*") if path.is_file())


def checkpoints(folder: Path) -> list[Checkpoint]:
    """All checkpoints in a folder, whole or not, the newest first."""
    if not folder.is_dir():
        return []
    named = [(_NAME.fullmatch(path.name), path) for path in folder.iterdir()]
    found = [Checkpoint(int(match[1]), path) for match, path in named if match and path.is_dir()]
    return sorted(found, key=lambda one: one.step, reverse=True)


def newest_whole(found: Sequence[Checkpoint]) -> tuple[Checkpoint | None, list[Checkpoint]]:
    """The newest checkpoint that is whole, None where none is, and those newer than it, which are not. `found`: the newest first."""
    for index, one in enumerate(found):
        if one.is_whole():
            return one, list(found[:index])
    return None, list(found)


def set_broken_aside(broken: Checkpoint) -> None:
    """Under another name, or transformers would keep it as its newest and remove whole ones for it. Raises OSError."""
    numbers = range(len(list(broken.folder.parent.iterdir())) + 1)
    names = (f"{_BROKEN}{broken.folder.name}" + (f"-{number}" if number else "") for number in numbers)
    free = next(path for path in map(broken.folder.with_name, names) if not path.exists())
    broken.folder.rename(free)


def _any(folder: Path, patterns: Sequence[str]) -> bool:
    return any(True for pattern in patterns for _ in folder.glob(pattern))


def _file_is_whole(path: Path) -> bool:
    if path.suffix == ".safetensors":
        return _safetensors_is_whole(path)
    if path.suffix in _PACKED:
        return zipfile.is_zipfile(path)
    if path.name.endswith(".safetensors.index.json"):
        return _shards_are_there(path)
    return path.suffix != ".json" or _json(path) is not None


def _safetensors_is_whole(path: Path) -> bool:
    try:
        with safe_open(path, framework="np"):
            return True
    except (SafetensorError, OSError):
        return False


def _shards_are_there(index: Path) -> bool:
    content = _json(index)
    shards = content.get("weight_map") if isinstance(content, dict) else None
    return isinstance(shards, dict) and all((index.parent / str(name)).is_file() for name in shards.values())


def _json(path: Path) -> Any:
    """The content of a file; None where it is missing or truncated."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
