"""The endpoint over raw sockets: malformed requests, slow clients, foreign pages, tokens, and a Unix socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from edge.core.errors import EdgeError
from edge.serve.access import EndpointLimits
from edge.serve.chat_schemas import ANSWER_HEADERS
from edge.serve.endpoint import build_app
from edge.serve.server import TimedProtocol, serving
from edge.testing.clock import ManualClock
from edge.testing.endpoint import ScriptedAnswers, ScriptedControl
from tests.until import until

ASK = json.dumps({"messages": [{"role": "user", "content": "2+2?"}]}).encode()
FRIEND = "https://notes.example"
LIMITS = EndpointLimits(body_s=0.2)


class Hasty(TimedProtocol):
    """Uses very short timeouts."""

    request_s = 0.4
    read_s = 0.2


@pytest.fixture
def answers() -> ScriptedAnswers:
    return ScriptedAnswers(["4"])


@asynccontextmanager
async def served(answers: ScriptedAnswers, **options: Any) -> AsyncIterator[int]:
    more = {name: options.pop(name) for name in ("socket_path", "protocol") if name in options}
    app = build_app(answers, ScriptedControl(answers), ManualClock(), **options)
    async with serving(app, "127.0.0.1", 0, **more) as url:
        yield int(url.rpartition(":")[2])


async def reply_to(port: int, *parts: bytes) -> bytes:
    """All bytes of the response until the server closes the connection, or has answered and waits for more."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for part in parts:
        writer.write(part)
        await writer.drain()
    try:
        return await asyncio.wait_for(reader.read(), 60)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


def post(body: bytes = ASK, *headers: str, length: int | None = None) -> bytes:
    lines = ["POST /v1/chat/completions HTTP/1.1", "host: localhost", "content-type: application/json", "connection: close"]
    if length != -1:
        lines.append(f"content-length: {len(body) if length is None else length}")
    return "\r\n".join([*lines, *headers, "", ""]).encode() + body


SMUGGLED = b"GET /api/adapters/rollback HTTP/1.1\r\nhost: localhost\r\n\r\n"
CHUNKED = "transfer-encoding: chunked"
AMBIGUOUS = {
    "two hosts": post(ASK, "host: evil.example"),
    "two lengths": post(ASK, "content-length: 5"),
    "a length and chunks": post(b"0\r\n\r\n" + SMUGGLED, CHUNKED),
    "chunks twice": post(b"0\r\n\r\n" + SMUGGLED, CHUNKED, CHUNKED, length=-1),
    "chunks of another name": post(b"0\r\n\r\n" + SMUGGLED, "transfer-encoding: xchunked", length=-1),
    "chunks after white space": post(b"0\r\n\r\n" + SMUGGLED, "transfer-encoding : chunked", length=-1),
    "a signed length": post(ASK, "content-length: +5", length=-1),
    "a negative length": post(ASK, "content-length: -5", length=-1),
    "a bare line feed in a name": post(ASK, "x-a\n: b"),
    "a zero byte": post(ASK, "x-a: \0"),
    "a bad chunk size": post(b"zz\r\n" + ASK, CHUNKED, length=-1),
    "two origins": post(ASK, "origin: http://localhost", "origin: http://evil.example"),
    "two tokens": post(ASK, "authorization: Bearer a", "authorization: Bearer b"),
    "no host": post().replace(b"host: localhost\r\n", b""),
    "a target of another host": post().replace(b"POST /v1", b"POST http://evil.example/v1"),
    "a line that is no request": b"hello\r\n\r\n",
    "another protocol": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "a user before the host": post().replace(b"host: localhost", b"host: localhost@127.0.0.1"),
    "a path after the host": post().replace(b"host: localhost", b"host: localhost/.evil.example"),
    "a fragment after the host": post().replace(b"host: localhost", b"host: localhost#.evil.example"),
    "a port that is no number": post().replace(b"host: localhost", b"host: localhost:evil"),
    "an old protocol": b"POST /v1/chat/completions HTTP/0.9\r\n\r\n",
}


@pytest.mark.parametrize("sent", AMBIGUOUS.values(), ids=AMBIGUOUS.keys())
async def test_ambiguous_http_framing_is_refused(answers: ScriptedAnswers, sent: bytes) -> None:
    async with served(answers, protocol=Hasty) as port:
        came = await reply_to(port, sent)
        assert came.count(b"HTTP/1.1 ") <= 1
        assert came == b"" or came.startswith(b"HTTP/1.1 4")
        assert (await reply_to(port, post())).startswith(b"HTTP/1.1 200 ")
    assert len(answers.asked) == 1


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"\xff\xfe", b"invalid_json"),
        (b'{"messages": [{"role": "user", "content": "\xc3\x28"}]}', b"invalid_json"),
        (b'{"messages": [{"role": "user", "content": "hi"}], "temperature": 1e999}', b"invalid_value"),
        (b'{"messages": [{"role": "user", "content": "hi"}], "seed": ' + b"9" * 5000 + b"}", b"invalid_json"),
        (b'{"messages": [{"role": "user", "content": "hi"}], "max_tokens": -1}', b"invalid_value"),
        (b'{"messages": ' + b"[" * 60_000 + b"]" * 60_000 + b"}", b"invalid_json"),
        (
            b'{"tools": [{"type": "function", "function": {"name": "f", "x": 1e999}}], "messages": [{"role":"user","content":"a"}]}',
            b"json",
        ),
    ],
)
async def test_bodies_that_break_parsers_are_refused(answers: ScriptedAnswers, body: bytes, code: bytes) -> None:
    async with served(answers) as port:
        came = await reply_to(port, post(body))
    assert came.startswith(b"HTTP/1.1 400 ")
    assert code in came
    assert answers.asked == []


