"""Fields of a call as a provider takes them: OpenAI's of bounded cost pass unchanged, others are refused in one line; OpenAI's tools are
translated for Anthropic's Messages API."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.calls.broker import cache_key
from coordinator.providers.anthropic import NotTranslatable, tool_call, translated
from coordinator.providers.openai_compatible import request_body
from coordinator.providers.provider import ProviderRequest, bound_of_request
from edge.core.errors import InvalidRequest
from edge.core.types import Message
from edge.rpc.client import fingerprint
from edge.rpc.openai_fields import MAX_OPENAI_BYTES, openai_fields
from tests.worlds.coordinator import TOOLS, call

ADD = {"type": "function", "function": {"name": "add", "description": "sum", "parameters": {"type": "object", "required": ["a"]}}}


def fields_for(**fields: Any) -> dict[str, Any]:
    return translated(json.dumps(fields))


def called(call_id: str, arguments: str = '{"a": 2}') -> dict[str, Any]:
    return tool_call(call_id, "add", arguments)


def test_functions_become_tools_with_an_input_schema() -> None:
    bare = {"type": "function", "function": {"name": "now"}}
    assert fields_for(tools=[ADD, bare]) == {
        "tools": [
            {"name": "add", "description": "sum", "input_schema": {"type": "object", "required": ["a"]}},
            {"name": "now", "input_schema": {"type": "object", "properties": {}}},
        ],
        "tool_choice": {"type": "auto"},
    }


@pytest.mark.parametrize(
    "said", [{"refusal": "No."}, {"content": None, "refusal": "No."}, {"content": [{"type": "refusal", "refusal": "No."}]}]
)
def test_a_refusal_is_the_text_of_its_turn(said: dict[str, Any]) -> None:
    user = {"role": "user", "content": "2+2?"}
    turns = fields_for(messages=[user, {"role": "assistant", **said}, user])["messages"]
    assert turns[1] == {"role": "assistant", "content": [{"type": "text", "text": "No."}]}


@pytest.mark.parametrize(
    ("fields", "choice"),
    [
        ({}, {"type": "auto"}),
        ({"tool_choice": "none", "parallel_tool_calls": False}, {"type": "none"}),
        ({"tool_choice": "required"}, {"type": "any"}),
        ({"tool_choice": {"type": "function", "function": {"name": "add"}}}, {"type": "tool", "name": "add"}),
        ({"parallel_tool_calls": False}, {"type": "auto", "disable_parallel_tool_use": True}),
        ({"parallel_tool_calls": True}, {"type": "auto"}),
    ],
)
def test_tool_choice_is_translated(fields: dict[str, Any], choice: dict[str, Any]) -> None:
    assert fields_for(tools=[ADD], **fields)["tool_choice"] == choice
    assert fields_for(tools=[], **fields) == {}, "a choice without tools is not sent"


def test_calls_and_their_results_become_blocks_of_one_turn_each() -> None:
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "2+"}, {"type": "text", "text": "2?"}]},
        {"role": "assistant", "content": "let me see", "tool_calls": [called("c1"), called("c2", "")]},
        {"role": "tool", "tool_call_id": "c1", "content": "4"},
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "5"}]},
        {"role": "user", "content": "and?"},
        {"role": "assistant", "content": None, "tool_calls": None},
        {"role": "developer", "content": "be kind"},
    ]
    assert fields_for(messages=messages) == {
        "system": "be brief\n\nbe kind",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "2+2?"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "let me see"},
                    {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 2}},
                    {"type": "tool_use", "id": "c2", "name": "add", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": "4"},
                    {"type": "tool_result", "tool_use_id": "c2", "content": "5"},
                    {"type": "text", "text": "and?"},
                ],
            },
        ],
    }


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [{"type": "custom", "custom": {"name": "c"}}]}, "functions only"),
        ({"tools": [{"type": "function", "function": {}}]}, "has no name"),
        ({"tools": [ADD], "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tools": [ADD], "tool_choice": ["auto"]}, "tool_choice"),
        ({"messages": [{"role": "tool", "content": "4"}]}, "has no tool_call_id"),
        ({"messages": [{"role": "assistant", "tool_calls": [called("c1", "[1]")]}]}, "JSON object"),
        ({"messages": [{"role": "assistant", "tool_calls": [called("c1", "{")]}]}, "JSON object"),
        ({"messages": [{"role": "system", "content": "be brief"}]}, "a turn other than"),
    ],
)
def test_untranslatable_field_is_refused_in_one_line(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(NotTranslatable, match=why) as refused:
        fields_for(**fields)
    assert "\n" not in str(refused.value)


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
