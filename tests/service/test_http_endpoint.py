"""The HTTP endpoint over real sockets, with scripted answers behind it: wire shapes, streaming, errors, and who is let in."""

from __future__ import annotations

import asyncio
import io
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from edge.core.errors import BudgetExhausted, ContextOverflow, CoordinatorUnavailable, EdgeError, UsageError
from edge.rpc.address import is_loopback
from edge.serve.access import Limits
from edge.serve.endpoint import build_app
from edge.serve.ports import AnswerNote
from edge.serve.server import _listen, serving
from edge.testing.clock import ManualClock
from edge.testing.endpoint import ScriptedAnswers, ScriptedControl

SAID = ["<thi", "nk>\nStep 1: 2+2=4\n</think>\n<answer>", "\\boxed{4}", "</answer>"]
CLOUD = AnswerNote("", "cloud", "asked", "stop", 11, 7, 1.25, 0.5, 3, None, 20, 99, 6, 0.4, "4")
ASK = {"model": "edge", "messages": [{"role": "user", "content": "2+2?"}]}


@pytest.fixture
def answers() -> ScriptedAnswers:
    return ScriptedAnswers(SAID, note=CLOUD)


@pytest.fixture
def control(answers: ScriptedAnswers) -> ScriptedControl:
    return ScriptedControl(answers)


@pytest.fixture
async def url(answers: ScriptedAnswers, control: ScriptedControl) -> AsyncIterator[str]:
    async with serving(build_app(answers, control, ManualClock(1000.0), limits=Limits(posts=3)), "127.0.0.1", 0) as base:
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


