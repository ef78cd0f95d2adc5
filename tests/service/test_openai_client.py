"""The official `openai` client with the endpoint, over a real agent with a scripted model and cloud, and over the bundled model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from edge.core.errors import BudgetExhausted, CoordinatorUnavailable
from edge.testing.coordinator import ScriptedTerms
from tests.worlds.agent import World
from tests.worlds.agent_process import agent_process
from tests.worlds.openai_agent import CALL, QUESTION, Served, ask, client_of, scripted
from tests.worlds.served_agent import in_a_thread

TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
FORM: Any = {
    "type": "json_schema",
    "json_schema": {
        "name": "a",
        "schema": {"type": "object", "properties": {"sum": {"type": "integer"}, "text": {"type": "string"}}},
    },
}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "state", script=scripted, terms=ScriptedTerms(calls_limit=3))


@pytest.fixture
def served(world: World) -> Served:
    return Served(world)


def test_answer_has_its_reasoning_usage_and_source(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(model="edge-local", messages=QUESTION, metadata={"task": "math"})
    answer: Any = raw.parse()
    message, usage = answer.choices[0].message, answer.usage
    assert (message.content, message.reasoning_content.strip()) == ("\\boxed{2}", "Step 1: add")
    assert (answer.choices[0].finish_reason, usage.total_tokens) == ("stop", usage.prompt_tokens + usage.completion_tokens)
    assert (answer.edge["source"], answer.edge["task"], answer.edge["calls_left"]) == ("local", "math", 3)
    assert (raw.headers["x-edge-source"], raw.headers["x-edge-task"], raw.headers["x-edge-dual"]) == ("local", "math", "0.5000")
    assert answer.id == f"chatcmpl-{raw.headers['x-edge-answer-id']}"


def test_remaining_budget_is_sent_with_the_answer_and_before_a_stream(client: openai.OpenAI) -> None:
    first = client.chat.completions.with_raw_response.create(model="edge", messages=QUESTION)
    assert (first.headers["x-edge-source"], first.headers["x-edge-calls-left"]) == ("cloud", "2")
    with client.chat.completions.with_streaming_response.create(model="edge", messages=QUESTION, stream=True) as streamed:
        assert (streamed.headers["x-edge-calls-left"], streamed.headers["x-edge-adapter-version"]) == ("2", "0")
        assert "x-edge-source" not in streamed.headers
        assert b'"calls_left": 1' in streamed.read().replace(b'":', b'": ').replace(b":  ", b": ")


def test_a_stream_ends_with_its_source_and_its_usage(client: openai.OpenAI) -> None:
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == "\\boxed{5}"
    assert (chunks[-2].edge["source"], chunks[-2].choices[0].finish_reason) == ("cloud", "stop")
    assert (chunks[-1].choices, chunks[-1].usage.prompt_tokens > 0) == ([], True)


def test_newer_parameters_and_content_parts_are_read(client: openai.OpenAI) -> None:
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "1 + 1?"}]
    messages = [{"role": "developer", "content": [{"type": "text", "text": "Be short."}]}, {"role": "user", "content": parts}]
    answer = ask(client, model="edge-local", messages=messages, reasoning_effort="low", max_completion_tokens=100)
    assert (answer.choices[0].message.content, answer.edge["ignored_parameters"]) == ("\\boxed{2}", [])
    assert ask(client, model="edge-local", messages=messages, max_completion_tokens=2).choices[0].finish_reason == "length"


@pytest.mark.parametrize("model", ["edge", "edge-cloud"])
def test_usage_of_a_cloud_answer_is_what_the_cloud_billed(client: openai.OpenAI, model: str) -> None:
    answer = ask(client, model=model)
    assert answer.edge["source"] == "cloud"
    assert answer.usage.total_tokens == answer.edge["cloud_tokens"] > 0
    assert min(answer.usage.prompt_tokens, answer.usage.completion_tokens) > 0
    assert (answer.edge["asked"], answer.edge["model_asked"]) == (True, model == "edge")


def test_tools_are_sent_to_the_cloud_unchanged_and_its_calls_returned(client: openai.OpenAI, served: Served) -> None:
    answer = ask(client, tools=[TOOL], tool_choice="auto", parallel_tool_calls=False)
    choice = answer.choices[0]
    assert (choice.finish_reason, choice.message.content, answer.edge["source"]) == ("tool_calls", None, "cloud")
    assert choice.message.tool_calls[0].to_dict() == CALL
    sent = json.loads(served.cloud.sent[0].openai_json)
    assert sent == {"tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": False}


def test_conversation_continues_with_a_tool_result(client: openai.OpenAI, served: Served) -> None:
    messages = [
        *QUESTION,
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "4 + 1"},
    ]
    ask(client, messages=messages, tools=[TOOL])
    assert json.loads(served.cloud.sent[0].openai_json)["messages"] == messages
    assert ask(client, messages=messages, model="edge-local").choices[0].message.content == "\\boxed{2}"


def test_tool_calls_are_streamed_as_openai_deltas(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="edge", messages=QUESTION, tools=[TOOL]) as stream:
        stream.until_done()
        final: Any = stream.get_final_completion()
    call = final.choices[0].message.tool_calls[0]
    assert (final.choices[0].finish_reason, call.id, call.function.arguments) == ("tool_calls", "call_1", '{"city":"Bern"}')


def test_tools_without_a_model_that_calls_them_are_an_error(client: openai.OpenAI, served: Served) -> None:
    with pytest.raises(openai.BadRequestError, match="edge-cloud") as caught:
        ask(client, model="edge-local", tools=[TOOL])
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "tools")
    for failure, kind in (
        (CoordinatorUnavailable("gone"), openai.InternalServerError),
        (BudgetExhausted("the day's calls are used up"), openai.RateLimitError),
    ):
        served.world.client.fail_next("stream_complete", failure)
        with pytest.raises(kind):
            ask(client, tools=[TOOL])


def test_constrained_content_is_json_whatever_it_holds(client: openai.OpenAI) -> None:
    question: Any = [{"role": "user", "content": "What is 1 + 1?"}]
    whole = ask(client, messages=question, model="edge-local", response_format=FORM, logprobs=True, top_logprobs=1)
    choice = whole.choices[0]
    assert (json.loads(choice.message.content), choice.finish_reason) == ({"sum": 2, "text": "</answer>"}, "stop")
    assert "".join(token.token for token in choice.logprobs.content) == choice.message.content
    assert (whole.edge["final"], whole.edge["ignored_parameters"]) == (choice.message.content, [])
    assert choice.message.reasoning_content.strip() == "Step 1: add"
    stopped = ask(client, messages=question, model="edge-local", response_format=FORM, stop=["sum"])
    assert (stopped.choices[0].message.content, stopped.edge["ignored_parameters"]) == (choice.message.content, ["stop"])
    chunks = list(ask(client, messages=question, model="edge-local", response_format=FORM, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == choice.message.content


def test_form_is_sent_with_the_help_request_and_a_nonconforming_answer_is_dropped(client: openai.OpenAI, served: Served) -> None:
    answer = ask(client, response_format={"type": "json_object"})
    assert json.loads(served.cloud.sent[0].openai_json) == {"response_format": {"type": "json_object"}}
    assert (answer.edge["source"], "response_format" in answer.edge["reason"]) == ("local-fallback", True)
    assert json.loads(answer.choices[0].message.content)["sum"] == 2
    with pytest.raises(openai.APIStatusError) as caught:
        ask(client, model="edge-cloud", response_format={"type": "json_object"})
    assert (caught.value.status_code, caught.value.code) == (502, "invalid_cloud_answer")


def test_exhausted_budget_is_not_retried_by_the_client(served: Served) -> None:
    with in_a_thread(served.open) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=2) as client:
        for _ in range(3):
            ask(client, model="edge-cloud")
        with pytest.raises(openai.RateLimitError) as caught:
            ask(client, model="edge-cloud")
        assert caught.value.code == "budget_exhausted"
        assert len(served.cloud.sent) == 4
        assert ask(client).edge["source"] == "local-fallback"


def test_mistakes_raise_the_clients_own_exceptions(client: openai.OpenAI) -> None:
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
    for kind, param, fields in (
        (openai.NotFoundError, "model", {"model": "gpt-9"}),
        (openai.BadRequestError, "temperature", {"temperature": 9}),
        (openai.BadRequestError, "messages[0].content", {"messages": image}),
        (openai.BadRequestError, "metadata.task", {"metadata": {"task": "no label"}}),
    ):
        with pytest.raises(kind) as caught:
            ask(client, **fields)
        assert caught.value.param == param


def test_usage_shows_this_devices_records_and_the_ledgers_figures(client: openai.OpenAI) -> None:
    ask(client)
    ask(client, model="edge-local")
    usage: Any = client.get("/usage", cast_to=object)
    assert (usage["all"]["answers"], usage["all"]["serving"]["calls"], usage["all"]["learning"]["calls"]) == (2, 1, 0)
    assert (usage["ledger"]["limits"]["calls"], usage["ledger"]["left"]["calls"], usage["online"]) == (3, 2, True)


def test_client_timeout_stops_the_answer(world: World) -> None:
    world.seconds_per_token = 1.0
    served = Served(world)
    with in_a_thread(served.open) as url, client_of(url, timeout=0.5) as client:
        with pytest.raises(openai.APITimeoutError):
            ask(client, model="edge-local")
        assert served.idle()
        stream = ask(client.with_options(timeout=30.0), model="edge-local", stream=True)
        next(iter(stream))
        assert served.agent.precedence.busy
        stream.close()
        assert served.idle()
        assert served.agent.status().answers == 0


@pytest.fixture(scope="module")
def nano(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The bundled model, served by `edge-agent run` without a cloud."""
    words = ("--no-learn", "--set", "model.context_tokens=700")
    with agent_process(tmp_path_factory.mktemp("nano") / "state", *words, EDGE_AGENT_NO_CLOUD="1") as url:
        yield url


