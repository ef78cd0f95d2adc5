"""`edge-agent config init | show | check | keys | path`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge.cli.options import Config, Force, Json, Sets, State
from edge.cli.output import one_line, print_json, print_line
from edge.cli.settings import Settings
from edge.core.errors import ConfigError, UsageError
from edge.core.formatting import counted

if TYPE_CHECKING:
    from edge.config.loader import Problem

app = typer.Typer(help="Begin, show and check the configuration.", no_args_is_help=True, rich_markup_mode=None)


@app.command("init")
def config_init(
    file: Annotated[Path, typer.Argument(help="File to write.", metavar="FILE")] = Path("edge-agent.yaml"),
    force: Force = False,
    json: Json = False,
) -> int:
    """Write a file to begin with: the keys that people set first, each described, at its default."""
    from edge.config.reference import keys_of, starter_text
    from edge.config.schema import AgentConfig
    from edge.models.new_file import new_file

    with new_file(file, force=force) as partial:
        partial.touch(mode=0o600)
        partial.write_text(starter_text(keys_of(AgentConfig)), encoding="utf-8")
    if json:
        print_json({"file": str(file)})
    else:
        print(f"{file} is written; change what you like, then: edge-agent config check {file}; edge-agent run --config {file}")
    return 0


@app.command("show")
def config_show(
    prefix: Annotated[
        str, typer.Argument(help="Only these, e.g. budget or privacy.never_send.", metavar="PREFIX", show_default=False)
    ] = "",
    state: State = None,
    config: Config = None,
    sets: Sets = None,
    changed: Annotated[bool, typer.Option("--changed", help="Only what differs from the defaults.")] = False,
    json: Json = False,
) -> int:
    """Every setting (or those under PREFIX), its value, and where the value came from."""
    from edge.app import own_profile
    from edge.config.reference import keys_of, rows_under
    from edge.config.schema import AgentConfig

    found = rows_under(Settings(config, sets, state=state).resolve(own_profile).rows(), keys_of(AgentConfig), prefix)
    rows = [row for row in found if not changed or row[2] != "default"]
    if json:
        print_json([{"key": key, "value": value, "origin": origin} for key, value, origin in rows])
        return 0
    width = max((len(f"{key} = {_shown(value)}") for key, value, _ in rows), default=0)
    for key, value, origin in rows:
        print(f"{f'{key} = {_shown(value)}':<{min(width, 60)}}  # {origin}")
    return 0


@app.command("check")
def config_check(
    file: Annotated[Path | None, typer.Argument(help="YAML configuration file.", metavar="FILE")] = None,
    state: State = None,
    config: Config = None,
    sets: Sets = None,
    json: Json = False,
) -> int:
    """Whether a configuration file can be used, or all that is wrong with it, by line.

    The exit code is 1 where the file is wrong, 2 for a wrong option.
    """
    if file and config:
        raise UsageError("two files to check", hint="give FILE or --config FILE")
    settings = Settings(file or config, sets, state=state)
    if settings.file is not None and not settings.file.is_file():
        raise ConfigError(f"{settings.file} is not a file")
    found = _problems(settings, alone=json)
    if json:
        print_json(
            {"ok": not found, "file": str(settings.file) if settings.file else None, "problems": list(map(_as_json, found))}
        )
    elif found:
        print_line("\n".join(f"error: {one_line(problem.text)}" for problem in found))
        print_line(f"{counted(len(found), 'problem')} in {settings.file}")
    else:
        print(f"{settings.file or 'the default configuration'} is fine")
    return 1 if found else 0


@app.command("keys")
def config_keys(
    prefix: Annotated[
        str, typer.Argument(help="Only these, e.g. learning or coordinator.embedded.", metavar="PREFIX", show_default=False)
    ] = "",
    json: Json = False,
) -> int:
    """Every key that a configuration may hold: its type, range, default, and what it does."""
    from edge.config.reference import keys_of, keys_under, text_of
    from edge.config.schema import AgentConfig

    found = keys_under(keys_of(AgentConfig), prefix)
    if json:
        print_json([key.to_json() for key in found])
    else:
        print(text_of(found))
    return 0


@app.command("path")
def config_path(state: State = None, config: Config = None, sets: Sets = None, json: Json = False) -> int:
    """Where the state folder and the logs are."""
    settings = Settings(config, sets, state=state)
    from platformdirs import user_log_path

    from edge.app import state_folder

    paths: dict[str, Path | None] = {
        "config": settings.file,
        "state": state_folder(settings.config()),
        "logs": user_log_path("edge-agent", appauthor=False),
    }
    if json:
        print_json({name: str(place) if place else None for name, place in paths.items()})
    else:
        print("\n".join(f"{name:<7} {place or '(none given)'}" for name, place in paths.items()))
    return 0


def _problems(settings: Settings, *, alone: bool) -> list[Problem]:
    """What is wrong; raises what `resolve` raises for an option, and where it is one thing that need not stand `alone`."""
    from edge.config.agent import agent_config_problems
    from edge.config.loader import Problem

    try:
        settings.resolve()
    except UsageError:
        raise
    except ConfigError as error:
        found = agent_config_problems(settings.file, settings.sets or ()) if settings.file else []
        if len(found) < 2 and not alone:
            raise
        return found or [Problem("", "", str(error))]
    return []


def _as_json(problem: Problem) -> dict[str, Any]:
    return {"key": problem.key, "line": problem.line, "message": problem.text}


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(str, value)) + "]"
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
