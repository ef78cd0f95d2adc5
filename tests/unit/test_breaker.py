"""The circuit breaker opens on failures and Retry-After, probes with one call at a time, and never opens for a client error."""

from __future__ import annotations

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
    assert breaker.enter(5.0) is not None


@pytest.mark.parametrize(
    ("outcomes", "state"),
    [
        ([BAD, BAD, GOOD, BAD, BAD], BreakerState.CLOSED),  # a success starts the count anew
        ([*[NEUTRAL] * 100, BAD, NEUTRAL, BAD, NEUTRAL], BreakerState.CLOSED),
        ([*[NEUTRAL] * 100, BAD, NEUTRAL, BAD, NEUTRAL, BAD], BreakerState.OPEN),
    ],
)
def test_client_errors_never_open_it_and_do_not_hide_real_failures(outcomes: list[UpstreamOutcome], state: BreakerState) -> None:
    breaker = Breaker(TERMS)
    for outcome in outcomes:
        play(breaker, outcome, 0.0, retry_after_s=0.0)
    assert breaker.state(0.0) is state


def test_log_shows_by_default_that_an_upstream_answers_again(caplog: pytest.LogCaptureFixture) -> None:
    breaker = Breaker(TERMS, "big")
    for _ in range(3):
        play(breaker, BAD, 0.0)
    play(breaker, GOOD, 6.0)
    assert [(record.levelname, "big" in record.getMessage()) for record in caplog.records] == [("WARNING", True)] * 2


def test_one_probe_at_a_time_passes_and_success_closes_it() -> None:
    breaker = opened()
    probe = breaker.enter(5.0)
    assert probe is not None and breaker.enter(5.0) is None and breaker.wait_s(5.0) == PROBE_RETRY_S
    breaker.leave(probe, GOOD, 6.0)
    assert breaker.state(6.0) is BreakerState.CLOSED
    play(breaker, BAD, 6.0)
    assert breaker.state(6.0) is BreakerState.CLOSED


def test_failed_probe_doubles_the_pause_up_to_the_maximum_and_success_resets_it() -> None:
    breaker, now_s, pauses = opened(), 0.0, []
    for _ in range(4):
        pauses.append(breaker.wait_s(now_s))
        now_s += breaker.wait_s(now_s)
        play(breaker, BAD, now_s)
    assert pauses == [5.0, 10.0, 20.0, 20.0]
    now_s += breaker.wait_s(now_s)
    play(breaker, GOOD, now_s)
    for _ in range(3):
        play(breaker, BAD, now_s)
    assert breaker.wait_s(now_s) == 5.0


def test_neutral_probe_lets_the_next_call_probe() -> None:
    breaker = opened()
    play(breaker, NEUTRAL, 5.0)
    assert breaker.state(5.0) is BreakerState.HALF_OPEN
    play(breaker, GOOD, 5.0)
    assert breaker.state(5.0) is BreakerState.CLOSED


def test_retry_after_is_honoured_immediately_up_to_a_maximum() -> None:
    breaker = Breaker(TERMS)
    play(breaker, BAD, 0.0, retry_after_s=42.0)
    assert breaker.wait_s(0.0) == 42.0 and breaker.enter(41.9) is None
    play(breaker, GOOD, 42.0)
    play(breaker, BAD, 50.0, retry_after_s=86_400.0)
    assert breaker.wait_s(50.0) == 100.0


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
