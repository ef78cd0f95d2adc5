"""The learning part of `doctor --measure`: an update with growing batches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from edge.app import engines
from edge.cli import main, measure
from edge.config.loader import resolve
from edge.config.schema import AgentConfig
from edge.core.errors import EdgeError
from edge.core.types import TrainingGroup
from edge.models.catalogue import find_model
from edge.training.learner import LearnerReport


def config(*sets: str) -> AgentConfig:
    return resolve(AgentConfig, sets=["engine.backend=llamacpp", "learning.group_size=2", *sets]).config


class Updates:
    """A learner that only counts: every token takes `seconds_per_token`, and every update `overhead_s` more."""

    def __init__(self, seconds_per_token: float, overhead_s: float = 0.0) -> None:
        self.seconds_per_token, self.overhead_s, self.lengths = seconds_per_token, overhead_s, list[int]()

    async def update(self, groups: Sequence[TrainingGroup]) -> LearnerReport:
        [group] = groups
        tokens = len(group.prompt_ids) + sum(len(sample.token_ids) for sample in group.samples)
        self.lengths.append(len(group.samples[0].token_ids))
        assert len(group.samples) == 2
        seconds = self.overhead_s + self.seconds_per_token * tokens
        return LearnerReport(1, 0.0, tokens, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1e-3, seconds)


@pytest.mark.parametrize(
    ("seconds_per_token", "overhead_s", "sets", "lengths", "tokens"),
    [
        (0.001, 0.1, (), [16, 32, 64, 100, 100], 32 + 2 * 100),
        (0.001, 0.1, ("learning.max_tokens=40",), [16, 32, 40, 40], 32 + 2 * 40),
        (1.0, 0.0, (), [16], 1),  # a slow machine: what there was time for
    ],
)
async def test_the_rate_is_that_of_the_fastest_batch_and_counts_the_prompt_once(
    monkeypatch: pytest.MonkeyPatch,
    seconds_per_token: float,
    overhead_s: float,
    sets: tuple[str, ...],
    lengths: list[int],
    tokens: int,
) -> None:
    updates = Updates(seconds_per_token, overhead_s)

    async def opened(*_: object) -> Updates:
        return updates

    monkeypatch.setattr(engines, "open_learner", opened)
    rate = await measure.training_tokens_per_s(config(*sets), find_model("nano-edge"), 100.0, lambda text: None)
    assert rate == pytest.approx(tokens / (overhead_s + seconds_per_token * tokens))
    assert updates.lengths == lengths


async def test_model_too_large_to_train_has_no_rate_and_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(*_: object) -> Updates:
        raise EdgeError("learning takes 9 GiB")

    monkeypatch.setattr(engines, "open_learner", refuse)
    lines: list[str] = []
    assert await measure.training_tokens_per_s(config(), find_model("nano-edge"), 50.0, lines.append) is None
    assert "learning takes 9 GiB" in lines[-1]


def test_keeping_a_profile_needs_a_writable_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["doctor", "--keep-profile", "--state", str(tmp_path / "file" / "state")]) == 2
    assert "cannot be written" in capsys.readouterr().err
