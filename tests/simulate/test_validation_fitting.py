"""From calibrations to overheads, paces and a mind: what was put in comes out again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tools.simulate.fleet.hardware import DeviceSpeed
from tools.simulate.fleet.mind import sigmoid
from tools.simulate.validation.fitting import fit_mind, local_pace
from tools.simulate.validation.seen import Sampled, Timed

SPEED = DeviceSpeed("test", "m", 1000.0, ((1, 100.0), (8, 400.0)), 500.0, 1.0, 2.0)


def local(prompt: int, tokens: int, overhead_s: float, token_overhead_s: float, slower: float = 1.0) -> Timed:
    token_s = 0.01 + token_overhead_s
    first_s = overhead_s + prompt / 1000.0 + token_s
    return Timed(prompt, tokens, slower * first_s, slower * (first_s + (tokens - 1) * token_s))


def sampled(right: int, wrong: int, asked: int = 0, broken: int = 0, asks: float = 0.1) -> Sampled:
    return Sampled(asked, right, wrong, broken, asks, 60, 50.0)


def test_the_overheads_that_a_device_has_are_found_again_at_any_lengths() -> None:
    pace = local_pace(SPEED, [local(10 * n, 5 + 7 * n, 0.004, 0.0005) for n in range(1, 20)])
    assert pace.overhead_s == pytest.approx(0.004)
    assert pace.token_overhead_s == pytest.approx(0.0005)
    assert {(round(each.first, 9), round(each.rest, 9)) for each in pace.paces} == {(1.0, 1.0)}


def test_growth_and_constant_time_of_tokens_are_fitted_separately() -> None:
    growing = [
        replace(each, total_s=each.total_s + 1e-5 * (each.tokens - 1) ** 2)
        for each in (local(50, n, 0.0, 5e-4) for n in range(10, 90, 5))
    ]
    pace = local_pace(SPEED, growing)
    assert pace.token_growth_s == pytest.approx(2e-5)
    assert pace.token_overhead_s == pytest.approx(5e-4)
    assert max(each.rest for each in pace.paces) == pytest.approx(1.0)


def test_a_fitted_mind_is_right_and_asks_at_each_prompt_as_often_as_the_model_did() -> None:
    samples = [sampled(right, 8 - right, asks=0.05 + 0.08 * (8 - right) + (0.05 if right % 2 else 0.0)) for right in range(9)]
    fitted = fit_mind(samples)
    assert fitted.mind.ask_slope > 0.0
    for (difficulty, ask_noise), each in zip(fitted.prompts, samples, strict=True):
        log_odds = fitted.mind.ask + fitted.mind.ask_slope * (difficulty - 0.5) + fitted.nature.noise_share * ask_noise
        assert sigmoid(log_odds) == pytest.approx(each.asks, abs=1e-3)