async def test_a_completion_has_the_openai_shape_and_says_where_it_came_from(http: aiohttp.ClientSession, url: str) -> None:
    async with http.post(f"{url}/v1/chat/completions", json=ASK) as reply:
        body, headers = await reply.json(), reply.headers
    assert (body["object"], body["model"], body["created"]) == ("chat.completion", "edge", 1000)
    assert body["id"].startswith("chatcmpl-")
    choice = body["choices"][0]
    assert choice["message"] == {
        "role": "assistant",
        "content": "\\boxed{4}",
        "refusal": None,
        "reasoning_content": "Step 1: 2+2=4\n",
    }
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "stop", None)
    assert body["usage"] == {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    assert (body["edge"]["source"], body["edge"]["help_log_odds"], body["edge"]["spend_uusd"]) == ("cloud", 1.25, 99)
    assert (headers["x-edge-source"], headers["x-edge-calls-left"], headers["x-edge-adapter-version"]) == ("cloud", "3", "6")


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


async def test_usage_comes_as_its_own_last_chunk_when_asked_for(http: aiohttp.ClientSession, url: str) -> None:
    chunks = await stream(http, url, stream_options={"include_usage": True})
    assert (chunks[-1]["choices"], chunks[-1]["usage"]["total_tokens"]) == ([], 18)
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


async def test_text_is_sent_while_the_answer_is_still_being_made(
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


async def test_a_stop_string_ends_the_content(http: aiohttp.ClientSession, url: str, answers: ScriptedAnswers) -> None:
    answers.pieces = ["one\nQ", ": two"]
    _, body = await post(http, url, {**ASK, "stop": ["Q:"]})
    assert body["choices"][0]["message"]["content"] == "one\n"


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (BudgetExhausted("the budget of today is gone"), 429, "budget_exhausted"),
        (CoordinatorUnavailable("no answer"), 503, "unreachable"),
        (EdgeError("engine closed", hint="start again"), 500, "internal"),
        (UsageError("temperature must be between 0 and 100"), 400, "invalid_value"),
        (ContextOverflow("the prompt has 2000 tokens, the context 1024"), 400, "context_length_exceeded"),
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


async def test_a_failure_in_the_middle_comes_as_an_error_event(
    http: aiohttp.ClientSession, url: str, answers: ScriptedAnswers
) -> None:
    answers.failure, answers.fail_after = CoordinatorUnavailable("gone"), 3
    chunks = await stream(http, url)
    assert chunks[-1]["error"]["message"] == "gone"


async def test_generation_stops_when_the_client_goes_away(
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


async def test_the_loaded_models_name_means_edge(http: aiohttp.ClientSession, answers: ScriptedAnswers) -> None:
    async with serving(
        build_app(answers, ScriptedControl(answers), ManualClock(), loaded_model="nano-edge"), "127.0.0.1", 0
    ) as base:
        status, body = await post(http, base, {**ASK, "model": "nano-edge"})
        async with http.get(f"{base}/v1/models") as reply:
            listed = [model["id"] for model in (await reply.json())["data"]]
        async with http.get(f"{base}/v1/models/nano-edge") as reply:
            assert reply.status == 200
    assert (status, body["model"], answers.asked[0].mode, listed[-1]) == (200, "nano-edge", None, "nano-edge")


async def test_models_status_steps_why_and_health_answer(http: aiohttp.ClientSession, url: str, control: ScriptedControl) -> None:
    control.log = [{"step": 1}, {"step": 2}]
    _, made = await post(http, url)
    got = {}
    for path in ("/v1/models", "/v1/models/edge", "/health", "/api/status", "/api/steps?after=1", f"/api/why/{made['id']}"):
        async with http.get(url + path) as reply:
            assert reply.status == 200
            got[path] = await reply.json()
    names = ["edge", "edge-auto", "edge-prefer-local", "edge-local", "edge-cloud"]
    assert [model["id"] for model in got["/v1/models"]["data"]] == names
    assert got["/v1/models/edge"]["object"] == "model"
    assert got["/api/steps?after=1"] == {"steps": [{"step": 2}]}
    assert got[f"/api/why/{made['id']}"]["source"] == "cloud"


@pytest.mark.parametrize(
    ("path", "status"),
    [("/nope", 404), ("/v1/models/gpt", 404), ("/api/why/none", 404), ("/api/steps?after=x", 400), ("/v1/chat/completions", 405)],
)
async def test_what_is_not_there_is_an_error_object(http: aiohttp.ClientSession, url: str, path: str, status: int) -> None:
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


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9", "127.0.0.1:1", "[::1]:8040"])
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


async def test_no_reply_opens_the_endpoint_to_other_origins(http: aiohttp.ClientSession, url: str) -> None:
    async with http.options(f"{url}/v1/chat/completions", headers={"origin": "http://evil.example"}) as reply:
        assert reply.status == 403
        assert not [name for name in reply.headers if name.lower().startswith("access-control")]


async def test_a_body_that_a_form_could_send_is_refused(http: aiohttp.ClientSession, url: str) -> None:
    async with http.post(f"{url}/v1/chat/completions", data=json.dumps(ASK), headers={"content-type": "text/plain"}) as reply:
        assert reply.status == 415


async def test_a_body_over_the_limit_is_refused_with_and_without_a_length(http: aiohttp.ClientSession, url: str) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b" " * 100_000

    for data in (io.BytesIO(b" " * 2_000_000), endless()):
        async with http.post(f"{url}/v1/chat/completions", data=data, headers={"content-type": "application/json"}) as reply:
            assert reply.status == 413


async def test_more_requests_than_the_limit_are_refused_and_served_again_later(
    http: aiohttp.ClientSession, url: str, answers: ScriptedAnswers
) -> None:
    gate = asyncio.Event()
    answers.wait_before = {0: gate}
    waiting = [asyncio.create_task(post(http, url)) for _ in range(3)]
    async with asyncio.timeout(10):
        while len(answers.asked) < 3:
            await asyncio.sleep(0.005)
    status, body = await post(http, url)
    assert (status, body["error"]["type"]) == (429, "rate_limit_error")
    gate.set()
    assert [status for status, _ in await asyncio.gather(*waiting)] == [200] * 3
    assert (await post(http, url))[0] == 200


async def test_a_token_is_asked_for_when_there_is_one(http: aiohttp.ClientSession, answers: ScriptedAnswers) -> None:
    async with serving(build_app(answers, ScriptedControl(answers), ManualClock(), token="open"), "127.0.0.1", 0) as base:
        status, body = await post(http, base)
        assert (status, body["error"]["message"]) == (401, "a bearer token is needed")
        status, body = await post(http, base, authorization="Bearer opne")
        assert (status, body["error"]["message"]) == (401, "this bearer token is not the one in serve.token_file")
        assert (await post(http, base, authorization="Bearer open"))[0] == 200


async def test_the_page_is_there_without_the_token_and_asks_for_it_itself(
    http: aiohttp.ClientSession, answers: ScriptedAnswers
) -> None:
    async with serving(build_app(answers, ScriptedControl(answers), ManualClock(), token="open"), "127.0.0.1", 0) as base:
        for path, status in (
            ("/", 200),
            ("/page/app.js", 200),
            ("/api/status", 401),
            ("/v1/models", 401),
            ("/page/nope.js", 401),
        ):
            async with http.get(base + path) as reply:
                assert reply.status == status
        async with http.post(f"{base}/", json={}) as reply:
            assert reply.status == 401


async def test_the_page_comes_with_its_files_and_a_closed_content_policy(http: aiohttp.ClientSession, url: str) -> None:
    for path, start in (("/", "<!doctype html>"), ("/page/app.js", "// The page"), ("/page/style.css", ":root")):
        async with http.get(url + path) as reply:
            assert (await reply.text()).startswith(start)
            assert "default-src 'none'" in reply.headers["content-security-policy"]


async def test_a_port_in_use_is_a_clear_error(answers: ScriptedAnswers) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EdgeError, match=f"port {port} is in use"):
            async with serving(build_app(answers, ScriptedControl(answers), ManualClock()), "127.0.0.1", port):
                pass


def test_only_addresses_of_this_machine_count_as_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "localhost", "::1", "127.8.8.8")))
    assert not any(map(is_loopback, ("0.0.0.0", "192.168.0.4", "::", "example.org", "localhost.evil")))


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"version": "2"}', b'{"version": -1}', b'{"version": true}', b'{"version": 1.5}'],
)
async def test_a_rollback_needs_a_version(http: aiohttp.ClientSession, url: str, body: bytes) -> None:
    async with http.post(f"{url}/api/adapters/rollback", data=body, headers={"content-type": "application/json"}) as reply:
        assert (reply.status, (await reply.json())["error"]["param"]) == (400, "version")


