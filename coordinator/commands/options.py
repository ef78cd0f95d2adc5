"""The options that several commands share, the configuration that they make, and how a result is printed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from typer import BadParameter, Option

from edge.core.shared_options import keys_of_options, with_options

if TYPE_CHECKING:
    from coordinator.config import ServerConfig
    from edge.config.loader import Resolved

Result = TypeVar("Result")


def folder_named(text: str | Path) -> Path:
    """The folder; an empty text, as of a variable that is not set, does not mean the present one. Raises a usage error."""
    if not str(text).strip():
        raise BadParameter("the name of the folder is empty")
    return Path(text)


@dataclass(frozen=True, slots=True)
class SharedOptions:
    """What was given of the shared options; None where an option was not. A field is one option: how the command line reads it,
    and the configuration key that it sets."""

    coordinator: Annotated[
        str | None,
        Option(
            "--coordinator",
            help="Administer the coordinator there, on another machine: its admin_listen. `admin.tls` says with which certificate.",
            metavar="HOST:PORT",
        ),
        "admin.address",
    ] = None
    config_file: Annotated[Path | None, Option("--config", help="YAML configuration file.", metavar="FILE")] = None
    listen: Annotated[
        list[str] | None, Option("--listen", help="Where to listen. Repeatable.", metavar="HOST:PORT|unix:PATH"), "listen"
    ] = None
    state: Annotated[
        Path | None,
        Option("--state", parser=folder_named, help="State folder (default: the platform's).", metavar="DIR"),
        "state_dir",
    ] = None
    sets: Annotated[
        list[str] | None,
        Option("--set", help="Set one value, e.g. budgets.device.calls_limit=100. Repeatable.", metavar="K=V"),
    ] = None
    console: Annotated[
        str | None,
        Option("--console", help="Serve the web console there.", metavar="HOST:PORT", show_default=False),
        "console_listen",
    ] = None
    metrics: Annotated[
        str | None,
        Option("--metrics", help="Serve Prometheus metrics there.", metavar="HOST:PORT", show_default=False),
        "metrics_listen",
    ] = None

    openai: Annotated[
        str | None,
        Option("--openai", help="Serve OpenAI's clients there.", metavar="HOST:PORT", show_default=False),
        "openai_listen",
    ] = None

    def resolve(self) -> Resolved[ServerConfig]:
        """The configuration. Raises ConfigError for a bad file, OptionError for a bad option; both are one line."""
        from coordinator.config import resolve_coordinator_config
        from edge.config.loader import Flag

        flags = [
            Flag(key, str(value) if isinstance(value, Path) else value, f"--{name}")
            for name, key in _KEYS.items()
            if (value := getattr(self, name)) is not None and value != []
        ]
        return resolve_coordinator_config(self.config_file, self.sets or (), flags)

    def config(self) -> ServerConfig:
        """The configuration without its origins."""
        return self.resolve().config


_KEYS = keys_of_options(SharedOptions)
ADMINISTER = "coordinator config_file state sets"
Json = Annotated[bool, Option("--json", help="JSON on stdout, one object a line.")]


def takes(names: str = ADMINISTER) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Give a command the shared options of these names; without names, those of a command that administers."""
    return with_options(SharedOptions, names.split())


def print_json(value: Mapping[str, Any]) -> None:
    """One object a line."""
    print(json.dumps(value, ensure_ascii=False), flush=True)


def print_result(value: Mapping[str, Any], lines: str | Iterable[str], *, as_json: bool) -> None:
    """A result as one JSON object, or as lines for people."""
    if as_json:
        print_json(value)
    else:
        print(lines if isinstance(lines, str) else "\n".join(lines), flush=True)
