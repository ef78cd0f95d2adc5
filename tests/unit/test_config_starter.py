"""A configuration to begin with, and all that is wrong with a file at once."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
import yaml

from edge.cli import main
from edge.config.agent import resolve_agent_config
from edge.config.reference import FIRST_KEYS, keys_of, starter_text
from edge.config.schema import AgentConfig
from tests.unit.test_config_reference import paths_in

KEYS = {key.path: key for key in keys_of(AgentConfig)}
BAD = """\
serve:
  prot: 3
  port: 99999
mode: sometimes
learning: {group_size: x}
phases:
- source: ""
- {steps: 3, tau: 1}
model:
"""


def test_the_starter_holds_its_keys_at_their_defaults_and_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "edge-agent.yaml"
    file.write_text(starter_text(tuple(KEYS.values())))
    assert resolve_agent_config(file).config == AgentConfig()
    assert set(paths_in(yaml.safe_load(file.read_text()))) == set(FIRST_KEYS)


def test_init_writes_for_the_owner_alone_and_replaces_only_by_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["config", "init"]) == 0
    file = tmp_path / "edge-agent.yaml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert main(["config", "check", str(file)]) == 0
    file.write_text("mode: local-only\n")
    assert main(["config", "init"]) == 2
    assert "edge-agent.yaml: exists already" in capsys.readouterr().err
    assert file.read_text() == "mode: local-only\n"
    assert main(["config", "init", "edge-agent.yaml", "--force"]) == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "mode: auto" in file.read_text()
    assert main(["config", "init", "none/edge-agent.yaml"]) == 2
    assert [each.name for each in tmp_path.iterdir()] == ["edge-agent.yaml"]


def test_check_tells_every_problem_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(BAD)
    assert main(["config", "check", str(file)]) == 1
    out, err = capsys.readouterr()
    wrong = {
        2: "serve.prot",
        3: "serve.port",
        4: "mode",
        5: "learning.group_size",
        7: "phases.0.source",
        8: "phases.1.tau",
        9: "model",
    }
    *lines, _ = err.splitlines()
    assert out == "" and len(lines) == len(wrong)
    for line, (number, key) in zip(lines, wrong.items(), strict=True):
        assert line.startswith(f"error: {file}:{number}: ") and key in line
    assert main(["config", "check", str(file), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is False and {problem["line"]: problem["key"] for problem in told["problems"]} == wrong


def test_check_looks_at_the_device_profile_where_all_else_is_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile, file = tmp_path / "profile.yaml", tmp_path / "good.yaml"
    profile.write_text("engine:\n  max_rows: many\n  rows: 3\n")
    file.write_text(f"device_profile: {profile}\n")
    assert main(["config", "check", str(file)]) == 1
    err = capsys.readouterr().err
    assert f"{profile}:2: engine.max_rows" in err and f"{profile}:3: unknown key engine.rows" in err


def test_an_option_that_cannot_be_used_is_wrong_usage_whatever_the_file_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "good.yaml"
    file.write_text("mode: auto\n")
    assert main(["config", "check", str(file), "--set", "serve.prot=3"]) == 2
    assert "--set serve.prot" in capsys.readouterr().err
    file.write_text(BAD)
    assert main(["config", "check", str(file), "--set", "serve.prot=3"]) == 1
    assert "--set serve.prot" in capsys.readouterr().err
