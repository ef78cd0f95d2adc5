"""The commands about task sources: names, options and help. Knows typer; loads what a command needs only when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from edge.cli import completing
from edge.cli.options import Config, Json, Model, Sets
from edge.cli.settings import Settings
from edge.core.limits import LARGEST_SEED, MOST_ITEMS

app = typer.Typer(help="What can be learned and evaluated on.", no_args_is_help=True, rich_markup_mode=None)


Source = Annotated[
    str,
    typer.Argument(
        help="A name that `tasks list` shows, NAME:PATH, or a .jsonl file.", metavar="SOURCE", autocompletion=completing.sources
    ),
]


@app.command("list")
def tasks_list(json: Json = False) -> int:
    """Task sources: families, levels, how many items, where to get them."""
    from edge.cli import tasks as command

    return command.list_sources(as_json=json)


@app.command("show")
def tasks_show(source: Source, model: Model = None, config: Config = None, sets: Sets = None, json: Json = False) -> int:
    """Levels, label and step limit of a source, an example of each level, and the prompt as the model sees it."""
    from edge.cli import tasks as command

    return command.show(Settings(config, sets, model), source, as_json=json)


@app.command("sample")
def tasks_sample(
    source: Source,
    count: Annotated[int, typer.Option("--n", min=1, max=MOST_ITEMS, help="How many items.", metavar="N")] = 5,
    level: Annotated[int | None, typer.Option("--level", min=0, help="Only this level.", metavar="N")] = None,
    split: Annotated[str, typer.Option("--split", help="train or test.", metavar="SPLIT")] = "train",
    seed: Annotated[int, typer.Option("--seed", min=0, max=LARGEST_SEED, help="Seed of the choice.", metavar="N")] = 0,
    json: Annotated[bool, typer.Option("--json", help="One task item a line, as a .jsonl task file has it.")] = False,
) -> int:
    """Some items of a source."""
    from edge.cli import tasks as command

    return command.sample(source, command.SampleOptions(count, level, split, seed, json))
