"""`edge-agent config init | show | check | keys | path`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option, Typer

from edge.cli.options import Force, Json
from edge.cli.output import one_line, print_json, print_line, print_result
from edge.cli.settings import Settings, takes
from edge.core.errors import ConfigError, UsageError
from edge.core.formatting import counted

app = Typer(help="Begin, show and check the configuration.", no_args_is_help=True, rich_markup_mode=None)


@app.command("init")
def config_init(
    file: Annotated[Path, Argument(help="File to write.", metavar="FILE")] = Path("edge-agent.yaml"),
    force: Force = False,
    json: Json = False,
) -> None:
    """Write a file to begin with: the keys that people set first, each described, at its default."""
    from edge.config.reference import keys_of, starter_text
    from edge.config.schema import AgentConfig
    from edge.models.new_file import new_file

    with new_file(file, force=force) as partial:
        partial.touch(mode=0o600)
        partial.write_text(starter_text(keys_of(AgentConfig)), encoding="utf-8")
    text = f"{file} is written; change what you like, then: edge-agent config check {file}; edge-agent run --config {file}"
    print_result({"file": str(file)}, [text], as_json=json)


@app.command("show")
@takes("state")
def config_show(
    prefix: Annotated[
        str, Argument(help="Only these, e.g. budget or privacy.never_send.", metavar="PREFIX", show_default=False)
    ] = "",
    *,
    settings: Settings,
    changed: Annotated[bool, Option("--changed", help="Only what differs from the defaults.")] = False,
    json: Json = False,
) -> None:
    """Every setting (or those under PREFIX), its value, and where the value came from."""
    from edge.app.settings import own_profile
    from edge.config.reference import keys_of, rows_under
    from edge.config.schema import AgentConfig

    found = rows_under(settings.resolve(own_profile).rows(), keys_of(AgentConfig), prefix)
    rows = [row for row in found if not changed or row[2] != "default"]
    if json:
        print_json([{"key": key, "value": value, "origin": origin} for key, value, origin in rows])
        return
    texts = [(f"{key} = {_shown(value)}", origin) for key, value, origin in rows]
    width = min(60, max((len(text) for text, _ in texts), default=0))
    for text, origin in texts:
        print(f"{text:<{width}}  # {origin}")


@app.command("check")
@takes("state")
def config_check(
    file: Annotated[Path | None, Argument(help="YAML configuration file.", metavar="FILE")] = None,
    *,
    settings: Settings,
    json: Json = False,
) -> int:
    """Whether a configuration file can be used, or all that is wrong with it, by line.

    The exit code is 1 where the file is wrong, 2 for a wrong option.
    """
    from edge.config.agent import agent_config_problems
    from edge.config.loader import Problem

    if file and settings.config_file:
        raise UsageError("two files to check", hint="give FILE or --config FILE")
    file = file or settings.config_file
    if file is not None and not file.is_file():
        raise ConfigError(f"{file} is not a file")
    problems: list[Problem] = []
    try:
        replace(settings, config_file=file).resolve()
    except UsageError:
        raise
    except ConfigError as error:
        problems = agent_config_problems(file, settings.sets or ()) if file else []
        if len(problems) < 2 and not json:
            raise
        problems = problems or [Problem("", "", str(error))]
    if json:
        found = [{"key": problem.key, "line": problem.line, "message": problem.text} for problem in problems]
        print_json({"ok": not problems, "file": str(file) if file else None, "problems": found})
    elif problems:
        print_line("\n".join(f"error: {one_line(problem.text)}" for problem in problems))
        print_line(f"{counted(len(problems), 'problem')} in {file}")
    else:
        options = " with these options" if settings.sets else ""
        print(f"{file or 'the default configuration'}{options} is fine")
    return 1 if problems else 0


@app.command("keys")
def config_keys(
    prefix: Annotated[
        str, Argument(help="Only these, e.g. learning or coordinator.embedded.", metavar="PREFIX", show_default=False)
    ] = "",
    json: Json = False,
) -> None:
    """Every key that a configuration may hold: its type, range, default, and what it does."""
    from edge.config.reference import keys_of, keys_under, text_of
    from edge.config.schema import AgentConfig

    found = keys_under(keys_of(AgentConfig), prefix)
    print_result([key.to_json() for key in found], [text_of(found)], as_json=json)


@app.command("path")
@takes("state")
def config_path(settings: Settings, json: Json = False) -> None:
    """Where the state folder and the logs are."""
    from platformdirs import user_log_path

    from edge.app.settings import state_folder

    state, logs = state_folder(settings.config()), user_log_path("edge-agent", appauthor=False)
    paths = {"config": settings.config_file, "state": state, "logs": logs}
    places = {name: str(place) if place else None for name, place in paths.items()}
    print_result(places, (f"{name:<7} {place or '(none given)'}" for name, place in places.items()), as_json=json)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(str, value)) + "]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
