"""/v1/messages with the official `anthropic` client: text, streams, stop sequences, tools, forms, counted tokens, and errors in Anthropic's
form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from pydantic import BaseModel

from edge.core.errors import BudgetExhausted, CoordinatorUnavailable
from edge.serve.endpoint import build_app
from edge.serve.message_schemas import MessagesRequest
from edge.serve.ports import AnswerNote
from edge.serve.server import serving
from edge.testing.clock import ManualClock
from edge.testing.coordinator import ScriptedTerms
from edge.testing.endpoint import ScriptedAnswers, ScriptedControl
from tests.worlds.agent import World
from tests.worlds.agent_process import agent_process
from tests.worlds.openai_agent import CALL, TOKEN, Served, scripted
from tests.worlds.served_agent import in_a_thread

EASY, HARD = "What is 1 + 1?", "What is 4 + 1?"
SCHEMA: Any = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL: Any = {"name": "weather", "description": "Of a city.", "input_schema": SCHEMA}
USE: Any = {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Bern"}}


class Sum(BaseModel):
    sum: int
    text: str


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served(World(tmp_path / "state", script=scripted, terms=ScriptedTerms(calls_limit=9)))


@pytest.fixture
def client(served: Served) -> Iterator[anthropic.Anthropic]:
    with in_a_thread(served.open) as url, client_of(url) as client:
        yield client


def client_of(url: str, key: str = "none", **options: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key=key, max_retries=0, **options)


def user(content: Any) -> Any:
    return [{"role": "user", "content": content}]


def ask(client: anthropic.Anthropic, **fields: Any) -> Any:
    return client.messages.create(**{"model": "edge-local", "max_tokens": 100, "messages": user(EASY), **fields})


def test_text_is_answered_with_usage_and_source(client: anthropic.Anthropic) -> None:
    raw = client.messages.with_raw_response.create(
        model="edge-local",
        max_tokens=100,
        system=[{"type": "text", "text": "Be short.", "cache_control": {"type": "ephemeral"}}],
        messages=user([{"type": "text", "text": "What is "}, {"type": "text", "text": "1 + 1?"}]),
        metadata={"user_id": "u" * 900, "task": "math"},  # type: ignore[typeddict-unknown-key]
        extra_body={"temperature": 0.5, "top_k": 5},
    )
    answer: Any = raw.parse()
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", "edge-local")
    assert [block.to_dict() for block in answer.content] == [{"type": "text", "text": "\\boxed{2}"}]
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    assert min(answer.usage.input_tokens, answer.usage.output_tokens) > 0
    assert (answer.edge["source"], answer.edge["task"], answer.edge["ignored_parameters"]) == ("local", "math", ["top_k"])
    assert (raw.headers["x-edge-source"], answer.id) == ("local", f"msg_{raw.headers['x-edge-answer-id']}")


def test_thinking_is_shown_to_whom_it_was_promised(client: anthropic.Anthropic) -> None:
    for thinking in ({"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}):
        first, second = ask(client, thinking=thinking).content
        assert (first.type, first.thinking.strip(), second.text) == ("thinking", "Step 1: add", "\\boxed{2}")
        turns = [*user(EASY), {"role": "assistant", "content": [first.to_dict(), second.to_dict()]}, *user(EASY)]
        assert ask(client, messages=turns).content[0].text == "\\boxed{2}"
    assert [block.type for block in ask(client, thinking={"type": "disabled"}).content] == ["text"]


def test_stream_events_arrive_in_anthropics_order_and_build_the_message(client: anthropic.Anthropic) -> None:
    events = list(ask(client, stream=True, thinking={"type": "adaptive"}))
    kinds = [event.type for event in events]
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    assert [kind for kind in kinds if kind != "content_block_delta"] == [
        "message_start",
        *["content_block_start", "content_block_stop"] * 2,
        "message_delta",
        "message_stop",
    ]
    assert (events[0].message.content, events[0].message.stop_reason) == ([], None)
    assert [event.index for event in events if event.type == "content_block_start"] == [0, 1]
    assert {event.delta.type for event in events if event.type == "content_block_delta"} == {"thinking_delta", "text_delta"}
    with client.messages.stream(model="edge-local", max_tokens=100, messages=user(EASY)) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    whole = ask(client)
    assert (text, final.stop_reason, final.usage) == ("\\boxed{2}", "end_turn", whole.usage)
    assert final.content[0].text == whole.content[0].text


@pytest.mark.parametrize("model", ["edge-local", "edge-cloud"])
def test_stop_sequence_is_named_and_not_shown(client: anthropic.Anthropic, model: str) -> None:
    answer = ask(client, model=model, messages=user(HARD), stop_sequences=["never", "ox"])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "ox")
    assert answer.content[0].text == "\\b"


def test_truncated_answer_ends_with_max_tokens(client: anthropic.Anthropic) -> None:
    assert ask(client, max_tokens=2).stop_reason == "max_tokens"
    assert [event.delta.stop_reason for event in ask(client, max_tokens=2, stream=True) if event.type == "message_delta"] == [
        "max_tokens"
    ]


def test_usage_of_a_cloud_answer_is_what_the_cloud_billed(client: anthropic.Anthropic) -> None:
    answer = ask(client, model="edge", messages=user(HARD))
    assert answer.edge["source"] == "cloud"
    assert answer.usage.input_tokens + answer.usage.output_tokens == answer.edge["cloud_tokens"] > 0


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any", "disable_parallel_tool_use": True}, {"tool_choice": "required", "parallel_tool_calls": False}),
        ({"type": "tool", "name": "weather"}, {"tool_choice": {"type": "function", "function": {"name": "weather"}}}),
    ],
    ids=str,
)
def test_tools_reach_the_cloud_in_its_form_and_its_calls_are_blocks(
    client: anthropic.Anthropic, served: Served, choice: Any, sent: dict[str, Any]
) -> None:
    answer = ask(client, model="edge", messages=user(HARD), tools=[TOOL], tool_choice=choice)
    assert (answer.stop_reason, [block.to_dict() for block in answer.content]) == ("tool_use", [USE])
    function = {"name": "weather", "description": "Of a city.", "parameters": SCHEMA}
    assert json.loads(served.cloud.sent[0].openai_json) == {"tools": [{"type": "function", "function": function}], **sent}


def test_tools_that_may_not_be_called_are_not(client: anthropic.Anthropic) -> None:
    answer = ask(client, tools=[TOOL], tool_choice={"type": "none"})
    assert (answer.stop_reason, answer.content[0].text) == ("end_turn", "\\boxed{2}")


def test_tool_calls_are_streamed_and_their_results_are_read(client: anthropic.Anthropic, served: Served) -> None:
    with client.messages.stream(model="edge", max_tokens=100, messages=user(HARD), tools=[TOOL]) as stream:
        deltas = [event.delta.type for event in stream if event.type == "content_block_delta"]
        final = stream.get_final_message()
    assert (deltas, final.stop_reason) == (["input_json_delta"], "tool_use")
    assert [block.to_dict() for block in final.content] == [USE]
    results = [
        {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "rain"}]},
        {"type": "tool_result", "tool_use_id": "call_2", "content": "no such city", "is_error": True},
        {"type": "text", "text": "And now?"},
    ]
    said = [{"type": "text", "text": "I look."}, USE, {**USE, "id": "call_2"}]
    turns: Any = [*user(HARD), {"role": "assistant", "content": said}, *user(results)]
    ask(client, model="edge", messages=turns, tools=[TOOL], system="Be kind.")
    sent = json.loads(served.cloud.sent[1].openai_json)["messages"]
    calls = [
        {**CALL, "id": name, "function": {"name": "weather", "arguments": '{"city": "Bern"}'}} for name in ("call_1", "call_2")
    ]
    assert sent == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": HARD},
        {"role": "assistant", "content": "I look.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
        {"role": "tool", "tool_call_id": "call_2", "content": "The tool failed: no such city"},
        {"role": "user", "content": "And now?"},
    ]
    assert ask(client, messages=turns).content[0].text == "\\boxed{2}"


def test_a_system_message_within_the_conversation_comes_before_the_text_it_followed(
    client: anthropic.Anthropic, served: Served
) -> None:
    rule: Any = {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}
    read = MessagesRequest(messages=[*user(HARD), rule]).as_chat().messages
    assert [(message.role, message.text) for message in read] == [("user", "Be brief."), ("user", HARD)]
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": "rain"}
    ask(
        client, model="edge", messages=[*user(HARD), {"role": "assistant", "content": [USE]}, *user([result]), rule], tools=[TOOL]
    )
    sent = json.loads(served.cloud.sent[0].openai_json)["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "user"]
    assert ask(client, messages=[*user(EASY), rule]).content[0].text == "\\boxed{2}"


def test_form_is_enforced_and_parsed(client: anthropic.Anthropic) -> None:
    parsed = client.messages.parse(model="edge-local", max_tokens=100, messages=user(EASY), output_format=Sum)
    assert parsed.parsed_output == Sum(sum=2, text="</answer>")


def test_tokens_are_counted_without_an_answer(client: anthropic.Anthropic, served: Served) -> None:
    def count(**fields: Any) -> int:
        return client.messages.count_tokens(**{"model": "edge", "messages": user(EASY), **fields}).input_tokens

    assert count() == ask(client).usage.input_tokens
    assert count(messages=user(f"Once more: {EASY}")) > count()
    assert count(tools=[TOOL]) > count()
    assert count(messages=user("word " * 5000)) > 5000, "also of what fits no context"
    assert served.agent.status().answers == 1


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": user("")}, None),
        ({"messages": [*user(EASY), {"role": "assistant", "content": "It"}]}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": user([IMAGE])}, "messages[0].content[0].type"),
        ({"messages": user([{"type": "text", "text": "x"}, {"type": "document"}])}, "messages[0].content[1].type"),
        ({"messages": user([{"type": "tool_result"}])}, "messages[0].content[0].tool_use_id"),
        ({"messages": user([USE])}, "messages[0].content[0].type"),
        ({"system": [IMAGE]}, "system[0].type"),
        ({"extra_body": {"temperature": 9}}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"name": "no name", "input_schema": SCHEMA}]}, "tools[0].name"),
        ({"tools": [{**TOOL, "input_schema": {"type": "strin"}}], "model": "edge"}, "tools[0].input_schema.type"),
        ({"tools": [TOOL], "tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [TOOL]}, "tools"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}}, "output_config.format.schema.not"),
        ({"extra_body": {"mcp_servers": [{"name": "a"}]}}, "mcp_servers"),
    ],
    ids=str,
)
def test_errors_have_anthropics_form_and_name_fields_as_the_caller_wrote_them(
    client: anthropic.Anthropic, fields: Any, param: str | None
) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        ask(client, **fields)
    body: Any = caught.value.body
    assert (body["type"], body["error"]["type"], body["error"]["param"]) == ("error", "invalid_request_error", param)
    assert (param or "") in body["error"]["message"]


def test_every_kind_of_error_raises_the_clients_own_exception(client: anthropic.Anthropic, served: Served) -> None:
    def raised(kind: type[anthropic.APIStatusError], **fields: Any) -> tuple[int, str]:
        with pytest.raises(kind) as caught:
            ask(client, **fields)
        body: Any = caught.value.body
        return caught.value.status_code, body["error"]["type"]

    assert raised(anthropic.NotFoundError, model="claude-9") == (404, "not_found_error")
    for stream in (False, True):
        served.world.client.fail_next("stream_complete", CoordinatorUnavailable("gone"))
        assert raised(anthropic.InternalServerError, model="edge-cloud", stream=stream) == (503, "api_error")
        served.world.client.fail_next("stream_complete", BudgetExhausted("the day's calls are used up"))
        assert raised(anthropic.RateLimitError, model="edge-cloud", stream=stream) == (429, "rate_limit_error")
    assert raised(anthropic.RequestTooLargeError, messages=user("x" * (2 << 20))) == (413, "request_too_large")
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.messages.batches.list()
    unserved: Any = caught.value.body
    assert (unserved["error"]["type"], unserved["error"]["code"]) == ("not_found_error", "route_not_served")


def test_the_token_comes_as_a_key_or_as_a_bearer_token(tmp_path: Path) -> None:
    served = Served(World(tmp_path / "state", script=scripted), token=TOKEN)
    with in_a_thread(served.open) as url:
        with client_of(url, TOKEN) as client:
            assert ask(client).stop_reason == "end_turn"
        with anthropic.Anthropic(base_url=url, auth_token=TOKEN, max_retries=0) as client:
            assert ask(client).stop_reason == "end_turn"
        with client_of(url, "another") as client, pytest.raises(anthropic.AuthenticationError) as caught:
            ask(client)
        body: Any = caught.value.body
        assert (body["type"], body["error"]["type"]) == ("error", "authentication_error")


@pytest.mark.parametrize(
    ("headers", "code"),
    [({"host": "evil.example"}, "host_not_allowed"), ({"origin": "http://evil.example"}, "origin_not_allowed")],
)
def test_other_hosts_and_pages_are_refused_as_at_the_other_routes(
    client: anthropic.Anthropic, headers: dict[str, str], code: str
) -> None:
    with pytest.raises(anthropic.PermissionDeniedError) as caught:
        ask(client, extra_headers=headers)
    body: Any = caught.value.body
    assert (body["error"]["type"], body["error"]["code"]) == ("permission_error", code)


async def test_a_failure_in_the_middle_is_an_error_event() -> None:
    answers = ScriptedAnswers(["four ", "and "])
    answers.failure, answers.fail_after = CoordinatorUnavailable("gone"), 1
    app = build_app(answers, ScriptedControl(answers), ManualClock())
    async with (
        serving(app, "127.0.0.1", 0) as url,
        anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client,
    ):
        seen = list[str]()
        stream = await client.messages.create(model="edge", max_tokens=9, messages=user(EASY), stream=True)

        async def read() -> None:
            async for event in stream:
                seen.append(event.type)

        with pytest.raises(anthropic.APIStatusError, match="gone"):
            await read()
        assert seen == ["message_start", "content_block_start", "content_block_delta"]


@pytest.mark.parametrize(
    ("note", "reason", "content"),
    [
        ({"refusal": "I may not.", "finish": "stop"}, "refusal", [{"type": "text", "text": "I may not."}]),
        ({"finish": "content_filter"}, "refusal", []),
        ({"finish": "stop"}, "end_turn", []),
    ],
    ids=str,
)
async def test_a_refused_or_empty_answer_is_a_message_too(note: dict[str, Any], reason: str, content: Any) -> None:
    answers = ScriptedAnswers([], note=AnswerNote(id="", source="cloud", **note))
    app = build_app(answers, ScriptedControl(answers), ManualClock())
    async with (
        serving(app, "127.0.0.1", 0) as url,
        anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client,
    ):
        answer = await client.messages.create(model="edge", max_tokens=9, messages=user(EASY))
    assert (answer.stop_reason, [block.to_dict() for block in answer.content]) == (reason, content)


async def test_arguments_that_are_no_object_are_an_error_and_no_call() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": '{"city": '}}
    answers = ScriptedAnswers([], note=AnswerNote(id="", source="cloud", finish="tool_calls", tool_calls=(call,)))
    app = build_app(answers, ScriptedControl(answers), ManualClock())
    async with (
        serving(app, "127.0.0.1", 0) as url,
        anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client,
    ):
        with pytest.raises(anthropic.InternalServerError, match="arguments"):
            await client.messages.create(model="edge", max_tokens=9, messages=user(EASY), tools=[TOOL])


def test_the_bundled_model_answers_the_client(tmp_path: Path) -> None:
    question = "Mia has 4 apples. She buys 3 more. How many apples does she have?"
    with agent_process(tmp_path / "state", "--no-learn", EDGE_AGENT_NO_CLOUD="1") as url, client_of(url) as client:
        answer: Any = client.messages.create(model="edge", max_tokens=200, messages=user(question))
        with client.messages.stream(model="edge", max_tokens=200, messages=user(question)) as stream:
            streamed = stream.get_final_message()
        counted = client.messages.count_tokens(model="edge", messages=user(question))
        stopped = client.messages.create(model="edge", max_tokens=200, messages=user(question), stop_sequences=["boxed"])
    assert (answer.edge["source"], answer.content[0].text) == ("local", streamed.content[0].text)
    assert answer.usage.input_tokens == counted.input_tokens
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "boxed")
