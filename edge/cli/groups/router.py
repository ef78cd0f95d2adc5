"""The commands about the router: names, options and help. Knows typer; loads what a command needs only when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edge.cli import completing
from edge.cli.options import Config, Force, Json, Model, Seed, Sets, State, UnsafePrograms
from edge.cli.settings import Settings
from edge.core.limits import MOST_ITEMS

app = typer.Typer(
    help="A classifier that decides what is handed over: the baseline.", no_args_is_help=True, rich_markup_mode=None
)


@app.command("train")
def router_train(
    out: Annotated[Path, typer.Argument(help="File to write.", metavar="OUT.onnx")],
    tasks: Annotated[
        list[str] | None,
        typer.Option(
            "--tasks",
            help="A source of training items. Repeatable; default: the configuration's.",
            metavar="SOURCE",
            autocompletion=completing.sources,
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=8, max=MOST_ITEMS, help="Training items of each source.", metavar="N")
    ] = 400,
    rate: Annotated[
        float, typer.Option("--rate", min=0.0, max=1.0, help="The largest share that is handed over.", metavar="TAU")
    ] = 0.3,
    adapter: Annotated[
        str, typer.Option("--adapter", help="serving, latest, none or an adapter folder.", metavar="A")
    ] = "serving",
    force: Force = False,
    model: Model = None,
    state: State = None,
    config: Config = None,
    sets: Sets = None,
    seed: Seed = None,
    unsafe_programs: UnsafePrograms = False,
    json: Json = False,
) -> int:
    """Train a router on the local model's own answers: will it fail on this one? Written as ONNX with its threshold."""
    from edge.cli import router as command

    settings = Settings(config, sets, model, state=state, seed=seed, unsafe_programs=unsafe_programs)
    options = command.RouterOptions(out, tuple(tasks or ()), limit, rate, adapter, force=force, json=json)
    return command.train(settings, options)
