"""First steps of a new user: part of the configuration, a mistyped command, a run that cannot start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coordinator.cli import main as coordinator_main
from edge.cli import main


def outcome(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(words)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_config_show_accepts_a_prefix_and_refuses_an_unknown_one(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = outcome(capsys, "config", "show", "budget.learning", "--json")
    keys = ["budget.learning_calls_per_day", "budget.learning_spend_per_day_uusd"]
    assert (code, [(row["key"], row["origin"]) for row in json.loads(out)]) == (0, [(key, "default") for key in keys])
    code, out, err = outcome(capsys, "config", "show", "budgte")
    assert (code, out) == (2, "") and "budgte" in err


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


def test_unquoted_question_is_refused_with_advice(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = outcome(capsys, "ask", "two", "words")
    assert code == 2 and "quotes" in err


@pytest.mark.parametrize("command", [["run", "--no-learn"], ["run"], ["service", "install", "--print"]])
def test_whatever_run_would_refuse_is_reported_first(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for option, value in (("--coordinator", "nonsense"), ("--model", "/nope.gguf")):
        code, out, err = outcome(capsys, *command, option, value, "--state", str(tmp_path / "state"))
        assert code != 0 and out == ""
        (line,) = err.splitlines()
        assert line.startswith("error:") and value in line
    assert not (tmp_path / "state").exists()
