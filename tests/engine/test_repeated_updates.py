"""Several updates of one batch with GRPO and GVPO, compared with updates made one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from edge.core.errors import UsageError
from edge.core.types import TrainingGroup
from edge.core.worker import EngineWorker
from edge.training.learner import LearnerSettings, UpdateRule
from edge.training.mlx_learner import MlxLearner
from edge.training.torch_learner import SequenceLogprobs, TorchLearner, held_back
from tests.worlds.tiny_learner import adapter_of, equal, random_groups, tiny_learner

GROUPS = random_groups(11)
CAP = 1e-6
"""Below every ratio of these groups, so that all importance weights are the same."""


async def logprobs_now(learner: TorchLearner) -> SequenceLogprobs:
    return {
        (group.prompt_ids, sample.token_ids): sum(await learner.logprobs(group.prompt_ids, sample.token_ids))
        for group in GROUPS
        for sample in group.samples
    }


async def test_gvpo_updates_equal_single_ones_with_hand_computed_weights(worker: EngineWorker) -> None:
    together = tiny_learner(worker, rule=UpdateRule("gvpo", 3, gvpo_beta=0.5))
    one_by_one = tiny_learner(worker, rule=UpdateRule("gvpo", 1))
    before = await logprobs_now(one_by_one)
    await together.update(GROUPS)
    groups: list[TrainingGroup] = GROUPS
    for _ in range(3):
        await one_by_one.update(groups)
        groups = held_back(GROUPS, before, await logprobs_now(one_by_one), 0.5)
    assert together.step == one_by_one.step == 3
    torch.testing.assert_close(adapter_of(together), adapter_of(one_by_one), rtol=1e-4, atol=1e-6)


async def test_gvpo_with_one_update_is_the_policy_gradient_without_importance_weights(worker: EngineWorker) -> None:
    gvpo, plain = tiny_learner(worker, rule=UpdateRule("gvpo", 1)), tiny_learner(worker, importance_cap=CAP)
    reports = await gvpo.update(GROUPS), await plain.update(GROUPS)
    assert reports[0].grad_norm == pytest.approx(reports[1].grad_norm / CAP, rel=1e-5)
    assert reports[1].clipped_share == 1.0


async def test_grpo_makes_the_configured_number_of_steps_and_reports_the_first(worker: EngineWorker) -> None:
    once, twice = (tiny_learner(worker, rule=UpdateRule("clipped", updates)) for updates in (1, 2))
    first, both = await once.update(GROUPS), await twice.update(GROUPS)
    assert (once.step, twice.step) == (1, 2)
    assert (first.loss, first.grad_norm, first.kl) == (both.loss, both.grad_norm, both.kl)
    assert not equal(adapter_of(once), adapter_of(twice))


async def test_batch_without_an_advantage_is_skipped_with_repeated_updates(worker: EngineWorker) -> None:
    learner = tiny_learner(worker, rule=UpdateRule("gvpo", 4))
    flat = [replace(group, samples=tuple(replace(one, advantage=0.0) for one in group.samples)) for group in GROUPS]
    report = await learner.update(flat)
    assert (learner.step, report.skipped) == (0, "no group with an advantage")


def test_mlx_refuses_an_unsupported_update_rule() -> None:
    with pytest.raises(UsageError, match="MLX"):
        MlxLearner(
            None,  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            lambda source, target: None,
            seed=0,
            settings=LearnerSettings(learning_rate=1e-2, rule=UpdateRule("clipped")),
        )
