"""Options mean the same in every command, become configuration values, and are the recorded origin of each value."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from edge.cli.app import app
from edge.cli.settings import Settings
from edge.core.errors import ConfigError, UsageError


def test_tasks_become_phases_with_rate_and_steps() -> None:
    config = Settings(tasks=["practice:arith", "mine.jsonl"], target_rate=0.2, phase_steps=40).config()
    assert [(phase.source, phase.target_rate, phase.steps) for phase in config.phases] == [
        ("practice:arith", 0.2, 40),
        ("mine.jsonl", 0.2, 40),
    ]


def test_invalid_option_is_wrong_usage_and_an_invalid_file_is_not(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--mode"):
        Settings(mode="sideways").config()
    with pytest.raises(UsageError, match=r"--set learning\.groupsize: unknown key"):
        Settings(sets=["learning.groupsize=3"]).config()
    with pytest.raises(UsageError, match="--device-profile: device profile"):
        Settings(device_profile=tmp_path / "none.yaml").config()
    file = tmp_path / "agent.yaml"
    file.write_text("mode: sideways\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"agent\.yaml:1"):
        Settings(file).config()


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
