"""One call in flight. Knows who waits for it and what has arrived so far; knows nothing of how it is run.

A flight runs in its own task, detached from the handlers that wait for it: a client that goes away does not kill settlement. Only while it
waits for a slot, when nothing was held or sent yet, does the last client's leaving cancel it. `release` sends everybody away who waits.
A flight is never cut while the ledger writes for it: what the ledger did would be known to nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from coordinator.calls.admission import draining
from coordinator.calls.upstreams import Upstream
from edge.core.errors import CallCancelled
from edge.rpc.client import CloudCall, CloudCompletion

GroupId = tuple[str, str, int, str]


@dataclass(frozen=True, slots=True)
class Job:
    """A checked call of a device."""

    device: str
    call: CloudCall
    route: tuple[Upstream, ...]
    """Its upstreams in the order they are asked."""
    fingerprint: str
    """Digest of its content."""
    end: float
    """When its first caller's patience ends (loop time)."""
    user: str = ""
    """The person that the device asks for, held to a budget of their own; "" for nobody in particular."""
    fresh: bool = False
    """It is not given another call's stored answer."""

    @property
    def group(self) -> GroupId:
        """What at most one call may be made for: the prompt group of a learning step, or the call itself when serving."""
        if self.call.step < 0:
            return (self.device, self.call.task, -1, self.call.call_key)
        return (self.device, self.call.task, self.call.step, self.call.prompt_id)


class FlightProgress:
    """What a person who waits can follow: that the hold is durable, and pieces of text as they come."""

    def __init__(self) -> None:
        self.pieces: asyncio.Queue[str | None] = asyncio.Queue()
        self._started = False

    def started(self) -> None:
        """The hold is durable; the upstream is asked now. Reported once, also when a second upstream is asked."""
        if not self._started:
            self._started = True
            self.pieces.put_nowait("")

    def piece(self, text: str) -> None:
        """Another piece of the answer."""
        if text:
            self.pieces.put_nowait(text)

    def over(self) -> None:
        """Nothing more will come."""
        self.pieces.put_nowait(None)


class Flight:
    """A job in its task."""

    def __init__(self, job: Job, progress: FlightProgress | None, loop: asyncio.AbstractEventLoop) -> None:
        self.job = job
        self.progress = progress
        self.can_be_dropped = True
        self.dropped = False
        """It ends without having held or sent anything, because nobody waited any more: there is nothing to join."""
        self.is_cut = False
        """It was cancelled; while `uncut`, its task has yet to see that."""
        self._uncut = False
        self._loop = loop
        self._waiters: set[asyncio.Future[None]] = set()
        self._released = False
        self._task: asyncio.Task[None] | None = None
        self._answer: CloudCompletion | None = None
        self._error: Exception | None = None
        self._is_over = False

    def launch(self, work: Callable[[Flight], Awaitable[CloudCompletion]], landed: Callable[[Flight], None]) -> None:
        """Start the task, and report when it is over."""

        async def fly() -> None:
            try:
                self._answer = await work(self)
            except Exception as error:  # for who waits; it is stored in the ledger as well
                self._error = error
            over()

        def over(_: object = None) -> None:
            if not self._is_over:
                self._is_over = True
                landed(self)
                self._wake()

        self._task = self._loop.create_task(fly(), name=self.job.call.call_key)
        self._task.add_done_callback(over)  # for one that was cancelled, perhaps before it began

    async def result(self) -> CloudCompletion:
        """Wait for the answer or the typed error. Leaving early leaves the flight running, once it holds anything."""
        assert self._task is not None
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.add(waiter)
        try:
            if not (self._is_over or self._released):
                await waiter
        finally:
            self._waiters.discard(waiter)
            if not self._waiters and self.can_be_dropped:
                self.cancel()
        if self._released:  # also where it ended meanwhile: everybody who waited gets the same
            raise CallCancelled("the call was cancelled by its device", hint="GetCall reports what became of it")
        if self._error is not None:
            raise self._error
        if self._answer is None:
            raise draining()
        return self._answer

    def release(self) -> bool:
        """Send everybody away who waits for it. True when it was dropped: it had not held or sent anything."""
        self._released = True
        self._wake()
        if self.can_be_dropped:
            self.cancel()
        return self.can_be_dropped

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def ended(self) -> None:
        """Wait until it is over, however it ends."""
        assert self._task is not None
        await asyncio.wait([self._task])

    def cancel(self) -> None:
        """Stop it. What it has sent is settled as in doubt; what is `uncut` comes to its end first."""
        self.dropped = self.can_be_dropped
        self.is_cut = True
        if self._task is not None and not self._uncut:
            self._task.cancel()

    @contextmanager
    def uncut(self) -> Iterator[None]:
        """`with`, in its own task: what is awaited here is not cancelled; afterwards `is_cut` says whether to go on."""
        self._uncut = True
        try:
            yield
        finally:
            self._uncut = False
