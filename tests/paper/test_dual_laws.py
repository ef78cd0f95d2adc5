"""Laws of the dual update: projection, fixed point, direction, and convergence to the λ that meets τ."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.dagrpo.advantages import dual_advantages
from edge.dagrpo.dual import (
    EXPLORED_RATE,
    MOST_BIAS,
    MOST_BIAS_CHANGE,
    DualState,
    ProportionalIntegral,
    asking_slope,
    dual_step,
    estimated_dual,
    help_bias_step,
    help_rate,
    next_help_bias,
    proportional_integral_step,
    solved_help_bias,
)

SHARE = st.floats(0.0, 1.0, allow_nan=False)
DUAL = st.floats(0.0, 10.0, allow_nan=False)
RATE = st.floats(0.0, 1.0, allow_nan=False)


@given(DUAL, SHARE, SHARE, RATE)
def test_the_dual_is_never_negative(dual: float, realised: float, target: float, lr: float) -> None:
    assert dual_step(dual, realised, target, lr) >= 0.0


@given(DUAL, SHARE, RATE)
def test_a_met_target_is_a_fixed_point(dual: float, rate: float, lr: float) -> None:
    assert dual_step(dual, rate, rate, lr) == dual


@given(DUAL, SHARE, SHARE, RATE)
def test_dual_rises_above_the_target_and_falls_below_it(dual: float, realised: float, target: float, lr: float) -> None:
    change = dual_step(dual, realised, target, lr) - dual
    assert change >= 0 if realised >= target else change <= 0


@given(DUAL, DUAL, SHARE, SHARE, RATE)
def test_the_projection_never_moves_two_duals_further_apart(a: float, b: float, rate: float, target: float, lr: float) -> None:
    assert abs(dual_step(a, rate, target, lr) - dual_step(b, rate, target, lr)) <= abs(a - b) + 1e-12


def test_the_step_is_the_papers_formula() -> None:
    assert dual_step(0.5, 0.4, 0.3, 0.01) == pytest.approx(0.501)
    assert dual_step(0.001, 0.0, 1.0, 0.01) == 0.0


@pytest.mark.parametrize(
    "arguments",
    [
        (-0.1, 0.3, 0.3, 0.01),
        (0.5, 1.01, 0.3, 0.01),
        (0.5, -0.01, 0.3, 0.01),
        (0.5, 0.3, 1.5, 0.01),
        (0.5, 0.3, -0.5, 0.01),
        (0.5, 0.3, 0.3, -0.01),
        (math.nan, 0.3, 0.3, 0.01),
        (math.inf, 0.3, 0.3, 0.01),
        (0.5, math.nan, 0.3, 0.01),
        (0.5, 0.3, math.nan, 0.01),
        (0.5, 0.3, 0.3, math.inf),
        ("0.5", 0.3, 0.3, 0.01),
        (True, 0.3, 0.3, 0.01),
        (1e308, 1.0, 0.0, 1e308),
    ],
)
def test_invalid_dual_input_is_refused(arguments: tuple[float, float, float, float]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        dual_step(*arguments)


@pytest.mark.parametrize("start", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("target", [0.1, 0.3, 0.5, 0.7])
def test_every_start_converges_to_the_dual_that_meets_the_target(start: float, target: float) -> None:
    """A population whose share of help-worthy prompts falls with λ has one λ* for each τ."""

    def demand(dual: float) -> float:
        return 1.0 / (1.0 + math.exp(6.0 * (dual - 0.5)))

    dual = start
    for _ in range(5000):
        dual = dual_step(dual, demand(dual), target, 0.02)
    assert demand(dual) == pytest.approx(target, abs=1e-3)
    assert dual == pytest.approx(max(0.0, 0.5 - math.log(target / (1 - target)) / 6.0), abs=1e-2)


RULES = st.builds(
    ProportionalIntegral,
    lr=st.floats(0.0, 0.1),
    proportional=st.sampled_from([0.0, 0.5]) | st.floats(0.0, 2.0),
    window=st.integers(1, 6),
    ceiling=st.just(math.inf) | st.floats(0.0, 2.0),
)
REPORTS = st.lists(st.tuples(SHARE, SHARE), min_size=1, max_size=30)


def traced(start: float, reports: list[tuple[float, float]], rules: list[ProportionalIntegral]) -> list[DualState]:
    state, trace = DualState(start), []
    for (rate, target), rule in zip(reports, rules, strict=False):
        state = proportional_integral_step(state, rate, target, rule)
        trace.append(state)
    return trace


def positional(start: float, reports: list[tuple[float, float]], rules: list[ProportionalIntegral]) -> list[float]:
    """λ_0 + η Σ(Ĵ - τ) + the mean of k_p(Ĵ - τ) over the window, without bounds; a window begins with the first step that has a gain."""
    trace: list[float] = []
    integral, parts = start, list[float]()
    for (rate, target), rule in zip(reports, rules, strict=False):
        integral += rule.lr * (rate - target)
        if rule.proportional > 0.0 or any(parts):
            parts = [*parts, rule.proportional * (rate - target)][-rule.window :]
        else:
            parts = []
        trace.append(integral + (math.fsum(parts) / len(parts) if parts else 0.0))
    return trace


@given(REPORTS, SHARE, st.floats(0.0, 0.1))
def test_the_proportional_rule_without_its_extras_is_the_integral_rule(
    reports: list[tuple[float, float]], start: float, lr: float
) -> None:
    trace, price = traced(start, reports, [ProportionalIntegral(lr)] * len(reports)), start
    for state, (rate, target) in zip(trace, reports, strict=True):
        price = dual_step(price, rate, target, lr)
        assert state.dual.hex() == price.hex()
    assert all(state.recent == () for state in trace)


@given(REPORTS, RULES)
def test_velocity_form_equals_the_positional_form_away_from_the_bounds(
    reports: list[tuple[float, float]], rule: ProportionalIntegral
) -> None:
    rules = [replace(rule, ceiling=math.inf)] * len(reports)
    trace = traced(100.0, reports, rules)
    assert [state.dual for state in trace] == pytest.approx(positional(100.0, reports, rules), abs=1e-9)


@given(REPORTS, st.lists(st.tuples(st.floats(0.0, 2.0), st.floats(0.0, 0.1)), min_size=30, max_size=30), st.integers(1, 6))
def test_changed_gains_leave_no_residue(
    reports: list[tuple[float, float]], gains: list[tuple[float, float]], window: int
) -> None:
    rules = [ProportionalIntegral(lr, gain, window) for gain, lr in gains]
    trace = traced(100.0, reports, rules)
    assert [state.dual for state in trace] == pytest.approx(positional(100.0, reports, rules), abs=1e-9)
    off = ProportionalIntegral(0.0, 0.0, window)
    settled = traced_on(trace[-1], off, steps=window)
    integral = 100.0 + math.fsum(lr * (rate - target) for (rate, target), (_, lr) in zip(reports, gains, strict=False))
    assert settled.recent == ()
    assert settled.dual == pytest.approx(integral, abs=1e-9)


def traced_on(state: DualState, rule: ProportionalIntegral, steps: int) -> DualState:
    for _ in range(steps):
        state = proportional_integral_step(state, 0.5, 0.5, rule)
    return state


@given(REPORTS, DUAL, st.lists(RULES, min_size=30, max_size=30))
def test_a_dual_stays_between_nothing_and_its_ceiling(
    reports: list[tuple[float, float]], start: float, rules: list[ProportionalIntegral]
) -> None:
    for state, rule in zip(traced(start, reports, rules), rules, strict=False):
        assert 0.0 <= state.dual <= rule.ceiling
        assert len(state.recent) <= rule.window


@given(REPORTS, RULES)
def test_dual_leaves_a_bound_with_the_first_report_in_the_other_direction(
    reports: list[tuple[float, float]], rule: ProportionalIntegral
) -> None:
    """Regardless of the time at the bound: the excess is forgotten."""
    rule = replace(rule, lr=0.05, window=1, ceiling=1.0)
    low = traced(0.0, [(0.0, 0.5)] * 40, [rule] * 40)[-1]
    assert low.dual == 0.0
    assert proportional_integral_step(low, 0.6, 0.5, rule).dual > 0.0
    high = traced(1.0, [(1.0, 0.5)] * 40, [rule] * 40)[-1]
    assert high.dual == 1.0
    assert proportional_integral_step(high, 0.4, 0.5, rule).dual < 1.0


def test_the_window_averages_the_proportional_part_only() -> None:
    rule = ProportionalIntegral(lr=0.1, proportional=1.0, window=2)
    first = proportional_integral_step(DualState(0.5), 0.9, 0.3, rule)
    second = proportional_integral_step(first, 0.1, 0.3, rule)
    third = proportional_integral_step(second, 0.3, 0.3, rule)
    assert first.dual == pytest.approx(0.5 + 0.06 + 0.6)
    assert second.dual == pytest.approx(0.5 + 0.06 - 0.02 + (0.6 - 0.2) / 2)
    assert third.dual == pytest.approx(0.5 + 0.06 - 0.02 + (-0.2 + 0.0) / 2)
    assert third.recent == pytest.approx((-0.2, 0.0))


@pytest.mark.parametrize(
    "rule",
    [
        ProportionalIntegral(0.02, proportional=-0.1),
        ProportionalIntegral(0.02, proportional=math.nan),
        ProportionalIntegral(0.02, window=0),
        ProportionalIntegral(0.02, ceiling=-1.0),
        ProportionalIntegral(0.02, ceiling=math.nan),
        ProportionalIntegral(-0.02, proportional=0.1),
        ProportionalIntegral(0.02, proportional=1e308),
    ],
)
def test_invalid_rule_is_refused(rule: ProportionalIntegral) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        proportional_integral_step(DualState(1e308), 1.0, 0.0, rule)


@given(st.floats(-20, 20), SHARE, st.floats(0.02, 0.98))
def test_help_bias_moves_against_the_error_and_rests_at_zero_error(bias: float, rate: float, target: float) -> None:
    after = help_bias_step(bias, rate, target)
    assert (after - bias) * (target - rate) >= 0
    assert abs(after - bias) <= MOST_BIAS_CHANGE + 1e-9
    assert help_bias_step(bias, target, target) == bias


@given(st.floats(-6, 6), st.floats(0.05, 0.95), st.floats(-3, 3))
def test_the_help_bias_brings_a_fixed_policy_to_its_rate(log_odds: float, target: float, start: float) -> None:
    bias = start
    for _ in range(60):
        bias = help_bias_step(bias, 1 / (1 + math.exp(-log_odds - bias)), target)
    assert 1 / (1 + math.exp(-log_odds - bias)) == pytest.approx(target, abs=0.01)


@given(st.floats(0.05, 0.9), st.floats(0.0, 8.0))
def test_a_rate_is_not_forced_where_asking_does_not_help(target: float, start: float) -> None:
    bias, log_odds = start, -3.0
    for _ in range(200):
        bias = help_bias_step(bias, 1 / (1 + math.exp(-log_odds - bias)), target, helps=False)
    assert bias == pytest.approx(0.0, abs=0.05), "the policy asks in 5 % by itself, which is enough to explore"
    rare = 0.0
    for _ in range(400):
        rare = help_bias_step(rare, 1 / (1 + math.exp(9.0 - rare)), target, helps=False)
    assert 1 / (1 + math.exp(9.0 - rare)) == pytest.approx(EXPLORED_RATE, abs=0.01)
    assert help_bias_step(0.0, 0.9, 0.3, helps=False) < 0.0, "more than τ is never allowed"


LOG_ODDS = st.lists(st.none() | st.floats(-25, 25), min_size=1, max_size=40)
WEIGHTS = st.lists(st.floats(0.1, 5.0), min_size=40, max_size=40)


@given(LOG_ODDS, WEIGHTS, st.floats(0.0, 0.98))
def test_solved_help_bias_brings_any_log_odds_to_a_rate_that_they_can_reach(
    log_odds: list[float | None], weights: list[float], share: float
) -> None:
    weights = weights[: len(log_odds)]
    most = help_rate([None if one is None else MOST_BIAS for one in log_odds], 0.0, weights)
    bias = solved_help_bias(log_odds, share * most, weights)
    assert -MOST_BIAS <= bias <= MOST_BIAS
    assert help_rate(log_odds, bias, weights) == pytest.approx(share * most, abs=1e-5)


def test_rate_that_too_few_decisions_can_reach_has_the_highest_bias_and_none_at_all_has_zero() -> None:
    assert solved_help_bias([None, None, None, -4.0], 0.5) == pytest.approx(MOST_BIAS)
    assert solved_help_bias([None, None], 0.5) == 0.0
    with pytest.raises(ValueError, match="rate"):
        solved_help_bias([0.0], 1.2)


@given(LOG_ODDS, SHARE, SHARE)
def test_solved_help_bias_rises_with_the_rate(log_odds: list[float | None], one: float, other: float) -> None:
    assert solved_help_bias(log_odds, min(one, other)) <= solved_help_bias(log_odds, max(one, other)) + 1e-5


@pytest.mark.parametrize(
    ("log_odds", "helps", "expected"),
    [
        (-9.0, True, 0.3),
        (-9.0, False, EXPLORED_RATE),
        (-2.0, False, help_rate([-2.0])),
        (3.0, False, 0.3),
        (3.0, True, 0.3),
    ],
    ids=["raised", "kept asking now and then", "left as it is, within the target", "lowered", "lowered where it helps"],
)
def test_next_help_bias_forces_nobody_up_to_a_rate_where_asking_does_not_help(
    log_odds: float, helps: bool, expected: float
) -> None:
    bias = next_help_bias([log_odds] * 4, 0.3, helps=helps)
    assert help_rate([log_odds], bias) == pytest.approx(expected, abs=1e-5)


def test_what_the_last_steps_fell_short_is_added_and_stops_neither_asking_nor_answering() -> None:
    assert help_rate([-2.0], next_help_bias([-2.0], 0.3, fell_short=0.1)) == pytest.approx(0.4, abs=1e-5)
    assert help_rate([-2.0], next_help_bias([-2.0], 0.3, fell_short=-0.9)) == pytest.approx(EXPLORED_RATE, abs=1e-5)
    assert help_rate([-2.0], next_help_bias([-2.0], 0.3, fell_short=0.9)) == pytest.approx(1.0 - EXPLORED_RATE, abs=1e-5)
    assert next_help_bias([-2.0], 0.0, fell_short=-0.1) == pytest.approx(-MOST_BIAS)


GROUPS = st.lists(st.lists(st.tuples(st.floats(0.0, 1.0), st.integers(0, 1)), min_size=2, max_size=8), min_size=1, max_size=8)


@given(GROUPS)
def test_estimated_dual_takes_the_common_push_out_of_the_advantages(groups: list[list[tuple[float, int]]]) -> None:
    """Over the groups it was estimated on, the advantages then pull asking neither up nor down, unless asking loses."""
    split = [([reward for reward, _ in group], [float(cost) for _, cost in group]) for group in groups]
    slopes = [asking_slope(rewards, costs) for rewards, costs in split]
    dual = estimated_dual(slopes)
    if dual is None:
        assert all(len(set(costs)) == 1 for _, costs in split)
        return
    pulls = [
        advantage * cost
        for rewards, costs in split
        for advantage, cost in zip(dual_advantages(rewards, costs, dual), costs, strict=True)
    ]
    assert math.fsum(pulls) == pytest.approx(0.0, abs=1e-9) if dual > 0.0 else math.fsum(pulls) <= 1e-9
