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
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge.cli.control import agent_control
from edge.cli.options import Config, Force, Json, Model, Sets, State
from edge.cli.output import local_time, print_json, print_line, visible
from edge.cli.settings import Settings
from edge.core.errors import AdapterError, NotFound, StateError, UsageError
from edge.core.files import replacing, replacing_folder
from edge.core.formatting import data_size, percent
from edge.core.types import GGUF_ADAPTER

if TYPE_CHECKING:
    from edge.config.schema import AgentConfig

app = typer.Typer(help="What was learned: list, inspect, go back, take away.", no_args_is_help=True, rich_markup_mode=None)


Version = Annotated[int, typer.Argument(min=0, help="A version that `adapters list` shows.", metavar="VERSION")]


@app.command("list")
def adapters_list(state: State = None, config: Config = None, sets: Sets = None, json: Json = False) -> int:
    """The versions in the state folder: step, task, size, gate, which one serves, which are damaged."""
    resolved = Settings(config, sets, state=state).config()
    folder = _state_of(resolved)
    versions = asyncio.run(_all(resolved))
    if json:
        print_json(versions)
    elif versions:
        print("\n".join(table(versions)))
        if not any(version["serving"] for version in versions):
            print("the bare model (version 0) is active")
    else:
        print_line(f"there are no adapters in {visible(str(folder))} yet; the bare model is active")
    return 0


@app.command("show")
def adapters_show(version: Version, state: State = None, config: Config = None, sets: Sets = None, json: Json = False) -> int:
    """One version: where it came from, its scores, configuration and norms."""
    resolved = Settings(config, sets, state=state).config()
    _state_of(resolved)
    versions = asyncio.run(_all(resolved))
    found = next((known for known in versions if known["version"] == version), None)
    if found is None:
        from edge.learning.adapters import unknown_version

        raise unknown_version(version, [one["version"] for one in versions])
    whole = {**found, **_contents(Path(found["folder"]))}
    if json:
        print_json(whole)
    else:
        print("\n".join(shown_lines(whole)))
    return 0


@app.command("rollback")
def adapters_rollback(version: Version, state: State = None, config: Config = None, sets: Sets = None, json: Json = False) -> int:
    """Serve and learn on from a version (0: the bare model), whether an agent runs or not. Nothing is deleted."""
    resolved = Settings(config, sets, state=state).config()
    _state_of(resolved)
    lineage = asyncio.run(_rollback(resolved, version))
    if json:
        print_json(lineage)
    else:
        name = f"adapter {version}" if version else "the bare model"
        print(f"{name} is active, and learning goes on from it; the other versions stay on disk")
    return 0


@app.command("export")
def adapters_export(
    version: Version,
    out: Annotated[Path, typer.Argument(help="Folder (peft, mlx) or file (gguf) to write.", metavar="OUT")],
    form: Annotated[str, typer.Option("--format", help="peft, gguf or mlx.", metavar="FORMAT")] = "peft",
    force: Force = False,
    model: Model = None,
    state: State = None,
    config: Config = None,
    sets: Sets = None,
    json: Json = False,
) -> int:
    """Write a version for other programs: a peft folder, a llama.cpp LoRA file, or an mlx-lm adapter folder."""
    settings = Settings(config, sets, model, state=state)
    if form not in FORMATS:
        raise UsageError(f"--format {visible(form)}: no such format", hint=f"give one of {', '.join(FORMATS)}")
    folder = _state_of(settings.config()) / "checkpoints" / f"step-{version:06d}" / "adapter"
    if not folder.is_dir():
        raise NotFound(f"there is no adapter version {version} in {visible(str(folder.parents[1]))}", hint=_HINT)
    _require_place(out, force=force)
    writers: dict[str, Callable[[Path], None]] = {
        "peft": lambda draft: _copy_peft(folder, draft),
        "gguf": lambda draft: _copy_gguf(folder, draft, settings),
        "mlx": lambda draft: _write_mlx(folder, draft),
    }
    _replace(out, form, writers[form])
    result = {"version": version, "format": form, "out": str(out)}
    if json:
        print_json(result)
    else:
        print(f"adapter {version} is in {visible(str(out))} ({form})")
    return 0


