"""Tools from a device to a cloud LLM over HTTP and its tool calls back: unchanged, whole and streamed, charged, replayed."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from aiohttp import web

from coordinator.calls.admission import Gate
from coordinator.calls.upstreams import Upstream, UpstreamTable
from coordinator.config import LegConfig
from edge.core.errors import InvalidRequest
from tests.worlds import anthropic_traffic as traffic
from tests.worlds.coordinator import PRICE, ProgrammedProvider, call
from tests.worlds.http_api import ANTHROPIC, OPENAI, brokered, failure, result_of
from tests.worlds.upstream_server import (
    answers,
    completion,
    event,
    sends,
    tool_answer,
    tool_stream,
)
from tools.simulate.faults.upstream import SimulatedUpstream, UpstreamMood

CALLS = [
    {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": "zwölf"}'}},
    {"id": "call_2", "type": "function", "function": {"name": "now", "arguments": "{}"}, "extra_content": {"signature": "s"}},
]
REQUEST = {
    "tools": [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}, "strict": True}}],
    "tool_choice": "required",
    "messages": [
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": None, "tool_calls": CALLS[:1]},
        {"role": "tool", "tool_call_id": "call_1", "content": "4"},
    ],
}
CHARGE_UUSD = 12 + 2 * 3


def wants_tools(key: str = "k1", **changes: Any) -> Any:
    return call(key, openai_json=json.dumps(REQUEST), **changes)


async def either(request: web.Request) -> web.StreamResponse:
    """CALLS, whole or streamed as asked."""
    streamed = (await request.json())["stream"]
    return await (sends(*tool_stream(CALLS)) if streamed else answers(tool_answer(CALLS)))(request)


async def test_upstream_gets_the_original_request_and_its_tool_calls_are_returned_and_charged(tmp_path) -> None:
    async with brokered(tmp_path, either) as (client, store, upstream):
        whole = await client.complete(wants_tools(), 5.0)
        assert json.loads(whole.openai_json) == {"finish_reason": "tool_calls", "tool_calls": CALLS}
        assert (whole.text, whole.charged_uusd) == ("", CHARGE_UUSD)
        body = upstream.bodies[0]
        assert {name: body[name] for name in REQUEST} == REQUEST
        assert (body["max_tokens"], body["stream"]) == (20, False) and "temperature" not in body
        assert (await client.get_budget("math")).spend_uusd == CHARGE_UUSD
        assert replace(await client.complete(wants_tools(), 5.0), budget=None) == replace(whole, budget=None)
        assert replace(await client.get_call("k1"), budget=None) == replace(whole, budget=None)
        assert len(upstream.bodies) == 1
    hold = next(entry.data()["hold"] for entry in store.tables.journal if entry.kind == "reserve")
    assert hold[1] > len(json.dumps(REQUEST)), "the hold covers what is sent"


async def test_streamed_tool_calls_are_assembled_and_come_with_the_end(tmp_path) -> None:
    async with brokered(tmp_path, either) as (client, _, _):
        deltas = [delta async for delta in client.stream_complete(wants_tools(), 5.0)]
    assert "".join(delta.text for delta in deltas) == "" and all(delta.completion is None for delta in deltas[:-1])
    completion = deltas[-1].completion
    assert json.loads(completion.openai_json) == {"finish_reason": "tool_calls", "tool_calls": CALLS}
    assert completion.charged_uusd == CHARGE_UUSD


def piece(**delta: Any) -> bytes:
    return event(id="s", choices=[{"index": 0, "delta": delta, "finish_reason": None}])


END = event(
    id="s", choices=[{"index": 0, "delta": {}, "finish_reason": "tool_calls"}], usage={"prompt_tokens": 1, "completion_tokens": 1}
)


def part(arguments: str, **more: Any) -> dict[str, Any]:
    """A piece of a call; `name` goes into its function."""
    name = {"name": more.pop("name")} if "name" in more else {}
    return {**more, "function": {**name, "arguments": arguments}}


@pytest.mark.parametrize(
    "pieces",
    [
        [part("", index=0, id="a", name="f"), part("1", index=0), part("", index=1, id="b", name="g"), part("2", index=1)],
        [part("", index=0, id="a", name="f"), part("", index=1, id="b", name="g"), part("2", index=1), part("1", index=0)],
        [part("", id="a", name="f"), part("1"), part("2", id="b", name="g")],
        [part("1", index=0, id="a", name="f"), part("2", index=0, id="b", name="g")],
        [part("", index=0, id="a", name="f"), part("1", index=0, id="made-up", name=None), part("2", index=1, id="b", name="g")],
        [
            *(part("", index=0, id="a", name="f", type="function"), part("1", index=0, id="a", type="function", name="f")),
            part("2", index=1, id="b", name="g"),
        ],
    ],
    ids=["in turn", "mixed", "no index", "one index for all", "an id for each piece", "id and name repeated"],
)
async def test_tool_call_pieces_are_assembled_as_servers_send_them(pieces: list[dict[str, Any]]) -> None:
    events = [piece(tool_calls=[each]) for each in pieces]
    result = await result_of(OPENAI, sends(*events, END), streams=True)
    assert json.loads(result.beyond_text)["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": "1"}},
        {"id": "b", "type": "function", "function": {"name": "g", "arguments": "2"}},
    ]


NESTED = b'{"choices": [{"message": {"tool_calls": [{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}]}}]}"


@pytest.mark.parametrize(
    "body", [tool_answer(5), tool_answer(["x"]), tool_answer({"a": 1}), NESTED], ids=["number", "texts", "object", "nested"]
)
async def test_malformed_or_endlessly_nested_tool_calls_are_garbage_that_was_executed(body: Any) -> None:
    error, _ = await failure(OPENAI, answers(body))
    assert (error.kind, error.executed) == ("garbage", True)


async def test_model_refusal_is_returned_as_a_refusal() -> None:
    message = {"role": "assistant", "content": None, "refusal": "no"}
    body = completion(choices=[{"index": 0, "message": message, "finish_reason": "stop"}])
    assert json.loads((await result_of(OPENAI, answers(body))).beyond_text) == {"refusal": "no"}


async def test_anthropic_request_is_translated_and_refused_where_it_has_no_equivalent(tmp_path) -> None:
    async with brokered(tmp_path, answers(traffic.TOOL_MESSAGE), ANTHROPIC) as (client, _, upstream):
        result = json.loads((await client.complete(wants_tools(), 5.0)).openai_json)
        with pytest.raises(InvalidRequest, match="takes no response_format"):
            await client.complete(call("k2", openai_json='{"response_format": {"type": "json_object"}}'), 5.0)
    function = {"name": "add", "arguments": '{"a": 2}'}
    assert result == {"finish_reason": "tool_calls", "tool_calls": [{"id": "call_1", "type": "function", "function": function}]}
    (body,) = upstream.bodies
    assert [turn["role"] for turn in body["messages"]] == ["user", "assistant", "user"]
    assert body["tool_choice"] == {"type": "any"} and body["tools"][0]["name"] == "add"


async def test_only_upstreams_that_can_call_tools_are_asked() -> None:
    plain = SimulatedUpstream(asyncio.get_running_loop(), Random(1), UpstreamMood({}))
    providers: dict[str, Any] = {"plain": plain, "able": ProgrammedProvider()}
    upstreams = {name: Upstream(name, each, "m", PRICE, Gate(name, 8, 64), 20.0, 1000) for name, each in providers.items()}
    table = UpstreamTable(upstreams, {"default": (LegConfig(upstream="plain", order=0), LegConfig(upstream="able", order=1))})
    assert [each.alias for each in table.choose(wants_tools(), "q", 0.0)] == ["able"]
    assert [each.alias for each in table.choose(call(), "q", 0.0)] == ["plain", "able"]
