"""The anthropic provider against a scripted server: whole and streamed messages, usage, errors, cuts and deadlines."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from coordinator.providers.anthropic import AnthropicProvider
from coordinator.providers.http import HttpLimits
from coordinator.providers.provider import ProviderDelta, ProviderError, ProviderRequest
from edge.core.types import Message, TokenUsage
from tests.worlds.anthropic_traffic import (
    BLOCK,
    PING,
    START,
    STOP,
    WHOLE_STREAM,
    anthropic_provider,
    ending,
    event,
    failure,
    message,
    playing,
    text,
)
from tests.worlds.upstream_server import SECRET_PROMPT, Behaviour, Upstream, answers, hangs, in_turn, provider_request, sends

API_KEY = "sk-ant-very-secret"
OK = answers(message())


@asynccontextmanager
async def provider_for(behaviour: Behaviour, **settings: Any) -> AsyncIterator[tuple[AnthropicProvider, Upstream]]:
    async with playing(behaviour) as upstream:
        provider = anthropic_provider(upstream.base_url, API_KEY, **settings)
        await provider.start()
        try:
            yield provider, upstream
        finally:
            await provider.aclose()


async def pieces_of(provider: AnthropicProvider, request: ProviderRequest) -> list[ProviderDelta]:
    return [piece async for piece in provider.stream(request)]


async def refusal(behaviour: Behaviour, request: ProviderRequest | None = None, *, streams: bool = False, **settings: Any):
    """How a request fails, and how many reached the server."""
    async with provider_for(behaviour, **settings) as (provider, upstream):
        ask, asked = pieces_of if streams else AnthropicProvider.complete, request or provider_request()
        with pytest.raises(ProviderError) as failed:
            await ask(provider, asked)
        return failed.value, len(upstream.bodies)


async def test_message_is_returned_with_usage_and_the_system_prompt_is_sent_separately() -> None:
    turns = (Message("system", "Be short."), Message("user", "6*7?"), Message("assistant", "41"), Message("user", "Sure?"))
    async with provider_for(OK) as (provider, upstream):
        result = await provider.complete(replace(provider_request(), messages=turns, temperature=1.7))
    assert (result.text, result.usage, result.upstream_id, result.finish) == ("forty-two", TokenUsage(12, 3), "msg_01", "stop")
    sent = upstream.headers[0]
    assert (sent["x-api-key"], sent["anthropic-version"], sent["content-type"]) == (API_KEY, "2023-06-01", "application/json")
    assert "authorization" not in sent and sent["idempotency-key"] == "d1|k1|1"
    assert upstream.bodies == [
        {
            "model": "some-model",
            "max_tokens": 64,
            "temperature": 1.0,
            "stream": False,
            "system": "Be short.",
            "messages": [
                {"role": "user", "content": "6*7?"},
                {"role": "assistant", "content": "41"},
                {"role": "user", "content": "Sure?"},
            ],
        }
    ]


async def test_conversation_of_system_messages_alone_is_refused_without_a_request() -> None:
    alone = replace(provider_request(), messages=(Message("system", "Be short."),))
    error, requests = await refusal(OK, alone)
    assert (error.kind, error.executed, requests) == ("bad_request", False, 0)


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "refusal"),
    ],
)
async def test_stop_reasons_are_mapped_to_the_common_words(reason: str, finish: str) -> None:
    async with provider_for(answers(message(stop_reason=reason))) as (provider, _):
        assert (await provider.complete(provider_request())).finish == finish
    async with provider_for(sends(START, BLOCK, text("x"), ending(reason), STOP)) as (provider, _):
        result = (await pieces_of(provider, provider_request()))[-1].result
        assert result is not None and result.finish == finish


@pytest.mark.parametrize(
    ("usage", "billed"),
    [
        ({"input_tokens": 5, "output_tokens": 2}, TokenUsage(5, 2)),
        ({"input_tokens": 5, "output_tokens": 2, "cache_read_input_tokens": 7}, TokenUsage(12, 2)),
        ({"input_tokens": 5, "output_tokens": 2, "cache_creation_input_tokens": 7}, TokenUsage(19, 2)),
        ({"input_tokens": -1, "output_tokens": 2}, None),
        ({"input_tokens": 1, "output_tokens": 2**60}, None),
        (None, None),
    ],
)
async def test_cached_tokens_are_never_charged_below_the_bill(usage: Any, billed: TokenUsage | None) -> None:
    async with provider_for(answers(message(usage=usage))) as (provider, _):
        assert (await provider.complete(provider_request())).usage == billed


async def test_answer_is_the_text_blocks_only_and_may_be_empty() -> None:
    blocks = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    async with provider_for(in_turn(answers(message(content=blocks)), answers(message(content=[])))) as (provider, _):
        assert (await provider.complete(provider_request())).text == "ab"
        assert (await provider.complete(provider_request())).text == ""


async def test_stream_brings_pieces_skips_pings_and_the_last_usage_counts() -> None:
    async with provider_for(sends(*WHOLE_STREAM)) as (provider, upstream):
        pieces = await pieces_of(provider, provider_request())
    assert [piece.text for piece in pieces] == ["forty", "-two", ""]
    result = pieces[-1].result
    assert result is not None
    assert (result.text, result.usage, result.upstream_id, result.finish) == ("forty-two", TokenUsage(12, 3), "msg_01", "stop")
    assert upstream.bodies[0]["stream"] is True


async def test_stream_may_be_cut_anywhere() -> None:
    whole = b"".join(WHOLE_STREAM)
    for size in (1, 7, 100):
        chunks = [whole[start : start + size] for start in range(0, len(whole), size)]
        async with provider_for(sends(*chunks)) as (provider, _):
            assert "".join(piece.text for piece in await pieces_of(provider, provider_request())) == "forty-two"


async def test_final_input_tokens_replace_those_of_the_start() -> None:
    end = ending(output_tokens=9, input_tokens=20, cache_read_input_tokens=4)
    async with provider_for(sends(START, BLOCK, text("x"), end, STOP)) as (provider, _):
        result = (await pieces_of(provider, provider_request()))[-1].result
        assert result is not None and result.usage == TokenUsage(24, 9)


async def test_unknown_events_and_other_deltas_are_skipped() -> None:
    new = event("something_new", value=[1])
    thinking = event("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": "hm"})
    async with provider_for(sends(START, new, BLOCK, thinking, text("x"), ending(), STOP)) as (provider, _):
        assert (await pieces_of(provider, provider_request()))[-1].result is not None


@pytest.mark.parametrize(
    ("status", "word", "executed"),
    [
        (400, "invalid_request_error", False),
        (401, "authentication_error", False),
        (429, "rate_limit_error", False),
        (500, "api_error", None),
        (529, "overloaded_error", None),
    ],
)
@pytest.mark.parametrize("streams", [False, True])
async def test_refusal_reports_whether_it_was_executed_and_is_not_retried(status, word, executed, streams) -> None:
    error, requests = await refusal(answers(failure(word, SECRET_PROMPT), status, {"retry-after": "7"}), streams=streams)
    assert (error.kind, error.executed, error.retry_after_s, requests) == (f"http_{status}", executed, 7.0, 1)
    assert word in str(error) and SECRET_PROMPT not in str(error)


async def test_overloaded_is_a_refusal_where_configured() -> None:
    error, _ = await refusal(answers(failure("overloaded_error"), 529), overloaded_is_refusal=True)
    assert (error.kind, error.executed) == ("http_529", False)
    error, _ = await refusal(answers(failure("api_error"), 500), overloaded_is_refusal=True)
    assert error.executed is None


@pytest.mark.parametrize("body", [b"<html>busy</html>", b"", b'["x"]', b'{"error": {"type": "the secret prompt"}}'])
async def test_unknown_error_body_is_left_out(body: bytes) -> None:
    error, _ = await refusal(answers(body, 503))
    assert str(error) == "the upstream answered with HTTP status 503"


async def test_endless_error_body_does_not_delay_the_refusal_beyond_the_deadline() -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        begun = web.StreamResponse(status=429)
        await begun.prepare(request)
        await begun.write(b"{")
        return await hangs(request)

    error, _ = await refusal(endless, provider_request(deadline_s=1.0))
    assert (error.kind, error.executed) == ("http_429", False)


@pytest.mark.parametrize(
    ("broken", "kind", "executed"),
    [
        (sends(START, BLOCK, event("error", error={"type": "api_error", "message": SECRET_PROMPT})), "api_error", None),
        (sends(event("error", error={"type": "the secret prompt"})), "garbage", True),
        (sends(START, BLOCK, text("x"), cut=True), "cut", None),
        (sends(START, BLOCK, text("x")), "garbage", True),
        (sends(START, BLOCK, b'data: {"type": 7}\n\n'), "garbage", True),
    ],
)
async def test_broken_stream_is_a_failure(broken, kind, executed) -> None:
    error, _ = await refusal(broken, streams=True)
    assert (error.kind, error.executed) == (kind, executed)
    assert SECRET_PROMPT not in str(error)


async def test_stream_cut_after_its_end_is_complete() -> None:
    async with provider_for(sends(*WHOLE_STREAM, cut=True)) as (provider, _):
        assert (await pieces_of(provider, provider_request()))[-1].result is not None


@pytest.mark.parametrize("body", [b"", b"{}", b'{"content": [], "usage": {"input_tokens": 1, "output_tokens": 1}}', b"\xff"])
async def test_garbage_with_status_200_was_executed(body: bytes) -> None:
    error, requests = await refusal(answers(body))
    assert (error.kind, error.executed, requests) == ("garbage", True, 1)


@pytest.mark.parametrize("changes", [{"content": 7}, {"content": ["forty-two"]}, {"stop_reason": None}, {"id": {}}])
async def test_usage_beside_what_cannot_be_read_is_what_the_call_costs(changes: dict[str, Any]) -> None:
    error, _ = await refusal(answers(message(**changes)))
    assert (error.kind, error.executed, error.usage) == ("garbage", True, TokenUsage(12, 3))


@pytest.mark.parametrize(
    ("events", "usage"),
    [
        ((START, event("content_block_start", index=0, content_block=7), text("x"), ending(), STOP), TokenUsage(12, 3)),
        ((START, BLOCK, b"data: {nonsense\n\n", text("x"), ending(), STOP), TokenUsage(12, 3)),
        ((START, BLOCK, text("x"), event("message_delta", delta=7, usage={"output_tokens": 3}), STOP), TokenUsage(12, 3)),
        ((START, BLOCK, b"data: {nonsense\n\n"), None),
        ((START, BLOCK, text("x")), None),
    ],
)
async def test_broken_stream_costs_what_its_end_says_and_no_less(events: tuple[bytes, ...], usage: TokenUsage | None) -> None:
    error, _ = await refusal(sends(*events), streams=True)
    assert (error.kind, error.executed, error.usage) == ("garbage", True, usage)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("behaviour", [hangs, sends(START, pause_s=0.02, forever=PING)])
async def test_total_deadline_applies_to_silence_and_pings(behaviour: Behaviour, streams: bool) -> None:
    async with provider_for(in_turn(OK, behaviour)) as (provider, upstream):
        await provider.complete(provider_request())  # so that none of the time is for the connection
        with pytest.raises(ProviderError) as failed:
            await (pieces_of if streams else AnthropicProvider.complete)(provider, provider_request(deadline_s=0.4))
    assert (failed.value.kind, failed.value.executed, len(upstream.bodies)) == ("deadline", None, 2)


@pytest.mark.parametrize("streams", [False, True])
async def test_an_endless_answer_is_cut_off_at_the_size_limit(streams: bool) -> None:
    flood = sends(START, BLOCK, *[text("x" * 10_000)] * 10)
    error, _ = await refusal(flood, streams=streams, limits=HttpLimits(max_response_bytes=50_000))
    assert (error.kind, error.executed) == ("too_large", True)


async def test_neither_prompt_nor_key_reaches_an_error_or_a_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for behaviour in (answers(failure("invalid_request_error", SECRET_PROMPT), 400), answers(SECRET_PROMPT.encode())):
        error, _ = await refusal(behaviour)
        chain: BaseException | None = error
        while chain is not None:
            assert SECRET_PROMPT not in f"{chain!s} {chain!r}" and API_KEY not in f"{chain!s} {chain!r}"
            chain = chain.__cause__ or chain.__context__
    assert SECRET_PROMPT not in caplog.text and API_KEY not in caplog.text
