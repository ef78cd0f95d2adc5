"""`edge-agent config init | show | check | keys | path`. Knows how to print settings; knows nothing of what they mean."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.cli.saying import one_line, print_json, print_line
from edge.core.errors import ConfigError, UsageError
from edge.core.formatting import counted

if TYPE_CHECKING:
    from edge.cli.settings import Settings
    from edge.config.loader import Problem


def show(settings: Settings, prefix: str, *, changed: bool, as_json: bool) -> int:
    """Every setting, or those under a prefix, with its value and origin, as `run` has them. Raises UsageError for an unknown prefix."""
    from edge.app import own_profile
    from edge.config.reference import keys_of, rows_under
    from edge.config.schema import AgentConfig

    found = rows_under(settings.resolve(own_profile).rows(), keys_of(AgentConfig), prefix)
    rows = [row for row in found if not changed or row[2] != "default"]
    if as_json:
        print_json([{"key": key, "value": value, "origin": origin} for key, value, origin in rows])
        return 0
    width = max((len(f"{key} = {_shown(value)}") for key, value, _ in rows), default=0)
    for key, value, origin in rows:
        print(f"{f'{key} = {_shown(value)}':<{min(width, 60)}}  # {origin}")
    return 0


def init(file: Path, *, force: bool, as_json: bool) -> int:
    """Write a file to begin with, for its owner alone. Raises UsageError where there is one already, and not `force`."""
    from edge.config.reference import keys_of, starter_text
    from edge.config.schema import AgentConfig
    from edge.models.new_file import new_file

    with new_file(file, force=force) as partial:
        partial.touch(mode=0o600)
        partial.write_text(starter_text(keys_of(AgentConfig)), encoding="utf-8")
    if as_json:
        print_json({"file": str(file)})
    else:
        print(f"{file} is written; change what you like, then: edge-agent config check {file}; edge-agent run --config {file}")
    return 0


def check(settings: Settings, *, as_json: bool) -> int:
    """Say that a file can be used, or all that is wrong with it. Raises ConfigError where that is one thing."""
    if settings.file is not None and not settings.file.is_file():
        raise ConfigError(f"{settings.file} is not a file")
    found = _problems(settings, alone=as_json)
    if as_json:
        print_json(
            {"ok": not found, "file": str(settings.file) if settings.file else None, "problems": list(map(_as_json, found))}
        )
    elif found:
        print_line("\n".join(f"error: {one_line(problem.text)}" for problem in found))
        print_line(f"{counted(len(found), 'problem')} in {settings.file}")
    else:
        print(f"{settings.file or 'the default configuration'} is fine")
    return 1 if found else 0


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


def keys(prefix: str, *, as_json: bool) -> int:
    """Every key that a configuration may hold, or those under a prefix. Raises UsageError for an unknown one."""
    from edge.config.reference import keys_of, keys_under, text_of
    from edge.config.schema import AgentConfig

    found = keys_under(keys_of(AgentConfig), prefix)
    if as_json:
        print_json([key.to_json() for key in found])
    else:
        print(text_of(found))
    return 0


def path(settings: Settings, *, as_json: bool) -> int:
    """The folders and files that matter."""
    from platformdirs import user_log_path

    from edge.app import state_folder

    paths: dict[str, Path | None] = {
        "config": settings.file,
        "state": state_folder(settings.config()),
        "logs": user_log_path("edge-agent", appauthor=False),
    }
    if as_json:
        print_json({name: str(place) if place else None for name, place in paths.items()})
    else:
        print("\n".join(f"{name:<7} {place or '(none given)'}" for name, place in paths.items()))
    return 0


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(str, value)) + "]"
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
