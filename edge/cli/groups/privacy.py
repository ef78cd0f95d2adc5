"""The commands about what is private: names, options and help. Knows typer; loads what a command needs only when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from edge.cli.options import Config, Json, NeverSend, Sets
from edge.cli.settings import Settings

app = typer.Typer(help="What is private, and stays here.", no_args_is_help=True, rich_markup_mode=None)


@app.command("check")
def privacy_check(
    text: Annotated[str | None, typer.Argument(help="The text; `-` or nothing reads stdin.")] = None,
    never_send: NeverSend = None,
    config: Config = None,
    sets: Sets = None,
    json: Json = False,
) -> int:
    """What would leave of a text; nothing is sent. Exit code 3: it would be kept here."""
    from edge.cli import privacy as command

    return command.check(Settings(config, sets, never_send=never_send), text, as_json=json)
