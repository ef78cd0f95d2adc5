"""The anthropic provider against a scripted server: whole and streamed messages, usage, errors, cuts and deadlines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edge.core.types import Message, TokenUsage
from tests.worlds.anthropic_traffic import (
    BLOCK,
    START,
    STOP,
    WHOLE_STREAM,
    ending,
    event,
    failure,
    message,
    text,
)
from tests.worlds.http_api import ANTHROPIC, API_KEY, pieces_of, provider_for, result_of
from tests.worlds.http_api import failure as failure_of
from tests.worlds.upstream_server import SECRET_PROMPT, answers, in_turn, provider_request, sends

OK = answers(message())


async def test_message_is_returned_with_usage_and_the_system_prompt_is_sent_separately() -> None:
    turns = (Message("system", "Be short."), Message("user", "6*7?"), Message("assistant", "41"), Message("user", "Sure?"))
    async with provider_for(ANTHROPIC, OK) as (provider, upstream):
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
    error, requests = await failure_of(ANTHROPIC, OK, alone)
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
    assert (await result_of(ANTHROPIC, answers(message(stop_reason=reason)))).finish == finish
    assert (await result_of(ANTHROPIC, sends(START, BLOCK, text("x"), ending(reason), STOP), streams=True)).finish == finish


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
    assert (await result_of(ANTHROPIC, answers(message(usage=usage)))).usage == billed


async def test_answer_is_the_text_blocks_only_and_may_be_empty() -> None:
    blocks = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    async with provider_for(ANTHROPIC, in_turn(answers(message(content=blocks)), answers(message(content=[])))) as (provider, _):
        assert (await provider.complete(provider_request())).text == "ab"
        assert (await provider.complete(provider_request())).text == ""


async def test_stream_brings_pieces_skips_pings_and_the_last_usage_counts() -> None:
    async with provider_for(ANTHROPIC, sends(*WHOLE_STREAM)) as (provider, upstream):
        pieces = await pieces_of(provider)
    assert [piece.text for piece in pieces] == ["forty", "-two", ""]
    result = pieces[-1].result
    assert result is not None
    assert (result.text, result.usage, result.upstream_id, result.finish) == ("forty-two", TokenUsage(12, 3), "msg_01", "stop")
    assert upstream.bodies[0]["stream"] is True


async def test_stream_may_be_cut_anywhere() -> None:
    whole = b"".join(WHOLE_STREAM)
    for size in (1, 7, 100):
        chunks = [whole[start : start + size] for start in range(0, len(whole), size)]
        async with provider_for(ANTHROPIC, sends(*chunks)) as (provider, _):
            assert "".join(piece.text for piece in await pieces_of(provider)) == "forty-two"


async def test_final_input_tokens_replace_those_of_the_start() -> None:
    end = ending(output_tokens=9, input_tokens=20, cache_read_input_tokens=4)
    assert (await result_of(ANTHROPIC, sends(START, BLOCK, text("x"), end, STOP), streams=True)).usage == TokenUsage(24, 9)


async def test_unknown_events_and_other_deltas_are_skipped() -> None:
    new = event("something_new", value=[1])
    thinking = event("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": "hm"})
    assert (
        await result_of(ANTHROPIC, sends(START, new, BLOCK, thinking, text("x"), ending(), STOP), streams=True)
    ).finish == "stop"


async def test_overloaded_is_a_refusal_where_configured() -> None:
    error, _ = await failure_of(ANTHROPIC, answers(failure("overloaded_error"), 529), overloaded_is_refusal=True)
    assert (error.kind, error.executed) == ("http_529", False)
    error, _ = await failure_of(ANTHROPIC, answers(failure("api_error"), 500), overloaded_is_refusal=True)
    assert error.executed is None
    error, _ = await failure_of(ANTHROPIC, answers(failure("overloaded_error"), 529))
    assert error.executed is None


@pytest.mark.parametrize(
    "word", ["invalid_request_error", "authentication_error", "rate_limit_error", "api_error", "overloaded_error"]
)
async def test_refusal_names_the_kind_of_error_without_its_message(word: str) -> None:
    for streams in (False, True):
        error, _ = await failure_of(ANTHROPIC, answers(failure(word, SECRET_PROMPT), 400), streams=streams)
        assert word in str(error) and SECRET_PROMPT not in str(error)


@pytest.mark.parametrize("body", [b"<html>busy</html>", b"", b'["x"]', b'{"error": {"type": "the secret prompt"}}'])
async def test_unknown_error_body_is_left_out(body: bytes) -> None:
    error, _ = await failure_of(ANTHROPIC, answers(body, 503))
    assert str(error) == "the upstream answered with HTTP status 503"


async def test_stream_cut_after_its_end_is_complete() -> None:
    assert (await result_of(ANTHROPIC, sends(*WHOLE_STREAM, cut=True), streams=True)).finish == "stop"
