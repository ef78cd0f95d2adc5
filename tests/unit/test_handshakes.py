"""Counting TLS connections without a call, in manual time."""

from __future__ import annotations

import logging

import pytest

from coordinator.service.tls import PATIENCE_S, Handshakes
from edge.testing.clock import ManualClock

LONGEST_S = 100.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def handshakes(clock: ManualClock) -> Handshakes:
    return Handshakes(clock, LONGEST_S)


def test_failed_handshakes_are_counted_only_after_the_grace_period(clock: ManualClock, handshakes: Handshakes) -> None:
    for second in range(50):
        handshakes.began()
        if second % 5 == 0:
            handshakes.began()  # turned away
        for _ in range(2):  # a connection is served once, however often it calls
            handshakes.served(f"ipv4:10.0.0.1:{second}")
        clock.advance(1.0)
    served, failed = handshakes.counts()
    assert served == 50 and 8 <= failed <= 10
    handshakes.began()
    clock.advance(PATIENCE_S - 0.1)
    assert handshakes.counts() == (50, 10)
    clock.advance(0.2)
    assert handshakes.counts() == (50, 11)


def test_late_first_call_corrects_the_count_of_failures(clock: ManualClock, handshakes: Handshakes) -> None:
    handshakes.began()
    clock.advance(PATIENCE_S)
    assert handshakes.counts() == (0, 1)
    handshakes.served("ipv4:10.0.0.1:5000")
    handshakes.began()
    clock.advance(PATIENCE_S)
    assert handshakes.counts() == (1, 1)


def test_port_reused_after_the_longest_connection_age_is_another_connection(clock: ManualClock, handshakes: Handshakes) -> None:
    for connections in (1, 2):
        handshakes.began()
        handshakes.served("ipv4:10.0.0.1:5000")
        assert handshakes.counts() == (connections, 0)
        clock.advance(LONGEST_S + 1.0)


def test_failures_are_logged_once(clock: ManualClock, handshakes: Handshakes, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        handshakes.began()
    clock.advance(PATIENCE_S)
    with caplog.at_level(logging.WARNING):
        handshakes.log_failures()
        handshakes.log_failures()
    (line,) = caplog.messages
    assert line.startswith("3 ")
