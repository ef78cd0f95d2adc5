"""`edge-agent adapters`: what there is, one of them, going back, and taking one away.

Lists and goes back through the agent that runs on the state folder, or in the folder itself where none does. Looking and exporting read
files only and change nothing.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from edge.cli.running import running_agent
from edge.cli.saying import print_json, print_line, visible
from edge.core.clock import SystemClock
from edge.core.errors import AdapterError, NotFound, StateError, UsageError
from edge.core.files import replacing, replacing_folder
from edge.core.formatting import data_size, percent
from edge.core.types import GGUF_ADAPTER

if TYPE_CHECKING:
    from edge.cli.settings import Settings
    from edge.learning.adapters import Versions

Result = TypeVar("Result")
FORMATS = ("peft", "gguf", "mlx")
_PEFT_FILES = ("adapter_config.json", "adapter_model.safetensors")
_HINT = "see edge-agent adapters list"


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Which version goes where, in which of FORMATS."""

    version: int
    out: Path
    form: str
    force: bool = False
    json: bool = False


def list_versions(settings: Settings, *, as_json: bool) -> int:
    """The versions on disk, newest last."""
    state = _state_of(settings)
    versions = asyncio.run(_all(state))
    if as_json:
        print_json(versions)
    elif versions:
        print("\n".join(table(versions)))
        if not any(version["serving"] for version in versions):
            print("the bare model (version 0) serves")
    else:
        print_line(f"there are no adapters in {visible(str(state))} yet; the bare model serves")
    return 0


def show(settings: Settings, version: int, *, as_json: bool) -> int:
    """One version with its configuration and norms. Raises NotFound."""
    versions = asyncio.run(_all(_state_of(settings)))
    found = next((known for known in versions if known["version"] == version), None)
    if found is None:
        from edge.learning.adapters import unknown_version

        raise unknown_version(version, [one["version"] for one in versions])
    whole = {**found, **_contents(Path(found["folder"]))}
    if as_json:
        print_json(whole)
    else:
        print("\n".join(shown_lines(whole)))
    return 0


def rollback(settings: Settings, version: int, *, as_json: bool) -> int:
    """Go back to a version. Raises NotFound, StateError or AdapterError; everything stays as it was then."""
    line = asyncio.run(_went_back(_state_of(settings), version))
    if as_json:
        print_json(line)
    else:
        name = f"adapter {version}" if version else "the bare model"
        print(f"{name} serves, and learning goes on from it; the other versions stay on disk")
    return 0


def export(settings: Settings, options: ExportOptions) -> int:
    """Write a version elsewhere, all or nothing. Raises UsageError, NotFound, AdapterError or StateError."""
    if options.form not in FORMATS:
        raise UsageError(f"--format {visible(options.form)}: no such format", hint=f"give one of {', '.join(FORMATS)}")
    folder = _state_of(settings) / "checkpoints" / f"step-{options.version:06d}" / "adapter"
    if not folder.is_dir():
        raise NotFound(f"there is no adapter version {options.version} in {visible(str(folder.parents[1]))}", hint=_HINT)
    _require_place(options)
    writers: dict[str, Callable[[Path], None]] = {
        "peft": lambda draft: _copy_peft(folder, draft),
        "gguf": lambda draft: _copy_gguf(folder, draft, settings),
        "mlx": lambda draft: _write_mlx(folder, draft),
    }
    _replace(options, writers[options.form])
    result = {"version": options.version, "format": options.form, "out": str(options.out)}
    if options.json:
        print_json(result)
    else:
        print(f"adapter {options.version} is in {visible(str(options.out))} ({options.form})")
    return 0


