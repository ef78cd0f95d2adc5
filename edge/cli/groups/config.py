"""The commands about configuration: names, options and help. Knows typer; loads what a command needs only when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edge.cli.options import Config, Force, Json, Sets, State
from edge.cli.settings import Settings
from edge.core.errors import UsageError

app = typer.Typer(help="Begin, show and check the configuration.", no_args_is_help=True, rich_markup_mode=None)


@app.command("init")
def config_init(
    file: Annotated[Path, typer.Argument(help="File to write.", metavar="FILE")] = Path("edge-agent.yaml"),
    force: Force = False,
    json: Json = False,
) -> int:
    """Write a file to begin with: the keys that people set first, each described, at its default."""
    from edge.cli import config as command

    return command.init(file, force=force, as_json=json)


@app.command("show")
def config_show(
    prefix: Annotated[
        str, typer.Argument(help="Only these, e.g. budget or privacy.never_send.", metavar="PREFIX", show_default=False)
    ] = "",
    config: Config = None,
    sets: Sets = None,
    changed: Annotated[bool, typer.Option("--changed", help="Only what differs from the defaults.")] = False,
    json: Json = False,
) -> int:
    """Every setting (or those under PREFIX), its value, and where the value came from."""
    from edge.cli import config as command

    return command.show(Settings(config, sets), prefix, changed=changed, as_json=json)


@app.command("check")
def config_check(
    file: Annotated[Path | None, typer.Argument(help="YAML configuration file.", metavar="FILE")] = None,
    config: Config = None,
    sets: Sets = None,
    json: Json = False,
) -> int:
    """Whether a configuration file can be used, or all that is wrong with it, by line.

    The exit code is 1 where the file is wrong, 2 for a wrong option.
    """
    from edge.cli import config as command

    if file and config:
        raise UsageError("two files to check", hint="give FILE or --config FILE")
    return command.check(Settings(file or config, sets), as_json=json)


@app.command("keys")
def config_keys(
    prefix: Annotated[
        str, typer.Argument(help="Only these, e.g. learning or coordinator.embedded.", metavar="PREFIX", show_default=False)
    ] = "",
    json: Json = False,
) -> int:
    """Every key that a configuration may hold: its type, range, default, and what it does."""
    from edge.cli import config as command

    return command.keys(prefix, as_json=json)


@app.command("path")
def config_path(state: State = None, config: Config = None, sets: Sets = None, json: Json = False) -> int:
    """Where the state folder and the logs are."""
    from edge.cli import config as command

    return command.path(Settings(config, sets, state=state), as_json=json)
