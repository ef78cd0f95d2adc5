"""What every upstream over HTTP has in common, whichever API it has: the charge depends on what is certain."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from typing import Any

import pytest
from aiohttp import web

from coordinator.providers.http import HttpLimits, retry_after_s
from edge.core.types import TokenUsage
from tests.worlds.anthropic_traffic import BLOCK, START, STOP, ending
from tests.worlds.anthropic_traffic import event as message_event
from tests.worlds.anthropic_traffic import text as message_text
from tests.worlds.http_api import ANTHROPIC, API_KEY, OPENAI, Api, failed, failure, provider_for
from tests.worlds.upstream_server import (
    SECRET_PROMPT,
    Behaviour,
    answers,
    completion,
    delta,
    disconnects,
    event,
    hangs,
    in_turn,
    openai_provider,
    provider_request,
    running_upstream,
    sends,
)

DONE = b"data: [DONE]\n\n"
USAGE = event(choices=[], usage={"prompt_tokens": 12, "completion_tokens": 3})
USED = TokenUsage(12, 3)
NONSENSE = b"data: {nonsense\n\n"
THOUGHT = {"type": "thinking", "thinking": [{"type": "text", "text": "six times seven"}], "closed": True}


@pytest.fixture(params=[OPENAI, ANTHROPIC], ids=str)
def api(request: pytest.FixtureRequest) -> Api:
    found: Api = request.param
    return found


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def streams(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.parametrize("comes", [b"", b"\n", b": keep-alive\n\n", "x"], ids=["nothing", "lines", "comments", "texts"])
async def test_total_deadline_applies_to_silence_and_trickling_bytes(api: Api, comes: bytes | str, streams: bool) -> None:
    forever = api.text(comes) if isinstance(comes, str) else comes
    behaviour = sends(*api.begun, pause_s=0.02, forever=forever) if forever else hangs
    async with provider_for(api, in_turn(answers(api.answer()), behaviour)) as (provider, upstream):
        await provider.complete(provider_request())  # so that none of the time is for the connection
        error = await failed(provider, provider_request(deadline_s=0.4), streams=streams)
    assert (error.kind, error.executed, len(upstream.bodies)) == ("deadline", None, 2)


async def test_expired_deadline_closes_the_connection_to_the_upstream(api: Api, streams: bool) -> None:
    closed = asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        try:
            return await sends(pause_s=0.02, forever=b": keep-alive\n\n")(request)
        finally:
            closed.set()

    async with provider_for(api, in_turn(answers(api.answer()), endless)) as (provider, _):
        await provider.complete(provider_request())
        assert (await failed(provider, provider_request(deadline_s=0.4), streams=streams)).kind == "deadline"
        await asyncio.wait_for(closed.wait(), 60.0)


async def test_abandoned_stream_closes_its_connection(api: Api) -> None:
    left = asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        try:
            return await sends(*api.begun, pause_s=0.01, forever=api.text("x"))(request)
        finally:
            left.set()

    async with provider_for(api, endless) as (provider, _):
        pieces = provider.stream(provider_request())
        assert (await anext(pieces)).text == "x"
        await pieces.aclose()
        await asyncio.wait_for(left.wait(), 60.0)


@pytest.mark.parametrize(
    ("status", "executed"),
    [(400, False), (401, False), (404, False), (307, False), (429, False), (408, None), (500, None), (503, None)],
)
async def test_refusal_reports_whether_it_was_executed_and_when_to_retry(
    api: Api, status: int, executed: bool | None, streams: bool
) -> None:
    headers = {"Retry-After": "7", "Location": "https://elsewhere.example/"}
    error, requests = await failure(api, answers({"error": SECRET_PROMPT}, status, headers), streams=streams)
    assert (error.kind, error.executed, error.retry_after_s, requests) == (f"http_{status}", executed, 7.0, 1)
    assert SECRET_PROMPT not in str(error)


def test_retry_after_date_is_relative_to_the_response_date() -> None:
    date = {"Date": "Wed, 21 Oct 2026 07:28:00 GMT", "Retry-After": "Wed, 21 Oct 2026 07:28:07 GMT"}
    assert retry_after_s(date) == 7.0
    assert retry_after_s({"Retry-After": "soon"}) is None
    assert retry_after_s({}) is None


@pytest.mark.parametrize("value", ["9" * 19, "9" * 5000, "Fri, 31 Dec 9999 23:59:59 GMT"], ids=["long", "longer", "date"])
def test_absurd_retry_after_is_capped_at_a_day(value: str) -> None:
    assert retry_after_s({"Date": "Wed, 21 Oct 2026 07:28:00 GMT", "Retry-After": value}) == 86400.0


async def test_endless_error_body_does_not_delay_the_refusal_beyond_the_deadline(api: Api) -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        begun = web.StreamResponse(status=429)
        await begun.prepare(request)
        await begun.write(b"{")
        return await hangs(request)

    error, _ = await failure(api, endless, provider_request(deadline_s=1.0))
    assert (error.kind, error.executed) == ("http_429", False)


@pytest.mark.parametrize(
    ("api", "body"),
    [
        *((api, body) for api in (OPENAI, ANTHROPIC) for body in (b"<html>busy</html>", b"", b"{}", b"\xff")),
        (OPENAI, b'{"choices": []}'),
        (OPENAI, b'{"choices":[{"message":{"content":null},"finish_reason":"stop"}]}'),
        (OPENAI, b'{"choices":[{"message":{"content":"x"}}]}'),
        (OPENAI, b'{"choices":[{"message":{"content":"\xff"}}]}'),
        (ANTHROPIC, b'{"content": [], "usage": {"input_tokens": 1, "output_tokens": 1}}'),
    ],
    ids=str,
)
async def test_garbage_with_status_200_was_executed(api: Api, body: bytes) -> None:
    error, requests = await failure(api, answers(body))
    assert (error.kind, error.executed, requests) == ("garbage", True, 1)


@pytest.mark.parametrize(
    ("api", "changes"),
    [
        (OPENAI, {"choices": []}),
        (OPENAI, {"choices": 7}),
        (OPENAI, {"choices": [{"message": "forty-two", "finish_reason": "stop"}]}),
        (OPENAI, {"choices": [{"index": "first", "message": {"content": "x"}, "finish_reason": "stop"}]}),
        (OPENAI, {"choices": [{"message": {"content": 42}, "finish_reason": "stop"}]}),
        (OPENAI, {"choices": [{"message": {"content": [THOUGHT]}, "finish_reason": "stop"}]}),
        (OPENAI, {"choices": [{"message": {"content": "x", "tool_calls": "add"}, "finish_reason": "stop"}]}),
        (OPENAI, {"choices": [{"message": {"content": "x"}, "finish_reason": 1}]}),
        (ANTHROPIC, {"content": 7}),
        (ANTHROPIC, {"content": ["forty-two"]}),
        (ANTHROPIC, {"stop_reason": None}),
        (ANTHROPIC, {"id": {}}),
    ],
    ids=str,
)
async def test_usage_next_to_what_cannot_be_read_is_what_the_call_costs(api: Api, changes: dict[str, Any]) -> None:
    for streams in (
        (False, True) if api is OPENAI else (False,)
    ):  # such a server may answer in one piece where a stream was wanted
        error, _ = await failure(api, answers(api.answer(**changes)), streams=streams)
        assert (error.kind, error.executed, error.usage) == ("garbage", True, USED)


OPENAI_BROKEN = [
    (sends(delta("x"), cut=True), "cut", None),
    (sends(delta("x"), DONE), "garbage", None),
    (sends(delta("x")), "garbage", None),
    (sends(delta("x"), NONSENSE), "garbage", None),
    (sends(delta("x"), NONSENSE, DONE), "garbage", None),
    (sends(delta("x"), NONSENSE, USAGE, DONE), "garbage", USED),
    (sends(delta("x"), event(error={"message": SECRET_PROMPT})), "garbage", None),
    (sends(delta("x"), event(choices=7), delta("y", "stop"), USAGE, DONE), "garbage", USED),
    (sends(delta("x"), event(choices=7, usage={"prompt_tokens": 12, "completion_tokens": 3}), DONE), "garbage", USED),
    (sends(event(choices=[{"delta": "x"}]), USAGE), "garbage", USED),
]
X, END = message_text("x"), (ending(), STOP)
ODD_BLOCK = message_event("content_block_start", index=0, content_block=7)
ODD_DELTA = message_event("message_delta", delta=7, usage={"output_tokens": 3})
ANTHROPIC_BROKEN = [
    (sends(START, BLOCK, X, cut=True), "cut", None),
    (sends(START, BLOCK, X), "garbage", None),
    (sends(START, BLOCK, b'data: {"type": 7}\n\n'), "garbage", None),
    (sends(START, BLOCK, NONSENSE), "garbage", None),
    (sends(START, BLOCK, NONSENSE, X, *END), "garbage", USED),
    (sends(START, BLOCK, message_event("error", error={"type": "api_error", "message": SECRET_PROMPT})), "api_error", None),
    (sends(message_event("error", error={"type": SECRET_PROMPT})), "garbage", None),
    (sends(START, ODD_BLOCK, X, *END), "garbage", USED),
    (sends(START, BLOCK, X, ODD_DELTA, STOP), "garbage", USED),
]


@pytest.mark.parametrize(
    ("api", "behaviour", "kind", "usage"),
    [*((OPENAI, *broken) for broken in OPENAI_BROKEN), *((ANTHROPIC, *broken) for broken in ANTHROPIC_BROKEN)],
)
async def test_broken_stream_is_a_failure_that_costs_what_its_end_says(
    api: Api, behaviour: Behaviour, kind: str, usage: TokenUsage | None
) -> None:
    error, _ = await failure(api, behaviour, streams=True)
    assert (error.kind, error.executed, error.usage) == (kind, True if kind == "garbage" else None, usage)
    assert SECRET_PROMPT not in str(error)


async def test_an_endless_answer_is_cut_off_at_the_size_limit(api: Api, streams: bool) -> None:
    for flood in (sends(forever=b"x" * 10_000), sends(*api.begun, *[api.text("x" * 10_000)] * 10)):
        error, _ = await failure(api, flood, streams=streams, limits=HttpLimits(max_response_bytes=50_000))
        assert (error.kind, error.executed) == ("too_large", True)


@pytest.mark.parametrize("behaviour", [disconnects, sends(b"{", cut=True)])
async def test_connection_broken_after_the_request_possibly_executed_and_is_not_retried(api: Api, behaviour: Behaviour) -> None:
    error, requests = await failure(api, behaviour)
    assert (error.executed, requests) == (None, 1)


@pytest.mark.parametrize(
    "behaviour",
    [
        answers({"error": SECRET_PROMPT}, 400),
        answers({"error": {"type": "invalid_request_error", "message": SECRET_PROMPT}}, 400),
        answers(SECRET_PROMPT.encode()),
        answers(b"", 401),
        hangs,
    ],
)
async def test_neither_prompt_nor_key_reaches_an_error_or_a_log(
    api: Api, behaviour: Behaviour, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    error, _ = await failure(api, behaviour, provider_request(deadline_s=0.4))
    chain: BaseException | None = error
    while chain is not None:
        assert SECRET_PROMPT not in f"{chain!s} {chain!r}" and API_KEY not in f"{chain!s} {chain!r}"
        chain = chain.__cause__ or chain.__context__
    assert SECRET_PROMPT not in caplog.text and API_KEY not in caplog.text


async def test_unreachable_server_was_not_asked() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        refused = await _unreachable(f"http://127.0.0.1:{closed.getsockname()[1]}/v1")
    unknown = await _unreachable("https://no-such-host.invalid/v1")
    async with running_upstream(answers(completion())) as upstream:
        without_tls = await _unreachable(upstream.base_url.replace("http:", "https:"))
        assert upstream.bodies == []
    assert (refused, without_tls, unknown[1]) == (("refused", False), ("tls", False), False)


async def test_server_that_never_accepts_hits_the_deadline_without_being_asked() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        fillers = [_connecting(silent) for _ in range(4)]  # fill the queue of connections nobody accepts
        unreached = await _unreachable(f"http://127.0.0.1:{silent.getsockname()[1]}/v1", deadline_s=0.4)
        for filler in fillers:
            filler.close()
    assert unreached == ("connect_timeout", False)


async def _unreachable(base_url: str, deadline_s: float = 5.0) -> tuple[str, bool | None]:
    """Kind of the failure at this address, and whether the request was executed."""
    provider = openai_provider(base_url)
    error = await failed(provider, provider_request(deadline_s=deadline_s))
    await provider.aclose()
    return error.kind, error.executed


def _connecting(listener: socket.socket) -> socket.socket:
    client = socket.socket()
    client.setblocking(False)
    client.connect_ex(listener.getsockname())
    return client


async def test_a_whole_answer_where_a_stream_was_wanted_is_understood_with_its_usage() -> None:
    async with provider_for(OPENAI, answers(b"\n  \n" + json.dumps(completion()).encode())) as (provider, _):
        pieces = [piece async for piece in provider.stream(provider_request())]
    assert [piece.text for piece in pieces] == ["forty-two", ""]
    last = pieces[-1].result
    assert (last.text, last.usage, last.finish) == ("forty-two", USED, "stop")
