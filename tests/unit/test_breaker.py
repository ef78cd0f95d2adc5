"""The circuit breaker opens on failures and Retry-After, probes with one call at a time, and never opens for a client error."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.calls.breaker import PROBE_RETRY_S, Breaker, BreakerState, UpstreamOutcome
from coordinator.config import BreakerConfig

TERMS = BreakerConfig(failures_to_open=3, first_pause_s=5.0, longest_pause_s=20.0, longest_retry_after_s=100.0)
GOOD, BAD, NEUTRAL = UpstreamOutcome.GOOD, UpstreamOutcome.BAD, UpstreamOutcome.NEUTRAL


def play(breaker: Breaker, outcome: UpstreamOutcome, now_s: float, retry_after_s: float | None = None) -> None:
    """One call that passes and ends immediately."""
    passed = breaker.enter(now_s)
    assert passed is not None
    breaker.leave(passed, outcome, now_s, retry_after_s)


def opened(now_s: float = 0.0) -> Breaker:
    """A breaker that has just opened."""
    breaker = Breaker(TERMS)
    for _ in range(3):
        play(breaker, BAD, now_s)
    return breaker


def test_breaker_opens_after_consecutive_failures_says_so_and_refuses_during_the_pause(caplog: pytest.LogCaptureFixture) -> None:
    breaker = Breaker(TERMS, "big")
    for _ in range(3):
        assert not caplog.messages
        play(breaker, BAD, 0.0)
    assert [("big" in line, "5.0 s" in line) for line in caplog.messages] == [(True, True)]
    late = Breaker(TERMS, "small")
    for passed in [late.enter(0.0) for _ in range(9)]:
        assert passed is not None
        late.leave(passed, BAD, 1.0, 30.0)
    assert len(caplog.messages) == 2
    assert (breaker.state(0.0), breaker.wait_s(0.0), breaker.enter(4.9)) == (BreakerState.OPEN, 5.0, None)
    assert breaker.state(5.0) is BreakerState.HALF_OPEN
    play(breaker, GOOD, 6.0)
    assert (caplog.records[-1].levelname, "big" in caplog.messages[-1]) == ("WARNING", True), "shown by default, too"


OPENED = [(0.0, BAD)] * 3
FAILED_PROBES = [(5.0, BAD), (15.0, BAD), (35.0, BAD)]
HISTORIES = {
    "a success starts the count anew": ([*OPENED[:2], (0.0, GOOD), *OPENED[:2]], BreakerState.CLOSED, 0.0),
    "client errors never open it": ([(0.0, NEUTRAL)] * 100 + OPENED[:2], BreakerState.CLOSED, 0.0),
    "client errors hide no failures": (
        [*[(0.0, NEUTRAL)] * 100, *OPENED[:2], (0.0, NEUTRAL), *OPENED[:1]],
        BreakerState.OPEN,
        5.0,
    ),
    "a failed probe doubles the pause": (OPENED + FAILED_PROBES[:1], BreakerState.OPEN, 10.0),
    "another one again": (OPENED + FAILED_PROBES[:2], BreakerState.OPEN, 20.0),
    "up to a maximum": (OPENED + FAILED_PROBES, BreakerState.OPEN, 20.0),
    "a success resets the pause": ([*OPENED, *FAILED_PROBES, (55.0, GOOD), *[(55.0, BAD)] * 3], BreakerState.OPEN, 5.0),
    "a neutral probe lets the next call probe": ([*OPENED, (5.0, NEUTRAL)], BreakerState.HALF_OPEN, 0.0),
    "which closes it": ([*OPENED, (5.0, NEUTRAL), (5.0, GOOD)], BreakerState.CLOSED, 0.0),
    "Retry-After counts at once": ([(0.0, BAD, 42.0)], BreakerState.OPEN, 42.0),
    "Retry-After up to a maximum": ([(0.0, BAD, 42.0), (42.0, GOOD), (50.0, BAD, 86_400.0)], BreakerState.OPEN, 100.0),
}


@pytest.mark.parametrize(("history", "state", "wait_s"), HISTORIES.values(), ids=HISTORIES)
def test_state_and_pause_follow_from_the_calls_that_passed(
    history: list[tuple[Any, ...]], state: BreakerState, wait_s: float
) -> None:
    breaker = Breaker(TERMS)
    for now_s, outcome, *retry_after_s in history:
        play(breaker, outcome, now_s, *retry_after_s)
    assert (breaker.state(now_s), breaker.wait_s(now_s)) == (state, wait_s)
    assert breaker.enter(now_s + wait_s - 0.1) is None or wait_s == 0.0


def test_one_probe_at_a_time_passes_and_success_closes_it() -> None:
    breaker = opened()
    probe = breaker.enter(5.0)
    assert probe is not None and breaker.enter(5.0) is None and breaker.wait_s(5.0) == PROBE_RETRY_S
    breaker.leave(probe, GOOD, 6.0)
    assert breaker.state(6.0) is BreakerState.CLOSED
    play(breaker, BAD, 6.0)
    assert breaker.state(6.0) is BreakerState.CLOSED


def test_a_shorter_retry_after_does_not_shorten_a_pause() -> None:
    breaker = Breaker(TERMS)
    late, later = breaker.enter(0.0), breaker.enter(0.0)
    assert late is not None and later is not None
    breaker.leave(late, BAD, 1.0, retry_after_s=60.0)
    breaker.leave(later, BAD, 2.0, retry_after_s=1.0)
    assert breaker.wait_s(2.0) == 59.0


def test_outcomes_of_calls_started_before_opening_neither_close_nor_extend_it() -> None:
    breaker = Breaker(TERMS)
    early = [breaker.enter(0.0) for _ in range(6)]
    for passed in early[:3]:
        assert passed is not None
        breaker.leave(passed, BAD, 1.0)
    for passed, outcome in zip(early[3:], (GOOD, BAD, BAD), strict=True):
        assert passed is not None
        breaker.leave(passed, outcome, 2.0)
    assert breaker.state(2.0) is BreakerState.OPEN and breaker.wait_s(1.0) == 5.0


@given(st.lists(st.tuples(st.sampled_from([GOOD, BAD, NEUTRAL]), st.floats(0.0, 30.0), st.sampled_from([None, 0.0, 3.0, 1e9]))))
def test_breaker_always_passes_a_call_within_the_longest_pause(events) -> None:
    breaker, now_s = Breaker(TERMS), 0.0
    for outcome, pause_s, retry_after_s in events:
        now_s += pause_s
        wait_s = breaker.wait_s(now_s)
        passed = breaker.enter(now_s)
        assert (passed is None) == (wait_s > 0.0)
        if passed is not None:
            breaker.leave(passed, outcome, now_s, retry_after_s)
    assert breaker.enter(now_s + TERMS.longest_retry_after_s + 1e-6) is not None
