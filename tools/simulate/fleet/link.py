"""A simulated link to the coordinator: delays by distance, bytes and chance, and outages.

Nothing is lost for good without a word: the transport sends lost messages again. What meets an outage comes when that is over, or, when it
lasts longer than PATIENCE_S, breaks its connection after that time, as gRPC's keep-alive does; open streams break then, too.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import grpc

from tools.simulate.fleet.hardware import LinkModel
from tools.simulate.fleet.scenario import DAY_S, HOUR_S
from tools.simulate.virtual.loop import is_alive
from tools.simulate.virtual.network import Network, RpcExchange, ServiceEndpoint, SimulatedChannel

OVERHEAD_BYTES = 120
"""Of every message: HTTP/2 frames and headers, TLS, IP."""
PATIENCE_S = 40.0
"""How long a connection over a dead link lasts: 30 s until a keep-alive is sent, 10 s until it counts as unanswered."""


class Outage(NamedTuple):
    """From when until when nothing passes, in virtual seconds."""

    began: float
    ends: float


NEVER = Outage(math.inf, math.inf)
NEVER_YET = Outage(-math.inf, -math.inf)
_FAR_AHEAD = 200
"""Outages that are looked through for one that lasts."""


class DeviceLink:
    """One device's link. `LinkFaults` of the fleet's network. What is over is remembered until `outages_until` was asked for it."""

    def __init__(self, model: LinkModel, rng: random.Random, starts_at_h: float) -> None:
        self.model = model
        self.streams: dict[RpcExchange, None] = {}
        self.waiting: dict[asyncio.Future[None], None] = {}
        self._rng = rng
        self._chance = _by_chance(model, rng)
        self._offline = _by_hours(model, starts_at_h)
        self._forced = NEVER_YET
        self._ahead = deque([next(self._chance)])
        self._hours = next(self._offline)
        self._over: list[Outage] = []
        self._free = [0.0, 0.0]

    def force_down(self, now: float, seconds: float) -> None:
        """Nothing passes for so long; longer where it was forced down for longer already."""
        self._over.append(self._forced)
        self._forced = Outage(now, max(now + seconds, self._forced.ends))

    def heal(self, now: float) -> None:
        """No outage any more."""
        self.up_again(now)
        self._over += [self._forced, *self._ahead, self._hours]
        self._forced = NEVER_YET
        self._ahead, self._hours = deque([NEVER]), NEVER

    def outages_until(self, at: float) -> list[Outage]:
        """Those that began before `at` and were not over when this was asked the last time, in no order; some may overlap."""
        self.up_again(at)
        begun = [each for each in (*self._over, *self._ahead, self._hours, self._forced) if each.began < at]
        self._over = [each for each in self._over if each.ends > at]
        return begun

    def up_again(self, now: float) -> float:
        """When something passes again; `now` itself while the link is up."""
        while self._ahead[0].ends <= now:
            self._over.append(self._ahead.popleft())
            if not self._ahead:
                self._ahead.append(next(self._chance))
        while self._hours.ends <= now:
            self._over.append(self._hours)
            self._hours = next(self._offline)
        at = now
        while ends := [outage.ends for outage in (self._ahead[0], self._hours, self._forced) if outage.began <= at < outage.ends]:
            at = max(ends)
        return at

    def next_outage(self, now: float) -> Outage:
        """The next one that is not over and longer than a connection's patience; or, where none comes for long, one of many to come."""
        self.up_again(now)
        long = (outage for outage in self._ahead if outage.ends - outage.began > PATIENCE_S)
        found = next(long, None)
        while found is None and len(self._ahead) < _FAR_AHEAD:
            self._ahead.append(next(self._chance))
            found = self._ahead[-1] if self._ahead[-1].ends - self._ahead[-1].began > PATIENCE_S else None
        return min(found or self._ahead[-1], self._hours, key=lambda outage: outage.began)

    def delay_s(self, now: float, size: int, up: bool) -> float:
        """How long a message of so many bytes takes; those of one direction share the bandwidth."""
        model, way = self.model, int(up)
        bandwidth = model.up_bytes_per_s if up else model.down_bytes_per_s
        self._free[way] = max(now, self._free[way]) + (size + OVERHEAD_BYTES) / bandwidth
        delay = self._free[way] - now + 0.5 * model.rtt_s
        delay += self._rng.expovariate(2.0 / model.jitter_s) if model.jitter_s else 0.0
        while model.loss and self._rng.random() < model.loss:
            delay += model.retransmit_s
        return delay


