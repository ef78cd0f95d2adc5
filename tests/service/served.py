"""A server with its own thread and event loop, for blocking clients."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager


@contextmanager
def in_a_thread(open_server: Callable[[], AbstractAsyncContextManager[str]]) -> Iterator[str]:
    """Run the server in its own thread while the block runs; yields its URL. Raises the server's start-up error here."""
    started: queue.Queue[str | BaseException] = queue.Queue()
    stop: list[Callable[[], None]] = []

    async def serve() -> None:
        over, loop = asyncio.Event(), asyncio.get_running_loop()
        stop.append(lambda: loop.call_soon_threadsafe(over.set))
        async with open_server() as url:
            started.put(url)
            await over.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            started.put(error)

    thread = threading.Thread(target=run, name="served")
    thread.start()
    try:
        first = started.get(timeout=60)
        if isinstance(first, BaseException):
            raise first
        yield first
    finally:
        for end in stop:
            end()
        thread.join(60)
        assert not thread.is_alive()
