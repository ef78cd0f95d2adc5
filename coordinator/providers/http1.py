"""An HTTP/1.1 client for POST requests: kept-alive connections to one server, one request at a time on each.

Knows sockets, TLS and HTTP's framing; knows nothing of what is sent, or of what a failure means. No redirect, no cookie, no proxy, no
retry.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import zlib
from typing import Protocol, cast
from urllib.parse import quote, urlsplit

import aiohappyeyeballs
import httptools

from coordinator.deadlines import Deadlines

MOST_HEAD_BYTES = 1 << 16
_PORTS = {"http": 80, "https": 443}
_HAPPY_EYEBALLS_S = 0.25
_ANY_ZLIB_HEADER = 47


class BadResponse(Exception):
    """The connection broke off, or what came is no HTTP."""


class TooLarge(Exception):
    """The body has more bytes than the number that this error carries."""


class _Unzip(Protocol):
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class Connection(asyncio.Protocol):
    """A connection, and the response to the request that runs on it: `status` (0: none yet), `headers` by names as in Content-Type."""

    def __init__(self, loop: asyncio.AbstractEventLoop, deadlines: Deadlines) -> None:
        self._loop = loop
        self._deadlines = deadlines
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.idle_since = 0.0

    # requests ------------------------------------------------------------------------------------------------------------------

    def send(self, request: bytes, end: float, most_bytes: int) -> None:
        """Send a request. Its response has until `end` (loop time), and its body at most `most_bytes`."""
        assert self._transport is not None
        self.status = 0
        self.headers: dict[str, str] = {}
        self._left = self._most_bytes = most_bytes
        self._head_bytes = 0
        self._body: list[bytes] = []
        self._unzip: _Unzip | None = None
        self._complete = self._keeps_alive = self._stray = self._until_closed = False
        self._error: Exception | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._deadline = self._deadlines.add(end, self._time_is_up)
        self._transport.write(request)

    async def head(self) -> None:
        """Wait for status and headers. Raises TimeoutError, BadResponse."""
        while not self.status:
            await self._more()

    async def read(self) -> bytes:
        """The next bytes of the body, b"" at its end. Raises TimeoutError, BadResponse, TooLarge."""
        while not self._body:
            if self._complete:
                return b""
            await self._more()
        found = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body.clear()
        return found

    async def rest(self) -> bytes:
        """All of the body that was not read yet."""
        while not self._complete:
            await self._more()
        return await self.read()

    def release(self) -> bool:
        """The request is over. False: the connection was closed, for its response was not read to the end, or more came than that."""
        if self._parser is None:  # nothing was sent
            self.close()
            return False
        self._deadlines.take_out(self._deadline)
        kept = self._complete and self._keeps_alive and not self._stray and self.is_open
        self._parser = None
        if not kept:
            self.close()
        return kept

    @property
    def is_open(self) -> bool:
        """Whether a request can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        """Close it at once."""
        if self._transport is not None:
            self._transport.abort()

    async def _more(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _time_is_up(self) -> None:
        self._fail(TimeoutError())

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        self.close()
        self._wake()

    # asyncio -------------------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It stands."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Bytes came. What comes while nobody asks would answer the next request, so it ends the connection."""
        if self._parser is None:
            self.close()
            return
        if not self.status:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._stray = True
            if not self._complete:
                self._fail(BadResponse(str(error)))
        if not self.status and self._head_bytes > MOST_HEAD_BYTES:
            self._fail(BadResponse("its head has no end"))
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        """It is gone, which ends a body without a length."""
        self._transport = None
        if self._parser is None or self._complete:
            return
        if error is None and self.status and self._until_closed:
            self._complete = True
            self._wake()
        else:
            self._fail(BadResponse("it broke off"))

    # httptools -----------------------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A response begins; only one was asked for."""
        self._stray = self._stray or self._complete

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header."""
        if not self._complete:
            self.headers[name.decode("latin-1").title()] = value.decode("latin-1").strip()

    def on_headers_complete(self) -> None:
        """The head is whole."""
        if self._complete or self.status:
            return
        assert self._parser is not None
        status = self._parser.get_status_code()
        if 100 <= status < 200 and status != 101:
            self.headers = {}
            return
        self.status = status
        self._until_closed = "Content-Length" not in self.headers and "Transfer-Encoding" not in self.headers
        if self.headers.get("Content-Encoding", "").lower() in ("gzip", "x-gzip", "deflate"):
            self._unzip = zlib.decompressobj(_ANY_ZLIB_HEADER)

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        if self._complete or self._error is not None:
            return
        if self._unzip is not None:
            try:
                data = self._unzip.decompress(data, self._left + 1)
            except zlib.error as error:
                self._fail(BadResponse(str(error)))
                return
        self._left -= len(data)
        if self._left < 0:
            self._fail(TooLarge(self._most_bytes))
        elif data:
            self._body.append(data)

    def on_message_complete(self) -> None:
        """The response is whole, unless it was one of those that only announce another."""
        if self.status and not self._complete and self._error is None:
            assert self._parser is not None
            self._complete, self._keeps_alive = True, self._parser.should_keep_alive()


class Pool:
    """Connections to the server of one URL, which are kept for `keep_alive_s` when nobody uses them."""

    def __init__(self, url: str, connect_timeout_s: float, keep_alive_s: float) -> None:
        parts = urlsplit(url)
        self._loop = asyncio.get_running_loop()
        self._deadlines = Deadlines(self._loop)
        self._name = parts.hostname or ""
        self._port = parts.port or _PORTS[parts.scheme]
        self._tls = _tls_context() if parts.scheme == "https" else None
        self._connect_timeout_s = connect_timeout_s
        self._keep_alive_s = keep_alive_s
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._sweep: asyncio.TimerHandle | None = None

    def now(self) -> float:
        """Loop time."""
        return self._loop.time()

    async def take(self, end: float) -> Connection:
        """A connection, to be given back. Raises TimeoutError, OSError, UnicodeError (a name that is none)."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and connection.idle_since > self._loop.time() - self._keep_alive_s:
                break
            connection.close()
        else:
            connection = await self._connect(end)
        self._busy.add(connection)
        return connection

    def give_back(self, connection: Connection) -> None:
        """Keep a connection whose response was read to its end, close another. Safe to call twice."""
        if connection not in self._busy:
            return
        self._busy.remove(connection)
        if not connection.release():
            return
        connection.idle_since = self._loop.time()
        self._idle.append(connection)
        if self._sweep is None:
            self._sweep = self._loop.call_later(self._keep_alive_s, self._close_idle)

    def close(self) -> None:
        """Close all connections."""
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in (*self._idle, *self._busy):
            connection.close()
        self._idle.clear()

    async def _connect(self, end: float) -> Connection:
        async with asyncio.timeout_at(min(end, self._loop.time() + self._connect_timeout_s)):
            found = await self._loop.getaddrinfo(self._name, self._port, type=socket.SOCK_STREAM)
            sock = await aiohappyeyeballs.start_connection(found, happy_eyeballs_delay=_HAPPY_EYEBALLS_S)
            server = self._name if self._tls else None
            _, connection = await self._loop.create_connection(
                lambda: Connection(self._loop, self._deadlines), sock=sock, ssl=self._tls, server_hostname=server
            )
        return connection

    def _close_idle(self) -> None:
        oldest = self._loop.time() - self._keep_alive_s
        kept = [connection for connection in self._idle if connection.is_open and connection.idle_since > oldest]
        for connection in set(self._idle) - set(kept):
            connection.close()
        self._idle = kept
        self._sweep = self._loop.call_at(kept[0].idle_since + self._keep_alive_s, self._close_idle) if kept else None


def request_head(url: str, headers: dict[str, str]) -> bytes:
    """The head of every POST to a URL, without the end that each request adds."""
    parts = urlsplit(url)
    host = (parts.hostname or "").encode("idna").decode() if ":" not in (parts.hostname or "") else f"[{parts.hostname}]"
    port = f":{parts.port}" if parts.port not in (None, _PORTS[parts.scheme]) else ""
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~")
    lines = [f"POST {path} HTTP/1.1", f"Host: {host}{port}", *(f"{name}: {value}" for name, value in headers.items())]
    return "".join(f"{line}\r\n" for line in lines).encode("latin-1")


def _tls_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
