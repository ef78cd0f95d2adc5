"""`edge-agent adapters`: what there is, one of them, going back, and taking one away.

Lists and goes back through the agent that runs on the state folder, or in the folder itself where none does. Showing and exporting read
files only and change nothing.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option, Typer

from edge.cli.options import Force, Json
from edge.cli.output import columns, local_time, print_json, print_line, print_result, visible
from edge.cli.remote import ask_agent
from edge.cli.settings import Settings, takes
from edge.core.errors import AdapterError, NotFound, StateError, UsageError
from edge.core.files import replacing, replacing_folder
from edge.core.formatting import data_size, percent
from edge.core.types import GGUF_ADAPTER

if TYPE_CHECKING:
    from edge.config.schema import AgentConfig
    from edge.serve.agent_schemas import AdapterVersionView

app = Typer(help="What was learned: list, inspect, roll back, take away.", no_args_is_help=True, rich_markup_mode=None)

FORMATS = ("peft", "gguf", "mlx")
_PEFT_FILES = ("adapter_config.json", "adapter_model.safetensors")
_OUR_FILES = {*_PEFT_FILES, "adapters.safetensors"}
Version = Annotated[int, Argument(min=0, help="A version that `adapters list` shows.", metavar="VERSION")]


@app.command("list")
@takes("state")
def adapters_list(settings: Settings, json: Json = False) -> None:
    """The versions in the state folder: step, task, size, gate, which one is active, which are damaged."""
    config = settings.config()
    folder = _state_of(config)
    versions = ask_agent(config, lambda agent: agent.adapters())
    if json:
        print_json(versions)
    elif versions:
        rows = [
            ("version", "when", "phase", "task", "size", "local accuracy", "assist rate", "gate", "state"),
            *map(_row, versions),
        ]
        print("\n".join(columns(rows)))
        if not any(version.serving for version in versions):
            print("the bare model (version 0) is active")
    else:
        print_line(f"there are no adapters in {visible(str(folder))} yet; the bare model is active")


@app.command("show")
@takes("state")
def adapters_show(version: Version, settings: Settings, json: Json = False) -> None:
    """One version: where it came from, its scores, configuration and norms."""
    from edge.learning.adapters import unknown_version

    config = settings.config()
    _state_of(config)
    versions = ask_agent(config, lambda agent: agent.adapters())
    found = next((known for known in versions if known.version == version), None)
    if found is None:
        raise unknown_version(version, [one.version for one in versions])
    contents = _contents(Path(found.folder))
    print_result({**found.model_dump(mode="json"), **contents}, _version_lines(found, contents), as_json=json)


@app.command("rollback")
@takes("state")
def adapters_rollback(version: Version, settings: Settings, json: Json = False) -> None:
    """Serve and learn on from a version (0: the bare model), whether an agent runs or not. Nothing is deleted."""
    config = settings.config()
    _state_of(config)
    lineage = ask_agent(config, lambda agent: agent.rollback(version))
    name = f"adapter {version}" if version else "the bare model"
    text = f"{name} is active, and learning goes on from it; the other versions stay on disk"
    print_result(lineage, [text], as_json=json)


@app.command("export")
@takes("model state")
def adapters_export(
    version: Version,
    out: Annotated[Path, Argument(help="Folder (peft, mlx) or file (gguf) to write.", metavar="OUT")],
    form: Annotated[str, Option("--format", help="peft, gguf or mlx.", metavar="FORMAT")] = "peft",
    force: Force = False,
    *,
    settings: Settings,
    json: Json = False,
) -> None:
    """Write a version for other programs: a peft folder, a llama.cpp LoRA file, or an mlx-lm adapter folder."""
    config = settings.config()
    if form not in FORMATS:
        raise UsageError(f"--format {visible(form)}: no such format", hint=f"give one of {', '.join(FORMATS)}")
    folder = _state_of(config) / "checkpoints" / f"step-{version:06d}" / "adapter"
    if not folder.is_dir():
        absent = f"there is no adapter version {version} in {visible(str(folder.parents[1]))}"
        raise NotFound(absent, hint="see edge-agent adapters list")
    shown = visible(str(out))
    if not out.absolute().parent.is_dir():
        raise UsageError(f"{shown}: no such folder to write in", hint="name a place in an existing folder")
    if out.exists() and not force:
        raise UsageError(f"{shown} exists already", hint="choose another place, or give --force to replace it")
    if out.is_dir() and not {file.name for file in out.iterdir()} <= _OUR_FILES:
        raise UsageError(
            f"{shown} is a folder with other files in it", hint="choose another place; --force replaces adapters only"
        )
    try:  # written next to the target; what was there stays until then
        with replacing(out) if form == "gguf" else replacing_folder(out) as draft:
            _write(folder, draft, form, config)
            if form == "gguf" and out.is_dir():
                shutil.rmtree(out)
    except OSError as error:
        raise StateError(f"{shown}: cannot be written: {error.strerror}", hint="choose another place") from error
    result = {"version": version, "format": form, "out": str(out)}
    print_result(result, [f"adapter {version} is in {shown} ({form})"], as_json=json)


def _state_of(config: AgentConfig) -> Path:
    """The state folder. Raises StateError where there is none."""
    from edge.app.settings import state_folder

    folder = state_folder(config)
    if not folder.is_dir():
        raise StateError(
            f"{visible(str(folder))}: there is no state folder", hint="name it with --state, or run edge-agent run first"
        )
    return folder


def _contents(folder: Path) -> dict[str, Any]:
    """Configuration, manifest and norms, as far as they can be read."""
    from edge.inference.adapters import lora_norms

    contents: dict[str, Any] = {"config": None, "manifest": None, "norms": None}
    for name, file in (("config", folder / _PEFT_FILES[0]), ("manifest", folder.parent / "manifest.json")):
        with suppress(OSError, ValueError):
            contents[name] = json.loads(file.read_text(encoding="utf-8"))
    with suppress(AdapterError):
        contents["norms"] = lora_norms(folder)
    return contents


def _write(folder: Path, draft: Path, form: str, config: AgentConfig) -> None:
    """The adapter in one of the formats. As GGUF it is the file that was served; one trained on MLX has none, so it is made for the
    configured model."""
    from edge.app.settings import model_file
    from edge.inference.adapters import check_adapter, read_peft_adapter, write_gguf_adapter, write_mlx_adapter

    if form == "mlx":
        write_mlx_adapter(folder, draft)
    elif form == "peft":
        read_peft_adapter(folder)
        for name in _PEFT_FILES:
            shutil.copyfile(folder / name, draft / name)
    else:
        check_adapter(folder)
        if (folder / GGUF_ADAPTER).is_file():
            shutil.copyfile(folder / GGUF_ADAPTER, draft)
            return
        base = model_file(config.model.path)
        if base.is_dir():
            raise UsageError(
                f"{base}: a folder is no base model for a GGUF adapter", hint="name the same model as a .gguf file with --model"
            )
        write_gguf_adapter(folder, base, draft)


def _version_lines(version: AdapterVersionView, contents: Mapping[str, Any]) -> Iterator[str]:
    """One version for a person."""
    lora, before, after = contents["config"], version.gate_before, version.gate_after
    facts = {
        "version": version.version,
        "folder": version.folder,
        "when": local_time(version.at),
        "trained from": "the bare model" if version.base == 0 else version.base,
        "source": version.source,
        "task": version.task,
        "size": data_size(version.size_bytes),
        "local accuracy": percent(version.kept_accuracy),
        "right in the end": percent(version.joint_accuracy),
        "assist rate": percent(version.assist_rate),
        "gate": _gate(version) + (f": {version.gate_reason}" if version.gate_reason else ""),
        "validation": "" if after is None else f"{percent(before)} before, {percent(after)} with this one",
        "state": _state(version),
        "damage": version.damage,
        "LoRA": f"rank {lora.get('r')}, alpha {lora.get('lora_alpha')}, {', '.join(lora.get('target_modules') or ())}"
        if lora
        else "",
    }
    yield from (f"{name + ':':<17} {visible(str(value))}" for name, value in facts.items() if value not in (None, ""))
    if norms := contents["norms"]:
        width = max(map(len, norms))
        yield f"{'layer':<{width}}  {'|A|':>9}  {'|B|':>9}  {'|change|':>9}"
        for layer, of in norms.items():
            yield f"{layer:<{width}}  {of['a']:>9.4f}  {of['b']:>9.4f}  {of['change']:>9.4f}"


def _row(version: AdapterVersionView) -> tuple[str, ...]:
    return (
        str(version.version),
        local_time(version.at),
        "-" if version.phase is None else str(version.phase + 1),
        visible(version.task or "-"),
        data_size(version.size_bytes),
        percent(version.kept_accuracy),
        percent(version.assist_rate),
        _gate(version),
        _state(version),
    )


def _state(version: AdapterVersionView) -> str:
    """A version's place in the lineage in a few words."""
    words = {
        "active": version.serving,
        "latest": version.head and not version.serving,
        "left": not version.on_line,
        "damaged": bool(version.damage),
    }
    return ", ".join(word for word, holds in words.items() if holds)


def _gate(version: AdapterVersionView) -> str:
    return {"refused": "rejected", "": "not judged"}.get(version.gate, version.gate)
