"""The expected cost of a call, and the target rate that a budget allows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.dagrpo.costs import LEAST_WEIGHT, budget_rate, fitted_call_cost, weighted_rate

SHARE = st.floats(0.0, 1.0)
WEIGHT = st.floats(0.01, 100.0)
CALLS = st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 10_000)), min_size=1, max_size=40)


def test_budget_for_a_third_of_the_expected_calls_is_a_target_of_one_third():
    assert budget_rate(300.0, 900.0) == pytest.approx(1 / 3)
    assert budget_rate(0.0, 900.0) == 0.0
    assert budget_rate(900.0, 900.0) == budget_rate(5.0, 0.0) == 1.0, "a budget for everything lets everything ask"


@given(st.lists(SHARE, min_size=1, max_size=20))
def test_weighted_rate_with_equal_costs_is_the_assist_rate(rates):
    assert weighted_rate(rates, [1.0] * len(rates)) == pytest.approx(sum(rates) / len(rates))


@given(st.lists(st.tuples(SHARE, WEIGHT), min_size=1, max_size=20))
def test_weighted_rate_is_between_zero_and_one(groups):
    assert 0.0 <= weighted_rate([rate for rate, _ in groups], [weight for _, weight in groups]) <= 1.0


def test_meeting_the_weighted_target_spends_the_budget():
    costs, asked, target = [100.0, 400.0, 700.0], [1.0, 0.5, 0.25], 0.4
    spent = sum(cost * share for cost, share in zip(costs, asked, strict=True))
    assert weighted_rate(asked, costs) == pytest.approx(spent / sum(costs))
    assert (spent <= target * sum(costs)) == (weighted_rate(asked, costs) <= target)


@given(CALLS)
def test_a_longer_question_never_costs_less_and_none_is_free(calls):
    cost = fitted_call_cost(calls)
    assert cost is not None
    lengths = sorted({chars for chars, _ in calls})
    expected = [cost.expected(chars) for chars in lengths]
    assert expected == sorted(expected) and min(expected) >= LEAST_WEIGHT * cost.mean * 0.999


def test_expected_cost_is_the_line_through_past_calls():
    cost = fitted_call_cost([(100, 300), (200, 500), (300, 700)])
    assert cost is not None and cost.mean == 500.0
    assert cost.expected(400) == pytest.approx(900.0) and cost.weight(200) == pytest.approx(1.0)


def test_calls_of_one_length_cost_their_mean_and_free_calls_are_ignored():
    cost = fitted_call_cost([(100, 300), (100, 500)])
    assert cost is not None and cost.weight(9000) == 1.0
    assert fitted_call_cost([]) is None and fitted_call_cost([(10, 0), (20, 0)]) is None
