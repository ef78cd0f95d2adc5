"""What `doctor` measures beside the engine: an update of growing batches, and what a battery's gauge tells."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from edge import app
from edge.cli import main, measure
from edge.cli.measure import _power
from edge.config.loader import resolve
from edge.config.schema import AgentConfig
from edge.core.errors import EdgeError
from edge.core.types import TrainingGroup
from edge.models.catalogue import find_model
from edge.training.learner import LearnerReport


def config(*sets: str) -> AgentConfig:
    return resolve(AgentConfig, sets=["engine.backend=llamacpp", "learning.group_size=2", *sets]).config


class Updates:
    """A learner that only counts: every token takes so many seconds, and every update a second more."""

    def __init__(self, seconds_per_token: float, overhead_s: float = 0.0) -> None:
        self.seconds_per_token, self.overhead_s, self.lengths = seconds_per_token, overhead_s, list[int]()

    async def update(self, groups: Sequence[TrainingGroup]) -> LearnerReport:
        [group] = groups
        tokens = len(group.prompt_ids) + sum(len(sample.token_ids) for sample in group.samples)
        self.lengths.append(len(group.samples[0].token_ids))
        assert len(group.samples) == 2
        seconds = self.overhead_s + self.seconds_per_token * tokens
        return LearnerReport(1, 0.0, tokens, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1e-3, seconds)


async def rate(
    monkeypatch: pytest.MonkeyPatch, updates: Updates, said: list[str], response_tokens: float = 100.0
) -> float | None:
    async def opened(*_: object) -> Updates:
        return updates

    monkeypatch.setattr(app, "open_learner", opened)
    path = find_model("nano-edge")
    return await measure.training_tokens_per_s(config(), path, response_tokens, said.append)


def test_responses_grow_to_those_of_the_tasks_and_never_beyond_what_may_be_learned() -> None:
    assert [batch.response_tokens for batch in measure.batches(config(), 100.0)] == [16, 32, 64, 100, 100]
    assert [batch.response_tokens for batch in measure.batches(config(), 9.0)] == [9, 9]
    limited = config("learning.max_tokens=40")
    assert [batch.response_tokens for batch in measure.batches(limited, 100.0)] == [16, 32, 40, 40]
    short = config("model.context_tokens=64")
    assert max(batch.response_tokens for batch in measure.batches(short, 100.0)) == 32


async def test_the_rate_counts_the_prompt_once_and_is_that_of_the_fastest_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    updates = Updates(0.001, overhead_s=0.1)
    tokens = 32 + 2 * 100
    assert await rate(monkeypatch, updates, said) == pytest.approx(tokens / (0.1 + 0.001 * tokens))
    assert updates.lengths == [16, 32, 64, 100, 100]
    assert said == ["training tokens/s"]


async def test_a_slow_machine_is_measured_with_what_there_was_time_for(monkeypatch: pytest.MonkeyPatch) -> None:
    updates = Updates(1.0)
    assert await rate(monkeypatch, updates, []) == pytest.approx(1.0)
    assert updates.lengths == [16]


async def test_where_the_model_does_not_fit_into_training_that_is_said_and_the_rest_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(*_: object) -> Updates:
        raise EdgeError("learning takes 9 GiB")

    monkeypatch.setattr(app, "open_learner", refuse)
    said: list[str] = []
    path = find_model("nano-edge")
    assert await measure.training_tokens_per_s(config(), path, 50.0, said.append) is None
    assert said == ["training tokens/s", "no training (learning takes 9 GiB)"]


def test_watts_are_kept_only_where_both_are_told_and_work_takes_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.cli.measure.battery_wh", lambda: None)
    assert _power(5.0, 20.5) == {"idle_w": 5.0, "busy_w": 20.5}
    assert _power(None, 20.5) == _power(5.0, None) == _power(5.0, 4.0) == {}
    monkeypatch.setattr("edge.cli.measure.battery_wh", lambda: 57.123456)
    assert _power(None, None) == {"battery_wh": 57.12}


def test_a_profile_to_keep_needs_a_place_that_can_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["doctor", "--keep-profile", "--state", str(tmp_path / "file" / "state")]) == 2
    assert "cannot be written" in capsys.readouterr().err
