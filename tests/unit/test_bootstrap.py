"""Learning and measuring judge by the configuration; model names are resolved predictably."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from edge.app.agents import build_agent
from edge.app.judging import build_verifier
from edge.app.settings import model_file
from edge.config.agent import resolve_agent_config
from edge.config.schema import AgentConfig, LearningConfig, ObjectiveConfig, ProgramsConfig
from edge.core.errors import ConfigError, ModelFileError, UsageError
from edge.core.events import FanOutSink
from edge.core.types import AnswerKind, TaskItem

PROGRAM = TaskItem("p", "code", "f", 1, "train", "q", "assert f() == 1", AnswerKind.PROGRAM, 6)
FRACTION = TaskItem("m", "math", "f", 1, "train", "q", "0.5", AnswerKind.MATH, 4)


ABSENT = ProgramsConfig(sandbox="bubblewrap" if sys.platform == "darwin" else "sandbox-exec")
"""A sandbox that this platform cannot have."""


def test_measuring_and_learning_use_the_configured_sandbox(tmp_path: Path) -> None:
    config = AgentConfig(state_folder=str(tmp_path), mode="local-only", programs=ABSENT)
    for verifier in (build_verifier(config), build_agent(config, FanOutSink([])).components.verifier):
        with pytest.raises(UsageError, match="sandbox"):
            verifier.is_correct(PROGRAM, "```python\ndef f():\n    return 1\n```")


@pytest.mark.parametrize("key", ["api_key_env=NOT_SET_HERE", "api_key=env:NOT_SET_HERE"])
def test_unset_key_is_reported_before_anything_starts_where_a_cloud_may_be_asked(tmp_path: Path, key: str) -> None:
    cloud = ["upstream=openai_compatible", "base_url=https://example.org/v1", "model=m", key]
    sets = [f"state_folder={tmp_path}", *(f"coordinator.embedded.{setting}" for setting in cloud)]
    with pytest.raises(ConfigError, match="NOT_SET_HERE is not set"):
        build_agent(resolve_agent_config(sets=sets).config, FanOutSink([]))
    build_agent(resolve_agent_config(sets=[*sets, "mode=local-only"]).config, FanOutSink([])).components.state.close()


@pytest.mark.parametrize(("match", "right"), [("exact", False), ("equivalent", True)])
def test_configured_math_comparison_is_used(match: str, right: bool) -> None:
    pytest.importorskip("math_verify", reason="math-verify comes with the lab extra")
    verifier = build_verifier(AgentConfig(learning=LearningConfig(objective=ObjectiveConfig(answer_match=match))))  # type: ignore[arg-type]
    assert verifier.is_correct(FRACTION, "\\boxed{\\frac{1}{2}}") is right


@pytest.mark.parametrize("name", ["a" * 5000, "~nobody-of-that-name/x.gguf", "x\0y"])
def test_impossible_model_name_is_refused_in_one_short_line(name: str) -> None:
    with pytest.raises(ModelFileError, match="no such model file") as refusal:
        model_file(name)
    assert len(str(refusal.value)) < 200