async def test_a_rollback_of_what_is_no_json_names_no_field(http: aiohttp.ClientSession, url: str) -> None:
    async with http.post(
        f"{url}/api/adapters/rollback", data=b"[" * 100_000, headers={"content-type": "application/json"}
    ) as reply:
        error = (await reply.json())["error"]
        assert (reply.status, error["param"], error["code"]) == (400, None, "invalid_json")


async def test_adapters_are_listed_and_gone_back_to(http: aiohttp.ClientSession, url: str, control: ScriptedControl) -> None:
    control.versions = [{"version": 2, "serving": False}, {"version": 3, "serving": True}]
    async with http.post(f"{url}/api/adapters/rollback", json={"version": 2}) as reply:
        assert (reply.status, await reply.json()) == (200, {"head": 2, "serving": 2})
    async with http.get(f"{url}/api/adapters") as reply:
        assert [one["serving"] for one in (await reply.json())["adapters"]] == [True, False]
    async with http.post(f"{url}/api/adapters/rollback", json={"version": 7}) as reply:
        assert reply.status == 404


async def test_a_foreign_page_cannot_go_back_to_another_adapter(http: aiohttp.ClientSession, url: str) -> None:
    headers = {"origin": "https://evil.example"}
    async with http.post(f"{url}/api/adapters/rollback", json={"version": 0}, headers=headers) as reply:
        assert reply.status == 403


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"temperature": NaN}', b"\xff\xfe{", b"[" * 100_000])
async def test_what_is_no_json_object_is_refused(
    http: aiohttp.ClientSession, url: str, answers: ScriptedAnswers, body: bytes
) -> None:
    async with http.post(f"{url}/v1/chat/completions", data=body, headers={"content-type": "application/json"}) as reply:
        assert (reply.status, (await reply.json())["error"]["type"]) == (400, "invalid_request_error")
    assert answers.asked == []


