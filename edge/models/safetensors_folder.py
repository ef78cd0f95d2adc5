"""Reads the safetensors files of a Hugging Face model folder, whole or in shards.

Files are memory-mapped: a tensor costs memory only while it is in use. PyTorch's pickled files are never opened, because loading one can
run code.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.core.errors import ModelFileError
from edge.core.files import open_regular
from edge.core.formatting import shown
from edge.models.hf_config import read_json

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_LONGEST_HEADER = 100 << 20
_WIDTHS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_NUMPY = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, struct.error)
"""What a damaged or made-up file raises."""
_AGAIN = "download the folder again"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies: file, kind (F64, F32, F16 or BF16), shape, and offset in bytes."""

    file: Path
    kind: str
    shape: tuple[int, ...]
    offset: int

    def raw(self) -> NDArray[Any]:
        """The values as stored, mapped; bfloat16 as its bits in uint16."""
        mapped = np.memmap(self.file, dtype=_NUMPY[self.kind], mode="r", offset=self.offset, shape=(math.prod(self.shape),))
        return mapped.reshape(self.shape)

    def values(self) -> NDArray[np.float32]:
        """The values in float32 (a copy)."""
        return self.widened(self.raw())

    def widened(self, raw: NDArray[Any]) -> NDArray[np.float32]:
        """Some of the stored values in float32 (a copy)."""
        if self.kind == "BF16":
            return (np.ascontiguousarray(raw).astype(np.uint32) << 16).view(np.float32)
        return raw.astype(np.float32)


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of a model folder by name. Raises ModelFileError for missing, damaged or pickled weights."""
    tensors: dict[str, StoredTensor] = {}
    for file, expected in _files(folder).items():
        found = _read_table(file)
        if missing := expected - found.keys():
            raise ModelFileError(f"{file}: lacks {sorted(missing)[0]}, which the index says it holds", hint=_AGAIN)
        if twice := tensors.keys() & found.keys():
            raise ModelFileError(f"{folder}: {sorted(twice)[0]} is stored twice", hint=_AGAIN)
        tensors |= found
    return tensors


def _files(folder: Path) -> dict[Path, set[str]]:
    """The files to read, each with the names the index promises of it."""
    if (folder / INDEX).is_file():
        return _indexed_files(folder)
    if (folder / SINGLE).is_file():
        return {folder / SINGLE: set()}
    others = sorted(folder.glob("*.safetensors"))
    if len(others) == 1:
        return {others[0]: set()}
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt*")):
        raise ModelFileError(
            f"{folder}: its weights are pickled (.bin), which can run code when loaded", hint="get the safetensors version"
        )
    raise ModelFileError(f"{folder}: no {SINGLE} and no {INDEX}", hint="give the folder of a Hugging Face model")


def _indexed_files(folder: Path) -> dict[Path, set[str]]:
    index = folder / INDEX
    try:
        names: Mapping[str, str] = read_json(index)["weight_map"]
        by_file: dict[Path, set[str]] = {}
        for name, file in names.items():
            if Path(file).name != file:
                raise ValueError(f"{file!r} is not a plain file name")
            by_file.setdefault(folder / file, set()).add(name)
    except _UNREADABLE as error:
        raise ModelFileError(f"{index}: not a readable index ({error})", hint=_AGAIN) from error
    for shard in sorted(by_file):
        if not shard.is_file():
            raise ModelFileError(f"{folder}: the shard {shard.name} is missing", hint=_AGAIN)
    return dict(sorted(by_file.items()))


def _read_table(path: Path) -> dict[str, StoredTensor]:
    try:
        with open_regular(path) as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > min(_LONGEST_HEADER, path.stat().st_size - 8):
                raise ValueError("cut short")
            table = json.loads(file.read(length))
        start, size = 8 + length, path.stat().st_size
        entries = {name: entry for name, entry in table.items() if name != "__metadata__"}
        return {name: _entry(path, name, entry, start, size) for name, entry in entries.items()}
    except _UNREADABLE as error:
        raise ModelFileError(f"{path}: not a readable safetensors file ({error})", hint=_AGAIN) from error


def _entry(path: Path, name: str, entry: Mapping[str, Any], start: int, size: int) -> StoredTensor:
    kind, shape = entry["dtype"], tuple(_whole(width) for width in entry["shape"])
    begin, end = (_whole(place) for place in entry["data_offsets"])
    if kind not in _WIDTHS:
        raise ModelFileError(
            f"{path}: {name} has the type {kind}; expected floating point", hint="take the model's unquantised version"
        )
    if end - begin != math.prod(shape) * _WIDTHS[kind] or begin < 0 or start + end > size:
        raise ValueError(f"{name} does not lie within the file")
    return StoredTensor(path, kind, shape, start + begin)


def _whole(number: Any) -> int:
    """A whole number that is not negative. Raises ValueError for anything else."""
    if type(number) is not int or number < 0:
        raise ValueError(f"{shown(repr(number))} where a whole number is expected")
    return number
