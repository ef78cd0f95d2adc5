"""The HTTP client with a server that sends the bytes of the test: framing, reused connections, and those that must not be reused."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from coordinator.providers.http1 import MOST_HEAD_BYTES, BadResponse, Pool, TooLarge, request_head

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
HELD_S = 0.02


@dataclass
class Server:
    """Answers each request with the next pieces, each in its own packet; None closes the connection."""

    answers: list[Sequence[bytes | None]]
    connections: int = 0
    requests: list[bytes] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                for piece in self.answers.pop(0):
                    if piece is None:
                        return
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(HELD_S / 4)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def pool_at(*answers: Sequence[bytes | None], keep_alive_s: float = 5.0) -> AsyncIterator[tuple[Pool, Server, str]]:
    """A pool of connections to a server with these answers."""
    server = Server(list(answers))
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1/x"
    pool = Pool(url, 5.0, keep_alive_s)
    try:
        yield pool, server, url
    finally:
        pool.close()
        listening.close()


async def ask(pool: Pool, url: str, *, seconds: float = 5.0, most: int = 1000) -> tuple[int, bytes]:
    """Status and body of one request."""
    end = pool.now() + seconds
    connection = await pool.take(end)
    try:
        connection.send(request_head(url, {"A": "b"}) + b"Content-Length: 2\r\n\r\n{}", end, most)
        await connection.head()
        return connection.status, await connection.rest()
    finally:
        pool.give_back(connection)


FRAMED = {
    "by length": [OK],
    "by length, byte by byte": [bytes([byte]) for byte in OK],
    "in chunks": [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n", b"1;x=y\r\nk\r\n0\r\n\r\n"],
    "after an announcement": [b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", OK],
    "packed": [b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 22\r\n\r\n" + gzip.compress(b"ok", mtime=0)],
}


@pytest.mark.parametrize("pieces", FRAMED.values(), ids=FRAMED)
async def test_response_ends_at_its_framing_and_its_connection_is_reused(pieces: list[bytes]) -> None:
    async with pool_at(pieces, pieces) as (pool, server, url):
        assert [await ask(pool, url) for _ in range(2)] == [(200, b"ok")] * 2
        assert server.connections == 1
        assert server.requests[0] == server.requests[1]


ENDS = {
    "with Connection: close": [b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"],
    "of HTTP/1.0": [b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok"],
    "without a length": [b"HTTP/1.1 200 OK\r\n\r\n", b"o", b"k", None],
    "with bytes after it": [OK + b"x"],
    "with another response after it": [OK + b"HTTP/1.1 400 No\r\nContent-Length: 0\r\n\r\n"],
}


@pytest.mark.parametrize("pieces", ENDS.values(), ids=ENDS)
async def test_connection_is_not_reused_after_a_response(pieces: list[bytes | None]) -> None:
    async with pool_at(pieces, [OK]) as (pool, server, url):
        assert [await ask(pool, url) for _ in range(2)] == [(200, b"ok")] * 2
        assert server.connections == 2


async def test_unsolicited_response_is_discarded() -> None:
    stray = b"HTTP/1.1 400 No\r\nContent-Length: 0\r\n\r\n"
    async with pool_at([OK, stray], [OK]) as (pool, server, url):
        assert await ask(pool, url) == (200, b"ok")
        await asyncio.sleep(2 * HELD_S)
        assert await ask(pool, url) == (200, b"ok")
        assert server.connections == 2


async def test_an_idle_connection_is_closed_after_its_time() -> None:
    async with pool_at([OK], [OK], keep_alive_s=HELD_S) as (pool, server, url):
        await ask(pool, url)
        await asyncio.sleep(3 * HELD_S)
        await ask(pool, url)
        assert server.connections == 2


BROKEN = {
    "no HTTP": [b"SSH-2.0-x\r\n"],
    "a head without an end": [b"HTTP/1.1 200 OK\r\n" + b"".join(b"A%d: b\r\n" % n for n in range(MOST_HEAD_BYTES // 6))],
    "closed at once": [None],
    "closed in the body": [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok", None],
    "closed in a chunk": [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nok", None],
    "a chunk of no length": [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"],
    "two lengths": [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nokk"],
    "packed garbage": [b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nok"],
}


@pytest.mark.parametrize("pieces", BROKEN.values(), ids=BROKEN)
async def test_invalid_response_is_reported_and_its_connection_closed(pieces: list[bytes | None]) -> None:
    async with pool_at(pieces, [OK]) as (pool, server, url):
        with pytest.raises(BadResponse):
            await ask(pool, url)
        assert await ask(pool, url) == (200, b"ok")
        assert server.connections == 2


async def test_body_is_cut_at_its_limit_even_when_compressed() -> None:
    packed = gzip.compress(b"x" * 10**6)
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
    async with pool_at([head + packed], [OK]) as (pool, _, url):
        with pytest.raises(TooLarge):
            await ask(pool, url)
        assert await ask(pool, url, most=2) == (200, b"ok")


async def test_each_request_has_its_own_deadline() -> None:
    async with pool_at([], [], [OK]) as (pool, _, url):
        asked = [asyncio.create_task(ask(pool, url, seconds=seconds)) for seconds in (0.2, 0.1)]
        began = pool.now()
        ended = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(each) for each in ended] == [TimeoutError, TimeoutError]
        assert 0.19 <= pool.now() - began < 1.0
        assert await ask(pool, url) == (200, b"ok")


def test_request_head_has_host_and_path() -> None:
    assert request_head("https://api.example/v1/a b", {"X": "y"}) == b"POST /v1/a%20b HTTP/1.1\r\nHost: api.example\r\nX: y\r\n"
    assert b"Host: [::1]:8080\r\n" in request_head("http://[::1]:8080/v1", {})
    assert b"Host: xn--bcher-kva.example\r\n" in request_head("https://bücher.example/v1", {})
