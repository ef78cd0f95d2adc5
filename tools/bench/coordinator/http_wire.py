"""Just enough HTTP/1.1 for a bench: a server and a client that cost little. Knows heads, lengths and keep-alive; knows nothing of LLMs.

No chunked bodies towards the server, no pipelining, no TLS. A client connection carries one request at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

HEAD_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Request:
    """A request: method, path, headers by lower-case name, body."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """A JSON body with its status, and the seconds to wait before it is sent."""

    body: bytes
    status: int = 200
    after_s: float = 0.0


Handler = Callable[[Request], Answer]


class Connection(asyncio.Protocol):
    """One connection of the server."""

    def __init__(self, handle: Handler) -> None:
        self._handle = handle
        self._buffer = b""
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where to write."""
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer what is complete."""
        self._buffer += data
        while (request := self._next_request()) is not None:
            answer = self._handle(request)
            if answer.after_s > 0.0:
                asyncio.get_running_loop().call_later(answer.after_s, self._send, answer)
            else:
                self._send(answer)

    def _next_request(self) -> Request | None:
        head, found, rest = self._buffer.partition(HEAD_END)
        if not found:
            return None
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        if len(rest) < length:
            return None
        self._buffer = rest[length:]
        method, path, _ = first.split(" ", 2)
        return Request(method, path, headers, rest[:length])

    def _send(self, answer: Answer) -> None:
        if self._transport is not None and not self._transport.is_closing():
            head = f"HTTP/1.1 {answer.status} X\r\nContent-Type: application/json\r\nContent-Length: {len(answer.body)}\r\n\r\n"
            self._transport.write(head.encode("ascii") + answer.body)


async def listen(handle: Handler) -> tuple[asyncio.Server, int]:
    """Serve on a free port of loopback; returns the server and the port."""
    server = await asyncio.get_running_loop().create_server(lambda: Connection(handle), "127.0.0.1", 0, backlog=4096)
    return server, server.sockets[0].getsockname()[1]


class HttpClient:
    """One keep-alive connection."""

    def __init__(self, port: int, authorization: str = "") -> None:
        self._port = port
        self._authorization = f"Authorization: Bearer {authorization}\r\n" if authorization else ""
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: bytes) -> bytes:
        """The body of a 200 answer. Raises RuntimeError on any other status."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{self._authorization}Content-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode("ascii") + body)
        status, headers = _parsed(await reader.readuntil(HEAD_END))
        answer = await _body(reader, headers)
        if status != 200:
            raise RuntimeError(f"HTTP status {status}: {answer[:200]!r}")
        return answer

    def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            self._streams[1].close()


def _parsed(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return int(first.split(" ")[1]), {name.lower(): value.strip().lower() for name, _, value in pairs}


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding") != "chunked":
        return await reader.readexactly(int(headers.get("content-length", "0")))
    pieces = []
    while size := int((await reader.readline()).strip(), 16):
        pieces.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readexactly(2)
    return b"".join(pieces)
