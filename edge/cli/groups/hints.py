"""The commands about hints: names, options and help. Knows typer; loads what a command needs only when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edge.cli.options import Config, Coordinator, Json, Model, Seed, Sets, State, UnsafePrograms
from edge.cli.settings import Settings
from edge.core.limits import MOST_ITEMS

app = typer.Typer(help="Whether hints to the cloud LLM pay.", no_args_is_help=True, rich_markup_mode=None)


@app.command("measure")
def hints_measure(
    tasks: Annotated[
        list[str] | None,
        typer.Option("--tasks", help="Task source. Repeatable (default: the configuration's).", metavar="SOURCE"),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=MOST_ITEMS, help="Test items of each source.", metavar="N")] = 400,
    chars: Annotated[int, typer.Option("--chars", min=1, max=16_000, help="Characters of a hint.", metavar="N")] = 400,
    margin: Annotated[
        float, typer.Option("--margin", min=0.0, max=1.0, help="Difference that still counts as equal accuracy.", metavar="SHARE")
    ] = 0.03,
    record: Annotated[
        Path | None, typer.Option("--record", help="Keep cloud answers here (default: in the state folder).", metavar="FILE")
    ] = None,
    replay: Annotated[Path | None, typer.Option("--replay", help="Take cloud answers from here.", metavar="FILE")] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Say how to set what was measured; writes nothing.")] = False,
    model: Model = None,
    coordinator: Coordinator = None,
    state: State = None,
    seed: Seed = None,
    unsafe_programs: UnsafePrograms = False,
    config: Config = None,
    sets: Sets = None,
    json: Json = False,
) -> int:
    """Ask the cloud LLM with and without hints for the same items, and say whether they pay. They stay off unless they do."""
    from edge.cli import hints as command

    settings = Settings(config, sets, model, coordinator, state, seed=seed, unsafe_programs=unsafe_programs)
    return command.measure(settings, command.HintOptions(tuple(tasks or ()), limit, chars, margin, record, replay, apply, json))


@app.command("show")
def hints_show(state: State = None, config: Config = None, sets: Sets = None, json: Json = False) -> int:
    """The last verdict."""
    from edge.cli import hints as command

    return command.show(Settings(config, sets, state=state), as_json=json)
