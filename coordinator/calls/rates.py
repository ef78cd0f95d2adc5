"""Rate limits: how many calls a minute a device, and the fleet together, may start. Knows buckets of tokens and a clock; knows nothing of
money, queues or gRPC.

A bucket holds up to `burst` calls and gains `calls_per_min`; all of it is integer arithmetic in nanoseconds, so that a pause of a minute is
worth exactly its calls. Buckets live in one process: each replica of a coordinator keeps its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.config import RateConfig, RatesConfig
from coordinator.ledger.accounts import amount_text
from edge.core.clock import Clock
from edge.core.errors import RateLimited

MINUTE_NS = 60 * 10**9
FEWEST_BUCKETS_TO_SCAN = 4096
FLEET = ""


@dataclass(slots=True)
class RateBucket:
    """The calls that one device, or the fleet, may still start."""

    calls_per_min: int
    burst: int
    level: int
    """What is left, in calls times MINUTE_NS, so that each nanosecond adds `calls_per_min` to it."""
    at_ns: int
    """When it was counted."""

    @property
    def is_full(self) -> bool:
        """Whether it holds all it can."""
        return self.level >= self.burst * MINUTE_NS

    @property
    def wait_ns(self) -> int:
        """Nanoseconds until a whole call is there; 0 when it is."""
        return max(0, -(-(MINUTE_NS - self.level) // self.calls_per_min))

    def count(self, now_ns: int) -> None:
        """Add what was gained since; a clock that stops or goes back adds nothing."""
        gained = max(0, now_ns - self.at_ns) * self.calls_per_min
        self.level = min(self.burst * MINUTE_NS, self.level + gained)
        self.at_ns = max(self.at_ns, now_ns)


class RateLimiter:
    """Takes one call from the device's bucket and from the fleet's, or from neither."""

    def __init__(self, rates: RatesConfig, clock: Clock) -> None:
        self._rates = rates
        self._clock = clock
        self._buckets: dict[str, RateBucket] = {}
        self._scan_at = FEWEST_BUCKETS_TO_SCAN

    def replace_rates(self, rates: RatesConfig) -> None:
        """Hold later calls to these rates; what is left in the buckets stays, up to the new bursts."""
        self._rates = rates

    def take(self, device: str) -> None:
        """Let one call of a device pass. Raises RateLimited with the delay after which it will."""
        now_ns = round(self._clock.monotonic() * 10**9)
        buckets = [self._bucket(FLEET, self._rates.fleet, now_ns), self._bucket(device, self._rates.device, now_ns)]
        limited = [bucket for bucket in buckets if bucket is not None]
        slowest = max(limited, key=lambda bucket: bucket.wait_ns, default=None)
        if slowest is not None and slowest.wait_ns > 0:
            who = "the fleet" if slowest is buckets[0] else "this device"
            raise RateLimited(
                f"{who} may start {amount_text('calls', slowest.calls_per_min)} a minute, and {slowest.burst} at once",
                hint="wait as long as it says, or answer locally",
                retry_after_s=slowest.wait_ns / 10**9,
            )
        for bucket in limited:
            bucket.level -= MINUTE_NS

    def _bucket(self, key: str, rate: RateConfig, now_ns: int) -> RateBucket | None:
        """The bucket as of now, under the rate that holds now; None where there is no limit."""
        if rate.calls_per_min is None:
            return None
        bucket = self._buckets.get(key)
        if bucket is None:
            self._forget_full(now_ns)
            full = rate.most_at_once * MINUTE_NS
            bucket = self._buckets[key] = RateBucket(rate.calls_per_min, rate.most_at_once, full, now_ns)
        bucket.calls_per_min, bucket.burst = rate.calls_per_min, rate.most_at_once
        bucket.count(now_ns)
        return bucket

    def _forget_full(self, now_ns: int) -> None:
        """Now and then forget the full buckets: a new one would be full as well."""
        if len(self._buckets) < self._scan_at:
            return
        for bucket in self._buckets.values():
            bucket.count(now_ns)
        self._buckets = {key: bucket for key, bucket in self._buckets.items() if not bucket.is_full}
        self._scan_at = max(FEWEST_BUCKETS_TO_SCAN, 2 * len(self._buckets))
