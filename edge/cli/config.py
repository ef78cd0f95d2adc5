"""`edge-agent config show | check | keys | path`. Knows how to print settings; knows nothing of what they mean."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.cli.saying import print_json
from edge.core.errors import ConfigError

if TYPE_CHECKING:
    from edge.cli.settings import Settings


def show(settings: Settings, *, changed: bool, as_json: bool) -> int:
    """Every setting with its value and origin."""
    rows = [row for row in settings.resolve().rows() if not changed or row[2] != "default"]
    if as_json:
        print_json([{"key": key, "value": value, "origin": origin} for key, value, origin in rows])
        return 0
    width = max((len(f"{key} = {_shown(value)}") for key, value, _ in rows), default=0)
    for key, value, origin in rows:
        print(f"{f'{key} = {_shown(value)}':<{min(width, 60)}}  # {origin}")
    return 0


def check(settings: Settings, *, as_json: bool) -> int:
    """Say that a file can be used. Raises ConfigError when it cannot."""
    if settings.file is not None and not settings.file.is_file():
        raise ConfigError(f"{settings.file} is not a file")
    settings.resolve()
    name = str(settings.file) if settings.file else "the default configuration"
    if as_json:
        print_json({"ok": True, "file": str(settings.file) if settings.file else None})
    else:
        print(f"{name} is fine")
    return 0


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

    from edge.bootstrap import state_folder

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
