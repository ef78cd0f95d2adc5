"""An HTTP/1.1 server: connections, requests and replies over httptools. Knows framing and its limits; knows nothing of who asks, or what.

The requests of a connection are answered one after the other. A handler runs from the end of a request's head on; a body is read when it
asks for it. What a client that goes away had asked for is cancelled, as gRPC does it. A connection on which nothing runs and nothing was
answered for `idle_s` is closed, so that half requests do not use up the process's descriptors.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from urllib.parse import parse_qs, unquote

import httptools

from edge.core.errors import InvalidRequest

log = logging.getLogger(__name__)
IDLE_S = 30.0
MOST_HEAD_BYTES = 1 << 16
CLOSING_S = 1.0
_SAFE = b"x-content-type-options: nosniff\r\nreferrer-policy: no-referrer\r\nserver: edge-coordinator\r\n"


class HttpProblem(InvalidRequest):
    """A request that is refused for its HTTP; `status` and `headers` of the reply."""

    def __init__(self, status: int, message: str, *, hint: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.headers = dict(headers or {})


@dataclass(slots=True)
class Reply:
    """What is sent back: a whole body, or a stream of pieces."""

    body: bytes = b""
    status: int = 200
    media_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    stream: AsyncGenerator[bytes, None] | None = None
    held: AsyncExitStack = field(default_factory=AsyncExitStack)
    """What a stream holds; it is closed in any case, also when the stream was never begun."""

    def head(self, *, close: bool) -> bytes:
        """Status line and headers."""
        length = f"content-length: {len(self.body)}" if self.stream is None else "transfer-encoding: chunked"
        own = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        first = f"HTTP/1.1 {self.status} {_PHRASES.get(self.status, '')}"
        line = (
            f"{first}\r\ndate: {_date(int(asyncio.get_running_loop().time()))}\r\ncontent-type: {self.media_type}\r\n{length}\r\n"
        )
        return b"".join((f"{line}{own}".encode("latin-1"), _SAFE, b"connection: close\r\n\r\n" if close else b"\r\n"))


_PHRASES = {status.value: status.phrase for status in HTTPStatus}


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    """Now; written once a second of the loop's time."""
    return formatdate(usegmt=True)


class Request:
    """One request. `headers`: the values by lower-case name."""

    __slots__ = (
        "_connection",
        "_done",
        "_is_whole",
        "_left",
        "_most_bytes",
        "_parts",
        "_problem",
        "headers",
        "is_wanted",
        "keep_alive",
        "method",
        "path",
        "query",
        "who",
    )

    def __init__(
        self, connection: _Connection, method: str, target: bytes, headers: dict[str, list[str]], most_bytes: int
    ) -> None:
        path, _, query = target.decode("latin-1").partition("?")
        self.method = method
        self.path = unquote(path) if "%" in path else path
        self.query: dict[str, list[str]] = parse_qs(query) if query else {}
        self.headers = headers
        self.keep_alive = True
        self.who = ""
        """Set by a handler: who asks, for metrics and refusals."""
        self.is_wanted = False
        """Its body was asked for."""
        self._connection = connection
        self._parts: list[bytes] = []
        self._left = self._most_bytes = most_bytes
        self._is_whole = False
        self._done: asyncio.Future[None] | None = None
        self._problem: HttpProblem | None = None

    def header(self, name: str) -> str:
        """The first value of a header, "" without one."""
        values = self.headers.get(name)
        return values[0] if values else ""

    @property
    def media_type(self) -> str:
        """The type of the body, without parameters."""
        return self.header("content-type").partition(";")[0].strip().lower()

    @property
    def transport(self) -> asyncio.Transport:
        """The connection's."""
        return self._connection.transport

    async def body(self) -> bytes:
        """The whole body. Raises HttpProblem."""
        if self.header("content-encoding") not in ("", "identity"):
            raise self._refused(415, "the body is compressed", "send it as it is")
        if not self._is_whole and self._problem is None:
            if self.header("expect").lower() == "100-continue":
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._done = asyncio.get_running_loop().create_future()
            self.is_wanted = True
            self._connection.read_on()
            try:
                async with asyncio.timeout(IDLE_S):
                    await self._done
            except TimeoutError:
                raise self._refused(408, f"the body did not arrive within {IDLE_S:g} s") from None
        if self._problem is not None:
            raise self._problem
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    def _refused(self, status: int, message: str, hint: str = "") -> HttpProblem:
        """What is left of the body is not read, so the connection ends."""
        self.keep_alive = False
        return HttpProblem(status, message, hint=hint)

    def take(self, part: bytes) -> None:
        """Another part of the body."""
        self._left -= len(part)
        if self._left >= 0:
            self._parts.append(part)
        elif self._problem is None:
            self._parts.clear()
            self.keep_alive = False
            self.ended(
                HttpProblem(413, f"the body is larger than {self._most_bytes:,} bytes", hint="send less of the conversation")
            )

    def ended(self, problem: HttpProblem | None = None) -> None:
        """The body is whole, or cannot be."""
        self._problem = self._problem or problem
        self._is_whole = True
        if self._done is not None and not self._done.done():
            self._done.set_result(None)


