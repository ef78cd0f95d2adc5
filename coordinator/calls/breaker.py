"""The circuit breaker of one upstream: whether it may be asked now. Knows outcomes and seconds; knows nothing of calls, money or HTTP.

CLOSED     calls pass; `failures_to_open` failures in a row, or one that names a time to come back (Retry-After), open it
OPEN       nothing passes until the pause is over; the pause doubles each time a probe fails, and is never shorter than Retry-After
HALF_OPEN  one call at a time passes as a probe; one that succeeds closes the breaker, one that fails opens it again

Synchronous. Time is handed in as seconds of any clock that never goes back, so that virtual time drives it as well.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum, StrEnum

from coordinator.config import BreakerConfig

log = logging.getLogger(__name__)

PROBE_RETRY_S = 0.5


class BreakerState(StrEnum):
    """The state of a breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class UpstreamOutcome(Enum):
    """What a call that was let through shows about its upstream. NEUTRAL: nothing, as the fault was the client's or the caller left."""

    GOOD = "good"
    BAD = "bad"
    NEUTRAL = "neutral"


@dataclass(frozen=True, slots=True)
class Pass:
    """Leave to ask the upstream once; to be given back with `Breaker.leave`."""

    period: int
    """The closed or probing time that it belongs to."""
    probe: bool


class Breaker:
    """The state of the upstream called `alias`. Belongs to one event loop."""

    def __init__(self, terms: BreakerConfig | None = None, alias: str = "") -> None:
        self._alias = alias
        self._terms = terms or BreakerConfig()
        self._failures = 0
        self._reopened = 0
        self._open_until_s: float | None = None
        self._probing = False
        self._period = 0

    def state(self, now_s: float) -> BreakerState:
        """Its state at this time."""
        if self._open_until_s is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now_s < self._open_until_s else BreakerState.HALF_OPEN

    def wait_s(self, now_s: float) -> float:
        """Seconds until a call may pass; 0.0 when one may now."""
        match self.state(now_s):
            case BreakerState.OPEN:
                assert self._open_until_s is not None
                return self._open_until_s - now_s
            case BreakerState.HALF_OPEN if self._probing:
                return PROBE_RETRY_S
            case _:
                return 0.0

    def enter(self, now_s: float) -> Pass | None:
        """Leave to ask the upstream, or None when it must not be asked now."""
        if self.wait_s(now_s) > 0.0:
            return None
        self._probing = probe = self._open_until_s is not None
        return Pass(self._period, probe)

    def leave(self, passed: Pass, outcome: UpstreamOutcome, now_s: float, retry_after_s: float | None = None) -> None:
        """Report how the call of a pass went; exactly once per pass. `retry_after_s` is when the upstream wants to be asked again."""
        if passed.probe:
            self._probing = False
        # A time to come back is kept to whenever the call began. Otherwise a call of an earlier period shows nothing about this one: those
        # that were under way when the breaker opened would close it again, or make its pause longer.
        if outcome is UpstreamOutcome.BAD and retry_after_s:
            self._open(now_s, min(retry_after_s, self._terms.longest_retry_after_s))
        elif passed.period == self._period and outcome is not UpstreamOutcome.NEUTRAL:
            self._count(passed, outcome, now_s)

    def _count(self, passed: Pass, outcome: UpstreamOutcome, now_s: float) -> None:
        if outcome is UpstreamOutcome.GOOD:
            self._close(passed)
            return
        self._failures += 1
        if passed.probe or self._failures >= self._terms.failures_to_open:
            pause_s = self._terms.first_pause_s * 2.0 ** min(self._reopened, 30)
            self._open(now_s, min(pause_s, self._terms.longest_pause_s))
            self._reopened += 1

    def _close(self, passed: Pass) -> None:
        self._failures = 0
        if passed.probe:
            self._period += 1
            self._reopened, self._open_until_s = 0, None
            log.warning("upstream %s answers again", self._alias)

    def _open(self, now_s: float, pause_s: float) -> None:
        """Open it, or keep it open longer; never shorter. Calls let through before show nothing about the time after."""
        if self.state(now_s) is not BreakerState.OPEN:
            log.warning("upstream %s is not asked for %.1f s (breaker open)", self._alias, pause_s)
        self._period += 1
        self._failures = 0
        self._open_until_s = max(self._open_until_s or 0.0, now_s + pause_s)
