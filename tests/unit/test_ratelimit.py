"""Rate limits of a device and of the fleet, exact to the nanosecond."""

from __future__ import annotations

import pytest

from coordinator.calls.rates import FEWEST_BUCKETS_TO_SCAN, RateLimiter
from coordinator.config import RateConfig, RatesConfig
from edge.core.errors import RateLimited
from edge.testing.clock import ManualClock


def rates(
    device: tuple[int | None, int | None] = (None, None), fleet: tuple[int | None, int | None] = (None, None)
) -> RatesConfig:
    limit = [RateConfig(calls_per_min=per_min, burst=burst) for per_min, burst in (device, fleet)]
    return RatesConfig(device=limit[0], fleet=limit[1])


def started(limiter: RateLimiter, device: str, most: int = 1000) -> int:
    """How many calls pass immediately."""
    for count in range(most):
        try:
            limiter.take(device)
        except RateLimited:
            return count
    return most


def test_burst_passes_and_then_the_rate_applies() -> None:
    clock = ManualClock()
    limiter = RateLimiter(rates((60, 5)), clock)
    assert started(limiter, "d1") == 5
    clock.advance(3.0)
    assert started(limiter, "d1") == 3
    clock.advance(3600.0)
    assert started(limiter, "d1") == 5
    assert started(RateLimiter(rates((200, None)), clock), "d1") == 20, "without a burst a tenth of a minute's"
    assert started(RateLimiter(rates((3, None)), clock), "d1") == 1


def test_call_passes_after_the_reported_delay_and_not_before() -> None:
    clock = ManualClock(0.0)
    limiter = RateLimiter(rates((7, 1)), clock)
    limiter.take("d1")
    with pytest.raises(RateLimited) as refused:
        limiter.take("d1")
    assert refused.value.retry_after_s == pytest.approx(60 / 7, abs=1e-8)
    assert refused.value.hint
    clock.advance((refused.value.retry_after_s or 0.0) - 1e-6)
    assert started(limiter, "d1") == 0
    clock.advance(2e-6)
    assert started(limiter, "d1") == 1


def test_devices_have_separate_buckets_and_share_that_of_the_fleet() -> None:
    limiter = RateLimiter(rates((60, 3), (60, 5)), ManualClock())
    assert [started(limiter, device) for device in ("d1", "d2", "d3")] == [3, 2, 0]


def test_a_call_refused_for_the_fleet_costs_the_device_nothing() -> None:
    clock = ManualClock()
    limiter = RateLimiter(rates((6, 2), (60, 1)), clock)
    assert started(limiter, "d1") == 1
    with pytest.raises(RateLimited, match="the fleet"):
        limiter.take("d1")
    clock.advance(1.0)
    assert started(limiter, "d1") == 1
    with pytest.raises(RateLimited, match="this device"):
        limiter.take("d1")


def test_new_rates_apply_to_the_next_call_and_grant_nothing_extra() -> None:
    clock = ManualClock()
    limiter = RateLimiter(rates((60, 5)), clock)
    assert started(limiter, "d1") == 5
    limiter.replace_rates(rates((600, 50)))
    assert started(limiter, "d1") == 0
    clock.advance(1.0)
    assert started(limiter, "d1") == 10
    limiter.replace_rates(rates())
    assert started(limiter, "d1") == 1000


def test_clock_set_back_grants_no_calls() -> None:
    clock = ManualClock(100.0)
    limiter = RateLimiter(rates((60, 1)), clock)
    limiter.take("d1")
    clock._now = 50.0
    assert started(limiter, "d1") == 0
    clock._now = 100.5
    assert started(limiter, "d1") == 0


def test_full_buckets_of_absent_devices_are_dropped() -> None:
    """A bucket that is remembered would begin with what it held under the old burst, a new one begins full."""
    clock = ManualClock()
    limiter = RateLimiter(rates((60, 1)), clock)
    for number in range(FEWEST_BUCKETS_TO_SCAN):
        limiter.take(f"d{number}")
    clock.advance(10.0)
    limiter.take("new")
    limiter.replace_rates(rates((60, 10)))
    assert started(limiter, "new") == 0
    assert [started(limiter, f"d{number}") for number in (0, FEWEST_BUCKETS_TO_SCAN - 1)] == [10, 10]
