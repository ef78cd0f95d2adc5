"""A real update on an off-policy response: its gradient by hand, and it is never counted as sampled."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from edge.core.types import TrainingGroup, TrainingSample
from edge.core.worker import EngineWorker
from edge.training.learner import UpdateRule
from tests.worlds.tiny_learner import adapter_of, equal, random_groups, tiny_learner

PROMPT, FOREIGN = (1, 2, 3), (10, 11, 12, 0)


def foreign(advantage: float = 0.6, off_policy: bool = True) -> TrainingSample:
    return TrainingSample(FOREIGN, (0.0,) * len(FOREIGN), advantage, off_policy)


def with_foreign(groups: list[TrainingGroup], sample: TrainingSample) -> list[TrainingGroup]:
    return [replace(group, samples=(*group.samples, sample)) for group in groups]


async def test_off_policy_response_becomes_likelier_without_any_other_advantage(worker: EngineWorker) -> None:
    learner = tiny_learner(worker)
    local = TrainingSample((20, 21), (-3.9, -3.9), 0.0)
    before = sum(await learner.logprobs(PROMPT, FOREIGN))
    for _ in range(5):
        report = await learner.update([TrainingGroup(PROMPT, (local, local, foreign()), 1.0)])
        assert not report.skipped and report.grad_norm > 0
    assert sum(await learner.logprobs(PROMPT, FOREIGN)) > before + 0.1
    assert (report.tokens, report.mean_abs_logprob_diff, report.entropy, report.clipped_share) == (0, 0.0, 0.0, 0.0)
    assert report.frac_reward_zero_std == 0.0, "its group has a gradient"


async def test_off_policy_loss_weights_tokens_by_the_shaped_objective(worker: EngineWorker) -> None:
    learner = tiny_learner(worker)
    logprobs = await learner.logprobs(PROMPT, FOREIGN)
    report = await learner.update([TrainingGroup(PROMPT, (foreign(),), 0.25)])
    by_hand = -0.6 * 0.25 * sum(0.1 * torch.tensor(x).exp() / (torch.tensor(x).exp() + 0.1) ** 2 * x for x in logprobs)
    assert report.loss == pytest.approx(float(by_hand), rel=1e-4)


@pytest.mark.parametrize("sharing", ["shared", "plain"])
async def test_a_given_answer_is_learned_by_its_likelihood_together_with_samples(worker: EngineWorker, sharing: str) -> None:
    groups, given = random_groups(5), TrainingSample(FOREIGN, (0.0,) * len(FOREIGN), 2.0, imitated=True)
    learner = tiny_learner(worker, prefix_sharing=sharing)
    by_hand = [-2.0 * group.group_weight * sum(await learner.logprobs(group.prompt_ids, FOREIGN)) for group in groups]
    joined = await learner.update(with_foreign(groups, given))
    alone = await tiny_learner(worker, prefix_sharing=sharing).update(groups)
    assert joined.loss - alone.loss == pytest.approx(sum(by_hand) / len(groups), rel=1e-4)
    assert joined.tokens == alone.tokens


@pytest.mark.parametrize("sharing", ["shared", "plain"])
async def test_mismatch_is_measured_on_sampled_tokens_only(worker: EngineWorker, sharing: str) -> None:
    groups = random_groups(5)
    alone = await tiny_learner(worker, prefix_sharing=sharing).update(groups)
    joined = await tiny_learner(worker, prefix_sharing=sharing).update(with_foreign(groups, foreign()))
    for field in ("tokens", "clipped_share"):
        assert getattr(joined, field) == getattr(alone, field), field
    for field in ("entropy", "mean_abs_logprob_diff", "kl", "effective_sample_share"):
        assert getattr(joined, field) == pytest.approx(getattr(alone, field), rel=1e-6), field
    assert joined.loss != alone.loss


async def test_unlikely_off_policy_response_is_no_mismatch(worker: EngineWorker) -> None:
    groups = random_groups(5)
    bound = 1.01 * (await tiny_learner(worker).update(groups)).mean_abs_logprob_diff
    taken = await tiny_learner(worker, max_mismatch_nats=bound).update(with_foreign(groups, foreign()))
    refused = await tiny_learner(worker, max_mismatch_nats=bound).update(with_foreign(groups, foreign(off_policy=False)))
    assert taken.skipped == ""
    assert "mismatch" in refused.skipped, "the same tokens as the sampler's would be refused"


async def test_off_policy_response_without_advantage_leaves_the_update_bit_equal(worker: EngineWorker) -> None:
    groups = random_groups(7)
    first, second = tiny_learner(worker), tiny_learner(worker)
    dead = foreign(advantage=0.0)
    one, other = await first.update(groups), await second.update(with_foreign(groups, dead))
    assert equal(adapter_of(first), adapter_of(second))
    assert replace(one, seconds=0.0) == replace(other, seconds=0.0)


@pytest.mark.parametrize("rule", [UpdateRule("clipped"), UpdateRule("gvpo")])
async def test_objectives_that_need_sampler_probabilities_refuse_off_policy_responses(
    worker: EngineWorker, rule: UpdateRule
) -> None:
    learner = tiny_learner(worker, rule=rule)
    before = adapter_of(learner)
    with pytest.raises(ValueError, match="did not sample"):
        await learner.update([TrainingGroup(PROMPT, (foreign(),), 1.0)])
    assert equal(adapter_of(learner), before)
