"""Laws of the dual update: projection, fixed point, direction, replay, and convergence to the price that meets τ."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.dagrpo.dual import (
    DualState,
    ProportionalIntegral,
    assist_rate,
    dual_step,
    proportional_integral_step,
    replay,
)

SHARE = st.floats(0.0, 1.0, allow_nan=False)
PRICE = st.floats(0.0, 10.0, allow_nan=False)
RATE = st.floats(0.0, 1.0, allow_nan=False)


@given(PRICE, SHARE, SHARE, RATE)
def test_the_price_is_never_negative(dual: float, realised: float, target: float, lr: float) -> None:
    assert dual_step(dual, realised, target, lr) >= 0.0


@given(PRICE, SHARE, RATE)
def test_a_met_target_is_a_fixed_point(dual: float, rate: float, lr: float) -> None:
    assert dual_step(dual, rate, rate, lr) == dual


@given(PRICE, SHARE, SHARE, RATE)
def test_the_price_rises_when_asking_exceeds_the_target_and_falls_when_below(
    dual: float, realised: float, target: float, lr: float
) -> None:
    change = dual_step(dual, realised, target, lr) - dual
    assert change >= 0 if realised >= target else change <= 0


@given(PRICE, PRICE, SHARE, SHARE, RATE)
def test_the_projection_never_moves_two_prices_further_apart(a: float, b: float, rate: float, target: float, lr: float) -> None:
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


def test_assist_rate_averages_over_prompts_of_different_size() -> None:
    assert assist_rate([[1, 1], [0, 0, 0, 1]]) == pytest.approx((1.0 + 0.25) / 2)


@pytest.mark.parametrize("costs", [[], [[]], [[1], []]])
def test_assist_rate_refuses_empty_batches(costs: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="prompt"):
        assist_rate(costs)


@pytest.mark.parametrize("start", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("target", [0.1, 0.3, 0.5, 0.7])
def test_every_start_converges_to_the_price_that_meets_the_target(start: float, target: float) -> None:
    """A population whose share of help-worthy prompts falls with the price has one λ* for each τ."""

    def demand(price: float) -> float:
        return 1.0 / (1.0 + math.exp(6.0 * (price - 0.5)))

    price = start
    for _ in range(5000):
        price = dual_step(price, demand(price), target, 0.02)
    assert demand(price) == pytest.approx(target, abs=1e-3)
    assert price == pytest.approx(max(0.0, 0.5 - math.log(target / (1 - target)) / 6.0), abs=1e-2)


@given(st.lists(st.tuples(SHARE, SHARE, st.floats(0.0, 0.1)), max_size=30), PRICE)
def test_a_replay_is_the_same_chain_of_steps_bit_for_bit(steps: list[tuple[float, float, float]], start: float) -> None:
    expected, price = [], start
    for step in steps:
        price = dual_step(price, *step)
        expected.append(price.hex())
    assert [value.hex() for value in replay(start, steps)] == expected


@given(st.lists(SHARE, min_size=1, max_size=20), SHARE)
def test_the_proportional_rule_without_its_extras_is_the_integral_rule(rates: list[float], target: float) -> None:
    state, plain = DualState(0.5), 0.5
    for rate in rates:
        state, price = proportional_integral_step(state, rate, target, ProportionalIntegral(lr=0.02))
        plain = dual_step(plain, rate, target, 0.02)
        assert price == plain


def test_the_ceiling_stops_wind_up() -> None:
    state, rule = DualState(0.5), ProportionalIntegral(lr=0.5, ceiling=0.8)
    for _ in range(50):
        state, price = proportional_integral_step(state, 1.0, 0.1, rule)
    assert price == 0.8
    state, price = proportional_integral_step(state, 0.0, 0.1, rule)
    assert price < 0.8


def test_the_window_averages_the_proportional_part_only() -> None:
    rule = ProportionalIntegral(lr=0.0, proportional=1.0, window=2)
    state, _ = proportional_integral_step(DualState(0.5), 0.9, 0.3, rule)
    state, price = proportional_integral_step(state, 0.1, 0.3, rule)
    assert price == pytest.approx(0.5 + (0.5 - 0.3))
    assert state.recent_rates == (0.9, 0.1)
