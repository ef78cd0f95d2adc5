"""The local HTTP server's life. Knows uvicorn and ports; knows nothing of routes."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn

from edge.core.errors import EdgeError, UsageError
from edge.serve.guard import App

_GRACE_S = 3


class _Server(uvicorn.Server):
    """uvicorn without signal handlers: Ctrl-C belongs to the command."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the process's signal handlers alone."""
        yield


@asynccontextmanager
async def serving(app: App, host: str, port: int) -> AsyncIterator[str]:
    """Serve while the block runs; gives the base URL. Port 0 takes a free one. Raises EdgeError when the port is taken."""
    listener = _listen(host, port)
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="off", server_header=False, timeout_graceful_shutdown=_GRACE_S, ws="none"
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]), name="http")
    try:
        yield _url(listener)
    finally:
        server.should_exit = True
        await task


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address. Names other than localhost count as foreign."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only where the protocol is named; with it, a reply of two writes waits 40 ms for the client
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise _bind_error(host, port, error) from error
    return listener


def _bind_error(host: str, port: int, error: OSError) -> EdgeError:
    if error.errno == errno.EADDRINUSE:
        return EdgeError(f"port {port} is in use", hint="choose another with --port (0 takes a free one)")
    return UsageError(f"cannot listen on {host}:{port} ({error.strerror or error})")


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