FORMATS = ("peft", "gguf", "mlx")
_PEFT_FILES = ("adapter_config.json", "adapter_model.safetensors")
_HINT = "see edge-agent adapters list"


def table(versions: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line a version."""
    rows = [("version", "when", "phase", "task", "size", "local accuracy", "assist rate", "gate", "state"), *map(_row, versions)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def shown_lines(version: Mapping[str, Any]) -> list[str]:
    """One version for a person."""
    config = version["config"]
    facts = {
        "version": version["version"],
        "folder": version["folder"],
        "when": local_time(version["at"]),
        "trained from": "the bare model" if version["base"] == 0 else version["base"],
        "source": version["source"],
        "task": version["task"],
        "size": data_size(version["size_bytes"]),
        "local accuracy": percent(version["kept_accuracy"]),
        "right in the end": percent(version["joint_accuracy"]),
        "assist rate": percent(version["assist_rate"]),
        "gate": _gate(version) + (f": {version['gate_reason']}" if version["gate_reason"] else ""),
        "validation": _validation(version),
        "state": _state(version),
        "damage": version["damage"],
        "LoRA": f"rank {config.get('r')}, alpha {config.get('lora_alpha')}, {', '.join(config.get('target_modules') or ())}"
        if config
        else "",
    }
    lines = [f"{name + ':':<17} {visible(str(value))}" for name, value in facts.items() if value not in (None, "")]
    if version["norms"]:
        width = max(len(layer) for layer in version["norms"])
        lines.append(f"{'layer':<{width}}  {'|A|':>9}  {'|B|':>9}  {'|change|':>9}")
        lines += [
            f"{layer:<{width}}  {norms['a']:>9.4f}  {norms['b']:>9.4f}  {norms['change']:>9.4f}"
            for layer, norms in version["norms"].items()
        ]
    return lines


def _state_of(config: AgentConfig) -> Path:
    """The state folder. Raises StateError where there is none."""
    from edge.app import state_folder

    folder = state_folder(config)
    if not folder.is_dir():
        raise StateError(
            f"{visible(str(folder))}: there is no state folder", hint="name it with --state, or run edge-agent run first"
        )
    return folder


async def _all(config: AgentConfig) -> Sequence[Mapping[str, Any]]:
    async with agent_control(config) as agent:
        return await agent.adapters()


async def _rollback(config: AgentConfig, version: int) -> Mapping[str, Any]:
    async with agent_control(config) as agent:
        return await agent.rollback(version)


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


def _require_place(out: Path, *, force: bool) -> None:
    shown = visible(str(out))
    if not out.absolute().parent.is_dir():
        raise UsageError(f"{shown}: no such folder to write in", hint="name a place in an existing folder")
    if not out.exists():
        return
    if not force:
        raise UsageError(f"{shown} exists already", hint="choose another place, or give --force to replace it")
    if out.is_dir() and not _is_ours(out):
        raise UsageError(
            f"{shown} is a folder with other files in it", hint="choose another place; --force replaces adapters only"
        )


def _is_ours(folder: Path) -> bool:
    """Whether replacing the folder loses nothing but an exported adapter."""
    return {file.name for file in folder.iterdir()} <= {*_PEFT_FILES, "adapters.safetensors", "adapter_config.json"}


def _replace(out: Path, form: str, write: Callable[[Path], None]) -> None:
    """Write beside the place, then put it there; what was there stays until then."""
    try:
        with replacing(out) if form == "gguf" else replacing_folder(out) as draft:
            write(draft)
            if form == "gguf" and out.is_dir():
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
        local_time(version["at"]),
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
        "active": version["serving"],
        "latest": version["head"] and not version["serving"],
        "left": not version["on_line"],
        "damaged": bool(version["damage"]),
    }
    return ", ".join(word for word, holds in words.items() if holds)


def _gate(version: Mapping[str, Any]) -> str:
    return {"refused": "rejected", "": "not judged"}.get(version["gate"], str(version["gate"]))


def _validation(version: Mapping[str, Any]) -> str:
    if version["gate_after"] is None:
        return ""
    return f"{percent(version['gate_before'])} before, {percent(version['gate_after'])} with this one"