Handler = Callable[[Request], Awaitable[Reply]]


class HttpServer:
    """Listens on one port. `answer` makes the reply to a request and raises nothing; `refuse` makes that of what is no HTTP."""

    def __init__(
        self,
        answer: Callable[[Request], Awaitable[Reply]],
        refuse: Callable[[Exception], Reply],
        *,
        most_body_bytes: int,
        idle_s: float = IDLE_S,
    ) -> None:
        self.answer = answer
        self.refuse = refuse
        self.most_body_bytes = most_body_bytes
        self.connections: set[_Connection] = set()
        self._idle_s = idle_s
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Listen; returns the port that was really taken. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), host, port, ssl=tls)
        self._sweeper = asyncio.create_task(self._close_idle(), name="http-sweeper")
        taken: int = self._server.sockets[0].getsockname()[1]
        return taken

    async def aclose(self) -> None:
        """Stop listening; what still runs has a moment to end. Safe to call twice."""
        if self._server is None or self._sweeper is None:
            return
        self._server.close()
        self._server = None
        self._sweeper.cancel()
        await asyncio.wait([self._sweeper])
        for connection in [each for each in self.connections if each.task is None]:
            connection.transport.close()
        running = [each.task for each in self.connections if each.task is not None]
        if running:
            await asyncio.wait(running, timeout=CLOSING_S)
        for connection in tuple(self.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # they learn of it

    async def _close_idle(self) -> None:
        """Close the connections that were idle at the last look already, and had no answer since."""
        while True:
            for connection in [each for each in self.connections if each.task is None]:
                if connection.is_quiet:
                    connection.transport.abort()
                connection.is_quiet = True
            await asyncio.sleep(self._idle_s)


class _Connection(asyncio.Protocol):
    """One connection; httptools calls its `on_` methods."""

    transport: asyncio.Transport

    def __init__(self, server: HttpServer) -> None:
        self.task: asyncio.Task[None] | None = None
        """Of the request that is answered."""
        self.is_quiet = False
        """Nothing was answered since the last look."""
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[Request] = deque()
        self._read: Request | None = None
        self._unread_head_bytes = self._head_bytes = 0
        self._url = b""
        self._headers: dict[str, list[str]] = {}
        self._can_write: asyncio.Future[None] | None = None
        self._is_deaf = False

    # asyncio -------------------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self.transport = transport  # type: ignore[assignment]
        self._server.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        """See asyncio."""
        self._server.connections.discard(self)
        self._waiting.clear()
        self.resume_writing()
        if self.task is not None:
            self.task.cancel()

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        if self._is_deaf:
            return
        if self._read is None:
            self._unread_head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # It is answered as if it had not asked for that, as the standard allows, and ends the connection.
            self._is_deaf = True
        except httptools.HttpParserCallbackError:
            self._malformed(f"the headers are larger than {MOST_HEAD_BYTES} bytes", 431)
        except httptools.HttpParserError:
            self._malformed("the request is malformed")
        else:
            if self._read is None and self._unread_head_bytes > MOST_HEAD_BYTES:
                self._malformed(f"the headers are larger than {MOST_HEAD_BYTES} bytes", 431)
            elif self.task is not None and (self._waiting or (self._read is not None and not self._read.is_wanted)):
                self.transport.pause_reading()  # until the body is asked for, or this request is answered

    def pause_writing(self) -> None:
        """See asyncio."""
        self._can_write = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """See asyncio."""
        if self._can_write is not None and not self._can_write.done():
            self._can_write.set_result(None)
        self._can_write = None

    # httptools -----------------------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """See httptools."""
        self._url, self._headers, self._head_bytes = b"", {}, 0

    def on_url(self, url: bytes) -> None:
        """See httptools."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """See httptools."""
        self._head_bytes += len(name) + len(value)
        self._headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))

    def on_headers_complete(self) -> None:
        """See httptools. Raises ValueError, which the parser reports as the error of a callback."""
        if self._head_bytes + len(self._url) > MOST_HEAD_BYTES:
            raise ValueError("the headers are too large")
        method = self._parser.get_method().decode("latin-1")
        self._read = Request(self, method, self._url, self._headers, self._server.most_body_bytes)
        self._read.keep_alive = self._parser.should_keep_alive() and not self._parser.should_upgrade()
        self._unread_head_bytes = 0
        if self.task is None:
            self._begin(self._read)
        else:
            self._waiting.append(self._read)

    def on_body(self, part: bytes) -> None:
        """See httptools."""
        if self._read is not None:
            self._read.take(part)

    def on_message_complete(self) -> None:
        """See httptools."""
        if self._read is not None:
            self._read.ended()
        self._read = None

    # answering -----------------------------------------------------------------------------------------------------------------

    def read_on(self) -> None:
        """More of a body is wanted."""
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def _begin(self, request: Request) -> None:
        self.task = asyncio.get_running_loop().create_task(self._answer(request))

    async def _answer(self, request: Request) -> None:
        reply = await self._server.answer(request)
        try:
            close = not request.keep_alive or self._read is request  # what is left of its body would be read as the next request
            head = reply.head(close=close)
            if reply.stream is None:
                self.transport.write(head if request.method == "HEAD" else head + reply.body)
            else:
                self.transport.write(head)
                async with aclosing(reply.stream) as pieces:
                    async for piece in pieces:
                        self.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                        if self._can_write is not None:
                            await self._can_write
                self.transport.write(b"0\r\n\r\n")
        except Exception as error:  # the status is sent already: only a connection that breaks off says that it failed
            log.error("%s %s failed in its reply", request.method, request.path, exc_info=error)
            close = True
            self.transport.abort()
        finally:
            await reply.held.aclose()
            self.task, self.is_quiet = None, False
        if close:
            self._hang_up()
        elif self._waiting:
            self._begin(self._waiting.popleft())
        else:
            self.read_on()

    def _malformed(self, message: str, status: int = 400) -> None:
        """Tell of it and hang up; while a request is answered there is no place to tell."""
        self._waiting.clear()
        if self._read is not None:
            self._read.ended(HttpProblem(status, message))
            self._read.keep_alive = False
            self._read = None
        if self.task is None:
            reply = self._server.refuse(HttpProblem(status, message))
            self.transport.write(reply.head(close=True) + reply.body)
            self._hang_up()
        else:
            self.transport.pause_reading()

    def _hang_up(self) -> None:
        """Say that nothing more comes, and listen to nothing more: to close with bytes unread could take back what was just sent."""
        self._is_deaf = True
        if self.transport.is_closing() or not self.transport.can_write_eof():
            self.transport.close()
        else:
            self.transport.write_eof()
            self.read_on()
