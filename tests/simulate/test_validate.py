"""Simulated times against real ones: overheads are found again, and the goal is missed by what is off."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge.core.errors import EdgeError
from tools.simulate.fleet.hardware import SimulatedSpeed
from tools.simulate.validate import TimedAnswer, agreements, with_overheads

SPEED = SimulatedSpeed("test", "m", 1000.0, ((1, 100.0), (8, 400.0)), 500.0, 1.0, 2.0)
REAL = replace(SPEED, overhead_s=0.004, token_overhead_s=0.0005)


def answer(prompt: int, tokens: int, slower: float = 1.0) -> TimedAnswer:
    first_s = REAL.read_s(prompt) + REAL.token_s
    return TimedAnswer(prompt, tokens, slower * first_s, slower * (first_s + REAL.shown_s(tokens)))


ANSWERS = [answer(10 * n, 5 + 7 * n) for n in range(1, 20)]


def test_the_overheads_that_a_device_has_are_found_again_at_any_lengths() -> None:
    found = with_overheads(SPEED, ANSWERS)
    assert found.overhead_s == pytest.approx(0.004)
    assert found.token_overhead_s == pytest.approx(0.0005)


def test_both_times_of_a_device_agree_with_its_own_answers_and_differ_by_what_others_are_slower() -> None:
    assert [one.off for one in agreements(REAL, ANSWERS)] == pytest.approx([0.0] * 4)
    slower = [answer(10 * n, 5 + 7 * n, 1.25) for n in range(1, 20)]
    assert [one.off for one in agreements(REAL, slower)] == pytest.approx([-0.2] * 4)


def test_answers_without_a_second_token_give_no_figures() -> None:
    with pytest.raises(EdgeError, match="two tokens"):
        with_overheads(SPEED, [])
    with pytest.raises(EdgeError, match="two tokens"):
        agreements(SPEED, [])
