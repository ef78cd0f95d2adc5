"""The commands about budgets and dials: names, options and help. Knows typer; loads what a command needs only when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from edge.cli.options import Config, Coordinator, Json, Sets, State, task_label
from edge.cli.settings import Settings

app = typer.Typer(help="What may be spent, and what was.", no_args_is_help=True, rich_markup_mode=None)


@app.command("show")
def budget_show(
    coordinator: Coordinator = None, state: State = None, config: Config = None, sets: Sets = None, json: Json = False
) -> int:
    """Of each task: calls, tokens and money used and allowed, the dial and the rate realised, the price of asking."""
    from edge.cli import budget as command

    return command.show(Settings(config, sets, None, coordinator, state), as_json=json)


@app.command("set", context_settings={"ignore_unknown_options": True})  # so that -5% is told to be no rate
def budget_set(
    rate: Annotated[
        str, typer.Argument(help="Share of questions that may ask, as 15% or 0.15; off: the model decides.", metavar="RATE")
    ],
    task: Annotated[
        str | None, typer.Option("--task", help="Of this task alone (default: of every one).", metavar="LABEL")
    ] = None,
    coordinator: Coordinator = None,
    state: State = None,
    config: Config = None,
    sets: Sets = None,
    json: Json = False,
) -> int:
    """Turn the dial: how many of the next questions may ask the cloud. No retraining; kept over restarts."""
    from edge.cli import budget as command

    return command.set_dial(Settings(config, sets, None, coordinator, state), rate, task_label(task), as_json=json)


@app.command("forget")
def budget_forget(
    task: Annotated[str, typer.Argument(help="The label whose dial is struck out.", metavar="LABEL")],
    coordinator: Coordinator = None,
    state: State = None,
    config: Config = None,
    sets: Sets = None,
    json: Json = False,
) -> int:
    """Strike out the dial of a label, such as a mistyped one; what it spent stays spent."""
    from edge.cli import budget as command

    return command.forget(Settings(config, sets, None, coordinator, state), task_label(task) or task, as_json=json)


@app.command("pause")
def budget_pause(
    coordinator: Coordinator = None, state: State = None, config: Config = None, sets: Sets = None, json: Json = False
) -> int:
    """Ask no cloud, for answers or for learning, until `budget resume`."""
    from edge.cli import budget as command

    return command.pause(Settings(config, sets, None, coordinator, state), paused=True, as_json=json)


@app.command("resume")
def budget_resume(
    coordinator: Coordinator = None, state: State = None, config: Config = None, sets: Sets = None, json: Json = False
) -> int:
    """Let the cloud be asked again."""
    from edge.cli import budget as command

    return command.pause(Settings(config, sets, None, coordinator, state), paused=False, as_json=json)
