"""A scripted agent and its endpoint; a server with its own thread and event loop, for blocking clients."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager

from edge.agent import Agent
from edge.cli.remote import announced
from edge.serve.endpoint import build_app
from edge.serve.running_agent import AgentAnswers, RunningAgent
from edge.serve.server import serving
from edge.testing.clock import ManualClock
from tests.worlds.agent import World


@asynccontextmanager
async def served(world: World) -> AsyncIterator[tuple[Agent, str]]:
    """The world's agent with its endpoint, which commands find through the state folder; the agent and its URL."""
    async with world.agent() as agent:
        app = build_app(AgentAnswers(agent), RunningAgent(agent), ManualClock())
        async with serving(app, "127.0.0.1", 0) as url:
            with announced(world.folder, url):
                yield agent, url


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
