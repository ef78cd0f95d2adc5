"""Laws of the two advantages: identity with the shaped reward, centring, unbiasedness of the estimator's constant."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.core.types import TrainingGroup, TrainingSample
from edge.dagrpo.advantages import (
    AdvantageScale,
    dual_advantages,
    estimator_weight,
    has_signal,
    scale_advantages,
    standard_deviation,
)
from edge.training.batching import is_live

REWARDS = st.lists(st.sampled_from([1.0, 0.0, -0.1, 0.2]), min_size=1, max_size=16)
DUALS = st.floats(0.0, 5.0, allow_nan=False)


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[float], list[int], float]:
    rewards = draw(st.lists(st.floats(-10, 10, allow_nan=False), min_size=1, max_size=16))
    costs = draw(st.lists(st.integers(0, 1), min_size=len(rewards), max_size=len(rewards)))
    return rewards, costs, draw(DUALS)


@given(groups())
def test_dual_advantages_equal_the_centred_shaped_reward(group: tuple[list[float], list[int], float]) -> None:
    rewards, costs, dual = group
    shaped = [reward - dual * cost for reward, cost in zip(rewards, costs, strict=True)]
    expected = [value - math.fsum(shaped) / len(shaped) for value in shaped]
    assert dual_advantages(rewards, costs, dual) == pytest.approx(expected, abs=1e-9)


@given(groups())
def test_group_advantages_sum_to_zero(group: tuple[list[float], list[int], float]) -> None:
    assert math.fsum(dual_advantages(*group)) == pytest.approx(0.0, abs=1e-9)


@given(groups(), st.randoms(use_true_random=False))
def test_advantages_are_permutation_equivariant(group: tuple[list[float], list[int], float], rng: random.Random) -> None:
    rewards, costs, dual = group
    order = list(range(len(rewards)))
    rng.shuffle(order)
    plain = dual_advantages(rewards, costs, dual)
    shuffled = dual_advantages([rewards[i] for i in order], [costs[i] for i in order], dual)
    assert shuffled == pytest.approx([plain[i] for i in order], abs=1e-9)


@given(st.sampled_from([1.0, 0.0, -0.1]), st.integers(0, 1), st.integers(1, 16), DUALS)
def test_uniform_group_has_exactly_zero_advantages(reward: float, cost: int, size: int, dual: float) -> None:
    assert dual_advantages([reward] * size, [cost] * size, dual) == [0.0] * size


def test_the_rounding_of_a_zero_is_no_signal_for_the_paper_and_the_learner() -> None:
    group = [TrainingGroup((1,), (TrainingSample((2,), (-0.5,), advantage),), 1.0) for advantage in (1e-9, -1e-9, 1e-7)]
    assert [has_signal([one.samples[0].advantage]) for one in group] == [is_live(one) for one in group] == [False, False, True]


@pytest.mark.parametrize(
    ("rewards", "costs", "dual"),
    [
        ([], [], 0.5),
        ([1.0], [0, 1], 0.5),
        ([float("nan")], [0], 0.5),
        ([float("inf"), 0.0], [0, 0], 0.5),
        ([1.0, 0.0], [0, 2], 0.5),
        ([1.0, 0.0], [0, -1], 0.5),
        ([1.0, 0.0], [0, float("nan")], 0.5),
        ([1.0, 0.0], [0, 1], -0.1),
        ([1.0, 0.0], [0, 1], float("nan")),
        (["1", 0.0], [0, 1], 0.5),
    ],
)
def test_invalid_advantage_input_is_refused(rewards: list[float], costs: list[float], dual: float) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        dual_advantages(rewards, costs, dual)


def _bernoulli_gradient(probability: float) -> dict[int, float]:
    """Score d log p(y)/dp of a one-parameter Bernoulli policy."""
    return {1: 1 / probability, 0: -1 / (1 - probability)}


@pytest.mark.parametrize("group_size", [2, 3, 5])
def test_the_constant_is_exactly_unbiased_over_every_possible_group(group_size: int) -> None:
    """E[1/(G-1) Σ Â_i ∇ log π(y_i)] = ∇ E[r - λc]: enumerated over all groups of a Bernoulli policy, not sampled."""
    ask, dual, reward = 0.3, 0.4, {1: 1.0, 0: 0.25}
    score = _bernoulli_gradient(ask)
    total = 0.0
    for group in itertools.product((0, 1), repeat=group_size):
        probability = math.prod(ask if asked else 1 - ask for asked in group)
        advantages = dual_advantages([reward[y] for y in group], list(group), dual)
        total += probability * estimator_weight(group_size) * sum(a * score[y] for a, y in zip(advantages, group, strict=True))
    assert total == pytest.approx((reward[1] - dual) - reward[0], abs=1e-12)


def test_monte_carlo_agrees_with_the_unbiased_constant_and_not_with_the_papers() -> None:
    """The proposition's G/(G-1) gives G times the gradient: a sampled check with 6-sigma bounds."""
    rng, group_size, ask, dual = random.Random(5), 8, 0.3, 0.4
    score, reward, draws = _bernoulli_gradient(ask), {1: 1.0, 0: 0.25}, 20_000
    estimates = []
    for _ in range(draws):
        group = [int(rng.random() < ask) for _ in range(group_size)]
        advantages = dual_advantages([reward[y] for y in group], group, dual)
        estimates.append(estimator_weight(group_size) * sum(a * score[y] for a, y in zip(advantages, group, strict=True)))
    gradient, error = (reward[1] - dual) - reward[0], standard_deviation(estimates) / math.sqrt(draws)
    mean = math.fsum(estimates) / draws
    assert abs(mean - gradient) < 6 * error
    assert abs(mean * group_size - gradient) > 6 * error * group_size


def test_a_group_of_one_has_no_estimator() -> None:
    with pytest.raises(ValueError, match="two responses"):
        estimator_weight(1)


def test_scaling_is_off_by_default_and_divides_by_group_or_batch_deviation() -> None:
    groups_B_G = [[0.5, -0.5], [1.0, -1.0]]
    assert scale_advantages(groups_B_G) == groups_B_G
    by_group = scale_advantages(groups_B_G, AdvantageScale.GROUP, epsilon=0.0)
    assert by_group[0] == pytest.approx(by_group[1])
    by_batch = scale_advantages(groups_B_G, AdvantageScale.BATCH, epsilon=0.0)
    assert by_batch[1][0] == pytest.approx(2 * by_batch[0][0])


@given(REWARDS)
def test_standard_deviation_matches_the_library(rewards: list[float]) -> None:
    import statistics

    expected = statistics.stdev(rewards) if len(rewards) > 1 else 0.0
    assert standard_deviation(rewards) == pytest.approx(expected, abs=1e-12)
