"""The local HTTP server's life. Knows uvicorn and ports; knows nothing of routes."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import uvicorn

from edge.core.errors import EdgeError, UsageError
from edge.serve.guard import App
from edge.serve.patience import PatientProtocol

_GRACE_S = 3
_LOOPBACK_OF = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
"""How to reach, from this machine, what listens everywhere."""


class _Server(uvicorn.Server):
    """uvicorn without signal handlers: Ctrl-C belongs to the command."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the process's signal handlers alone."""
        yield


@asynccontextmanager
async def serving(
    app: App, host: str, port: int, *, socket_path: Path | None = None, patience: type[PatientProtocol] = PatientProtocol
) -> AsyncIterator[str]:
    """Serve while the block runs; gives the base URL. Port 0 takes a free one. Raises EdgeError when the port is taken.

    `socket_path`: a Unix socket to serve at too, for this user alone; it is removed at the end.
    """
    with ExitStack() as stack:
        listeners = [stack.enter_context(_listen(host, port))]
        if socket_path is not None:
            listeners.append(stack.enter_context(_listen_at(socket_path)))
            stack.callback(socket_path.unlink, missing_ok=True)
        server = _Server(_server_config(app, patience))
        task = asyncio.create_task(server.serve(sockets=listeners), name="http")
        try:
            yield _url(listeners[0])
        finally:
            server.should_exit = True
            await task


def _server_config(app: App, patience: type[PatientProtocol]) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=patience,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_GRACE_S,
        ws="none",
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address. Names other than localhost count as foreign."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_wildcard(host: str) -> bool:
    """Whether the address stands for every one of this machine."""
    return host in _LOOPBACK_OF


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


def _listen_at(path: Path) -> socket.socket:
    """A Unix socket that only this user can open. One that a killed agent left is replaced, a living one is not."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_dead(path)
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise EdgeError(
            f"cannot listen at {path} ({error.strerror or error})", hint="choose another path for serve.socket"
        ) from error
    return listener


def _remove_dead(path: Path) -> None:
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        if probe.connect_ex(str(path)) == 0:
            raise OSError(errno.EADDRINUSE, "somebody else listens there")
    path.unlink()


def _bind_error(host: str, port: int, error: OSError) -> EdgeError:
    if error.errno == errno.EADDRINUSE:
        return EdgeError(f"port {port} is in use", hint="choose another with --port (0 takes a free one)")
    return UsageError(f"cannot listen on {host}:{port} ({error.strerror or error})")


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    host = _LOOPBACK_OF.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
