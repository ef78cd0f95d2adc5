"""What listens on loopback for a test: an HTTP server with one route, and a proxy that can stall or cut connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web


@asynccontextmanager
async def answering(path: str, handle: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    """A server that answers POST requests to this path; yields its address, without the path."""
    app = web.Application()
    app.router.add_post(path, handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


class Proxy:
    """Passes bytes between clients and a Unix socket. While `passing` is clear it keeps them; `cut` breaks and refuses connections."""

    def __init__(self, target: Path) -> None:
        self.address = ""
        self.passing = asyncio.Event()
        self.passing.set()
        self.refusing = False
        self._target = target
        self._writers: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        """Break every connection and refuse new ones, until `heal`."""
        self.refusing = True
        for writer in tuple(self._writers):
            writer.transport.abort()

    def heal(self) -> None:
        """Pass everything again."""
        self.refusing = False
        self.passing.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            if self.refusing:
                return
            far_reader, far_writer = await asyncio.open_unix_connection(self._target)
            self._writers |= {writer, far_writer}
            await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))
        except OSError:
            pass
        finally:
            writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                await self.passing.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()
            self._writers.discard(writer)


@asynccontextmanager
async def proxied(target: Path) -> AsyncIterator[Proxy]:
    """A proxy to this socket on a port of loopback."""
    proxy = Proxy(target)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        proxy.heal()
        proxy.cut()
        server.close()
