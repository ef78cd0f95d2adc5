"""What the install pages tell people to type and to set exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer
import yaml

from edge.cli.app import app
from edge.config.agent import resolve_agent_config

FOLDER = Path(__file__).parents[2] / "devices"
PAGES = sorted(FOLDER.glob("[!R]*.md"))


def code(page: Path) -> list[str]:
    return [line.strip() for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("    ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_and_their_options_exist(page: Path) -> None:
    lines = [line for line in code(page) if line.startswith("edge-agent ")]
    assert any("doctor" in line for line in lines) and any("service install" in line for line in lines)
    for line in lines:
        command = typer.main.get_command(app)
        words = shlex.split(line, comments=True)[1:]
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("-")} <= known, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_settings_are_accepted(page: Path, tmp_path: Path) -> None:
    settings = [line for line in code(page) if re.match(r"[a-z_]+: ", line)]
    assert settings
    file = tmp_path / "settings.yaml"
    file.write_text("\n".join(settings))
    assert resolve_agent_config(file).config.model_dump()
    assert yaml.safe_load(file.read_text())


@pytest.mark.parametrize("link", re.findall(r"\]\((?!http)([^)#]+)\)", (FOLDER / "README.md").read_text(encoding="utf-8")))
def test_links_lead_somewhere(link: str) -> None:
    assert (FOLDER / link).exists()
