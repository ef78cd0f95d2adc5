"""Many items answered at once, in any order: what a CompleteBatch stream is made of.

Flow control: while `most` items are under way, or answered but not yet taken, no further item is read;
who makes the items then waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

log = logging.getLogger(__name__)
Item = TypeVar("Item")
Reply = TypeVar("Reply")


class ManyAtOnce(Generic[Item, Reply]):
    """Reads items, answers each in a task of its own. A bad item has a reply like any other; where `answer` raises nevertheless, which is a
    fault of the program, the item's reply is `failed(item)`.
    """

    def __init__(self, answer: Callable[[Item], Awaitable[Reply]], failed: Callable[[Item], Reply], most: int) -> None:
        self._answer = answer
        self._failed = failed
        self._slots = asyncio.Semaphore(most)
        self._replies: asyncio.Queue[Reply | None] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepted = 0

    async def replies(self, items: AsyncIterable[Item], stopped: asyncio.Event | None = None) -> AsyncGenerator[Reply, None]:
        """One reply for each item read. Ends when the items end or `stopped` is set, and all that was read is answered.

        Closing it early cancels the answering. Raises what `items` raises, after the replies to those read before.
        """
        self._loop = asyncio.get_running_loop()
        reading = self._start(self._read(items))
        reading.add_done_callback(lambda _: self._replies.put_nowait(None))
        if stopped is not None:
            self._start(_cancel_when(reading, stopped))
        try:
            async for reply in self._until_all_answered():
                yield reply
                self._slots.release()
            if not reading.cancelled():
                reading.result()
        finally:
            for task in tuple(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _until_all_answered(self) -> AsyncIterator[Reply]:
        answered, still_reading = 0, True
        while still_reading or answered < self._accepted:
            reply = await self._replies.get()
            if reply is None:
                still_reading = False
            else:
                answered += 1
                yield reply

    async def _read(self, items: AsyncIterable[Item]) -> None:
        await self._slots.acquire()
        async for item in items:
            self._accepted += 1
            self._start(self._answer_one(item))
            await self._slots.acquire()

    async def _answer_one(self, item: Item) -> None:
        try:
            reply = await self._answer(item)
        except Exception as error:  # without a reply nobody would give the item's slot back
            log.error("an item of a batch failed", exc_info=error)
            reply = self._failed(item)
        self._replies.put_nowait(reply)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _cancel_when(reading: asyncio.Task[None], stopped: asyncio.Event) -> None:
    await stopped.wait()
    reading.cancel()
