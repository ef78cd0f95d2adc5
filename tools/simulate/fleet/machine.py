"""A simulated device's time and energy.

People come first: while one is served, learning stands still. Learning's responses share the device as rows of one batch. After
`throttle_after_s` of unbroken work (pauses under a minute do not count) all speeds fall to `throttle_share`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tools.simulate.fleet.hardware import SimulatedSpeed

COOL_S = 60.0
HOUR_S = 3600.0
_DONE = 1e-9


@dataclass(eq=False, slots=True)
class _Work:
    """What is left: seconds at full speed of work that has the device for itself, or tokens of `rows` that are decoded together."""

    left: float
    rows: int
    done: asyncio.Future[None]


class Machine:
    """One device. Belongs to one event loop; a battery is full at the beginning."""

    def __init__(self, loop: asyncio.AbstractEventLoop, speed: SimulatedSpeed) -> None:
        self.speed = speed
        self.energy_wh = 0.0
        self._empty_s = 0.0
        self._loop = loop
        self._at = loop.time()
        self._serving = 0
        self._alone: deque[_Work] = deque()
        self._batch: list[_Work] = []
        self._timer: asyncio.TimerHandle | None = None
        self._hot_since: float | None = None
        self._idle_since: float | None = None
        self._charge_wh = speed.battery_wh or 0.0
        self._empty_since: float | None = None

    # people --------------------------------------------------------------------------------------------------------------------

    @contextmanager
    def serving(self) -> Iterator[None]:
        """While this is held somebody is served, and nothing else runs."""
        self._change(serving=1)
        try:
            yield
        finally:
            self._change(serving=-1)

    async def serve(self, seconds: float) -> None:
        """Work for whom is served; `seconds` at full speed."""
        now = self._loop.time()
        full_s = self._throttles_in(now)
        if full_s is None:
            seconds /= self._share(now)
        elif seconds > full_s:
            seconds = full_s + (seconds - full_s) / self.speed.throttle_share
        await asyncio.sleep(seconds)

    # learning ------------------------------------------------------------------------------------------------------------------

    async def compute(self, seconds: float) -> None:
        """Work that has the device for itself, at full speed; after what was asked for before."""
        if seconds > 0.0:
            await self._run(_Work(seconds, 0, self._loop.create_future()))

    async def decode(self, tokens: int, rows: int) -> None:
        """Decode so many tokens in so many rows, together with the other rows that are under way."""
        await self._run(_Work(float(tokens), rows, self._loop.create_future()))

    # figures -------------------------------------------------------------------------------------------------------------------

    @property
    def empty(self) -> bool:
        """Whether the battery is."""
        self.settle()
        return self._empty_since is not None

    @property
    def empty_for_s(self) -> float:
        """How long it was empty so far."""
        return self._empty_s + (0.0 if self._empty_since is None else self._at - self._empty_since)

    def recharge(self) -> None:
        """A full battery again."""
        self.settle()
        if self._empty_since is not None:
            self._empty_s += self._at - self._empty_since
        self._charge_wh, self._empty_since = self.speed.battery_wh or 0.0, None

    # inside --------------------------------------------------------------------------------------------------------------------

    async def _run(self, work: _Work) -> None:
        self.settle()
        place: deque[_Work] | list[_Work] = self._batch if work.rows else self._alone
        place.append(work)
        self._plan()
        try:
            await work.done
        finally:
            if work in place:
                self.settle()
                place.remove(work)
                self._plan()

    def _change(self, serving: int) -> None:
        self.settle()
        self._serving += serving
        self._plan()

    @property
    def _busy(self) -> bool:
        return bool(self._serving or self._alone or self._batch)

    def settle(self) -> None:
        """Account for the time since the last update: energy, and what learning got done."""
        now = self._loop.time()
        elapsed, self._at = now - self._at, now
        if elapsed <= 0.0:
            return
        busy = self._busy
        self._draw(elapsed, self.speed.busy_w if busy else self.speed.idle_w)
        if busy and not self._serving:
            seconds = elapsed * self._share(now - elapsed)
            if self._alone:
                self._alone[0].left -= seconds
            else:
                rows = sum(work.rows for work in self._batch)
                each = seconds * self.speed.decode_rate(rows) / rows
                for work in self._batch:
                    work.left -= each * work.rows

    def _draw(self, elapsed: float, watts: float) -> None:
        used = watts * elapsed / HOUR_S
        if self.speed.battery_wh is not None:
            if self._empty_since is not None and not self._busy:
                return  # an empty device is off
            if used >= self._charge_wh and self._empty_since is None:
                self._empty_since = self._at - elapsed + (self._charge_wh * HOUR_S / watts if watts else elapsed)
                used = used if self._busy else self._charge_wh
            self._charge_wh = max(0.0, self._charge_wh - used)
        self.energy_wh += used

    def _plan(self) -> None:
        """Heat, and the time at which something is next done or speeds change."""
        now = self._at
        if self._busy:
            if self._hot_since is None or (self._idle_since is not None and now - self._idle_since >= COOL_S):
                self._hot_since = now
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._serving and (self._alone or self._batch):
            self._timer = self._loop.call_later(self._next_s(now), self._tick)

    def _next_s(self, now: float) -> float:
        if self._alone:
            seconds = self._alone[0].left
        else:
            rows = sum(work.rows for work in self._batch)
            each = self.speed.decode_rate(rows) / rows
            seconds = min(work.left / (each * work.rows) for work in self._batch)
        seconds = max(0.0, seconds) / self._share(now)
        slower_in = self._throttles_in(now)
        return seconds if slower_in is None else min(seconds, slower_in)

    def _tick(self) -> None:
        self._timer = None
        self.settle()
        if self._alone:
            if self._alone[0].left <= _DONE:
                _finish(self._alone.popleft())
        else:
            done = [work for work in self._batch if work.left <= _DONE * self.speed.decode_rate(1)]
            self._batch = [work for work in self._batch if work not in done]
            for work in done:
                _finish(work)
        self._plan()

    def _throttles_in(self, now: float) -> float | None:
        """Seconds until speeds fall; None when they do not, or have."""
        if self.speed.throttle_after_s is None or self._hot_since is None:
            return None
        left = self._hot_since + self.speed.throttle_after_s - now
        return left if left > _DONE else None

    def _share(self, now: float) -> float:
        hot = self.speed.throttle_after_s is not None and self._hot_since is not None and self._throttles_in(now) is None
        return self.speed.throttle_share if hot else 1.0


def _finish(work: _Work) -> None:
    if not work.done.done():
        work.done.set_result(None)
