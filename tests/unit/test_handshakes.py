"""Counting TLS connections that came to no call, in manual time."""

from __future__ import annotations

import logging

from coordinator.service.tls import PATIENCE_S, Handshakes
from edge.testing.clock import ManualClock

LONGEST_S = 100.0


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.handshakes = Handshakes(self.clock, LONGEST_S)

    def counts(self) -> tuple[int, int]:
        return self.handshakes.counts()


def test_a_handshake_without_a_call_has_failed_once_patience_is_over_and_not_before() -> None:
    world = World()
    world.handshakes.began()
    world.clock.advance(PATIENCE_S - 0.1)
    assert world.counts() == (0, 0)
    world.clock.advance(0.2)
    assert world.counts() == (0, 1)


def test_failures_are_counted_in_full_among_connections_that_are_served_all_the_time() -> None:
    world = World()
    for second in range(50):
        world.handshakes.began()
        if second % 5 == 0:
            world.handshakes.began()  # turned away
        for _ in range(2):  # a connection is served once, however often it calls
            world.handshakes.served(f"ipv4:10.0.0.1:{second}")
        world.clock.advance(1.0)
    served, failed = world.counts()
    assert served == 50 and 8 <= failed <= 10
    world.clock.advance(PATIENCE_S)
    assert world.counts() == (50, 10)


def test_a_late_first_call_makes_up_for_having_been_counted_as_failed() -> None:
    world = World()
    world.handshakes.began()
    world.clock.advance(PATIENCE_S)
    assert world.counts() == (0, 1)
    world.handshakes.served("ipv4:10.0.0.1:5000")
    world.handshakes.began()
    world.clock.advance(PATIENCE_S)
    assert world.counts() == (1, 1)


def test_a_port_used_again_when_no_connection_can_be_that_old_is_another_connection() -> None:
    world = World()
    for connections in (1, 2):
        world.handshakes.began()
        world.handshakes.served("ipv4:10.0.0.1:5000")
        assert world.counts() == (connections, 0)
        world.clock.advance(LONGEST_S + 1.0)
    assert world.counts() == (2, 0)


def test_failures_are_told_in_one_line_and_only_once(caplog) -> None:
    world = World()
    for _ in range(3):
        world.handshakes.began()
    world.clock.advance(PATIENCE_S)
    with caplog.at_level(logging.WARNING):
        world.handshakes.log_failures()
        world.handshakes.log_failures()
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("3 TLS connections came to no call")
