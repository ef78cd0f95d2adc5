"""Takes a local file or folder into the agent's models folder. Knows copying; knows nothing of the hub."""

from __future__ import annotations

import shutil
from pathlib import Path

from edge.core.errors import ModelFileError, UsageError
from edge.core.gguf_header import read_header
from edge.models.catalogue import models_folder
from edge.models.hub import choose_gguf
from edge.models.new_file import new_file


def adopt(source: Path, file: str | None, *, force: bool) -> Path:
    """Copy a GGUF file, or the one of a folder, into the models folder; returns where it is. Raises ModelFileError, UsageError."""
    path = _chosen(source, file)
    read_header(path)
    folder = models_folder()
    out = folder / path.name
    if out.exists() and out.samefile(path):
        return out
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelFileError(
            f"{folder}: cannot be made ({error.strerror})", hint="choose another with EDGE_AGENT_MODELS"
        ) from error
    with new_file(out, force=force) as partial:
        shutil.copyfile(path, partial)
    return out


def _chosen(source: Path, file: str | None) -> Path:
    if not source.is_dir():
        if file is not None:
            raise UsageError("--file chooses within a folder or a hub model", hint=f"leave it out: {source} is a file")
        return source
    names = [path.relative_to(source).as_posix() for path in source.rglob("*.gguf")]
    name = file or choose_gguf(str(source), names)
    if name is not None:
        return source / name
    if any(source.glob("*.safetensors")):
        raise UsageError(f"{source}: holds safetensors", hint=f"convert them: edge-agent models convert {source} OUT.gguf")
    raise ModelFileError(f"{source}: no GGUF file in it", hint="give a .gguf file or the folder of one")
