"""The commands about models: names, options and help. Knows typer; loads what a command needs only when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edge.cli import completing
from edge.cli.options import Force, Json

app = typer.Typer(help="Models on this machine, and how to get more.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def models_list(json: Json = False) -> int:
    """Bundled models, those in the agent's models folder, and those in the hub's cache."""
    from edge.cli import models as command

    return command.list_models(as_json=json)


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
    from edge.cli import models as command

    return command.pull(model, command.PullOptions(file, revision, force, json))


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
    from edge.cli import models as command

    return command.convert(folder, out, type_name, force=force, as_json=json)


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
    from edge.cli import models as command

    return command.quantize(source, out, type_name, force=force, threads=threads, as_json=json)


@app.command("show")
def models_show(
    model: Annotated[
        str,
        typer.Argument(help="A name that `models list` shows, or a file.", metavar="MODEL", autocompletion=completing.models),
    ],
    json: Json = False,
) -> int:
    """One model: shape, types, chat template, prompt form, memory, metadata."""
    from edge.cli import models as command

    return command.show(model, as_json=json)