async def test_too_many_and_too_long_headers_are_refused(answers: ScriptedAnswers) -> None:
    async with served(answers) as port:
        many = await reply_to(port, post(ASK, *(f"x-{number}: a" for number in range(80))))
        long = await reply_to(port, post(ASK, "x-a: " + "a" * 20_000))
    assert (many[:13], long[:13] in (b"HTTP/1.1 431 ", b"HTTP/1.1 400 ")) == (b"HTTP/1.1 431 ", True)
    assert answers.asked == []


async def test_body_that_does_not_arrive_is_abandoned(answers: ScriptedAnswers) -> None:
    async with served(answers, limits=LIMITS) as port:
        came = await reply_to(port, post(ASK[:9], length=500))
        assert came.startswith(b"HTTP/1.1 408 ")
        assert b"request_timeout" in came


@pytest.mark.parametrize("sent", [b"", b"POST /v1/chat/comp", post(ASK[:9], length=500)])
async def test_connection_without_progress_is_closed(answers: ScriptedAnswers, sent: bytes) -> None:
    async with served(answers, protocol=Hasty) as port:
        assert await reply_to(port, sent) == b""


class Crowded(TimedProtocol):
    """Has room for few."""

    most_connections = 8


@pytest.mark.parametrize(
    "sent", [b"", b"GET /health HTTP/1.1\r\nhost: local", b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"]
)
async def test_idle_connections_are_closed_to_accept_new_ones(answers: ScriptedAnswers, sent: bytes) -> None:
    async with served(answers, protocol=Crowded) as port:
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3 * Crowded.most_connections)]
        for _, writer in idle:
            writer.write(sent)
        assert (await reply_to(port, post())).startswith(b"HTTP/1.1 200 ")
        for _, writer in idle:
            writer.close()


async def test_refusal_with_all_connections_busy_is_an_ordinary_error(answers: ScriptedAnswers) -> None:
    free = asyncio.Event()
    answers.wait_before = {0: free}
    async with served(answers, protocol=Crowded) as port, asyncio.TaskGroup() as group:
        busy = [group.create_task(reply_to(port, post())) for _ in range(Crowded.most_connections)]
        await until(lambda: len(answers.asked) == len(busy))
        refused = await reply_to(port, post())
        free.set()
    head, _, body = refused.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 1" in head
    assert json.loads(body)["error"]["code"] == "too_many_connections"
    assert all(task.result().startswith(b"HTTP/1.1 200 ") for task in busy)


