"""A starter configuration, and the complete list of problems of a file."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
import yaml

from edge.config.agent import resolve_agent_config
from edge.config.reference import FIRST_KEYS, keys_of, starter_text
from edge.config.schema import AgentConfig
from tests.unit.conftest import EdgeAgent
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


def test_init_writes_a_private_file_and_replaces_only_with_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edge_agent: EdgeAgent
) -> None:
    monkeypatch.chdir(tmp_path)
    assert edge_agent("config", "init").code == 0
    file = tmp_path / "edge-agent.yaml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert edge_agent("config", "check", str(file)).code == 0
    file.write_text("mode: local-only\n")
    edge_agent("config", "init").refused(2, "edge-agent.yaml", "exists already")
    assert file.read_text() == "mode: local-only\n"
    assert edge_agent("config", "init", "edge-agent.yaml", "--force").code == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "mode: auto" in file.read_text()
    edge_agent("config", "init", "none/edge-agent.yaml").refused(2)
    assert [each.name for each in tmp_path.iterdir()] == ["edge-agent.yaml"]


def test_check_reports_every_problem_with_its_line(tmp_path: Path, edge_agent: EdgeAgent) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(BAD)
    code, out, err = edge_agent("config", "check", str(file))
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
    assert (code, out, len(lines)) == (1, "", len(wrong))
    for line, (number, key) in zip(lines, wrong.items(), strict=True):
        assert line.startswith(f"error: {file}:{number}: ") and key in line
    result = json.loads(edge_agent("config", "check", str(file), "--json").out)
    assert result["ok"] is False and {problem["line"]: problem["key"] for problem in result["problems"]} == wrong


def test_check_validates_the_device_profile_of_an_otherwise_valid_file(tmp_path: Path, edge_agent: EdgeAgent) -> None:
    profile, file = tmp_path / "profile.yaml", tmp_path / "good.yaml"
    profile.write_text("engine:\n  max_rows: many\n  rows: 3\n")
    file.write_text(f"device_profile: {profile}\n")
    code, _, err = edge_agent("config", "check", str(file))
    assert code == 1 and f"{profile}:2: engine.max_rows" in err and f"{profile}:3: unknown key engine.rows" in err


def test_unusable_option_is_wrong_usage_whatever_the_file_contains(tmp_path: Path, edge_agent: EdgeAgent) -> None:
    file = tmp_path / "good.yaml"
    file.write_text("mode: auto\n")
    edge_agent("config", "check", str(file), "--set", "serve.prot=3").refused(2, "--set serve.prot")
    file.write_text(BAD)
    ended = edge_agent("config", "check", str(file), "--set", "serve.prot=3")
    assert ended.code == 1 and "--set serve.prot" in ended.err
