"""Options mean the same in every command, become configuration values, and are the recorded origin of each value."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from edge.app.settings import state_folder, switched_off
from edge.cli.app import app
from edge.cli.settings import Settings
from edge.core.environment import NO_CLOUD, why_no_cloud
from edge.core.errors import ConfigError, UsageError


def test_tasks_become_phases_with_rate_and_steps() -> None:
    config = Settings(tasks=["practice:arith", "mine.jsonl"], target_rate=0.2, phase_steps=40).config()
    assert [(phase.source, phase.target_rate, phase.steps) for phase in config.phases] == [
        ("practice:arith", 0.2, 40),
        ("mine.jsonl", 0.2, 40),
    ]


def test_a_rate_without_tasks_applies_to_every_phase_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("phases:\n  - {source: 'practice:arith', steps: 3}\n  - {source: mine.jsonl}\n", encoding="utf-8")
    resolved = Settings(file, target_rate=0.6).resolve()
    assert [phase.target_rate for phase in resolved.config.phases] == [0.6, 0.6]
    assert resolved.origins["phases.1.target_rate"] == "--target-rate"


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


PLACES = {
    "nothing": {},
    "a folder": {"state": Path("~/agent")},
    "a mode": {"mode": "local-only"},
    "a folder and a mode": {"state": Path("x"), "mode": "auto"},
    "--set": {"sets": ["state_folder=/set"]},
    "--set of another key": {"sets": ["mode=cloud-only"], "state": Path("x")},
    "a file": {"config_file": "agent.yaml"},
    "a file and a folder": {"config_file": "agent.yaml", "state": Path("x")},
    "a rule": {"never_send": ["secret"], "mode": "auto"},
}


@pytest.mark.parametrize("given", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("forbidden", ["", "0", "1"])
def test_what_is_known_without_the_configuration_is_what_it_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], forbidden: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(NO_CLOUD, forbidden)
    Path("agent.yaml").write_text("state_folder: ~/of-the-file\nmode: local-only\n", encoding="utf-8")
    settings = Settings(**{**given, "config_file": Path(given["config_file"]) if "config_file" in given else None})
    config = settings.config()
    assert settings.state_folder() == state_folder(config)
    if settings.is_plain:
        assert why_no_cloud(settings.mode) == switched_off(config)


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
