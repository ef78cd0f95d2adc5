"""First steps of a new user: part of the configuration, a mistyped command, a run that cannot start."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.cli import main as coordinator_main
from tests.unit.conftest import EdgeAgent


def test_the_coordinators_configuration_is_checked_and_shown_like_the_agents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "coordinator.yaml"
    file.write_text("budgets: {device: {calls_limit: 7}}\n")
    assert coordinator_main(["config", "check", str(file)]) == 0
    assert coordinator_main(["config", "check", str(file), "--config", str(file)]) == 2
    capsys.readouterr()
    assert coordinator_main(["config", "show", "budgets.device.calls_limit", "--config", str(file)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("budgets.device.calls_limit: 7")
    assert coordinator_main(["config", "show", "budgte"]) == 2
    assert "budgte" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["run", "--no-learn"], ["run"], ["service", "install", "--print"]])
def test_whatever_run_would_refuse_is_reported_first(command: list[str], tmp_path: Path, edge_agent: EdgeAgent) -> None:
    for option, value, code in (("--coordinator", "nonsense", 2), ("--model", "/nope.gguf", 1)):
        edge_agent(*command, option, value, "--state", str(tmp_path / "state")).refused(code, value)
    assert not (tmp_path / "state").exists()


def test_config_show_accepts_a_prefix(edge_agent: EdgeAgent) -> None:
    rows = edge_agent("config", "show", "budget.learning", "--json").json
    keys = ["budget.learning_calls_per_day", "budget.learning_spend_per_day_uusd"]
    assert [(row["key"], row["origin"]) for row in rows] == [(key, "default") for key in keys]
