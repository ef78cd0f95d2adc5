"""Options mean the same everywhere: whatever command has a configuration takes the state folder, a file and single values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from edge.cli.app import app


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every command that does something, by its words, with its options by name."""
    if not hasattr(command, "commands") or (path and command.params):
        yield " ".join(path), {name: param for param in command.params for name in param.opts}
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


ALL = dict(commands(get_command(app)))
SHARED = [
    "--state",
    "--config",
    "--set",
    "--model",
    "--coordinator",
    "--mode",
    "--seed",
    "--json",
    "--device-profile",
    "--never-send",
]


def test_every_command_with_a_configuration_accepts_the_state_folder_a_file_and_single_values() -> None:
    configured = {name: options for name, options in ALL.items() if {"--config", "--set", "--state"} & set(options)}
    assert [name for name, options in configured.items() if {"--config", "--set", "--state"} - set(options)] == []
    assert {"run", "status", "learn", "eval", "ask", "doctor", "config show", "tasks show", "privacy check"} <= set(configured)


def test_an_option_of_several_commands_has_one_form() -> None:
    for option in SHARED:
        assert len({options[option].metavar for options in ALL.values() if option in options}) == 1, option
