"""Admission: how many calls run at once and how many may wait. Knows slots, queues and who waits in them; knows nothing of money or of what
runs in a slot.

Devices take turns: a slot that becomes free goes to the device whose turn it is, and to its oldest call. A full queue makes room for a
device that has fewer calls in it than another: the newest call of the one with most is turned away. So a lone device may use the whole
queue, and none can fill it against the others.
"""

from __future__ import annotations

import asyncio
from collections import deque

from edge.core.errors import CoordinatorUnavailable

RETRY_AFTER_S = 1.0
Turn = asyncio.Future[None]


def draining() -> CoordinatorUnavailable:
    """What is said to who asks for something new, or watches, while the coordinator drains."""
    return CoordinatorUnavailable("the coordinator is stopping", reason="DRAINING", retry_after_s=RETRY_AFTER_S)


class Gate:
    """`slots` at once, devices in turn; at most `max_queue` calls wait. Belongs to one event loop."""

    def __init__(self, name: str, slots: int, max_queue: int) -> None:
        self._name = name
        self._free = slots
        self._max_queue = max_queue
        self._lines: dict[str, deque[Turn]] = {}  # the first device is next
        self._waiting = 0

    @property
    def waiting(self) -> int:
        """How many wait for a slot."""
        return self._waiting

    async def enter(self, max_wait_s: float, device: str) -> None:
        """Take a slot, which `leave` gives back.

        Raises CoordinatorUnavailable (OVERLOADED, with a delay) when the queue is full or the wait too long, without a slot then.
        """
        if self._free > 0:
            self._free -= 1
            return
        turn = self._queue_up(device)
        try:
            async with asyncio.timeout(max_wait_s):
                await turn
        except TimeoutError as error:
            self._give_up(device, turn)
            raise self._overloaded(f"no slot within {max_wait_s:.1f} s") from error
        except asyncio.CancelledError:
            self._give_up(device, turn)
            raise

    def _queue_up(self, device: str) -> Turn:
        if self._waiting >= self._max_queue:
            self._make_room_for(device)
        turn: Turn = asyncio.get_running_loop().create_future()
        self._lines.setdefault(device, deque()).append(turn)
        self._waiting += 1
        return turn

    def _make_room_for(self, device: str) -> None:
        """Refuse the newest call of the device that waits with most. Raises unless it has at least two more than the asking device."""
        longest = max(self._lines, key=lambda other: len(self._lines[other]), default=device)
        mine = len(self._lines.get(device, ()))
        if len(self._lines.get(longest, ())) <= mine + 1:
            raise self._overloaded(f"{self._waiting} calls wait already")
        turn = self._lines[longest][-1]
        self._forget(longest, turn)
        if not turn.done():
            turn.set_exception(self._overloaded("calls of other devices had to come first"))

    def _give_up(self, device: str, turn: Turn) -> None:
        """Leave the queue, or hand on a slot that came at the same moment."""
        if turn in self._lines.get(device, ()):
            self._forget(device, turn)
        elif not turn.cancelled() and turn.exception() is None:
            self.leave()

    def _forget(self, device: str, turn: Turn) -> None:
        line = self._lines[device]
        line.remove(turn)
        self._waiting -= 1
        if not line:
            del self._lines[device]

    def leave(self) -> None:
        """Give a slot back: it goes to the device whose turn it is; that one is then last."""
        while self._lines:
            device = next(iter(self._lines))
            turn = self._lines[device][0]
            self._forget(device, turn)
            if device in self._lines:
                self._lines[device] = self._lines.pop(device)
            if not turn.done():  # else its call was just cancelled, and has yet to notice
                turn.set_result(None)
                return
        self._free += 1

    def _overloaded(self, why: str) -> CoordinatorUnavailable:
        return CoordinatorUnavailable(f"upstream {self._name} is busy: {why}", reason="OVERLOADED", retry_after_s=RETRY_AFTER_S)


class Turnstile:
    """Limits how many are inside at once; nobody waits. A caller may enter while it has no more inside than places are free. So one
    caller takes about half, n callers about n / (n + 1), and a new caller always finds a place.
    """

    def __init__(self, what: str, most: int) -> None:
        """`what` is counted, for the refusal's message."""
        self.what = what
        self.most = most
        self.inside = 0
        self.of: dict[str, int] = {}

    def passage(self, who: str) -> _Passage:
        """Be inside, within a `with`. Raises CoordinatorUnavailable (OVERLOADED, with a delay) when it is full, or has too many of
        `who` inside."""
        return _Passage(self, who)


class _Passage:
    __slots__ = ("_turnstile", "_who")

    def __init__(self, turnstile: Turnstile, who: str) -> None:
        self._turnstile = turnstile
        self._who = who

    def __enter__(self) -> None:
        it = self._turnstile
        free, mine = it.most - it.inside, it.of.get(self._who, 0)
        if free <= 0 or mine > free:
            message = f"{it.inside} {it.what} already" + (f", {mine} of this caller" if free > 0 else "")
            raise CoordinatorUnavailable(message, reason="OVERLOADED", retry_after_s=RETRY_AFTER_S)
        it.inside += 1
        it.of[self._who] = mine + 1

    def __exit__(self, *exc_info: object) -> None:
        it = self._turnstile
        it.inside -= 1
        it.of[self._who] -= 1
        if not it.of[self._who]:
            del it.of[self._who]
