"""The commands about what left this device: names, options and help. Knows typer; loads what a command needs only when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from edge.cli.options import Config, Json, Sets, State
from edge.cli.settings import Settings
from edge.core.limits import MOST_ITEMS

app = typer.Typer(help="What left this device, when and why.", invoke_without_command=True, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def outbox(
    context: typer.Context,
    limit: Annotated[int, typer.Option("--limit", min=1, max=MOST_ITEMS, help="Most entries.", metavar="N")] = 20,
    since: Annotated[
        str | None,
        typer.Option("--since", help="Only since then: yesterday, today, 90m, 2h, 3d, 1w ago, or a date.", metavar="TIME"),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option("--kind", help="answering, learning, evaluation, 'step report', registration or inquiry.", metavar="KIND"),
    ] = None,
    waiting: Annotated[bool, typer.Option("--waiting", help="Reports of steps that have not left yet.")] = False,
    state: State = None,
    config: Config = None,
    sets: Sets = None,
    json: Json = False,
) -> int | None:
    """Every request that left this device, newest first; `outbox show ID` has its content."""
    from edge.cli import outbox as command

    if context.invoked_subcommand is not None:
        return None
    options = command.OutboxOptions(limit, since, kind, waiting, json)
    return command.list_sent(Settings(config, sets, state=state), options)


@app.command("show")
def outbox_show(
    entry_id: Annotated[int, typer.Argument(min=1, help="The number that outbox shows.", metavar="ID")],
    raw: Annotated[bool, typer.Option("--raw", help="The very bytes on stdout.")] = False,
    state: State = None,
    config: Config = None,
    sets: Sets = None,
    json: Json = False,
) -> int:
    """One request exactly as it left."""
    from edge.cli import outbox as command

    return command.show(Settings(config, sets, state=state), entry_id, as_json=json, raw=raw)
