from __future__ import annotations

from edge.cloud.unconfirmed import ARRIVES_WITHIN_S, Arrivals
from edge.core.clock import ManualClock


def test_a_call_is_lost_once_it_is_unknown_for_so_long() -> None:
    clock = ManualClock()
    arrivals = Arrivals(clock)
    assert not arrivals.is_lost("k")
    clock.advance(ARRIVES_WITHIN_S - 1.0)
    assert not arrivals.is_lost("k")
    clock.advance(1.0)
    assert not arrivals.is_lost("other")
    assert arrivals.is_lost("k")


def test_a_call_that_is_sent_again_may_be_on_its_way_again() -> None:
    clock = ManualClock()
    arrivals = Arrivals(clock)
    assert not arrivals.is_lost("k")
    clock.advance(ARRIVES_WITHIN_S)
    arrivals.sent("k")
    assert not arrivals.is_lost("k")
