"""Command-line options become configuration values, and each option's value says that it came from there."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.cli.settings import Settings
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


def test_options_win_over_set_and_file(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("mode: cloud-only\nlearning: {seed: 1}\n", encoding="utf-8")
    config = Settings(file, ["learning.seed=2", "mode=auto"], mode="local-only", seed=3).config()
    assert (config.mode, config.learning.seed) == ("local-only", 3)


def test_a_bad_option_is_wrong_usage_and_a_bad_file_is_not(tmp_path: Path) -> None:
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
