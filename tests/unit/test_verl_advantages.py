"""Advantages for verl's flat batches, and the outcomes they are computed from. Needs no verl."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.core.types import FinishReason, LocalResponse
from edge.dagrpo.advantages import dual_advantages
from edge.learning.methods import DaGrpo
from edge.learning.rollout import ResponseOutcome, ScoredGroup, ScoredResponse
from edge.rpc.client import StepUnits
from tests.worlds.agent import item
from tests.worlds.trained import training_groups
from tools.integrations.verl.estimator import row_advantages, row_weights, usable_groups
from tools.integrations.verl.outcomes import Outcomes, as_info

RESPONSES = st.tuples(st.sampled_from([1.0, 0.0, -0.1]), st.sampled_from([0, 1]), st.booleans())
BATCHES = st.lists(st.lists(RESPONSES, min_size=2, max_size=5), min_size=1, max_size=4)
DUALS = st.floats(0.0, 3.0)


def scored(reward: float, cost: int, masked: bool, number: int = 0) -> ScoredResponse:
    response = LocalResponse("", (number, number + 1), (0.0, 0.0), FinishReason.EOS)
    kept = ResponseOutcome.UNRATED if masked else ResponseOutcome.KEPT
    outcome = kept if not cost else ResponseOutcome.MASKED if masked else ResponseOutcome.ASKED
    return ScoredResponse(response, True, outcome, reward == 1.0, reward, cost)


def flat(groups: list[list[tuple[float, int, bool]]], order: int) -> list[tuple[float, int, bool, str]]:
    rows = [(*row, f"uid-{number}") for number, group in enumerate(groups) for row in group]
    random.Random(order).shuffle(rows)
    return rows


@given(BATCHES, DUALS, st.integers(0, 9))
def test_every_group_gets_the_dual_advantages_of_its_remaining_rows_in_any_order(groups, dual, order):
    rows = flat(groups, order)
    rewards, costs, masked, names = (list(column) for column in zip(*rows, strict=True))
    found = row_advantages(rewards, costs, masked, names, dual)
    for name in set(names):
        kept = [index for index, row in enumerate(rows) if row[3] == name and not row[2]]
        wanted = (
            dual_advantages([rewards[i] for i in kept], [costs[i] for i in kept], dual) if len(kept) > 1 else [0.0] * len(kept)
        )
        assert [found[index] for index in kept] == wanted
    assert all(found[index] == 0.0 for index, row in enumerate(rows) if row[2])


@given(BATCHES, DUALS, st.integers(0, 9), st.integers(0, 3))
def test_mean_over_verl_rows_has_the_coefficients_of_the_projects_own_learner(groups, dual, order, padding):
    rows = flat(groups, order) + [(0.0, 0, True, "padding")] * padding
    rewards, costs, masked, names = (list(column) for column in zip(*rows, strict=True))
    advantages, weights = row_advantages(rewards, costs, masked, names, dual), row_weights(masked, names)
    ours = [advantage * weight / len(rows) for advantage, weight in zip(advantages, weights, strict=True)]

    own_groups = [ScoredGroup(item(n), (1,), tuple(scored(*row) for row in group), None) for n, group in enumerate(groups)]
    trained = training_groups(DaGrpo(), own_groups, dual)
    wanted = [sample.advantage * group.group_weight / len(trained) for group in trained for sample in group.samples]
    used = [ours[row] for group in usable_groups(masked, names) for row in group]
    assert sorted(used) == pytest.approx(sorted(wanted), abs=1e-12)
    assert sum(map(abs, ours)) == pytest.approx(sum(map(abs, wanted)), abs=1e-12)


def rows_of(*responses: ScoredResponse) -> list[dict[str, object]]:
    return [{"reward_extra_info": as_info(response), "turn_scores": []} for response in responses]


def test_a_failed_call_leaves_the_group_and_still_counts_as_demand():
    failed = replace(scored(0.0, 0, True), outcome=ResponseOutcome.MASKED)
    outcomes = Outcomes.of(rows_of(scored(1.0, 1, False), failed, scored(0.0, 0, False)), [False, False, False])
    assert outcomes.left_out == [False, True, False]
    assert outcomes.costs == [1.0, 0.0, 0.0]
    assert outcomes.units == StepUnits(total=3, help=2, uncalled=0)


def test_unsent_request_is_reported_as_not_called_for():
    kept_here = replace(scored(0.0, 0, True), outcome=ResponseOutcome.UNSENT)
    assert Outcomes.of(rows_of(kept_here, scored(1.0, 0, False)), [False, False]).units == StepUnits(2, 1, 1)


def test_padding_that_copies_a_real_outcome_is_in_no_group_and_in_no_count():
    asks = scored(1.0, 1, False)
    outcomes = Outcomes.of(rows_of(asks, scored(0.0, 0, False), asks), [False, False, True])
    assert outcomes.left_out == [False, False, True]
    assert outcomes.costs == [1.0, 0.0, 0.0]
    assert outcomes.units == StepUnits(2, 1, 0)


def test_response_scored_by_another_reward_manager_is_refused_with_advice():
    with pytest.raises(ValueError, match=r"set reward\.reward_manager to tools\.integrations\.verl\.reward"):
        Outcomes.of([{"reward_extra_info": {"acc": 1.0}}], [False])