def test_the_bundled_model_answers_the_client(nano: str) -> None:
    question: Any = [{"role": "user", "content": "Mia has 4 apples. She buys 3 more. How many apples does she have?"}]
    with client_of(nano) as client:
        answer: Any = client.chat.completions.create(model="nano-edge", messages=question, seed=1)
        streamed = list(client.chat.completions.create(model="edge", messages=question, seed=1, stream=True))
        models = [model.to_dict()["edge"]["context_length"] for model in client.models.list()]  # type: ignore[index]
        tokens: Any = client.with_options(base_url=nano).post("/tokenize", body={"prompt": "Mia"}, cast_to=object)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in streamed)
    assert (answer.edge["source"], answer.choices[0].message.content) == ("local", text)
    assert answer.usage.completion_tokens > 0
    assert {*models, tokens["max_model_len"]} == {700}, "what is served, not what the model was trained for"


def test_a_chat_that_goes_on_reports_what_was_read_before(nano: str) -> None:
    chat: Any = [{"role": "user", "content": "Lea has 14 pears and 23 plums in her basket. How many fruits does she have?"}]
    with client_of(nano) as client:
        first: Any = client.chat.completions.create(model="edge", messages=chat)
        chat += [{"role": "assistant", "content": first.choices[0].message.content}, {"role": "user", "content": "And 5 more?"}]
        second: Any = client.chat.completions.create(model="edge", messages=chat)
        again = list(
            client.chat.completions.create(model="edge", messages=chat, stream=True, stream_options={"include_usage": True})
        )
    assert 0 < second.usage.prompt_tokens_details.cached_tokens < second.usage.prompt_tokens
    usage: Any = again[-1].usage
    assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens - 1
    assert again[-2].edge["prompt_cached"] == usage.prompt_tokens - 1  # type: ignore[attr-defined]
