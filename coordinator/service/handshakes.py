"""TLS connections that never came to a call. Knows when handshakes begin and which connections make calls; knows no certificate.

gRPC tells nobody of a handshake that failed. But it asks for the server's certificate before each one, and a connection that stands makes
a call: what began and made none within PATIENCE_S is counted as failed. That is close, not exact: a port scan counts, and a device that
waits longer before its first call is counted once too early and makes up for a later one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque

from edge.core.clock import Clock

log = logging.getLogger(__name__)
PATIENCE_S = 10.0
TELL_EVERY_S = 60.0


class Handshakes:
    """Counts them for all listeners of a process. `began` may be called from any thread, the rest from the event loop.

    No connection lives for longer than `longest_connection_s`: after that the same peer is another one.
    """

    def __init__(self, clock: Clock, longest_connection_s: float) -> None:
        self._clock = clock
        self._longest_connection_s = longest_connection_s
        self._pending: deque[float] = deque()
        self._peers: OrderedDict[str, float] = OrderedDict()
        self._served = 0
        self._failed = 0
        self._counted_too_early = 0
        self._told = 0

    def began(self) -> None:
        """A handshake begins."""
        self._pending.append(self._clock.monotonic())

    def served(self, peer: str) -> None:
        """This peer makes a call over TLS. Its first one ends the wait for a handshake: the newest, which most likely was its own."""
        now = self._clock.monotonic()
        first_seen = self._peers.get(peer)
        if first_seen is not None and now - first_seen <= self._longest_connection_s:
            return
        self._peers[peer] = now
        self._peers.move_to_end(peer)
        self._served += 1
        if self._pending:
            self._pending.pop()
        else:
            self._counted_too_early += 1
        self._forget_ended(now)

    def counts(self) -> tuple[int, int]:
        """Connections that made a call, and those that came to none."""
        return self._served, self.failed()

    def failed(self) -> int:
        """Handshakes that began PATIENCE_S ago or earlier and came to no call; never less than before."""
        now = self._clock.monotonic()
        while self._pending and now - self._pending[0] >= PATIENCE_S:
            self._pending.popleft()
            if self._counted_too_early:
                self._counted_too_early -= 1
            else:
                self._failed += 1
        return self._failed

    def tell(self) -> None:
        """One line in the log when more have failed since the last one."""
        fresh = self.failed() - self._told
        if fresh:
            self._told += fresh
            log.warning(
                "%d TLS connections came to no call: no certificate, one of another authority or one that has expired, or no TLS at all",
                fresh,
            )

    async def watch(self) -> None:
        """Tell from time to time, until cancelled."""
        while True:
            await asyncio.sleep(TELL_EVERY_S)
            self.tell()

    def _forget_ended(self, now: float) -> None:
        while self._peers and now - next(iter(self._peers.values())) > self._longest_connection_s:
            self._peers.popitem(last=False)
