"""The HTTP endpoint over real sockets with scripted answers: wire shapes, streaming, errors, and access control."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from edge.core.errors import BudgetExhausted, ContextOverflow, CoordinatorUnavailable, EdgeError, UsageError
from edge.rpc.address import is_loopback
from edge.serve.access import EndpointLimits
from edge.serve.endpoint import build_app
from edge.serve.ports import AnswerNote
from edge.serve.server import serving
from edge.testing.clock import ManualClock
from edge.testing.endpoint import ScriptedAnswers, ScriptedControl

PIECES = ["<thi", "nk>\nStep 1: 2+2=4\n</think>\n<answer>", "\\boxed{4}", "</answer>"]
CLOUD = AnswerNote("", "cloud", "asked", "stop", 11, 7, 1.25, 0.5, 3, None, 20, 99, 6, 0.4, "4")
ASK = {"model": "edge", "messages": [{"role": "user", "content": "2+2?"}]}


@pytest.fixture
def answers() -> ScriptedAnswers:
    return ScriptedAnswers(PIECES, note=CLOUD)


@pytest.fixture
def control(answers: ScriptedAnswers) -> ScriptedControl:
    return ScriptedControl(answers)


@pytest.fixture
async def url(answers: ScriptedAnswers, control: ScriptedControl) -> AsyncIterator[str]:
    async with serving(build_app(answers, control, ManualClock(1000.0), limits=EndpointLimits(posts=3)), "127.0.0.1", 0) as base:
        yield base


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def post(http: aiohttp.ClientSession, url: str, body: Any = ASK, **headers: str) -> tuple[int, Any]:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    async with http.post(f"{url}/v1/chat/completions", json=body, headers=names) as reply:
        return reply.status, await reply.json()


async def stream(http: aiohttp.ClientSession, url: str, **more: Any) -> list[Any]:
    async with http.post(f"{url}/v1/chat/completions", json={**ASK, "stream": True, **more}) as reply:
        assert reply.status == 200
        assert reply.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in (await reply.text()).split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def test_a_stream_is_chunks_of_one_id_with_role_first_and_reason_last(http: aiohttp.ClientSession, url: str) -> None:
    chunks = await stream(http, url)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Step 1: 2+2=4\n"
    assert "".join(delta.get("content", "") for delta in deltas) == "\\boxed{4}"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert (chunks[-1]["choices"][0]["finish_reason"], chunks[-1]["edge"]["source"]) == ("stop", "cloud")
    assert all("usage" not in chunk for chunk in chunks)


async def test_text_is_sent_while_the_answer_is_being_generated(
    http: aiohttp.ClientSession, url: str, answers: ScriptedAnswers
) -> None:
    gate = asyncio.Event()
    answers.pieces, answers.wait_before = ["first ", "second"], {1: gate}
    async with http.post(f"{url}/v1/chat/completions", json={**ASK, "stream": True}) as reply:
        seen = b""
        while b"first" not in seen:
            seen += await asyncio.wait_for(reply.content.readany(), 10)
        assert b"second" not in seen
        gate.set()
        assert b"second" in await reply.content.read()


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (BudgetExhausted("the budget of today is gone"), 429, "budget_exhausted"),
        (CoordinatorUnavailable("no answer"), 503, "unreachable"),
        (EdgeError("engine closed", hint="start again"), 500, "internal"),
        (UsageError("temperature must be between 0 and 100"), 400, "invalid_value"),
        (ContextOverflow("the prompt is too long: 2000 tokens, the context 1024"), 400, "context_length_exceeded"),
        (RuntimeError("secret prompt text"), 500, "internal"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_failure_before_the_first_text_has_its_status(
    http: aiohttp.ClientSession, url: str, answers: ScriptedAnswers, failure: Exception, status: int, code: str, streamed: bool
) -> None:
    answers.failure = failure
    got, body = await post(http, url, {**ASK, "stream": streamed})
    assert (got, body["error"]["code"]) == (status, code)
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert (body["error"]["type"] == "invalid_request_error") == (status == 400)
    assert "secret" not in body["error"]["message"]


async def test_failure_in_the_middle_is_an_error_event(http: aiohttp.ClientSession, url: str, answers: ScriptedAnswers) -> None:
    answers.failure, answers.fail_after = CoordinatorUnavailable("gone"), 3
    chunks = await stream(http, url)
    assert chunks[-1]["error"]["message"] == "gone"


async def test_generation_stops_when_the_client_disconnects(
    http: aiohttp.ClientSession, url: str, answers: ScriptedAnswers
) -> None:
    for streamed in (False, True):
        before = answers.closed
        answers.wait_before = {1: asyncio.Event()}
        request = asyncio.create_task(post(http, url, {**ASK, "stream": streamed}))
        async with asyncio.timeout(10):
            while answers.asked[-1:] == [] or len(answers.asked) <= before:
                await asyncio.sleep(0.005)
            request.cancel()
            while answers.closed == before:
                await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("path", "status"),
    [("/nope", 404), ("/v1/models/gpt", 404), ("/api/steps?after=x", 400), ("/v1/chat/completions", 405)],
)
async def test_unknown_route_is_an_error_object(http: aiohttp.ClientSession, url: str, path: str, status: int) -> None:
    async with http.get(url + path) as reply:
        assert reply.status == status
        assert (await reply.json())["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "", "localhost.", "[::1", "127.0.0.1@evil.example:80"]
)
async def test_a_foreign_host_header_is_refused(
    http: aiohttp.ClientSession, url: str, answers: ScriptedAnswers, host: str
) -> None:
    status, body = await post(http, url, host=host)
    assert (status, body["error"]["code"]) == (403, "host_not_allowed")
    assert answers.asked == []


@pytest.mark.parametrize("host", ["LOCALHOST:9", "[::1]:8040"])
async def test_names_of_this_machine_are_served(http: aiohttp.ClientSession, url: str, host: str) -> None:
    assert (await post(http, url, host=host))[0] == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://localhost"])
async def test_a_foreign_origin_is_refused(http: aiohttp.ClientSession, url: str, answers: ScriptedAnswers, origin: str) -> None:
    status, body = await post(http, url, origin=origin)
    assert (status, body["error"]["code"]) == (403, "origin_not_allowed")
    assert answers.asked == []


async def test_our_own_page_is_served_and_cross_site_requests_are_not(http: aiohttp.ClientSession, url: str) -> None:
    assert (await post(http, url, origin=url, sec_fetch_site="same-origin"))[0] == 200
    assert (await post(http, url, sec_fetch_site="cross-site"))[0] == 403
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    for path, status in (("/", 200), ("/api/status", 403)):
        async with http.get(url + path, headers=link) as reply:
            assert reply.status == status


async def test_a_body_that_a_form_could_send_is_refused(http: aiohttp.ClientSession, url: str) -> None:
    async with http.post(f"{url}/v1/chat/completions", data=json.dumps(ASK), headers={"content-type": "text/plain"}) as reply:
        assert reply.status == 415


async def test_page_has_its_files_and_a_strict_content_security_policy(http: aiohttp.ClientSession, url: str) -> None:
    for path, start in (("/", "<!doctype html>"), ("/page/app.js", "// The page"), ("/page/style.css", ":root")):
        async with http.get(url + path) as reply:
            assert (await reply.text()).startswith(start)
            assert "default-src 'none'" in reply.headers["content-security-policy"]


def test_only_addresses_of_this_machine_count_as_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "localhost", "::1", "127.8.8.8")))
    assert not any(map(is_loopback, ("0.0.0.0", "192.168.0.4", "::", "example.org", "localhost.evil")))


@pytest.mark.parametrize("body", [b"", b"[]", b'{"version": -1}', b'{"version": true}'])
async def test_a_rollback_needs_a_version(http: aiohttp.ClientSession, url: str, body: bytes) -> None:
    async with http.post(f"{url}/api/adapters/rollback", data=body, headers={"content-type": "application/json"}) as reply:
        assert (reply.status, (await reply.json())["error"]["param"]) == (400, "version")


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"id": "nobody", "verdict": "good"}, 404, None),
        ({"id": "x", "verdict": "fine"}, 400, "verdict"),
        ({"verdict": "good"}, 400, "id"),
        ({"id": "\ud800", "verdict": "good"}, 400, "id"),
        ({"id": "x", "verdict": "bad", "correction": "4\0"}, 400, "correction"),
        ({"id": "x", "verdict": "bad", "correction": "\x1b[2J4"}, 400, "correction"),
        ({"id": "x", "verdict": "bad", "correction": "4" * 10_001}, 400, "correction"),
        ([], 400, None),
    ],
)
async def test_invalid_feedback_is_refused(
    http: aiohttp.ClientSession, url: str, body: object, status: int, param: str | None
) -> None:
    async with http.post(f"{url}/api/feedback", json=body) as reply:
        assert reply.status == status
        assert (await reply.json())["error"]["param"] == param
