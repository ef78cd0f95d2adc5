"""`edge-agent models list | pull | convert | quantize | show`. The work is done in edge.models."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge.cli import completion
from edge.cli.options import Force, Json
from edge.cli.output import one_line, print_json, print_line, visible
from edge.core.errors import ModelFileError, UsageError
from edge.core.formatting import data_size

if TYPE_CHECKING:
    from rich.text import Text

    from edge.models.catalogue import About, Found, MemoryEstimate

app = typer.Typer(help="Models on this machine, and how to get more.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def models_list(json: Json = False) -> int:
    """Bundled models, those in the agent's models folder, and those in the hub's cache."""
    from edge.models.catalogue import all_models, models_folder

    rows = [(found, *_looked_at(found)) for found in all_models()]
    if json:
        print_json([_row_json(found, about, problem) for found, about, problem in rows])
        return 0
    _print_table(rows)
    print_line(f"your own models: {models_folder()}; more by edge-agent models pull OWNER/NAME")
    return 0


@app.command("pull")
def models_pull(
    model: Annotated[str, typer.Argument(help="OWNER/NAME on the hub, or a local file or folder.", metavar="REPO|PATH")],
    file: Annotated[
        str | None, typer.Option("--file", help="Which of its files (default: the only GGUF, else Q4_K_M).", metavar="NAME")
    ] = None,
    revision: Annotated[str | None, typer.Option("--revision", help="Branch, tag or commit.", metavar="R")] = None,
    force: Force = False,
    json: Json = False,
) -> int:
    """Fetch a model from the hub into its cache, or take a local one into the models folder."""
    from edge.models.catalogue import adopt
    from edge.models.hub import pull as pull_from_hub

    source = Path(model).expanduser()
    if source.exists() or model.startswith(("/", "./", "../", "~")) or model.endswith(".gguf"):
        path = adopt(source, file, force=force)
        return _pulled({"path": str(path), "name": path.stem, "convertible": False}, json)
    fetched = pull_from_hub(model, file, revision, print_line)
    if fetched.checked < fetched.files:
        print_line(f"{fetched.files - fetched.checked} of {fetched.files} files came without a checksum to compare")
    fields = {"path": str(fetched.path), "name": model, "convertible": fetched.convertible, "checksums": fetched.checked}
    return _pulled(fields, json)


@app.command("convert")
def models_convert(
    folder: Annotated[
        str, typer.Argument(help="Hugging Face model folder with safetensors; for ONNX a GGUF model.", metavar="FOLDER|MODEL")
    ],
    out: Annotated[Path, typer.Argument(help="File to write.", metavar="OUT.gguf|OUT.onnx")],
    type_name: Annotated[str, typer.Option("--type", help="GGUF: f16, bf16, f32 or q8_0.", metavar="TYPE")] = "f16",
    force: Force = False,
    json: Json = False,
) -> int:
    """Convert safetensors of a Qwen2, Qwen3 or Llama model to GGUF, or a GGUF model to an ONNX graph."""
    from edge.models.convert import convert as convert_folder

    if out.suffix == ".onnx":
        return _to_onnx(folder, out, force=force, as_json=json)
    source = _folder_to_convert(folder, out)
    with _Progress("converting") as progress:
        written = convert_folder(source, out, type_name, force=force, progress=progress.tell)
    if json:
        print_json({**asdict(written), "path": str(written.path)})
        return 0
    print(
        f"{one_line(written.path)}: {written.architecture}, {_count(written.parameters)} parameters, {data_size(written.file_bytes)}"
    )
    if written.kept_wider:
        print_line(f"{len(written.kept_wider)} matrices stay f16: their rows do not fit the blocks of {type_name}")
    if not written.chat_template:
        print_line("the folder holds no chat template: this is no instruct model, or its tokenizer files are incomplete")
    return 0


@app.command("quantize")
def models_quantize(
    source: Annotated[str, typer.Argument(help="GGUF model in f16, bf16 or f32: a name or a file.", metavar="MODEL")],
    out: Annotated[Path, typer.Argument(help="File to write.", metavar="OUT.gguf")],
    type_name: Annotated[str, typer.Option("--type", help="Q4_K_M, Q8_0, ...", metavar="TYPE")] = "Q4_K_M",
    threads: Annotated[int, typer.Option("--threads", min=0, help="0: all.", metavar="N")] = 0,
    force: Force = False,
    json: Json = False,
) -> int:
    """Make a GGUF file smaller."""
    from edge.models.catalogue import find_model
    from edge.models.quantise import quantise

    model = find_model(source)
    if model.is_dir():
        raise UsageError(f"{model}: is a folder", hint=f"make a file of it: edge-agent models convert {model} OUT.gguf")
    with _Progress("quantising") as progress:
        written = quantise(model, out, type_name, force=force, threads=threads, progress=progress.tell)
    if json:
        print_json({**asdict(written), "path": str(written.path)})
        return 0
    print(f"{written.path}: {written.type_name}, {data_size(written.bytes_before)} -> {data_size(written.bytes_after)}")
    if written.fallbacks:
        print_line(f"{written.fallbacks} tensors have another type: their rows do not fit the blocks of {written.type_name}")
    return 0


@app.command("show")
def models_show(
    model: Annotated[
        str,
        typer.Argument(help="A name that `models list` shows, or a file.", metavar="MODEL", autocompletion=completion.models),
    ],
    json: Json = False,
) -> int:
    """One model: shape, types, chat template, prompt form, memory, metadata."""
    from edge.core.gguf_header import read_header
    from edge.models.catalogue import find_model, look_at, memory_estimate

    path = find_model(model)
    metadata: dict[str, Any] = {}
    if not path.is_dir():
        metadata = {key: _plain(value) for key, value in read_header(path).metadata.items()}
    about = look_at(path)
    memory = memory_estimate(about, _CONTEXT_TOKENS)
    learning, reason = _learning_bytes(path)
    if json:
        costs = {**asdict(memory), "learning": learning}
        print_json({"path": str(path), **asdict(about), "memory": costs, "metadata": metadata})
        return 0
    for line in _about_lines(path, about, memory, data_size(learning) if learning is not None else reason):
        print(line)
    if metadata:
        print("metadata:")
    for key, value in metadata.items():
        print(f"  {one_line(key)} = {_shortened(value)}")
    return 0


_CONTEXT_TOKENS = 1024


def _folder_to_convert(name: str, out: Path) -> Path:
    """The folder of safetensors that a path or name stands for. Raises UsageError for a GGUF model, ModelFileError for nothing at all."""
    from edge.models.catalogue import find_model

    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    found = find_model(name)
    if found.is_dir():
        return found
    raise UsageError(
        f"{name}: is a GGUF model, of which only ONNX graphs can be made, and {out.name} does not end in .onnx",
        hint="give OUT.onnx, or make it smaller with edge-agent models quantize",
    )


def _to_onnx(name: str, out: Path, *, force: bool, as_json: bool) -> int:
    """The decoder of a GGUF model as ONNX: float32, with a key/value cache and inputs for an adapter."""
    from edge.app import require_onnx
    from edge.models.catalogue import find_model

    source = find_model(name)
    if source.is_dir():
        raise UsageError(f"{source}: ONNX graphs are made of GGUF files", hint="convert the folder to GGUF first")
    require_onnx("the graph is an ONNX file")
    from edge.models.onnx_decoder import export_onnx

    export_onnx(source, out, force=force)
    file_bytes = out.stat().st_size
    if as_json:
        print_json({"path": str(out), "source": str(source), "file_bytes": file_bytes})
        return 0
    print(f"{out}: the decoder of {source}, {data_size(file_bytes)}")
    if out.with_suffix(".gguf").resolve() != source.resolve():
        print_line(f"engine.backend onnx uses it when it lies beside the model: {source.with_suffix('.onnx')}")
    return 0


def _learning_bytes(path: Path) -> tuple[int | None, str]:
    """What learning takes at its fullest with the default settings; or None and why that cannot be told."""
    from edge.config.schema import AgentConfig

    try:
        from edge.models.catalogue import check_learnable
        from edge.sizing import batch_limits, model_shape, training_setting
        from edge.training.memory import memory_need, worst_micro_batch

        check_learnable(path)
        config = AgentConfig()
        shape, setting = model_shape(path), training_setting(config, path)
        return memory_need(shape, worst_micro_batch(shape, batch_limits(config, path), setting), setting).total, ""
    except ModelFileError as error:
        return None, f"not possible ({error})"
    except ModuleNotFoundError as error:
        return None, f"unknown ({error.name} is not installed)"


class _Progress:
    """A line that counts tensors on a terminal's stderr; silent elsewhere."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._shown = sys.stderr.isatty()

    def tell(self, done: int, total: int, name: str) -> None:
        """Show how far it is."""
        if self._shown:
            print(f"\r{self._verb} {done + 1}/{total} {visible(name):<48.48}", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _pulled(fields: dict[str, Any], as_json: bool) -> int:
    if as_json:
        print_json(fields)
        return 0
    print(fields["path"])
    if fields["convertible"]:
        print_line(f"safetensors; next: edge-agent models convert {fields['path']} OUT.gguf --type q8_0")
    else:
        print_line(f"use it with --model {fields['name']}")
    return 0


def _looked_at(found: Found) -> tuple[About | None, str]:
    from edge.models.catalogue import look_at

    try:
        return look_at(found.path), ""
    except ModelFileError as error:
        return None, str(error)


def _row_json(found: Found, about: About | None, problem: str) -> dict[str, Any]:
    fields = {"name": found.name, "origin": found.origin, "path": str(found.path)}
    return fields | ({"problem": problem} if about is None else asdict(about))


def _print_table(rows: list[tuple[Found, About | None, str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("name", "where", "architecture"):
        table.add_column(title, overflow="fold")
    for title in ("parameters", "size", "type", "context"):
        table.add_column(title, justify="right")
    for found, about, problem in rows:
        if about is None:
            table.add_row(_cell(found.name), found.origin, _cell(f"unusable: {problem}"))
            continue
        numbers = (
            _count(about.parameters),
            data_size(about.file_bytes),
            _cell(about.quantisation),
            f"{about.context_tokens:,}",
        )
        table.add_row(_cell(found.name), found.origin, _cell(about.architecture), *numbers)
    Console().print(table)


def _cell(text: str) -> Text:
    """Text of a file for the table: nothing in it is markup or steers the terminal."""
    from rich.text import Text

    return Text(one_line(text))


def _about_lines(path: Path, about: About, memory: MemoryEstimate, learning: str) -> list[str]:
    types = ", ".join(f"{count} {kind}" for kind, count in about.tensor_types.items())
    fields = {
        "name": about.title,
        "file": path,
        "architecture": about.architecture,
        "parameters": _count(about.parameters),
        "size": data_size(about.file_bytes),
        "type": f"{about.quantisation} ({types})" if types else about.quantisation,
        "context": f"{about.context_tokens:,} tokens",
        "tokenizer": f"{about.tokenizer}, {about.vocabulary:,} tokens",
        "chat template": "yes" if about.chat_template else "none: llama.cpp's ChatML is used where its tokens are known",
        "prompt form": about.prompt_form,
        "memory": f"{data_size(memory.weights)} weights, {data_size(memory.kv_of_one_answer)} for each answer of {memory.tokens:,} tokens; "
        f"learning with default settings: {learning}",
    }
    return [f"{label + ':':<15} {one_line(value)}" for label, value in fields.items()]


def _plain(value: Any) -> Any:
    length = getattr(value, "length", None)
    return value if length is None else f"[{length} values]"


def _shortened(value: Any) -> str:
    text = one_line(value)
    return text if len(text) <= 100 else f"{text[:100]} ... ({len(text)} characters)"


def _count(parameters: int) -> str:
    for unit, name in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if parameters >= unit:
            return f"{parameters / unit:.2f} {name}"
    return str(parameters)
