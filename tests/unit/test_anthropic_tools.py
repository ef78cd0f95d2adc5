"""OpenAI's tools translated for Anthropic's Messages API, and what has no equivalent there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from coordinator.providers.anthropic import NotTranslatable, tool_call, translated

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
