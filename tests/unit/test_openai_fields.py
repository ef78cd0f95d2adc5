"""The allowed OpenAI fields of a call: fields with bounded cost pass unchanged, anything else is refused in one line."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.calls.broker import cache_key
from coordinator.providers.openai_compatible import request_body
from coordinator.providers.provider import ProviderRequest, bound_of_request
from edge.core.errors import InvalidRequest
from edge.core.types import Message
from edge.rpc.client import fingerprint
from edge.rpc.openai_fields import MAX_OPENAI_BYTES, openai_fields
from tests.worlds.coordinator import TOOLS, call

FUNCTION = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALLED = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
USER = {"role": "user", "content": "hi"}
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8)
JSON_VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3), max_leaves=8
)


def asking(openai_json: str) -> ProviderRequest:
    return ProviderRequest((Message("user", "hi"),), "m", 12, 0.0, 5.0, "k", openai_json=openai_json)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tools": [FUNCTION, {"type": "custom", "custom": {"name": "c"}}], "parallel_tool_calls": False},
        {"tool_choice": {"type": "function", "function": {"name": "add"}}, "response_format": {"type": "json_object"}},
        {
            "messages": [
                USER,
                {"role": "assistant", "tool_calls": [CALLED]},
                {"role": "tool", "tool_call_id": "c1", "content": "3"},
            ]
        },
        {"messages": [{"role": "developer", "content": [{"type": "text", "text": "a"}]}, {**USER, "name": "bob"}]},
    ],
)
def test_fields_sent_by_clients_are_accepted(fields: dict[str, Any]) -> None:
    assert openai_fields(json.dumps(fields)) == fields


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[]", "one JSON object"),
        ("{", "not JSON"),
        ('{"tools": NaN}', "not JSON"),
        ('{"tool_choice": "\\ud800"}', "not JSON"),
        ('{"tools": [], "tools": []}', "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"tool_choice": ' + "9" * 5000 + "}", "not JSON"),
        ('{"model": "gpt"}', "unknown field 'model'"),
        ('{"tools": [{"type": "web_search"}]}', "tools of openai_json"),
        ('{"messages": []}', "at least one message"),
        ('{"messages": [{"role": "robot", "content": ""}]}', "message 0 of openai_json has no role"),
        ('{"messages": [{"role": ["user"], "content": ""}]}', "message 0 of openai_json has no role"),
        ('{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', "other than text"),
        ('{"messages": [{"role": "user", "content": [{"type": []}]}]}', "other than text"),
        ('{"messages": [{"role": "user", "content": 5}]}', "other than text"),
        ('{"messages": [{"role": "assistant", "tool_calls": [5]}]}', "tool_calls of message 0"),
        ('{"tool_choice": "' + "é" * (MAX_OPENAI_BYTES // 2) + '"}', "larger than"),
    ],
)
def test_unbounded_or_meaningless_fields_are_refused_in_one_line(text: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why) as refused:
        openai_fields(text)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 200


@given(st.dictionaries(st.sampled_from(["tool_choice", "response_format", "parallel_tool_calls"]), JSON_VALUES, min_size=1))
def test_bytes_sent_by_a_client_reach_the_upstream_unchanged(fields: dict[str, Any]) -> None:
    text = json.dumps(fields, indent=1)
    body, plain = (msgspec.json.encode(request_body(asking(each), "max_tokens", streamed=False)) for each in (text, ""))
    assert json.loads(body) == {**json.loads(plain), **fields}
    assert all(json.dumps(value, indent=1).replace("\n", "\n ").encode() in body for value in fields.values())


def test_messages_in_the_fields_replace_the_plain_ones() -> None:
    turns = [USER, {"role": "tool", "tool_call_id": "c1", "content": "3"}]
    body = json.loads(msgspec.json.encode(request_body(asking(json.dumps({"messages": turns})), "max_tokens", streamed=True)))
    assert body["messages"] == turns


def test_the_bound_counts_tools_twice_and_messages_once() -> None:
    tools, turns = json.dumps({"tools": [FUNCTION] * 9}), json.dumps({"messages": [{**USER, "content": "w" * 9000}]})
    plain = bound_of_request(asking(""))
    assert bound_of_request(asking(tools)) >= plain + 2 * (len(tools) - 20)
    assert 9000 <= bound_of_request(asking(turns)) < 2 * 9000


def test_tools_and_no_temperature_change_the_digest_and_plain_calls_keep_theirs() -> None:
    plain = call(temperature=0.0)
    others = [call(temperature=0.0, openai_json=TOOLS), call(), call(openai_json=TOOLS), call(temperature=1.0)]
    assert (
        len({fingerprint(each) for each in (plain, *others)})
        == len({cache_key("d", "m", each) for each in (plain, *others)})
        == 5
    )
    assert fingerprint(plain) == "abd874abc1a0f2c7b02f5940ea41b34beb625ba019322f29ff4b811d3331de6c"
