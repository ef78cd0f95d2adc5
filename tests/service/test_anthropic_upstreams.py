"""The anthropic provider against recorded traffic: whole and streamed messages, usage, errors, cuts and deadlines."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from coordinator.config import UpstreamConfig
from coordinator.providers.anthropic import AnthropicProvider
from coordinator.providers.http import HttpLimits
from coordinator.providers.provider import ProviderDelta, ProviderError, ProviderRequest
from edge.core.errors import ConfigError
from edge.core.types import Message, TokenUsage
from tests.service.anthropic_traffic import (
    BLOCK,
    CUT,
    HANG,
    PING,
    START,
    STOP,
    WHOLE_STREAM,
    Recording,
    Traffic,
    anthropic_provider,
    ending,
    event,
    failure,
    message,
    playing,
    response,
    streamed,
    text,
)
from tests.service.upstream_server import SECRET_PROMPT, provider_request

API_KEY = "sk-ant-very-secret"
OK = response("200 OK", message())


@asynccontextmanager
async def provider_for(*recordings: Recording, **settings: Any) -> AsyncIterator[tuple[AnthropicProvider, Traffic]]:
    async with playing(*recordings) as traffic:
        provider = anthropic_provider(traffic.base_url, API_KEY, **settings)
        await provider.start()
        try:
            yield provider, traffic
        finally:
            await provider.aclose()


async def pieces_of(provider: AnthropicProvider, request: ProviderRequest) -> list[ProviderDelta]:
    return [piece async for piece in provider.stream(request)]


async def refusal(recording: Recording, request: ProviderRequest | None = None, *, streams: bool = False, **settings: Any):
    """How a request fails, and how many reached the server."""
    async with provider_for(recording, **settings) as (provider, traffic):
        ask, asked = pieces_of if streams else AnthropicProvider.complete, request or provider_request()
        with pytest.raises(ProviderError) as failed:
            await ask(provider, asked)
        return failed.value, len(traffic.bodies)


async def test_message_is_returned_with_usage_and_the_system_prompt_is_sent_separately() -> None:
    turns = (Message("system", "Be short."), Message("user", "6*7?"), Message("assistant", "41"), Message("user", "Sure?"))
    async with provider_for(OK) as (provider, traffic):
        result = await provider.complete(replace(provider_request(), messages=turns, temperature=1.7))
    assert (result.text, result.usage, result.upstream_id, result.finish) == ("forty-two", TokenUsage(12, 3), "msg_01", "stop")
    assert traffic.paths == ["POST /v1/messages HTTP/1.1"]
    sent = traffic.headers[0]
    assert (sent["x-api-key"], sent["anthropic-version"], sent["content-type"]) == (API_KEY, "2023-06-01", "application/json")
    assert "authorization" not in sent and sent["idempotency-key"] == "d1|k1|1"
    assert traffic.bodies == [
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
    async with provider_for(response("200 OK", message(stop_reason=reason))) as (provider, _):
        assert (await provider.complete(provider_request())).finish == finish
    async with provider_for(streamed(START, BLOCK, text("x"), ending(reason), STOP)) as (provider, _):
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
    async with provider_for(response("200 OK", message(usage=usage))) as (provider, _):
        assert (await provider.complete(provider_request())).usage == billed


async def test_answer_is_the_text_blocks_only_and_may_be_empty() -> None:
    blocks = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    async with provider_for(response("200 OK", message(content=blocks)), response("200 OK", message(content=[]))) as (
        provider,
        _,
    ):
        assert (await provider.complete(provider_request())).text == "ab"
        assert (await provider.complete(provider_request())).text == ""


async def test_stream_brings_pieces_skips_pings_and_the_last_usage_counts() -> None:
    async with provider_for(streamed(*WHOLE_STREAM)) as (provider, traffic):
        pieces = await pieces_of(provider, provider_request())
    assert [piece.text for piece in pieces] == ["forty", "-two", ""]
    result = pieces[-1].result
    assert result is not None
    assert (result.text, result.usage, result.upstream_id, result.finish) == ("forty-two", TokenUsage(12, 3), "msg_01", "stop")
    assert traffic.bodies[0]["stream"] is True


async def test_stream_may_be_cut_anywhere() -> None:
    whole = b"".join(WHOLE_STREAM)
    for size in (1, 7, 100):
        chunks = [whole[start : start + size] for start in range(0, len(whole), size)]
        async with provider_for(streamed(*chunks)) as (provider, _):
            assert "".join(piece.text for piece in await pieces_of(provider, provider_request())) == "forty-two"


async def test_final_input_tokens_replace_those_of_the_start() -> None:
    end = ending(output_tokens=9, input_tokens=20, cache_read_input_tokens=4)
    async with provider_for(streamed(START, BLOCK, text("x"), end, STOP)) as (provider, _):
        result = (await pieces_of(provider, provider_request()))[-1].result
        assert result is not None and result.usage == TokenUsage(24, 9)


async def test_unknown_events_and_other_deltas_are_skipped() -> None:
    new = event("something_new", value=[1])
    thinking = event("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": "hm"})
    async with provider_for(streamed(START, new, BLOCK, thinking, text("x"), ending(), STOP)) as (provider, _):
        assert (await pieces_of(provider, provider_request()))[-1].result is not None


@pytest.mark.parametrize(
    ("status", "word", "executed"),
    [
        ("400 Bad Request", "invalid_request_error", False),
        ("401 Unauthorized", "authentication_error", False),
        ("429 Too Many Requests", "rate_limit_error", False),
        ("500 Internal Server Error", "api_error", None),
        ("529 Overloaded", "overloaded_error", None),
    ],
)
@pytest.mark.parametrize("streams", [False, True])
async def test_refusal_reports_whether_it_was_executed_and_is_not_retried(status, word, executed, streams) -> None:
    recording = response(status, failure(word, SECRET_PROMPT), "retry-after: 7")
    error, requests = await refusal(recording, streams=streams)
    assert (error.kind, error.executed, error.retry_after_s, requests) == (f"http_{status[:3]}", executed, 7.0, 1)
    assert word in str(error) and SECRET_PROMPT not in str(error)


async def test_overloaded_is_a_refusal_where_configured() -> None:
    recording = response("529 Overloaded", failure("overloaded_error"))
    error, _ = await refusal(recording, overloaded_is_refusal=True)
    assert (error.kind, error.executed) == ("http_529", False)
    error, _ = await refusal(response("500 Oops", failure("api_error")), overloaded_is_refusal=True)
    assert error.executed is None


@pytest.mark.parametrize("body", [b"<html>busy</html>", b"", b'{"error": "x"}', b'{"error": {"type": "the secret prompt"}}'])
async def test_unknown_error_body_is_left_out(body: bytes) -> None:
    error, _ = await refusal(response("503 Busy", body))
    assert str(error) == "the upstream answered with HTTP status 503"


async def test_endless_error_body_does_not_delay_the_refusal_beyond_the_deadline() -> None:
    endless = [b"HTTP/1.1 429 Busy\r\ncontent-length: 1000\r\n\r\n{", HANG]
    error, _ = await refusal(endless, provider_request(deadline_s=1.0))
    assert (error.kind, error.executed) == ("http_429", False)


@pytest.mark.parametrize(
    ("parts", "kind", "executed"),
    [
        ((START, BLOCK, text("x"), event("error", error={"type": "api_error", "message": SECRET_PROMPT})), "api_error", None),
        ((event("error", error={"type": "the secret prompt"}),), "garbage", True),
        ((START, BLOCK, text("x"), CUT), "cut", None),
        ((START, BLOCK, text("x")), "garbage", True),
        ((START, BLOCK, b'data: {"type": 7}\n\n'), "garbage", True),
    ],
)
async def test_broken_stream_is_a_failure(parts, kind, executed) -> None:
    error, _ = await refusal(streamed(*parts, ended=CUT not in parts), streams=True)
    assert (error.kind, error.executed) == (kind, executed)
    assert SECRET_PROMPT not in str(error)


async def test_stream_cut_after_its_end_is_complete() -> None:
    async with provider_for(streamed(*WHOLE_STREAM, CUT, ended=False)) as (provider, _):
        assert (await pieces_of(provider, provider_request()))[-1].result is not None


@pytest.mark.parametrize("body", [b"", b"{}", b'{"content": [], "usage": {"input_tokens": 1, "output_tokens": 1}}', b"\xff"])
async def test_garbage_with_status_200_was_executed(body: bytes) -> None:
    error, requests = await refusal(response("200 OK", body))
    assert (error.kind, error.executed, requests) == ("garbage", True, 1)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("recording", [[HANG], streamed(START, *[PING, 0.02] * 200, ended=False)])
async def test_total_deadline_applies_to_silence_and_pings(recording: Recording, streams: bool) -> None:
    error, requests = await refusal(recording, provider_request(deadline_s=0.4), streams=streams)
    assert (error.kind, error.executed, requests) == ("deadline", None, 1)


@pytest.mark.parametrize("streams", [False, True])
async def test_an_endless_answer_is_cut_off_at_the_size_limit(streams: bool) -> None:
    flood = streamed(START, BLOCK, *[text("x" * 10_000)] * 10)
    error, _ = await refusal(flood, streams=streams, limits=HttpLimits(max_response_bytes=50_000))
    assert (error.kind, error.executed) == ("too_large", True)


async def test_neither_prompt_nor_key_reaches_an_error_or_a_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for recording in (
        response("400 Bad", failure("invalid_request_error", SECRET_PROMPT)),
        response("200 OK", SECRET_PROMPT.encode()),
    ):
        error, _ = await refusal(recording)
        chain: BaseException | None = error
        while chain is not None:
            assert SECRET_PROMPT not in f"{chain!s} {chain!r}" and API_KEY not in f"{chain!s} {chain!r}"
            chain = chain.__cause__ or chain.__context__
    assert SECRET_PROMPT not in caplog.text and API_KEY not in caplog.text


async def test_missing_key_is_reported_at_the_start() -> None:
    provider = AnthropicProvider(UpstreamConfig(provider="anthropic", api_key_env="NO_KEY"), "test", environ={})
    with pytest.raises(ConfigError, match="NO_KEY is not set"):
        await provider.start()