async def test_head_is_answered_like_get_without_a_body(http: aiohttp.ClientSession, url: str) -> None:
    for path in ("/health", "/", "/v1/models"):
        async with http.head(url + path) as reply:
            assert (reply.status, await reply.read()) == (200, b"")


@pytest.mark.parametrize("verdict", ["good", "bad", "none"])
async def test_a_verdict_is_kept_and_told_back(
    http: aiohttp.ClientSession, url: str, control: ScriptedControl, verdict: str
) -> None:
    _, answer = await post(http, url)
    body = {"id": answer["id"], "verdict": verdict, "correction": "4" if verdict == "bad" else None}
    for _ in range(2):
        async with http.post(f"{url}/api/feedback", json=body) as reply:
            assert (reply.status, await reply.json()) == (200, {**body, "id": answer["id"].removeprefix("chatcmpl-")})
    assert len(control.verdicts) == 1


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"id": "nobody", "verdict": "good"}, 404, None),
        ({"id": "x", "verdict": "fine"}, 400, "verdict"),
        ({"verdict": "good"}, 400, "id"),
        ({"id": 5, "verdict": "good"}, 400, "id"),
        ({"id": "x", "verdict": "bad", "correction": 4}, 400, "correction"),
        ({"id": "\ud800", "verdict": "good"}, 400, "id"),
        ({"id": "x", "verdict": "bad", "correction": "4\udfff"}, 400, "correction"),
        ({"id": "x", "verdict": "bad", "correction": "4\0"}, 400, "correction"),
        ({"id": "x", "verdict": "bad", "correction": "\x1b[2J4"}, 400, "correction"),
        ({"id": "x", "verdict": "bad", "correction": "4" * 10_001}, 400, "correction"),
        ([], 400, None),
    ],
)
async def test_a_verdict_that_cannot_be_one_is_refused(
    http: aiohttp.ClientSession, url: str, body: object, status: int, param: str | None
) -> None:
    async with http.post(f"{url}/api/feedback", json=body) as reply:
        assert reply.status == status
        assert (await reply.json())["error"]["param"] == param


async def test_learning_is_paused_and_resumed(http: aiohttp.ClientSession, url: str) -> None:
    for paused, waiting in ((True, "paused by you"), (False, "")):
        async with http.post(f"{url}/api/learning", json={"paused": paused}) as reply:
            assert await reply.json() == {"paused": paused, "waiting": waiting}
    async with http.post(f"{url}/api/learning", json={"paused": "yes"}) as reply:
        assert (reply.status, (await reply.json())["error"]["param"]) == (400, "paused")


async def test_a_report_is_asked_for_since_a_time(http: aiohttp.ClientSession, url: str) -> None:
    async with http.get(f"{url}/api/report?since=1700000000.5") as reply:
        assert (await reply.json())["since"] == 1_700_000_000.5
    for wrong in ("yesterday", "-1", "1e9", "nan", "."):
        async with http.get(f"{url}/api/report", params={"since": wrong}) as reply:
            assert reply.status == 400


def test_replies_do_not_wait_for_the_client_s_acknowledgement() -> None:
    with _listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.proto == socket.IPPROTO_TCP  # asyncio's condition for turning Nagle's algorithm off