def table(versions: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line a version."""
    rows = [("version", "when", "phase", "task", "size", "kept", "asks", "gate", "state"), *map(_row, versions)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def shown_lines(version: Mapping[str, Any]) -> list[str]:
    """One version for a person."""
    config = version["config"]
    facts = {
        "version": version["version"],
        "folder": version["folder"],
        "when": _when(version["at"]),
        "trained from": "the bare model" if version["base"] == 0 else version["base"],
        "source": version["source"],
        "task": version["task"],
        "size": data_size(version["size_bytes"]),
        "kept accuracy": percent(version["kept_accuracy"]),
        "joint accuracy": percent(version["joint_accuracy"]),
        "assist rate": percent(version["assist_rate"]),
        "gate": _gate(version) + (f": {version['gate_reason']}" if version["gate_reason"] else ""),
        "anchors right": _anchors(version),
        "state": _state(version),
        "damage": version["damage"],
        "LoRA": f"rank {config.get('r')}, alpha {config.get('lora_alpha')}, {', '.join(config.get('target_modules') or ())}"
        if config
        else "",
    }
    lines = [f"{name + ':':<15} {visible(str(value))}" for name, value in facts.items() if value not in (None, "")]
    if version["norms"]:
        width = max(len(layer) for layer in version["norms"])
        lines.append(f"{'layer':<{width}}  {'|A|':>9}  {'|B|':>9}  {'|change|':>9}")
        lines += [
            f"{layer:<{width}}  {norms['a']:>9.4f}  {norms['b']:>9.4f}  {norms['change']:>9.4f}"
            for layer, norms in version["norms"].items()
        ]
    return lines


def _state_of(settings: Settings) -> Path:
    from edge.app import state_folder

    folder = state_folder(settings.config())
    if not folder.is_dir():
        raise StateError(
            f"{visible(str(folder))}: there is no state folder", hint="name it with --state, or run edge-agent run first"
        )
    return folder


async def _all(state: Path) -> list[Mapping[str, Any]]:
    async with running_agent(state) as remote:
        if remote is not None:
            return list((await remote.get("/api/adapters"))["adapters"])
    return _in_folder(state, lambda versions: [version.to_json() for version in versions.all()])


async def _went_back(state: Path, version: int) -> Mapping[str, Any]:
    async with running_agent(state) as remote:
        if remote is not None:
            return await remote.post("/api/adapters/rollback", {"version": version})
    return _in_folder(state, lambda versions: _go_back(versions, version))


def _go_back(versions: Versions, version: int) -> dict[str, Any]:
    versions.checkpoint(version)
    return versions.go_back(version, SystemClock().now()).to_dict()


def _in_folder(state: Path, work: Callable[[Versions], Result]) -> Result:
    """Work in a folder that no agent uses; its lock is held meanwhile."""
    from edge.app import sound_adapter
    from edge.learning.adapters import Versions
    from edge.learning.checkpoints import Checkpoints
    from edge.state.folder import StateFolder

    with StateFolder(state) as folder:
        return work(Versions(folder, Checkpoints(state / "checkpoints"), sound_adapter))


def _contents(folder: Path) -> dict[str, Any]:
    """Configuration, manifest and norms, as far as they can be read."""
    from edge.inference.adapters import lora_norms

    contents: dict[str, Any] = {"config": None, "manifest": None, "norms": None}
    with suppress(OSError, ValueError):
        contents["config"] = json.loads((folder / _PEFT_FILES[0]).read_text(encoding="utf-8"))
    with suppress(OSError, ValueError):
        contents["manifest"] = json.loads((folder.parent / "manifest.json").read_text(encoding="utf-8"))
    with suppress(AdapterError):
        contents["norms"] = lora_norms(folder)
    return contents


def _require_place(options: ExportOptions) -> None:
    out = options.out
    shown = visible(str(out))
    if not out.absolute().parent.is_dir():
        raise UsageError(f"{shown}: no such folder to write in", hint="name a place in an existing folder")
    if not out.exists():
        return
    if not options.force:
        raise UsageError(f"{shown} exists already", hint="choose another place, or give --force to replace it")
    if out.is_dir() and not _is_ours(out):
        raise UsageError(
            f"{shown} is a folder with other files in it", hint="choose another place; --force replaces adapters only"
        )


def _is_ours(folder: Path) -> bool:
    """Whether replacing the folder loses nothing but an exported adapter."""
    return {file.name for file in folder.iterdir()} <= {*_PEFT_FILES, "adapters.safetensors", "adapter_config.json"}


def _replace(options: ExportOptions, write: Callable[[Path], None]) -> None:
    """Write beside the place, then put it there; what was there stays until then."""
    out = options.out
    try:
        with replacing(out) if options.form == "gguf" else replacing_folder(out) as draft:
            write(draft)
            if options.form == "gguf" and out.is_dir():
                shutil.rmtree(out)
    except OSError as error:
        raise StateError(f"{visible(str(out))}: cannot be written: {error.strerror}", hint="choose another place") from error


def _copy_peft(folder: Path, draft: Path) -> None:
    from edge.inference.adapters import read_peft_adapter

    read_peft_adapter(folder)
    for name in _PEFT_FILES:
        shutil.copyfile(folder / name, draft / name)


def _copy_gguf(folder: Path, draft: Path, settings: Settings) -> None:
    """The file that was served; an adapter trained on MLX has none, so it is made for the configured model."""
    from edge.app import model_file
    from edge.inference.adapters import check_adapter, write_gguf_adapter

    check_adapter(folder)
    if (folder / GGUF_ADAPTER).is_file():
        shutil.copyfile(folder / GGUF_ADAPTER, draft)
        return
    base = model_file(settings.config().model.path)
    if base.is_dir():
        raise UsageError(
            f"{base}: a folder is no base model for a GGUF adapter", hint="name the same model as a .gguf file with --model"
        )
    write_gguf_adapter(folder, base, draft)


def _write_mlx(folder: Path, draft: Path) -> None:
    from edge.inference.adapters import write_mlx_adapter

    write_mlx_adapter(folder, draft)


def _row(version: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        str(version["version"]),
        _when(version["at"]),
        "-" if version["phase"] is None else str(version["phase"] + 1),
        visible(version["task"] or "-"),
        data_size(version["size_bytes"]),
        percent(version["kept_accuracy"]),
        percent(version["assist_rate"]),
        _gate(version),
        _state(version),
    )


def _state(version: Mapping[str, Any]) -> str:
    """What is to be said of a version in a few words."""
    words = {
        "serves": version["serving"],
        "is trained": version["head"] and not version["serving"],
        "left": not version["on_line"],
        "damaged": bool(version["damage"]),
    }
    return ", ".join(word for word, holds in words.items() if holds)


def _gate(version: Mapping[str, Any]) -> str:
    return version["gate"] or "not judged"


def _anchors(version: Mapping[str, Any]) -> str:
    if version["gate_after"] is None:
        return ""
    return f"{percent(version['gate_before'])} before, {percent(version['gate_after'])} with this one"


def _when(at: float | None) -> str:
    """Local time to the second, - where it is not known."""
    from datetime import UTC, datetime

    return "-" if at is None else datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
