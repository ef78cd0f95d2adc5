"""Reward tables, baselines' equations, schedules and metrics against their published definitions."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.dagrpo import baselines, metrics
from edge.dagrpo.advantages import dual_advantages
from edge.dagrpo.reward import Outcome, hierarchical_reward, response_cost, task_reward


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Outcome(correct=True, format_ok=True), 1.0),
        (Outcome(correct=False, format_ok=True), 0.0),
        (Outcome(correct=True, format_ok=False), -0.1),
        (Outcome(correct=False, format_ok=False), -0.1),
        (Outcome(correct=True, format_ok=True, asked=True), 1.0),
        (Outcome(correct=False, format_ok=True, asked=True), 0.0),
    ],
)
def test_task_reward_table(outcome: Outcome, expected: float) -> None:
    assert task_reward(outcome) == expected


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Outcome(True, True, asked=False), 1.0),
        (Outcome(True, True, asked=True), 0.2),
        (Outcome(False, True, asked=True), 0.0),
        (Outcome(False, True, asked=False), 0.0),
        (Outcome(True, False, asked=False), -0.1),
    ],
)
def test_hierarchical_reward_table(outcome: Outcome, expected: float) -> None:
    assert hierarchical_reward(outcome, 0.2) == expected


def test_cost_counts_valid_requests_only() -> None:
    assert (response_cost(True), response_cost(False)) == (1, 0)


@given(st.lists(st.sampled_from([0.0, 1.0, -0.1]), min_size=2, max_size=16))
def test_grpo_advantages_have_unit_spread_unless_all_are_equal(rewards: list[float]) -> None:
    advantages = baselines.grpo_advantages(rewards, epsilon=0.0 if len(set(rewards)) > 1 else 1e-4)
    spread = math.sqrt(sum(a * a for a in advantages) / (len(rewards) - 1))
    assert spread == pytest.approx(1.0 if len(set(rewards)) > 1 else 0.0, abs=1e-9)


def test_gvpo_with_one_update_is_the_unscaled_advantage() -> None:
    rewards = [1.0, 0.0, 0.0, 1.0]
    assert baselines.gvpo_weights(rewards, [0.0] * 4) == dual_advantages(rewards, [0] * 4, 0.0)


def test_gvpo_lowers_the_weight_of_a_response_that_already_moved() -> None:
    weights = baselines.gvpo_weights([1.0, 0.0], [2.0, 0.0], beta=0.1)
    assert weights == pytest.approx([0.5 - 0.1, -0.5 + 0.1])


def test_gapg_keeps_every_solved_prompt_and_its_quota_of_cloud_only_ones() -> None:
    outcome = baselines.PromptOutcome
    outcomes = [outcome(True, True)] * 7 + [outcome(False, True)] * 10 + [outcome(False, False)] * 5
    kept = baselines.gapg_kept_prompts(outcomes, baselines.calls_per_local(0.3), random.Random(1))
    assert kept[:7] == list(range(7))
    assert len(kept) == 10 and all(7 <= index < 17 for index in kept[7:])
    assert kept == baselines.gapg_kept_prompts(outcomes, 3 / 7, random.Random(1))
    with pytest.raises(ValueError, match="target_rate"):
        baselines.calls_per_local(1.0)


def test_tally_separates_local_and_overall_accuracy() -> None:
    tally = metrics.tally([(False, True), (False, False), (True, True), (True, True)])
    assert (tally.coverage, tally.kept_accuracy, tally.joint_accuracy, tally.assist_rate) == (0.5, 0.5, 0.75, 0.5)


@given(st.integers(0, 50), st.integers(0, 50))
def test_interval_contains_the_share_and_stays_within_zero_and_one(successes: int, failures: int) -> None:
    low, high = metrics.wilson_interval(successes, successes + failures)
    share = successes / (successes + failures) if successes + failures else 0.5
    assert 0.0 <= low <= share + 1e-12 and share - 1e-12 <= high <= 1.0


def test_forgetting_and_oracle_bound_follow_their_definitions() -> None:
    assert metrics.forgetting_rate(0.5, 0.4) == pytest.approx(0.2)
    assert metrics.oracle_router_bound(0.3, 0.6, 0.95) == pytest.approx(0.6 + 0.3 * 0.95)
    assert metrics.oracle_router_bound(0.7, 0.6, 0.95) == pytest.approx(0.6 + 0.4 * 0.95)


@pytest.mark.parametrize("twentieths", range(1, 20))
def test_gapg_quota_is_rounded_down(twentieths: int) -> None:
    target = Fraction(twentieths, 20)
    for solved in range(1, 33):
        exact = target / (1 - target) * solved
        outcomes = [baselines.PromptOutcome(True, True)] * solved + [baselines.PromptOutcome(False, True)] * (
            math.floor(exact) + 2
        )
        kept = baselines.gapg_kept_prompts(outcomes, baselines.calls_per_local(float(target)), random.Random(0))
        assert len(kept) - solved == math.floor(exact)
