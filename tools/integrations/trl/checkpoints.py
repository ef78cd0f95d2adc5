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
from itertools import count
from pathlib import Path

from safetensors import SafetensorError, safe_open

_NAME = re.compile(r"checkpoint-(\d+)")
_WEIGHTS = ("model*.safetensors", "adapter_model*", "pytorch_model*", "global_step*")
_OPTIMIZER = ("optimizer*", "*-optimizer.pt", "global_step*")


@dataclass(frozen=True, slots=True)
class TrlCheckpoint:
    """One checkpoint: the step it was written after, and where."""

    step: int
    folder: Path

    def is_whole(self) -> bool:
        """Whether training can resume from it: the trainer's state, weights and optimizer exist, and no file is truncated."""
        there = all(any(True for one in names for _ in self.folder.glob(one)) for names in (_WEIGHTS, _OPTIMIZER))
        try:
            state = json.loads((self.folder / "trainer_state.json").read_bytes())
            return there and state["global_step"] == self.step and all(map(_is_whole, self.folder.rglob("*")))
        except (SafetensorError, OSError, ValueError, TypeError, KeyError, AttributeError):
            return False


def checkpoints(folder: Path) -> list[TrlCheckpoint]:
    """All checkpoints in a folder, whole or not, the newest first."""
    if not folder.is_dir():
        return []
    named = [(_NAME.fullmatch(path.name), path) for path in folder.iterdir()]
    found = [TrlCheckpoint(int(match[1]), path) for match, path in named if match and path.is_dir()]
    return sorted(found, key=lambda one: one.step, reverse=True)


def newest_whole(found: Sequence[TrlCheckpoint]) -> tuple[TrlCheckpoint | None, list[TrlCheckpoint]]:
    """The newest checkpoint that is whole, None where none is, and those newer than it, which are not. `found`: the newest first."""
    whole = next((one for one in found if one.is_whole()), None)
    return whole, [one for one in found if whole is None or one.step > whole.step]


def set_broken_aside(broken: TrlCheckpoint) -> None:
    """Under another name, or transformers would keep it as its newest and remove whole ones for it. Raises OSError."""
    names = (f"broken-{broken.folder.name}" + (f"-{number}" if number else "") for number in count())
    broken.folder.rename(next(path for path in map(broken.folder.with_name, names) if not path.exists()))


def _is_whole(path: Path) -> bool:
    """Whether nothing of a file is missing, as far as its kind shows. Raises what its reader raises."""
    if path.suffix == ".safetensors":
        with safe_open(path, framework="np"):
            return True
    if path.suffix == ".json":
        content = json.loads(path.read_bytes())
        shards = content["weight_map"].values() if path.name.endswith(".safetensors.index.json") else ()
        return all((path.parent / name).is_file() for name in shards)
    return path.suffix not in (".pt", ".pth", ".bin") or zipfile.is_zipfile(path)
