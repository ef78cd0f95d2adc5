"""When a call that the coordinator does not know will never arrive there. Knows call keys and a clock; asks nobody.

That the coordinator does not know a call is no last word while its request may still be on its way: a person who leaves is followed by the
question of what became of their call, which can overtake it. It is the last word once it is heard again ARRIVES_WITHIN_S later: what was
sent that long ago has arrived, or is lost with its connection, which both ends give up after 40 s without a sign of life.
"""

from __future__ import annotations

from edge.core.clock import Clock

ARRIVES_WITHIN_S = 45.0


class Arrivals:
    """Of the calls of one process; another one begins to wait anew."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._unknown_since: dict[str, float] = {}

    def sent(self, key: str) -> None:
        """A request leaves: what was heard of the call before counts no longer."""
        self._unknown_since.pop(key, None)

    def is_lost(self, key: str) -> bool:
        """Told that the coordinator does not know the call now: whether no request of it can be on its way any more."""
        now = self._clock.monotonic()
        lost = now - self._unknown_since.setdefault(key, now) >= ARRIVES_WITHIN_S
        if lost:
            del self._unknown_since[key]
        return lost
