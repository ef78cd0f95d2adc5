"""The OpenAI-compatible provider with a real HTTP server that misbehaves: the charge depends on what is certain."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from coordinator.config import UpstreamConfig
from coordinator.providers.http import HttpLimits, retry_after_s
from coordinator.providers.openai_compatible import (
    OpenAICompatibleProvider,
)
from coordinator.providers.provider import ProviderDelta, ProviderError, ProviderRequest
from edge.core.errors import ConfigError
from edge.core.types import TokenUsage
from tests.worlds.upstream_server import (
    SECRET_PROMPT,
    Behaviour,
    Upstream,
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

Ask = Callable[[OpenAICompatibleProvider, ProviderRequest], Awaitable[Any]]
API_KEY = "sk-very-secret"
DONE = b"data: [DONE]\n\n"
USAGE = event(choices=[], usage={"prompt_tokens": 12, "completion_tokens": 3})


@asynccontextmanager
async def provider_for(behaviour: Behaviour, **settings: Any) -> AsyncIterator[tuple[OpenAICompatibleProvider, Upstream]]:
    async with running_upstream(behaviour) as upstream:
        provider = openai_provider(upstream.base_url, API_KEY, **settings)
        await provider.start()
        try:
            yield provider, upstream
        finally:
            await provider.aclose()


async def failure(behaviour: Behaviour, request: ProviderRequest, **settings: Any) -> tuple[ProviderError, int]:
    """How `complete` fails, and how many requests reached the server."""
    async with provider_for(behaviour, **settings) as (provider, upstream):
        with pytest.raises(ProviderError) as failed:
            await provider.complete(request)
        return failed.value, len(upstream.bodies)


async def streamed(provider: OpenAICompatibleProvider, request: ProviderRequest) -> list[ProviderDelta]:
    return [piece async for piece in provider.stream(request)]


async def test_completion_is_returned_with_its_usage_and_id() -> None:
    async with provider_for(answers(completion())) as (provider, upstream):
        result = await provider.complete(provider_request())
        assert (result.text, result.usage) == ("forty-two", TokenUsage(12, 3))
        assert (result.upstream_id, result.finish) == ("chatcmpl-1", "stop")
        assert upstream.bodies == [
            {
                "model": "some-model",
                "messages": [{"role": "user", "content": SECRET_PROMPT}],
                "max_tokens": 64,
                "temperature": 0.0,
                "stream": False,
            }
        ]
        assert upstream.headers[0]["Authorization"] == f"Bearer {API_KEY}"
        assert upstream.headers[0]["Idempotency-Key"] == "d1|k1|1"


async def test_idempotency_key_cannot_inject_headers() -> None:
    async with provider_for(answers(completion())) as (provider, upstream):
        await provider.complete(provider_request(key="k\r\nEvil: 1 ü"))
        assert upstream.headers[0]["Idempotency-Key"] == "k??Evil: 1 ?"
        assert "Evil" not in upstream.headers[0]


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {"prompt_tokens": 5},
        {"prompt_tokens": -1, "completion_tokens": 2},
        {"prompt_tokens": 9**30, "completion_tokens": 1},
        {"prompt_tokens": "some", "completion_tokens": None},
    ],
)
async def test_missing_or_invalid_usage_is_unknown(usage: Any) -> None:
    async with provider_for(answers(completion(usage=usage))) as (provider, _):
        assert (await provider.complete(provider_request())).usage is None


async def test_usage_written_as_text_is_read() -> None:
    usage = {"prompt_tokens": "12", "completion_tokens": 3}
    async with provider_for(answers(completion(usage=usage))) as (provider, _):
        assert (await provider.complete(provider_request())).usage == TokenUsage(12, 3)


@pytest.mark.parametrize(
    "behaviour", [hangs, sends(pause_s=0.02, forever=b"\n"), sends(pause_s=0.02, forever=b": keep-alive\n\n")]
)
@pytest.mark.parametrize("ask", [OpenAICompatibleProvider.complete, streamed])
async def test_total_deadline_applies_to_silence_and_trickling_bytes(behaviour: Behaviour, ask: Ask) -> None:
    async with provider_for(in_turn(answers(completion()), behaviour)) as (provider, upstream):
        await provider.complete(provider_request())  # so that none of the time is for the connection
        with pytest.raises(ProviderError) as failed:
            await ask(provider, provider_request(deadline_s=0.4))
        assert (failed.value.kind, failed.value.executed) == ("deadline", None)
        assert len(upstream.bodies) == 2


@pytest.mark.parametrize("ask", [OpenAICompatibleProvider.complete, streamed])
async def test_expired_deadline_closes_the_connection_to_the_upstream(ask: Ask) -> None:
    closed = asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        try:
            return await sends(pause_s=0.02, forever=b": keep-alive\n\n")(request)
        finally:
            closed.set()

    async with provider_for(in_turn(answers(completion()), endless)) as (provider, _):
        await provider.complete(provider_request())
        with pytest.raises(ProviderError, match="in time"):
            await ask(provider, provider_request(deadline_s=0.4))
        await asyncio.wait_for(closed.wait(), 60.0)


@pytest.mark.parametrize("status", [400, 401, 404])
async def test_upstream_refusal_was_not_executed_and_is_not_retried(status: int) -> None:
    error, requests = await failure(answers({"error": SECRET_PROMPT}, status), provider_request())
    assert (error.kind, error.executed, requests) == (f"http_{status}", False, 1)


async def test_refusal_is_reported_with_the_upstreams_code_and_without_its_text() -> None:
    refusal = {"message": f"cannot read {SECRET_PROMPT}", "type": "invalid_request_error", "code": "unsupported_parameter"}
    error, _ = await failure(answers({"error": refusal}, 400), provider_request())
    assert "(unsupported_parameter)" in str(error) and "cannot read" not in str(error)


@pytest.mark.parametrize("status", [500, 503, 408])
async def test_failing_upstream_possibly_executed_and_is_not_retried(status: int) -> None:
    error, requests = await failure(answers(b"oops", status), provider_request())
    assert (error.kind, error.executed, requests) == (f"http_{status}", None, 1)


async def test_a_redirect_is_not_followed() -> None:
    error, requests = await failure(answers(b"", 307, {"Location": "https://elsewhere.example/"}), provider_request())
    assert (error.kind, error.executed, requests) == ("http_307", False, 1)


async def test_too_many_requests_was_not_executed_and_the_delay_is_passed_on() -> None:
    error, requests = await failure(answers(b"", 429, {"Retry-After": "30"}), provider_request())
    assert (error.kind, error.executed, error.retry_after_s, requests) == ("http_429", False, 30.0, 1)


def test_retry_after_date_is_relative_to_the_response_date() -> None:
    date = {"Date": "Wed, 21 Oct 2026 07:28:00 GMT", "Retry-After": "Wed, 21 Oct 2026 07:28:07 GMT"}
    assert retry_after_s(date) == 7.0
    assert retry_after_s({"Retry-After": "soon"}) is None
    assert retry_after_s({}) is None


@pytest.mark.parametrize("value", ["9" * 19, "9" * 5000, "Fri, 31 Dec 9999 23:59:59 GMT"], ids=["long", "longer", "date"])
def test_absurd_retry_after_is_capped_at_a_day(value: str) -> None:
    assert retry_after_s({"Date": "Wed, 21 Oct 2026 07:28:00 GMT", "Retry-After": value}) == 86400.0


@pytest.mark.parametrize(
    "body",
    [
        b"<html>busy</html>",
        b"",
        b'{"choices": []}',
        b'{"choices":[{"message":{"content":null},"finish_reason":"stop"}]}',
        b'{"choices":[{"message":{"content":"x"}}]}',
        b'{"choices":[{"message":{"content":"\xff"}}]}',
    ],
)
async def test_garbage_with_status_200_was_executed(body: bytes) -> None:
    error, requests = await failure(answers(body), provider_request())
    assert (error.kind, error.executed, requests) == ("garbage", True, 1)


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({"error": {"message": "The server\nhad an error", "type": "server_error"}}, ": server_error: The server had an error"),
        ({"object": "error", "message": "no such model", "code": 404}, ": 404: no such model"),
        ({"error": {"message": f"cannot read {SECRET_PROMPT}", "type": "bad_prompt"}}, ": bad_prompt"),
        ({"error": {"message": f"key {API_KEY} is over its limit"}}, ": key [cut] is over its limit"),
        ({"error": {"detail": 1}}, ""),
    ],
)
async def test_error_in_a_stream_keeps_the_upstreams_words_without_secrets(event: dict[str, Any], message: str) -> None:
    begun = {"choices": [{"delta": {"content": "4"}}], "usage": {"prompt_tokens": 12, "completion_tokens": 1}}
    events = b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in (begun, event))
    async with provider_for(sends(events)) as (provider, _):
        with pytest.raises(ProviderError) as failed:
            await streamed(provider, provider_request())
    assert (failed.value.kind, failed.value.usage) == ("garbage", TokenUsage(12, 1))
    assert str(failed.value).endswith(f"an error in its answer{message}")


def part(text: str, kind: str = "text") -> dict[str, Any]:
    return {"type": kind, kind: text}


THOUGHT = {"type": "thinking", "thinking": [part("six times seven")], "closed": True}


@pytest.mark.parametrize(
    ("content", "text", "beyond"),
    [
        ([part("forty"), part("-two")], "forty-two", ""),
        ([THOUGHT, part("forty-two")], "forty-two", ""),
        ([{"type": "reasoning", "text": "hm"}, {"type": "output_text", "text": "forty-two", "annotations": []}], "forty-two", ""),
        (["forty", {"text": "-two"}, 7, None, {"type": "text", "text": None}], "forty-two", ""),
        ([part("forty-two"), {"type": "image_url", "image_url": {"url": "data:,"}}], "forty-two", ""),
        (part("forty-two"), "forty-two", ""),
        ([part("I cannot", "refusal")], "", '{"refusal":"I cannot"}'),
        ([part("")], "", ""),
    ],
)
@pytest.mark.parametrize("streams", [False, True])
async def test_content_in_parts_is_the_text_in_them(content: Any, text: str, beyond: str, streams: bool) -> None:
    def choice(name: str, value: Any, finish: str | None) -> list[dict[str, Any]]:
        return [{"index": 0, name: {"role": "assistant", "content": value}, "finish_reason": finish}]

    parts = content if isinstance(content, list) else [content]
    events = [event(choices=choice("delta", [each], None)) for each in parts]
    whole = answers(completion(choices=choice("message", content, "stop")))
    behaviour = sends(*events, event(choices=choice("delta", None, "stop")), USAGE, DONE) if streams else whole
    async with provider_for(behaviour) as (provider, _):
        if streams:
            pieces = await streamed(provider, provider_request())
            result, shown = pieces[-1].result, "".join(piece.text for piece in pieces)
        else:
            result, shown = await provider.complete(provider_request()), text
    assert result is not None
    assert (result.text, shown, result.beyond_text, result.usage) == (text, text, beyond, TokenUsage(12, 3))


@pytest.mark.parametrize(
    ("reported", "charged"),
    [
        ({"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 216}, TokenUsage(11, 205)),
        ({"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16}, TokenUsage(11, 5)),
        ({"prompt_tokens": 11, "completion_tokens": 5}, TokenUsage(11, 5)),
        ({"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 3}, TokenUsage(11, 5)),
    ],
    ids=["reasoning in the total alone", "all counted", "no total", "a total that is too low"],
)
async def test_tokens_that_only_the_total_counts_are_charged_as_output(reported: dict[str, int], charged: TokenUsage) -> None:
    async with provider_for(answers(completion(usage=reported))) as (provider, _):
        assert (await provider.complete(provider_request())).usage == charged


@pytest.mark.parametrize(
    ("message", "finish", "text", "reason"),
    [
        ({"content": None, "reasoning_content": "hm"}, "length", "", "length"),
        ({"content": "forty-two"}, "", "forty-two", "stop"),
        ({"content": "forty-two"}, None, "forty-two", "stop"),
    ],
    ids=["out of tokens by reasoning", "an empty finish reason", "no finish reason"],
)
async def test_a_whole_answer_with_its_usage_is_an_answer(
    message: dict[str, Any], finish: str | None, text: str, reason: str
) -> None:
    choices = [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}]
    async with provider_for(answers(completion(choices=choices))) as (provider, _):
        result = await provider.complete(provider_request())
    assert (result.text, result.finish, result.usage) == (text, reason, TokenUsage(12, 3))


@pytest.mark.parametrize(
    "changes",
    [
        {"choices": 7},
        {"choices": [{"message": "forty-two", "finish_reason": "stop"}]},
        {"choices": [{"index": "first", "message": {"content": "x"}, "finish_reason": "stop"}]},
        {"choices": [{"message": {"content": 42}, "finish_reason": "stop"}]},
        {"choices": [{"message": {"content": [THOUGHT]}, "finish_reason": "stop"}]},
        {"choices": [{"message": {"content": "x", "tool_calls": "add"}, "finish_reason": "stop"}]},
        {"choices": [{"message": {"content": "x"}, "finish_reason": 1}]},
    ],
)
@pytest.mark.parametrize("streams", [False, True])
async def test_usage_beside_what_cannot_be_read_is_what_the_call_costs(changes: dict[str, Any], streams: bool) -> None:
    broken = completion(**changes)
    async with provider_for(answers(broken)) as (provider, _):
        with pytest.raises(ProviderError) as failed:
            await (streamed(provider, provider_request()) if streams else provider.complete(provider_request()))
    assert (failed.value.kind, failed.value.executed, failed.value.usage) == ("garbage", True, TokenUsage(12, 3))


@pytest.mark.parametrize(
    ("events", "usage"),
    [
        ((delta("forty"), event(choices=7), delta("-two", "stop"), USAGE, DONE), TokenUsage(12, 3)),
        ((event(choices=[{"delta": "x"}]), USAGE), TokenUsage(12, 3)),
        ((delta("forty"), event(choices=7, usage={"prompt_tokens": 12, "completion_tokens": 3}), DONE), TokenUsage(12, 3)),
        ((delta("forty"), b"data: {nonsense\n\n", USAGE, DONE), TokenUsage(12, 3)),
        ((delta("forty"), b"data: {nonsense\n\n", DONE), None),
    ],
)
async def test_stream_with_an_event_that_cannot_be_read_costs_what_its_end_says(events: tuple[bytes, ...], usage: Any) -> None:
    async with provider_for(sends(*events)) as (provider, _):
        with pytest.raises(ProviderError) as failed:
            await streamed(provider, provider_request())
    assert (failed.value.kind, failed.value.executed, failed.value.usage) == ("garbage", True, usage)


async def test_answer_whose_id_makes_no_sense_is_an_answer() -> None:
    async with provider_for(answers(completion(id=7, usage=[1]))) as (provider, _):
        result = await provider.complete(provider_request())
    assert (result.text, result.upstream_id, result.usage) == ("forty-two", "", None)


async def test_an_endless_id_or_finish_reason_is_cut_and_made_printable() -> None:
    answered = completion(id="I" * 100_000, choices=[{"message": {"content": "x"}, "finish_reason": "\x00" + "F" * 100_000}])
    async with provider_for(answers(answered)) as (provider, _):
        result = await provider.complete(provider_request())
    assert (result.upstream_id, result.finish) == ("I" * 200, "?" + "F" * 199)


async def test_answer_without_text_still_reports_its_cost() -> None:
    error, _ = await failure(answers(completion(choices=[])), provider_request())
    assert error.usage == TokenUsage(12, 3)


@pytest.mark.parametrize("ask", [OpenAICompatibleProvider.complete, streamed])
async def test_an_endless_answer_is_cut_off_at_the_size_limit(ask: Ask) -> None:
    async with provider_for(sends(forever=b"x" * 10_000), limits=HttpLimits(max_response_bytes=50_000)) as (provider, _):
        with pytest.raises(ProviderError) as failed:
            await ask(provider, provider_request())
        assert (failed.value.kind, failed.value.executed) == ("too_large", True)


@pytest.mark.parametrize("behaviour", [disconnects, sends(b'{"choices":', cut=True)])
async def test_connection_broken_after_the_request_possibly_executed_and_is_not_retried(behaviour: Behaviour) -> None:
    error, requests = await failure(behaviour, provider_request())
    assert (error.executed, requests) == (None, 1)


async def test_a_refused_connection_was_not_executed() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        base_url = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
        provider = openai_provider(base_url)
        with pytest.raises(ProviderError) as failed:
            await provider.complete(provider_request())
        await provider.aclose()
    assert (failed.value.kind, failed.value.executed) == ("refused", False)


async def test_unresolvable_name_was_not_executed() -> None:
    provider = openai_provider("https://no-such-host.invalid/v1")
    with pytest.raises(ProviderError) as failed:
        await provider.complete(provider_request())
    await provider.aclose()
    assert failed.value.executed is False


async def test_server_without_tls_was_not_asked() -> None:
    async with running_upstream(answers(completion())) as upstream:
        provider = openai_provider(upstream.base_url.replace("http:", "https:"))
        with pytest.raises(ProviderError) as failed:
            await provider.complete(provider_request())
        await provider.aclose()
        assert (failed.value.kind, failed.value.executed, upstream.bodies) == ("tls", False, [])


async def test_server_that_never_accepts_hits_the_deadline_without_being_asked() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        fillers = [_connecting(silent) for _ in range(4)]  # fill the queue of connections nobody accepts
        provider = openai_provider(f"http://127.0.0.1:{silent.getsockname()[1]}/v1")
        with pytest.raises(ProviderError) as failed:
            await provider.complete(provider_request(deadline_s=0.4))
        await provider.aclose()
        for filler in fillers:
            filler.close()
    assert (failed.value.kind, failed.value.executed) == ("connect_timeout", False)


def _connecting(listener: socket.socket) -> socket.socket:
    client = socket.socket()
    client.setblocking(False)
    client.connect_ex(listener.getsockname())
    return client


async def test_a_stream_brings_pieces_and_then_the_whole() -> None:
    events = (b": hello\n\n", delta(None), delta("forty"), delta("-two")[:9], delta("-two")[9:], delta("", "stop"), USAGE, DONE)
    async with provider_for(sends(*events)) as (provider, upstream):
        pieces = await streamed(provider, provider_request())
        assert "".join(piece.text for piece in pieces) == "forty-two"
        last = pieces[-1].result
        assert last is not None
        assert (last.text, last.usage, last.finish, last.upstream_id) == ("forty-two", TokenUsage(12, 3), "stop", "chatcmpl-2")
        assert upstream.bodies[0]["stream_options"] == {"include_usage": True}


async def test_a_server_that_ignores_that_a_stream_was_wanted_is_understood_with_its_usage() -> None:
    async with provider_for(answers(b"\n  \n" + json.dumps(completion()).encode())) as (provider, _):
        pieces = await streamed(provider, provider_request())
        assert [piece.text for piece in pieces] == ["forty-two", ""]
        last = pieces[-1].result
        assert last is not None
        assert (last.text, last.usage, last.finish) == ("forty-two", TokenUsage(12, 3), "stop")


@pytest.mark.parametrize(
    ("ask", "wanted"), [(OpenAICompatibleProvider.complete, "application/json"), (streamed, "text/event-stream")]
)
async def test_unexpected_content_type_is_reported_with_the_wanted_one(ask: Ask, wanted: str) -> None:
    async def page(_: web.Request) -> web.StreamResponse:
        return web.Response(body=b"<html>busy</html>", content_type="text/html")

    async with provider_for(page) as (provider, _):
        with pytest.raises(ProviderError) as failed:
            await ask(provider, provider_request())
        assert (failed.value.kind, failed.value.executed) == ("garbage", True)
        assert failed.value.hint == f"it answered text/html, {wanted} was wanted"


@pytest.mark.parametrize(
    ("behaviour", "kind", "executed"),
    [
        (sends(delta("x"), DONE), "garbage", True),
        (sends(delta("x")), "garbage", True),
        (sends(delta("x"), b"data: {nonsense\n\n"), "garbage", True),
        (sends(delta("x"), event(error={"message": SECRET_PROMPT})), "garbage", True),
        (sends(delta("x"), cut=True), "cut", None),
    ],
)
async def test_broken_stream_is_a_failure(behaviour: Behaviour, kind: str, executed: bool | None) -> None:
    async with provider_for(behaviour) as (provider, _):
        with pytest.raises(ProviderError) as failed:
            await streamed(provider, provider_request())
        assert (failed.value.kind, failed.value.executed) == (kind, executed)


async def test_abandoned_stream_closes_its_connection() -> None:
    left = asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        try:
            return await sends(pause_s=0.01, forever=delta("x"))(request)
        finally:
            left.set()

    async with provider_for(endless) as (provider, _):
        pieces = provider.stream(provider_request())
        assert (await anext(pieces)).text == "x"
        await pieces.aclose()  # type: ignore[attr-defined]
        await asyncio.wait_for(left.wait(), 60.0)


@pytest.mark.parametrize(
    "behaviour", [answers({"error": SECRET_PROMPT}, 400), answers(SECRET_PROMPT.encode()), answers(b"", 401), hangs]
)
async def test_neither_prompt_nor_key_reaches_an_error_or_a_log(behaviour: Behaviour, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    error, _ = await failure(behaviour, provider_request(deadline_s=0.4))
    chain: BaseException | None = error
    while chain is not None:
        assert SECRET_PROMPT not in f"{chain!s} {chain!r}"
        assert API_KEY not in f"{chain!s} {chain!r}"
        chain = chain.__cause__ or chain.__context__
    assert SECRET_PROMPT not in caplog.text
    assert API_KEY not in caplog.text


@pytest.mark.parametrize(
    "base_url",
    ["api.openai.com/v1", "ftp://h/v1", "https://u:p@h/v1", "https://h/v1?key=1", "https://h:x/v1", "http://h/v1"],
)
def test_invalid_base_url_is_refused_immediately(base_url: str) -> None:
    with pytest.raises(ConfigError):
        openai_provider(base_url)


@pytest.mark.parametrize(("environ", "message"), [({}, "is not set"), ({"KEY": "a\nb"}, "cannot be sent")])
async def test_missing_or_malformed_key_is_reported_without_showing_it(environ: dict[str, str], message: str) -> None:
    config = UpstreamConfig(provider="openai_compatible", base_url="https://h/v1", api_key_env="KEY")
    provider = OpenAICompatibleProvider(config, "test", environ=environ)
    with pytest.raises(ConfigError, match=message) as refused:
        await provider.start()
    assert "a\nb" not in str(refused.value)