class FleetNetwork(Network):
    """Carries messages over links."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rng: random.Random) -> None:
        super().__init__(loop, rng, keepalive_s=None)

    def carry(  # type: ignore[override]
        self,
        faults: DeviceLink,
        deliver: Callable[[], None],
        lost: Callable[[], None] | None = None,
        *,
        size: int = 0,
        up: bool = False,
    ) -> bool:
        """Deliver once, later; or, in a long outage, say that the connection broke. What nobody would miss waits the outage out."""
        if not is_alive():
            return True
        now, traffic = self.loop.time(), self.traffic
        traffic.sent += 1
        begins = faults.up_again(now)
        if begins - now > PATIENCE_S and lost is not None:
            traffic.dropped += 1
            self.later(PATIENCE_S, lost)
            return True
        self.later(begins - now + faults.delay_s(now, size, up), deliver)
        return True

    def wake(self, link: DeviceLink) -> None:
        """What waited for this link, or for who is at its other end, looks again."""
        waiting, link.waiting = link.waiting, {}
        for future in waiting:
            if not future.done():
                future.set_result(None)


class FleetChannel(SimulatedChannel):
    """A channel over a link. Waits for a connection without polling."""

    def __init__(self, network: FleetNetwork, find: Callable[[], ServiceEndpoint | None], link: DeviceLink) -> None:
        super().__init__(network, find, link)  # type: ignore[arg-type]
        self._fleet = network
        self._link = link
        self._watching = False

    def open(self, exchange: RpcExchange) -> None:
        """Send an RPC's first request; a stream breaks in an outage that lasts."""
        super().open(exchange)
        if exchange.streams:
            self._link.streams[exchange] = None
            self._watch_outages()

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """READY while there is someone to talk to."""
        now = self._network.loop.time()
        reachable = self._link.up_again(now) <= now and self._find() is not None
        return grpc.ChannelConnectivity.READY if reachable else grpc.ChannelConnectivity.CONNECTING

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Wait until there is someone to talk to, or no longer."""
        loop, link = self._network.loop, self._link
        while self.get_state() is last_observed_state:
            changed: asyncio.Future[None] = loop.create_future()
            link.waiting[changed] = None
            up_in = link.up_again(loop.time()) - loop.time()
            timer = loop.call_later(up_in, self._fleet.wake, link) if up_in > 0.0 else None
            try:
                await changed
            finally:
                link.waiting.pop(changed, None)
                if timer is not None:
                    timer.cancel()

    def break_streams(self) -> None:
        """The keep-alive of the connection went unanswered."""
        streams, self._link.streams = self._link.streams, {}
        for exchange in streams:
            if not exchange.over:
                exchange.reset()

    def _watch_outages(self) -> None:
        now = self._network.loop.time()
        outage = self._link.next_outage(now)
        if not self._watching and outage.began < math.inf:
            self._watching = True
            self._network.later(max(0.0, outage.began - now) + PATIENCE_S, self._outage_lasts)

    def _outage_lasts(self) -> None:
        self._watching = False
        now = self._network.loop.time()
        if self._link.up_again(now) > now:
            self.break_streams()
        self._link.streams = {exchange: None for exchange in self._link.streams if not exchange.over}
        if self._link.streams:
            self._watch_outages()


def covered_s(outages: Iterable[Outage], begins: float, ends: float) -> float:
    """Seconds of this interval that lie in any of them."""
    covered, seen = 0.0, begins
    for first, last in sorted(outages):
        first, last = max(first, seen), min(last, ends)
        if last > first:
            covered, seen = covered + (last - first), last
    return covered


def _by_chance(model: LinkModel, rng: random.Random) -> Iterator[Outage]:
    at = 0.0
    while model.mean_up_s is not None and model.mean_down_s > 0.0:
        began = at + rng.expovariate(1.0 / model.mean_up_s)
        at = began + rng.expovariate(1.0 / model.mean_down_s)
        yield Outage(began, at)
    while True:
        yield NEVER


def _by_hours(model: LinkModel, starts_at_h: float) -> Iterator[Outage]:
    if model.offline_hours is not None:
        first, last = model.offline_hours
        lasts_s, midnight = ((last - first) % 24.0 or 24.0) * HOUR_S, -starts_at_h * HOUR_S - DAY_S
        if lasts_s == DAY_S:
            yield Outage(-DAY_S, 1e9)  # longer than any scenario
        while True:
            began = midnight + first * HOUR_S
            yield Outage(began, began + lasts_s)
            midnight += DAY_S
    while True:
        yield NEVER
