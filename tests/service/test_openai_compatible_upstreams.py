"""The OpenAI-compatible provider with a real HTTP server that misbehaves: the charge depends on what is certain."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import web

from coordinator.config import UpstreamConfig
from coordinator.providers.openai_compatible import (
    OpenAICompatibleProvider,
)
from edge.core.errors import ConfigError
from edge.core.types import TokenUsage
from tests.worlds.http_api import API_KEY, OPENAI, failure, pieces_of, provider_for, result_of
from tests.worlds.upstream_server import (
    SECRET_PROMPT,
    answers,
    completion,
    delta,
    event,
    openai_provider,
    provider_request,
    sends,
)

DONE = b"data: [DONE]\n\n"
USAGE = event(choices=[], usage={"prompt_tokens": 12, "completion_tokens": 3})


async def test_completion_is_returned_with_its_usage_and_id() -> None:
    async with provider_for(OPENAI, answers(completion())) as (provider, upstream):
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
    async with provider_for(OPENAI, answers(completion())) as (provider, upstream):
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
    assert (await result_of(OPENAI, answers(completion(usage=usage)))).usage is None


async def test_usage_written_as_text_is_read() -> None:
    usage = {"prompt_tokens": "12", "completion_tokens": 3}
    assert (await result_of(OPENAI, answers(completion(usage=usage)))).usage == TokenUsage(12, 3)


async def test_refusal_is_reported_with_the_upstreams_code_and_without_its_text() -> None:
    refusal = {"message": f"cannot read {SECRET_PROMPT}", "type": "invalid_request_error", "code": "unsupported_parameter"}
    error, _ = await failure(OPENAI, answers({"error": refusal}, 400))
    assert "(unsupported_parameter)" in str(error) and "cannot read" not in str(error)


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
    error, _ = await failure(OPENAI, sends(events), streams=True)
    assert (error.kind, error.usage) == ("garbage", TokenUsage(12, 1))
    assert str(error).endswith(f"an error in its answer{message}")


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
    async with provider_for(OPENAI, behaviour) as (provider, _):
        if streams:
            pieces = await pieces_of(provider)
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
    assert (await result_of(OPENAI, answers(completion(usage=reported)))).usage == charged


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
    result = await result_of(OPENAI, answers(completion(choices=choices)))
    assert (result.text, result.finish, result.usage) == (text, reason, TokenUsage(12, 3))


async def test_answer_whose_id_makes_no_sense_is_an_answer() -> None:
    result = await result_of(OPENAI, answers(completion(id=7, usage=[1])))
    assert (result.text, result.upstream_id, result.usage) == ("forty-two", "", None)


async def test_an_endless_id_or_finish_reason_is_cut_and_made_printable() -> None:
    answered = completion(id="I" * 100_000, choices=[{"message": {"content": "x"}, "finish_reason": "\x00" + "F" * 100_000}])
    result = await result_of(OPENAI, answers(answered))
    assert (result.upstream_id, result.finish) == ("I" * 200, "?" + "F" * 199)


async def test_a_stream_brings_pieces_and_then_the_whole() -> None:
    events = (b": hello\n\n", delta(None), delta("forty"), delta("-two")[:9], delta("-two")[9:], delta("", "stop"), USAGE, DONE)
    async with provider_for(OPENAI, sends(*events)) as (provider, upstream):
        pieces = await pieces_of(provider)
        assert "".join(piece.text for piece in pieces) == "forty-two"
        last = pieces[-1].result
        assert last is not None
        assert (last.text, last.usage, last.finish, last.upstream_id) == ("forty-two", TokenUsage(12, 3), "stop", "chatcmpl-2")
        assert upstream.bodies[0]["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(("streams", "wanted"), [(False, "application/json"), (True, "text/event-stream")])
async def test_unexpected_content_type_is_reported_with_the_wanted_one(streams: bool, wanted: str) -> None:
    async def page(_: web.Request) -> web.StreamResponse:
        return web.Response(body=b"<html>busy</html>", content_type="text/html")

    error, _ = await failure(OPENAI, page, streams=streams)
    assert (error.kind, error.executed) == ("garbage", True)
    assert error.hint == f"it answered text/html, {wanted} was wanted"


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