async def test_non_http_bytes_get_the_common_error_form(answers: ScriptedAnswers) -> None:
    async with served(answers) as port:
        head, _, body = (await reply_to(port, b"hello\r\n\r\n")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["code"] == "invalid_http"


async def test_incomplete_bodies_do_not_occupy_request_places(answers: ScriptedAnswers) -> None:
    async with served(answers, limits=EndpointLimits(posts=2)) as port:
        slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        for _, writer in slow:
            writer.write(post(ASK[:9], length=500))
        await asyncio.sleep(0.1)
        assert (await reply_to(port, post())).startswith(b"HTTP/1.1 200 ")
        for _, writer in slow:
            writer.close()


async def test_kill_switch_works_under_full_load(answers: ScriptedAnswers) -> None:
    free = asyncio.Event()
    answers.wait_before = {0: free}
    async with served(answers, limits=EndpointLimits(posts=2)) as port, asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(reply_to(port, post()))
        await until(lambda: len(answers.asked) == 2)
        assert (await reply_to(port, post())).startswith(b"HTTP/1.1 429 ")
        pause = post(b'{"paused": true}').replace(b"/v1/chat/completions", b"/api/budget/pause")
        assert (await reply_to(port, pause)).startswith(b"HTTP/1.1 200 ")
        free.set()


@pytest.mark.parametrize("chunked", [False, True])
async def test_client_that_sends_a_whole_oversized_body_reads_the_refusal(answers: ScriptedAnswers, chunked: bool) -> None:
    large = b"x" * (8 << 20)
    sent = post(b"%x\r\n%s\r\n0\r\n\r\n" % (len(large), large), CHUNKED, length=-1) if chunked else post(large)
    async with served(answers) as port:
        came = await reply_to(port, sent)
    assert came.startswith(b"HTTP/1.1 413 ")
    assert b"request_too_large" in came


async def test_client_that_does_not_read_blocks_nobody(answers: ScriptedAnswers) -> None:
    answers.pieces = ["word " * 20_000] * 400
    async with served(answers, protocol=Hasty) as port:
        body = ASK[:-1] + b', "stream": true}'
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        writer.write(post(body))
        await until(lambda: answers.closed != 0)
        writer.close()
        assert len(answers.asked) == 1


async def test_pipelined_requests_are_answered_in_order(answers: ScriptedAnswers) -> None:
    async with served(answers) as port:
        came = await reply_to(port, post().replace(b"connection: close\r\n", b"") + post())
    assert came.count(b"HTTP/1.1 200 ") == 2
    assert len(answers.asked) == 2


async def asked_by(port: int, method: str, path: str, **headers: str) -> aiohttp.ClientResponse:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    url = f"http://127.0.0.1:{port}{path}"
    async with aiohttp.ClientSession() as session, session.request(method, url, headers=names) as reply:
        await reply.read()
        return reply


def opened_to(reply: aiohttp.ClientResponse) -> str | None:
    return reply.headers.get("access-control-allow-origin")


async def test_only_named_origins_are_allowed_and_never_with_credentials(answers: ScriptedAnswers) -> None:
    preflight = {
        "access_control_request_method": "POST",
        "access_control_request_headers": "authorization, content-type, x\n"[:-1],
    }
    async with served(answers, origins=[FRIEND]) as port:
        path = "/v1/chat/completions"
        welcome = await asked_by(port, "OPTIONS", path, origin=FRIEND, sec_fetch_site="cross-site", **preflight)
        assert (welcome.status, opened_to(welcome), welcome.headers["vary"]) == (204, FRIEND, "Origin")
        assert welcome.headers["access-control-allow-headers"] == "authorization, content-type, x"
        read = await asked_by(port, "GET", "/v1/models", origin=FRIEND, sec_fetch_site="cross-site")
        assert (read.status, opened_to(read)) == (200, FRIEND)
        assert set(ANSWER_HEADERS) < set(read.headers["access-control-expose-headers"].split(", "))
        for foreign in ("https://evil.example", "http://notes.example", "https://notes.example.evil.example", "null", "*"):
            for method, more in (("OPTIONS", preflight), ("GET", {})):
                refused = await asked_by(port, method, path if more else "/v1/models", origin=foreign, **more)
                assert (refused.status, opened_to(refused)) == (403, None)
        for reply in (welcome, read):
            assert "access-control-allow-credentials" not in reply.headers


async def test_a_named_origin_still_needs_the_token_and_can_read_the_refusal(answers: ScriptedAnswers) -> None:
    async with served(answers, origins=[FRIEND], token="a-token-of-enough-letters") as port:
        refused = await asked_by(port, "GET", "/v1/models", origin=FRIEND)
        assert (refused.status, opened_to(refused), refused.headers["www-authenticate"]) == (401, FRIEND, "Bearer")
        allowed = await asked_by(port, "GET", "/v1/models", origin=FRIEND, authorization="bearer a-token-of-enough-letters")
        assert allowed.status == 200


async def test_without_the_token_only_liveness_and_the_page_are_served(answers: ScriptedAnswers) -> None:
    async with served(answers, token="a-token-of-enough-letters") as port:
        got = {
            path: (await asked_by(port, "GET", path)).status
            for path in ("/", "/health", "/health/ready", "/openapi.json", "/api/status")
        }
        assert got == {"/": 200, "/health": 200, "/health/ready": 401, "/openapi.json": 401, "/api/status": 401}
        for wrong in ("Bearer ", "Bearer a-token-of-enough-letter", "Basic a-token-of-enough-letters", "Bearer \xe9"):
            assert (await asked_by(port, "GET", "/api/status", authorization=wrong)).status == 401


async def test_a_unix_socket_is_served_too_for_this_user_alone(answers: ScriptedAnswers, tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    for _ in range(2):
        async with served(answers, socket_path=path) as port:
            assert path.stat().st_mode & 0o777 == 0o600
            connector = aiohttp.UnixConnector(str(path))
            async with aiohttp.ClientSession(connector=connector) as session, session.get("http://localhost/health") as reply:
                assert reply.status == 200
            assert (await asked_by(port, "GET", "/health")).status == 200
        assert not path.exists()


async def test_unix_socket_in_use_is_left_alone(answers: ScriptedAnswers, tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    async with served(answers, socket_path=path):
        with pytest.raises(EdgeError, match=r"agent\.sock"):
            async with served(answers, socket_path=path):
                pass
        assert path.is_socket()


async def test_a_failure_leaves_no_text_in_the_log(answers: ScriptedAnswers, caplog: pytest.LogCaptureFixture) -> None:
    answers.failure = RuntimeError("secret prompt text")
    async with served(answers) as port:
        assert (await reply_to(port, post())).startswith(b"HTTP/1.1 500 ")
    assert "RuntimeError" in caplog.text
    assert "secret" not in caplog.text
