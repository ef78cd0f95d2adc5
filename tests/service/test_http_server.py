"""The HTTP server against raw bytes: framing, pipelining, bodies, streams, limits, and clients that go away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from coordinator.service import http_server
from coordinator.service.http_server import HttpProblem, HttpServer, Reply, Request
from tests.until import until

HOST = "127.0.0.1"


class Site:
    """Handlers by path, and what became of them."""

    def __init__(self) -> None:
        self.cancelled = 0
        self.closed = 0
        self.running = asyncio.Event()
        self.release = asyncio.Event()

    async def answer(self, request: Request) -> Reply:
        """What the server asks."""
        try:
            return await self._of(request)
        except HttpProblem as error:
            return self.refuse(error)

    def refuse(self, error: Exception) -> Reply:
        """Status and message of a problem."""
        assert isinstance(error, HttpProblem)
        return Reply(str(error).encode(), error.status, "text/plain", error.headers)

    async def _of(self, request: Request) -> Reply:
        match request.path:
            case "/held":
                self.running.set()
                try:
                    await self.release.wait()
                except asyncio.CancelledError:
                    self.cancelled += 1
                    raise
                return Reply(b"released")
            case "/stream":
                held = AsyncExitStack()
                held.callback(self._note_closed)
                return Reply(stream=self._pieces(int(request.query["n"][0])), held=held)
            case "/broken":
                return Reply(stream=self._breaking())
            case "/unread":
                return Reply(b"not read")
            case _:
                body = await request.body()
                return Reply(f"{request.method} {request.path} {request.header('x-name')} {len(body)}".encode())

    def _note_closed(self) -> None:
        self.closed += 1

    async def _pieces(self, count: int) -> AsyncGenerator[bytes, None]:
        for number in range(count):
            yield b"%d," % number * 1000
            await asyncio.sleep(0)

    async def _breaking(self) -> AsyncGenerator[bytes, None]:
        yield b"first"
        raise ValueError("broke")


@asynccontextmanager
async def serving(site: Site, **settings: float) -> AsyncIterator[int]:
    """A server on a free port."""
    server = HttpServer(site.answer, site.refuse, **{"most_body_bytes": 1000, **settings})  # type: ignore[arg-type]
    port = await server.start(HOST, 0, None)
    try:
        yield port
    finally:
        await server.aclose()
        assert not server.connections


async def exchanged(port: int, *sent: bytes, pause_s: float = 0.0) -> bytes:
    """Everything that comes back until the server hangs up; the last request has to ask for that."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        for part in sent:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause_s)
        return await asyncio.wait_for(reader.read(), 60.0)
    finally:
        writer.close()


def get(path: str, *headers: str, method: str = "GET", version: str = "1.1") -> bytes:
    """A request without a body."""
    return "\r\n".join([f"{method} {path} HTTP/{version}", "Host: localhost", *headers, "", ""]).encode()


CLOSE = "Connection: close"


async def test_requests_that_come_together_are_answered_one_after_the_other() -> None:
    async with serving(Site()) as port:
        post = get("/b?x=1", "Content-Length: 3", "X-Name: b", method="POST") + b"abc"
        answered = await exchanged(port, get("/a", "X-Name: a") + post + get("/%63", CLOSE))
    assert [line for line in answered.decode().replace("HTTP/1.1", "\r\nHTTP/1.1").split("\r\n") if "/" in line and " " in line] == [
        "HTTP/1.1 200 OK", "content-type: application/json", "GET /a a 0",
        "HTTP/1.1 200 OK", "content-type: application/json", "POST /b b 3",
        "HTTP/1.1 200 OK", "content-type: application/json", "GET /c  0",
    ]  # fmt: skip
    assert answered.count(b"x-content-type-options: nosniff") == 3


async def test_a_request_in_single_bytes_and_a_body_in_chunks_are_read_whole() -> None:
    request = get("/slow", "Transfer-Encoding: chunked", CLOSE, method="POST") + b"2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n"
    async with serving(Site()) as port:
        answered = await exchanged(port, *(request[place : place + 1] for place in range(len(request))))
    assert answered.endswith(b"POST /slow  5")


