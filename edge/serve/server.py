"""The local HTTP server: ports, the Unix socket, and how long a connection may keep it waiting.

uvicorn's own limits do not do the last: `timeout_keep_alive` counts only between requests, nothing ends a request that comes byte by byte
or an answer that is not read, and `limit_concurrency` refuses the newcomer, in plain text, however idle the others are.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import h11
import uvicorn
from starlette.responses import JSONResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

from edge.core.errors import EdgeError, UsageError
from edge.serve.access import App
from edge.serve.errors import error_body

_GRACE_S = 3
_LOOPBACK_OF = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
"""How to reach, from this machine, what listens everywhere."""


REQUEST_S = 45.0
"""For a request to be here with its body; longer than the body's own limit, which answers with an error."""
READ_S = 60.0
"""For a client to take some of what waits for it."""
MOST_CONNECTIONS = 256
_CLOSE = {"connection": "close"}
_NO_ROOM = JSONResponse(
    error_body("too many connections with work to do; try again", kind="server_error", code="too_many_connections"),
    status_code=503,
    headers={**_CLOSE, "retry-after": "1"},
)
_NOT_HTTP = JSONResponse(
    error_body("this is no valid HTTP request", kind="invalid_request_error", code="invalid_http"),
    status_code=400,
    headers=_CLOSE,
)


class _Server(uvicorn.Server):
    """uvicorn without signal handlers: Ctrl-C belongs to the command."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the process's signal handlers alone."""
        yield


class TimedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 with an end to waiting.

    A client that sends its request byte by byte, or does not read its answer, is cut off. When all places are taken, the connection whose
    request has been awaited longest makes room for the next one.
    """

    request_s = REQUEST_S
    read_s = READ_S
    most_connections = MOST_CONNECTIONS
    _arriving: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """A connection is there; its first request is to come."""
        super().connection_made(transport)
        if len(self.connections) > self.most_connections:
            self._make_room()
        self._await_request()

    def data_received(self, data: bytes) -> None:
        """A part of a request."""
        super().data_received(data)
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._await_request()
        else:
            self._request_is_here()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is there any more."""
        self._request_is_here()
        self._client_reads()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer that this is no HTTP, in the form of every other error; where an answer is on its way already, hang up."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            for event in (
                h11.Response(status_code=_NOT_HTTP.status_code, headers=_NOT_HTTP.raw_headers),
                h11.Data(data=bytes(_NOT_HTTP.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    @property
    def waits_since(self) -> float | None:
        """The event loop's time when it began to wait for a request, None while one is worked on or it is being closed."""
        if self.transport.is_closing():
            return None
        if self._arriving is not None:
            return self._arriving.when() - self.request_s
        idle = self.timeout_keep_alive_task
        return None if idle is None else idle.when() - self.timeout_keep_alive

    def pause_writing(self) -> None:
        """The client does not read as fast as it is answered."""
        super().pause_writing()
        self._unread = self._unread or self.loop.call_later(self.read_s, self.transport.abort)

    def resume_writing(self) -> None:
        """It has read on."""
        self._client_reads()
        super().resume_writing()

    def _make_room(self) -> None:
        waiting = {other: other.waits_since for other in self.connections if isinstance(other, TimedProtocol)}
        since = {other: time for other, time in waiting.items() if time is not None}
        if since:
            min(since, key=since.__getitem__).transport.abort()
        else:
            self.app = _NO_ROOM

    def _await_request(self) -> None:
        self._arriving = self._arriving or self.loop.call_later(self.request_s, self.transport.abort)

    def _request_is_here(self) -> None:
        if self._arriving is not None:
            self._arriving.cancel()
            self._arriving = None

    def _client_reads(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


@asynccontextmanager
async def serving(
    app: App, host: str, port: int, *, socket_path: Path | None = None, protocol: type[TimedProtocol] = TimedProtocol
) -> AsyncIterator[str]:
    """Serve while the block runs; gives the base URL. Port 0 takes a free one. Raises EdgeError when the port is taken.

    `socket_path`: a Unix socket to serve at too, for this user alone; it is removed at the end.
    """
    with ExitStack() as stack:
        listeners = [stack.enter_context(_listen(host, port))]
        address, port = listeners[0].getsockname()[:2]
        address = _LOOPBACK_OF.get(address, address)
        url = f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
        if socket_path is not None:
            listeners.append(stack.enter_context(_listen_at(socket_path)))
            stack.callback(socket_path.unlink, missing_ok=True)
        config = uvicorn.Config(
            app,
            http=protocol,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_GRACE_S,
            ws="none",
        )
        server = _Server(config)
        task = asyncio.create_task(server.serve(sockets=listeners), name="http")
        try:
            yield url
        finally:
            server.should_exit = True
            await task


def check_port(host: str, port: int) -> None:
    """Whether it can be listened there now, before anything is loaded. Raises EdgeError, UsageError as `serving` does."""
    _listen(host, port).close()


def is_wildcard(host: str) -> bool:
    """Whether the address means every one of this machine."""
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
        if error.errno == errno.EADDRINUSE:
            raise EdgeError(f"port {port} is in use", hint="choose another with --port (0 takes a free one)") from error
        raise UsageError(f"cannot listen on {host}:{port} ({error.strerror or error})") from error
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
