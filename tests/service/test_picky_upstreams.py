"""Upstreams whose models do not take every field: what a request can do without is left out, whatever it means is not; and who asked reads
why."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from coordinator.ledger.tables import BUDGET
from coordinator.ledger.verify import verify
from coordinator.providers.provider import ProviderRequest, ProviderResult
from edge.core.errors import CoordinatorUnavailable
from edge.core.types import TokenUsage
from tests.worlds import anthropic_traffic as traffic
from tests.worlds.coordinator import TOOLS, call
from tests.worlds.http_api import ANTHROPIC, OPENAI, brokered, failed, provider_for
from tests.worlds.tiny_gguf import write_tiny_model
from tests.worlds.upstream_server import (
    SECRET_PROMPT,
    answers,
    hangs,
    in_turn,
    openai_refusal,
    picky,
    provider_request,
    running_upstream,
)
from tests.worlds.warm_commands import edge_agent

ONLY_ONE = "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) value is supported."
OTHER_NAME = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
LITELLM = (
    "litellm.UnsupportedParamsError: some models don't support temperature=0.0. Only temperature=1 is supported. "
    "To drop unsupported params set `litellm.drop_params = True`"
)
EXTRA = [{"type": "extra_forbidden", "loc": ["body", "stream_options"], "msg": "Extra inputs are not permitted"}]
UNVERIFIED = "Your organization must be verified to stream this model."
UNKNOWN_NAME = 'Invalid JSON payload received. Unknown name "stream_options": Cannot find field.'
ANSWER = ("forty-two", TokenUsage(12, 3))


async def asked(provider: Any, request: ProviderRequest, *, streams: bool) -> ProviderResult:
    if not streams:
        return await provider.complete(request)
    pieces = [piece async for piece in provider.stream(request)]
    assert "".join(piece.text for piece in pieces) == pieces[-1].result.text
    return pieces[-1].result


@pytest.mark.parametrize(
    ("field", "refusal", "instead"),
    [
        ("temperature", openai_refusal(ONLY_ONE, "temperature", "unsupported_value"), ""),
        ("temperature", openai_refusal("Unsupported parameter: 'temperature' is not supported with this model.", "temperature"), ""),
        ("temperature", (400, {"error": {"message": LITELLM, "type": "None", "param": None, "code": "400"}}), ""),
        ("temperature", openai_refusal("temperature is not supported for this model when set to non-default values"), ""),
        ("temperature", (400, {"error": "`temperature` is deprecated for this model."}), ""),
        ("max_tokens", openai_refusal(OTHER_NAME, "max_tokens", "unsupported_parameter"), "max_completion_tokens"),
        ("stream_options", (422, {"detail": EXTRA}), ""),
        ("stream_options", (422, {"object": "error", "message": {"detail": EXTRA}, "type": "invalid_request_error"}), ""),
        ("stream_options", (400, [{"error": {"code": 400, "message": UNKNOWN_NAME, "status": "INVALID_ARGUMENT"}}]), ""),
        ("stream_options", openai_refusal("Unrecognized request argument supplied: stream_options"), ""),
        ("stream", openai_refusal(UNVERIFIED, "stream", "unsupported_value"), ""),
    ],
)  # fmt: skip
@pytest.mark.parametrize("streams", [False, True])
async def test_field_that_a_model_does_not_take_is_left_out_once_and_for_all(
    field: str, refusal: tuple[int, Any], instead: str, streams: bool
) -> None:
    streams = streams or field.startswith("stream")
    async with provider_for(OPENAI, picky({field: refusal})) as (provider, upstream):
        results = [await asked(provider, provider_request(key=f"d1|k{number}|1"), streams=streams) for number in range(3)]
        other = await asked(provider, replace(provider_request(), model="other-model"), streams=streams)
    usage = None if field == "stream_options" else ANSWER[1]
    assert {(result.text, result.usage) for result in (*results, other)} == {(ANSWER[0], usage)}
    assert [field in body for body in upstream.bodies] == [True, False, False, False, True, False], "another model is asked anew"
    assert not instead or upstream.bodies[1][instead] == 64
    assert all(body["messages"] == upstream.bodies[0]["messages"] for body in upstream.bodies)


async def test_several_fields_are_replaced_one_after_the_other_and_then_known() -> None:
    refusals = {
        "temperature": openai_refusal(ONLY_ONE, "temperature", "unsupported_value"),
        "max_tokens": openai_refusal(OTHER_NAME, "max_tokens", "unsupported_parameter"),
        "stream": openai_refusal(UNVERIFIED, "stream", "unsupported_value"),
        "stream_options": openai_refusal("'stream_options' is only allowed when 'stream' is enabled.", "stream_options"),
    }
    async with provider_for(OPENAI, picky(refusals)) as (provider, upstream):
        for _ in range(2):
            result = await asked(provider, provider_request(), streams=True)
            assert (result.text, result.usage) == ANSWER
    assert len(upstream.bodies) == len(refusals) + 2
    assert set(upstream.bodies[-1]) == {"model", "messages", "max_completion_tokens"}
    assert len(set(upstream.keys[:5])) == 5, "another body is another request to an upstream that knows keys"


async def test_configured_name_of_the_output_limit_is_only_where_it_begins() -> None:
    refusal = openai_refusal("Unrecognized request argument supplied: max_completion_tokens")
    async with provider_for(OPENAI, picky({"max_completion_tokens": refusal}), tokens_field="max_completion_tokens") as (
        provider,
        upstream,
    ):
        assert [(await provider.complete(provider_request())).text for _ in range(2)] == ["forty-two"] * 2
    assert [body.get("max_tokens") for body in upstream.bodies] == [None, 64, 64]


async def test_deprecated_temperature_of_the_messages_api_is_left_out() -> None:
    refusal = (400, traffic.failure("invalid_request_error", "`temperature` is deprecated for this model."))
    async with provider_for(ANTHROPIC, picky({"temperature": refusal}, reply=answers(traffic.message()))) as (provider, upstream):
        for _ in range(2):
            assert (await provider.complete(provider_request())).text == "forty-two"
    assert ["temperature" in body for body in upstream.bodies] == [True, False, False]


@pytest.mark.parametrize("streams", [False, True])
async def test_temperature_that_nobody_set_is_not_sent(streams: bool) -> None:
    unset = replace(provider_request(), temperature=None)
    async with provider_for(OPENAI, picky({"temperature": openai_refusal("no")})) as (provider, upstream):
        assert (await asked(provider, unset, streams=streams)).text == "forty-two"
    async with provider_for(ANTHROPIC, answers(traffic.message())) as (anthropic, other):
        await anthropic.complete(unset)
    assert not any("temperature" in body for body in (*upstream.bodies, *other.bodies))


@pytest.mark.parametrize(
    ("field", "refusal", "said"),
    [
        ("tools", openai_refusal("'tools' is not supported with this model.", "tools", "unsupported_parameter"), "'tools'"),
        ("tools", openai_refusal("No endpoints found that support tool use: tools is unsupported"), "tools is unsupported"),
        ("response_format", openai_refusal("This response_format type is unavailable now", "response_format"), "response_format"),
        ("messages", openai_refusal("'messages[0].role' does not support 'system'.", "messages[0].role", "unsupported_value"), "role"),
        ("model", openai_refusal("Unknown model: some-model", "model"), "Unknown model"),
        ("temperature", openai_refusal("'temperature' must be at most 2", "temperature", "decimal_above_max_value"), "at most 2"),
        ("max_tokens", openai_refusal("max_tokens is too large: 64. This model supports at most 32.", "max_tokens"), "too large"),
        ("messages", openai_refusal("unexpected end of stream", code="bad_json"), "unexpected end of stream"),
        ("temperature", openai_refusal("'temperature' is not supported here", "temperature", status=403), "not supported"),
    ],
)  # fmt: skip
async def test_what_a_request_means_is_never_left_out_and_the_upstreams_reason_is_kept(
    field: str, refusal: tuple[int, Any], said: str
) -> None:
    fields = json.loads(TOOLS) | {"response_format": {"type": "json_object"}}
    async with provider_for(OPENAI, picky({field: refusal})) as (provider, upstream):
        for _ in range(2):
            error = await failed(provider, replace(provider_request(), openai_json=json.dumps(fields)))
            assert (error.kind, error.executed) == (f"http_{refusal[0]}", False)
            assert said in error.words and error.words in str(error)
    assert len(upstream.bodies) == 2 and all(field in body for body in upstream.bodies)


async def test_output_limit_that_is_refused_by_both_names_is_an_error_and_never_left_out() -> None:
    names = ("max_tokens", "max_completion_tokens")
    refusals = {name: openai_refusal(f"Unsupported parameter: '{name}'", name, "unsupported_parameter") for name in names}
    async with provider_for(OPENAI, picky(refusals)) as (provider, upstream):
        for _ in range(2):
            error = await failed(provider, provider_request())
            assert error.executed is False and "Unsupported parameter" in str(error)
    assert len(upstream.bodies) == 4 and all(len(body.keys() & set(names)) == 1 for body in upstream.bodies)


@pytest.mark.parametrize(
    "message",
    [f"'temperature' is unsupported in {SECRET_PROMPT}", f"cannot parse {SECRET_PROMPT}, unknown 'stream_options' in it"],
)
async def test_refusal_that_quotes_the_prompt_changes_nothing_and_is_not_repeated(message: str) -> None:
    async with provider_for(OPENAI, answers(openai_refusal(message, None, "bad_request")[1], 400)) as (provider, upstream):
        error = await failed(provider, streams=True)
    assert (error.words, len(upstream.bodies)) == ("bad_request", 1)


async def test_refusal_names_the_field_where_its_message_may_not_be_repeated() -> None:
    private = "the code of Mia's door is eight"
    fields = {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "description": private}}}
    refusal = openai_refusal(f"Invalid schema: {private}", "response_format", "invalid_schema")
    async with provider_for(OPENAI, picky({"response_format": refusal})) as (provider, _):
        error = await failed(provider, replace(provider_request(), openai_json=json.dumps(fields)))
    assert error.words == "invalid_schema: response_format"


async def test_one_deadline_holds_over_a_refusal_and_the_request_that_follows_it() -> None:
    refuses = picky({"temperature": openai_refusal(ONLY_ONE, "temperature", "unsupported_value")})
    async with provider_for(OPENAI, in_turn(refuses, hangs)) as (provider, upstream):
        error = await failed(provider, provider_request(deadline_s=0.5))
    assert (error.kind, error.executed, len(upstream.bodies)) == ("deadline", None, 2)


async def test_request_that_is_sent_again_lies_under_one_hold_and_is_charged_once(tmp_path: Path) -> None:
    refusals = {
        "temperature": openai_refusal(ONLY_ONE, "temperature", "unsupported_value"),
        "max_tokens": openai_refusal(OTHER_NAME, "max_tokens", "unsupported_parameter"),
    }
    async with brokered(tmp_path, picky(refusals)) as (client, store, upstream):
        answer = await client.complete(call(temperature=0.0), 5.0)
        assert (answer.text, answer.charged_uusd) == ("forty-two", 12 + 2 * 3)
    kinds = [entry.kind for entry in store.tables.journal_after(0)]
    assert (kinds.count("reserve"), kinds.count("completed"), len(upstream.bodies)) == (1, 1, 3)
    assert verify(store.tables).ok


async def test_refused_request_releases_its_hold_and_says_why_to_the_device(tmp_path: Path) -> None:
    refusal = openai_refusal("'tools' is not supported with this model.", "tools", "unsupported_parameter")
    async with brokered(tmp_path, picky({"tools": refusal})) as (client, store, _):
        with pytest.raises(
            CoordinatorUnavailable, match=r"unsupported_parameter: 'tools' is not supported.*nothing was charged"
        ) as refused:
            await client.complete(call(openai_json=TOOLS), 5.0)
        assert refused.value.reason == "UPSTREAM_REJECTED"
        used = [(budget.reserved.uusd, budget.committed.uusd) for budget in store.tables.all(BUDGET)]
        assert set(used) == {(0, 0)} and verify(store.tables).ok


async def test_ask_is_answered_by_a_model_that_takes_no_temperature_and_names_what_it_refuses(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf").path
    refusals = {
        "temperature": openai_refusal(ONLY_ONE, "temperature", "unsupported_value"),
        "max_tokens": openai_refusal(OTHER_NAME, "max_tokens", "unsupported_parameter"),
    }
    refuses_all = {
        "messages": openai_refusal("Unsupported value: 'messages' is not for this model.", "messages", "unsupported_value")
    }
    async with running_upstream(picky(refusals)) as upstream:
        embedded = {
            "upstream": "openai_compatible",
            "base_url": upstream.base_url,
            "model": "some-model",
            "price_in_uusd_per_mtok": 1_000_000,
            "price_out_uusd_per_mtok": 2_000_000,
        }
        config = {"coordinator": {"embedded": embedded}, "engine": {"threads": 1}, "model": {"path": str(model)}}
        (tmp_path / "agent.yaml").write_text(yaml.safe_dump(config))
        place = ("--config", str(tmp_path / "agent.yaml"), "--state", str(tmp_path / "state"))
        code, out, err = await edge_agent("ask", "Where is Ilka?", "--cloud", "--json", *place, OMP_NUM_THREADS="1")
        assert code == 0, err
        record = json.loads(out)
        assert (record["source"], record["spend_uusd"]) == ("cloud", 12 + 2 * 3)
        assert [sorted(body.keys() & {"temperature", "max_tokens"}) for body in upstream.bodies] == [["max_tokens"], []]
        upstream.reply = picky(refuses_all)
        code, _, err = await edge_agent("ask", "Where is Mia?", "--cloud", *place, OMP_NUM_THREADS="1")
        assert code == 1 and "'messages' is not for this model" in err and "doctor" not in err
