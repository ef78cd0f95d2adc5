"""The learner's state on disk, and the folder that an adapter is exported into.

A state file is one safetensors file: tensors by name, and in its header one JSON object with the scalars. One file renamed into
place is never half old and half new. Nothing here is ever pickled.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from edge.core.errors import StateError
from edge.core.files import replacing, replacing_folder
from edge.core.limits import MOST_STEPS

FORMAT = 1
_HEADER = "state"
_OLDER = "go back to an older checkpoint"


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to fill, that becomes `target` when the block ends well (`replacing_folder`).

    Raises StateError when `target` exists already.
    """
    if target.exists():
        raise StateError(f"{target.name} exists already", hint="export into a folder that does not exist yet")
    with replacing_folder(target) as draft:
        yield draft


def write_state(path: Path, tensors: Mapping[str, Tensor], scalars: Mapping[str, Any]) -> None:
    """Replace the state file atomically. `scalars` must be plain JSON without NaN."""
    header = json.dumps({"format": FORMAT, **scalars}, sort_keys=True, allow_nan=False)
    with replacing(path) as draft:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, draft, metadata={_HEADER: header})


def read_state(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and scalars of a state file. Raises StateError when it is missing, damaged or of another format."""
    try:
        with safe_open(path, framework="pt") as file:
            scalars = json.loads((file.metadata() or {})[_HEADER])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (OSError, SafetensorError, KeyError, ValueError, RecursionError) as error:
        raise StateError(f"cannot read {path.name}: {error}", hint=_OLDER) from error
    if not isinstance(scalars, dict) or scalars.get("format") != FORMAT:
        raise StateError(f"{path.name} was written by another version")
    _check_content(path, tensors, scalars)
    return tensors, scalars


def _check_content(path: Path, tensors: Mapping[str, Tensor], scalars: Mapping[str, Any]) -> None:
    """Raises StateError for numbers that no update leaves behind."""
    odd = next((name for name, tensor in tensors.items() if not _is_usable(tensor)), None)
    if odd is not None:
        raise StateError(f"{path.name}: {odd} is not made of finite 32-bit numbers", hint=_OLDER)
    step = scalars.get("step")
    if type(step) is not int or not 0 <= step <= MOST_STEPS:
        raise StateError(f"{path.name}: {step!r} is no number of steps", hint=_OLDER)


def _is_usable(tensor: Tensor) -> bool:
    return tensor.dtype == torch.float32 and bool(torch.isfinite(tensor).all())
