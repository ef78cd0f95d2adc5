"""The commands about what was learned: names, options and help. Knows typer; loads what a command needs only when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edge.cli.options import Config, Force, Json, Model, Sets, State
from edge.cli.settings import Settings

app = typer.Typer(help="What was learned: list, inspect, go back, take away.", no_args_is_help=True, rich_markup_mode=None)


Version = Annotated[int, typer.Argument(min=0, help="A version that `adapters list` shows.", metavar="VERSION")]


@app.command("list")
def adapters_list(state: State = None, config: Config = None, sets: Sets = None, json: Json = False) -> int:
    """The versions in the state folder: step, task, size, gate, which one serves, which are damaged."""
    from edge.cli import adapters as command

    return command.list_versions(Settings(config, sets, state=state), as_json=json)


@app.command("show")
def adapters_show(version: Version, state: State = None, config: Config = None, sets: Sets = None, json: Json = False) -> int:
    """One version: where it came from, its scores, configuration and norms."""
    from edge.cli import adapters as command

    return command.show(Settings(config, sets, state=state), version, as_json=json)


@app.command("rollback")
def adapters_rollback(version: Version, state: State = None, config: Config = None, sets: Sets = None, json: Json = False) -> int:
    """Serve and learn on from a version (0: the bare model), whether an agent runs or not. Nothing is deleted."""
    from edge.cli import adapters as command

    return command.rollback(Settings(config, sets, state=state), version, as_json=json)


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
    from edge.cli import adapters as command

    options = command.ExportOptions(version, out, form, force=force, json=json)
    return command.export(Settings(config, sets, model, state=state), options)
