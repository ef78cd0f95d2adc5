"""From calibrations to overheads, paces and a mind: what was put in comes out again."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean, median

import pytest

from tools.simulate.fleet.hardware import DeviceSpeed
from tools.simulate.fleet.mind import right_log_odds, sigmoid
from tools.simulate.validation.fitting import NothingToFit, cloud_pace, fit_mind, local_pace, shares_by_level
from tools.simulate.validation.seen import Sampled, Timed

SPEED = DeviceSpeed("test", "m", 1000.0, ((1, 100.0), (8, 400.0)), 500.0, 1.0, 2.0)


def local(prompt: int, tokens: int, overhead_s: float, token_overhead_s: float, slower: float = 1.0) -> Timed:
    token_s = 0.01 + token_overhead_s
    first_s = overhead_s + prompt / 1000.0 + token_s
    return Timed(prompt, tokens, slower * first_s, slower * (first_s + (tokens - 1) * token_s))


def sampled(right: int, wrong: int, asked: int = 0, broken: int = 0, asks: float = 0.1, level: int = 1) -> Sampled:
    return Sampled("arith", level, asked, right, wrong, broken, asks, 60, 50.0)


def test_the_overheads_that_a_device_has_are_found_again_at_any_lengths() -> None:
    pace = local_pace(SPEED, [local(10 * n, 5 + 7 * n, 0.004, 0.0005) for n in range(1, 20)])
    assert pace.overhead_s == pytest.approx(0.004)
    assert pace.token_overhead_s == pytest.approx(0.0005)
    assert {(round(each.first, 9), round(each.rest, 9)) for each in pace.paces} == {(1.0, 1.0)}


def test_what_tokens_take_more_for_those_before_them_is_told_apart_from_what_each_takes() -> None:
    growing = [
        replace(each, total_s=each.total_s + 1e-5 * (each.tokens - 1) ** 2)
        for each in (local(50, n, 0.0, 5e-4) for n in range(10, 90, 5))
    ]
    pace = local_pace(SPEED, growing)
    assert pace.token_growth_s == pytest.approx(2e-5)
    assert pace.token_overhead_s == pytest.approx(5e-4)
    assert max(each.rest for each in pace.paces) == pytest.approx(1.0)


def test_a_slow_answer_among_many_moves_no_overhead_and_stays_among_the_paces() -> None:
    pace = local_pace(SPEED, [local(50, 40, 0.004, 0.0005) for _ in range(20)] + [local(50, 40, 0.004, 0.0005, slower=9.0)])
    assert pace.overhead_s == pytest.approx(0.004)
    assert max(each.rest for each in pace.paces) == pytest.approx(9.0)
    assert median(each.first for each in pace.paces) == pytest.approx(1.0)


def test_answers_faster_than_the_profile_say_give_no_negative_overhead() -> None:
    pace = local_pace(SPEED, [local(50, 40, 0.0, 0.0, slower=0.8)] * 5)
    assert pace.overhead_s == pace.token_overhead_s == 0.0


def test_the_clouds_pace_is_its_usual_first_token_and_its_usual_rate() -> None:
    pace = cloud_pace([Timed(60, tokens, 0.05, 0.05 + (tokens - 1) / 400.0) for tokens in (20, 50, 90)])
    assert (pace.first_token_s, pace.tokens_per_s) == (pytest.approx(0.05), pytest.approx(400.0))


@pytest.mark.parametrize("fit", [cloud_pace, lambda timed: local_pace(SPEED, timed), fit_mind])
def test_without_a_calibration_there_is_nothing_to_fit(fit: object) -> None:
    with pytest.raises(NothingToFit):
        fit([])  # type: ignore[operator]


def test_answers_of_one_token_say_nothing_of_a_rate() -> None:
    with pytest.raises(NothingToFit, match="two tokens"):
        cloud_pace([Timed(60, 1, 0.05, 0.05)])


def test_a_fitted_mind_is_right_at_each_prompt_about_as_often_as_the_model_was() -> None:
    samples = [sampled(right, 8 - right) for right in range(9)]
    fitted = fit_mind(samples)
    for (difficulty, _), each in zip(fitted.prompts, samples, strict=True):
        share = float(sigmoid(right_log_odds(fitted.mind, fitted.nature, difficulty)))
        assert share == pytest.approx((each.right + 0.5) / 9.0, abs=1e-4)


def test_a_fitted_mind_asks_at_each_prompt_as_often_as_the_model_did() -> None:
    samples = [sampled(right, 8 - right, asks=0.05 + 0.08 * (8 - right) + (0.05 if right % 2 else 0.0)) for right in range(9)]
    fitted = fit_mind(samples)
    assert fitted.mind.ask_slope > 0.0
    for (difficulty, ask_noise), each in zip(fitted.prompts, samples, strict=True):
        log_odds = fitted.mind.ask + fitted.mind.ask_slope * (difficulty - 0.5) + fitted.nature.noise_share * ask_noise
        assert float(sigmoid(log_odds)) == pytest.approx(each.asks, abs=1e-3)


def test_a_model_that_is_always_as_good_and_asks_as_much_is_fitted_too() -> None:
    fitted = fit_mind([sampled(4, 4, asks=0.2)] * 3)
    assert fitted.mind.ask_slope == 0.0
    assert fitted.mind.ask == pytest.approx(math.log(0.25))


def test_broken_responses_are_told_apart_from_wrong_ones() -> None:
    fitted = fit_mind([sampled(3, 3, broken=2), sampled(4, 4)])
    assert fitted.nature.broken == pytest.approx(2 / 16)
    assert fmean(difficulty for difficulty, _ in fitted.prompts) == pytest.approx(0.5)


def test_levels_tell_what_share_asked_and_what_share_of_the_others_was_right() -> None:
    levels = shares_by_level([sampled(2, 2, asked=4, level=3), sampled(4, 0, asked=4, level=3), sampled(0, 0, asked=8, level=5)])
    assert levels == [
        {"family": "arith", "level": 3, "prompts": 2, "asked": 0.5, "right": 0.75},
        {"family": "arith", "level": 5, "prompts": 1, "asked": 1.0, "right": None},
    ]