async def test_head_has_no_body_and_http_1_0_ends_the_connection() -> None:
    async with serving(Site()) as port:
        assert (await exchanged(port, get("/a", CLOSE, method="HEAD"))).endswith(b"connection: close\r\n\r\n")
        answered = await exchanged(port, get("/a", version="1.0"))
    assert b"connection: close" in answered and answered.endswith(b"GET /a  0")


async def test_a_stream_comes_in_chunks_at_the_readers_pace_and_gives_back_what_it_held() -> None:
    site = Site()
    async with serving(site) as port:
        answered = await exchanged(port, get("/stream?n=300", CLOSE))
        assert answered.count(b"299,") == 1000 and answered.endswith(b"\r\n0\r\n\r\n") and site.closed == 1
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(get("/stream?n=100000"))
        await reader.readexactly(1000)
        writer.transport.abort()  # far more than buffers hold is left
        await until(lambda: site.closed == 2)


async def test_a_stream_that_breaks_breaks_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(Site()) as port:
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(get("/broken"))
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), 60.0)
        writer.close()
    assert "failed in its reply" in caplog.text


async def test_who_goes_away_is_not_answered_and_the_next_request_waits_its_turn() -> None:
    site = Site()
    async with serving(site) as port:
        _, writer = await asyncio.open_connection(HOST, port)
        writer.write(get("/held"))
        await site.running.wait()
        writer.transport.abort()
        await until(lambda: site.cancelled == 1)
        site.running.clear()
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(get("/held") + get("/after", CLOSE))
        await site.running.wait()
        assert await _nothing_comes(reader)
        site.release.set()
        answered = await asyncio.wait_for(reader.read(), 60.0)
        assert answered.index(b"released") < answered.index(b"GET /after")
        writer.close()


async def _nothing_comes(reader: asyncio.StreamReader) -> bool:
    try:
        await asyncio.wait_for(reader.read(1), 0.2)
    except TimeoutError:
        return True
    return False


async def test_a_body_that_nobody_reads_ends_the_connection_and_is_no_request() -> None:
    async with serving(Site()) as port:
        smuggled = get("/smuggled", CLOSE)
        head = get("/unread", f"Content-Length: {len(smuggled)}", method="POST")
        answered = await exchanged(port, head, smuggled, pause_s=0.1)
    assert answered.endswith(b"not read") and b"smuggled" not in answered and b"connection: close" in answered


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (get("/a", "X: \x7f\x00"), 400),
        (get("/a", "Transfer-Encoding: chunked", "Content-Length: 3", method="POST"), 400),
        (get("/a", "Connection: Upgrade", "Upgrade: websocket"), 200),
        (get("/a", f"X: {'x' * 70_000}"), 431),
        (get("/a", "Content-Length: 2000", method="POST") + b"x" * 2000, 413),
        (get("/a", "Transfer-Encoding: chunked", method="POST") + b"5dc\r\n" + b"x" * 1500 + b"\r\n0\r\n\r\n", 413),
        (get("/a", "Content-Encoding: gzip", "Content-Length: 1", method="POST") + b"x", 415),
        (get("/a", "Transfer-Encoding: chunked", method="POST") + b"zz\r\n", 400),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_what_cannot_be_served_is_refused_and_hung_up_on(sent: bytes, status: int) -> None:
    async with serving(Site()) as port:
        answered = await exchanged(port, sent)
    assert answered.startswith(f"HTTP/1.1 {status} ".encode()) and b"connection: close" in answered, answered
    assert answered.count(b"HTTP/1.1 ") == 1


async def test_silence_is_hung_up_on_and_a_body_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "IDLE_S", 0.3)
    site = Site()
    async with serving(site, idle_s=0.3) as port:
        assert await exchanged(port) == b""
        assert await exchanged(port, get("/half")[:-2]) == b""
        late = await exchanged(port, get("/a", "Content-Length: 9", "Expect: 100-continue", method="POST"))
        assert late.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 408 ")
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(get("/held", CLOSE))
        await asyncio.sleep(1.5)  # what runs is not idle
        site.release.set()
        assert (await asyncio.wait_for(reader.read(), 60.0)).endswith(b"released")
        writer.close()
