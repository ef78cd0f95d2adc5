"""/v1/responses with the official `openai` client: text, streams, turns, storage, forms, tools, and errors in the caller's terms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from edge.core.errors import CoordinatorUnavailable
from edge.serve.endpoint import build_app
from edge.serve.response_routes import StoredResponses
from edge.serve.server import serving
from edge.testing.clock import ManualClock
from edge.testing.coordinator import ScriptedTerms
from edge.testing.endpoint import ScriptedAnswers, ScriptedControl
from tests.worlds.agent import World
from tests.worlds.openai_agent import CALL, Served, scripted

EASY, HARD = "What is 1 + 1?", "What is 4 + 1?"
TOOL: Any = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}, "strict": False}


class Sum(BaseModel):
    sum: int
    text: str


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served(World(tmp_path / "state", script=scripted, terms=ScriptedTerms(calls_limit=9)))


def respond(client: openai.OpenAI, **fields: Any) -> Any:
    return client.responses.create(**{"model": "edge-local", "input": EASY, **fields})


def test_text_is_answered_with_separate_reasoning_and_usage(client: openai.OpenAI) -> None:
    raw = client.responses.with_raw_response.create(
        model="edge-local", input=EASY, instructions="Be short.", temperature=0.5, metadata={"task": "math"}, max_output_tokens=50
    )
    answer: Any = raw.parse()
    assert (answer.output_text, answer.status, answer.error) == ("\\boxed{2}", "completed", None)
    assert [item.type for item in answer.output] == ["reasoning", "message"]
    assert answer.output[0].content[0].text.strip() == "Step 1: add"
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens > 0
    assert (answer.instructions, answer.temperature, answer.metadata, answer.max_output_tokens) == (
        "Be short.",
        0.5,
        {"task": "math"},
        50,
    )
    assert (answer.edge["source"], answer.edge["task"], raw.headers["x-edge-source"]) == ("local", "math", "local")
    assert answer.id == f"resp_{raw.headers['x-edge-answer-id']}"


def test_stream_events_arrive_in_openai_order_and_build_the_response(client: openai.OpenAI) -> None:
    events = list(respond(client, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert list(dict.fromkeys(kinds)) == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_text.delta",
        "response.output_text.done",
        "response.completed",
    ]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    whole = events[-1].response
    assert text == whole.output_text == next(event.text for event in events if event.type == "response.output_text.done")
    assert (events[0].response.status, events[0].response.output, whole.status) == ("in_progress", [], "completed")
    with client.responses.stream(model="edge-local", input=EASY) as stream:
        stream.until_done()
        assert stream.get_final_response().output_text == text


def test_turns_continue_from_a_stored_response_without_its_instructions(client: openai.OpenAI, served: Served) -> None:
    first = respond(client, model="edge-cloud", input="My name is Ada.", instructions="Be kind.")
    second = respond(client, model="edge-cloud", input=[{"role": "user", "content": HARD}], previous_response_id=first.id)
    assert second.previous_response_id == first.id
    sent = [(message.role, message.content) for message in served.cloud.sent[1].messages]
    assert sent[-1] == ("user", HARD)
    streamed = list(respond(client, input=EASY, previous_response_id=second.id, stream=True))[-1].response
    assert client.responses.retrieve(streamed.id).output_text == streamed.output_text
    items = client.responses.input_items.list(streamed.id).data
    assert [(item.role, item.content[0].text) for item in items] == [("user", EASY)]  # type: ignore[union-attr]


def test_deleted_or_unstored_response_is_unknown(client: openai.OpenAI) -> None:
    kept, dropped = respond(client), respond(client, store=False)
    client.responses.delete(kept.id)
    for name in (kept.id, dropped.id, "resp_other"):
        with pytest.raises(openai.NotFoundError, match=name):
            client.responses.retrieve(name)
        with pytest.raises(openai.NotFoundError) as caught:
            respond(client, previous_response_id=name)
        assert (caught.value.code, caught.value.param) == ("response_not_found", "previous_response_id")


def test_oldest_responses_are_evicted() -> None:
    stored = StoredResponses(most=2, most_bytes=10_000)
    for name in ("a", "b", "c"):
        stored.keep({"id": name}, [], [])
    assert stored.get("c", "").body == {"id": "c"}
    with pytest.raises(Exception, match="a"):
        stored.get("a", "response_id")
    stored.keep({"id": "d"}, [], [{"content": "x" * 20_000}])
    assert stored.get("d", "").body == {"id": "d"}
    with pytest.raises(Exception, match="c"):
        stored.get("c", "response_id")


def test_form_is_enforced_and_parsed(client: openai.OpenAI) -> None:
    parsed = client.responses.parse(model="edge-local", input=EASY, text_format=Sum)
    assert parsed.output_parsed == Sum(sum=2, text="</answer>")
    free = respond(client, text={"format": {"type": "json_object"}})
    assert json.loads(free.output_text)["sum"] == 2


def test_truncated_answer_is_incomplete(client: openai.OpenAI) -> None:
    answer = respond(client, max_output_tokens=2)
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert list(respond(client, max_output_tokens=2, stream=True))[-1].type == "response.incomplete"


def test_tool_calls_are_items_and_their_outputs_are_input(client: openai.OpenAI, served: Served) -> None:
    answer = respond(client, model="edge", input=HARD, tools=[TOOL], tool_choice="auto", parallel_tool_calls=False)
    (call,) = answer.output
    assert (call.type, call.call_id, call.name, call.arguments) == ("function_call", "call_1", "weather", '{"city":"Bern"}')
    sent = json.loads(served.cloud.sent[0].openai_json)
    assert sent["tools"] == [{"type": "function", "function": {key: TOOL[key] for key in ("name", "parameters", "strict")}}]
    output = {"type": "function_call_output", "call_id": "call_1", "output": "rain"}
    respond(client, model="edge", input=[output], previous_response_id=answer.id, tools=[TOOL])
    turns = json.loads(served.cloud.sent[1].openai_json)["messages"]
    assert [turn["role"] for turn in turns] == ["user", "assistant", "tool"]
    assert (turns[1]["tool_calls"], turns[2]["tool_call_id"]) == ([CALL], "call_1")
    kinds = [event.type for event in respond(client, model="edge", input=HARD, tools=[TOOL], stream=True)]
    assert kinds[2:6] == [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
    ]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": "gpt-9"}, "model"),
        ({"input": []}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"temperature": 9}, "temperature"),
        ({"metadata": {"task": "no label"}}, "metadata.task"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [TOOL]}, "tools"),
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"not": {}}}}}, "text.format.schema.not"),
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
    ],
    ids=str,
)
def test_errors_name_fields_as_the_caller_wrote_them(client: openai.OpenAI, fields: Any, param: str) -> None:
    with pytest.raises((openai.BadRequestError, openai.NotFoundError)) as caught:
        respond(client, **fields)
    assert caught.value.param == param
    assert param in caught.value.message or param == "model"


def test_a_failure_before_the_first_word_has_its_status(client: openai.OpenAI, served: Served) -> None:
    for stream in (False, True):
        served.world.client.fail_next("stream_complete", CoordinatorUnavailable("gone"))
        with pytest.raises(openai.InternalServerError):
            respond(client, model="edge-cloud", stream=stream)


async def test_a_failure_in_the_middle_is_an_event_and_nothing_is_stored() -> None:
    answers = ScriptedAnswers(["four ", "and "])
    answers.failure, answers.fail_after = CoordinatorUnavailable("gone"), 1
    app = build_app(answers, ScriptedControl(answers), ManualClock())
    async with (
        serving(app, "127.0.0.1", 0) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        events: Any = [event async for event in await client.responses.create(model="edge", input=EASY, stream=True)]
        assert [event.type for event in events if event.type == "response.output_text.delta"] == ["response.output_text.delta"]
        failed = events[-1]
        assert (failed.type, failed.response.status, failed.response.error.code) == (
            "response.failed",
            "failed",
            "unreachable",
        )
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(failed.response.id)
