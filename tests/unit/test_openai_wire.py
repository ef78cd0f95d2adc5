"""Request bodies are accepted or refused with the field's name; nothing else ever comes out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge.core.types import Message, SamplingWishes
from edge.serve.choices import questions_of
from edge.serve.failures import RequestProblem
from edge.serve.openai_wire import ChatRequest, parse_chat_request

USER = [{"role": "user", "content": "hi"}]
FIELDS = ["model", "messages", "stream", "stream_options", "temperature", "max_tokens", "seed", "stop", "n", "top_p", "tools"]
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content", "type", "text"]), inner, max_size=3)
    ),
    max_leaves=8,
)


def parse(**fields: Any) -> ChatRequest:
    return parse_chat_request(json.dumps({"model": "edge", "messages": USER, **fields}).encode(), "id1")


def refused(**fields: Any) -> RequestProblem:
    with pytest.raises(RequestProblem) as caught:
        parse(**fields)
    return caught.value


def test_the_plain_request_leaves_every_choice_to_the_agent() -> None:
    request = parse()
    assert request.question.messages == (Message("user", "hi"),)
    assert (request.question.mode, request.question.temperature, request.question.max_tokens, request.stream) == (
        None,
        None,
        None,
        False,
    )


def test_model_names_choose_the_mode() -> None:
    assert parse(model="edge-local").question.mode == "local-only"
    assert parse(model="edge-cloud").question.mode == "cloud-only"


def test_text_parts_are_joined_and_developer_is_system() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = parse(
        messages=[{"role": "developer", "content": "be brief"}, {"role": "user", "content": parts}]
    ).question.messages
    assert messages == (Message("system", "be brief"), Message("user", "ab"))


def test_max_completion_tokens_goes_before_max_tokens() -> None:
    assert parse(max_tokens=5, max_completion_tokens=7).question.max_tokens == 7


def test_parameters_without_effect_are_named_and_neutral_ones_are_not() -> None:
    assert parse(logit_bias={"5": 1}, response_format={"type": "text"}).ignored == ("logit_bias",)


def test_what_the_local_engine_can_do_is_passed_to_it() -> None:
    fields = {"top_p": 0.5, "presence_penalty": 1, "frequency_penalty": -0.5, "stop": ["a", "b"], "logprobs": True}
    wishes = parse(**fields, top_logprobs=3).question.wishes
    assert wishes == SamplingWishes(0.5, 1.0, -0.5, ("a", "b"), 3)
    assert parse(logprobs=True).question.wishes.top_logprobs == 0
    assert parse().question.wishes == SamplingWishes()
    assert parse(top_p=0).question.wishes.top_p > 0


def test_several_answers_are_local_ones_with_seeds_and_ids_of_their_own() -> None:
    questions = questions_of(parse(n=3, seed=7))
    assert [question.mode for question in questions] == ["local-only"] * 3
    assert [question.id for question in questions] == ["id1-0", "id1-1", "id1-2"]
    assert questions[0].seed == 7
    assert len({question.seed for question in questions}) == 3
    assert questions_of(parse(n=1, model="edge-cloud"))[0].mode == "cloud-only"


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"model": "gpt-4o"}, 404, "model"),
        ({"model": 3}, 400, "model"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, 400, "messages[0].role"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, 400, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, 400, "messages[0].content"),
        ({"messages": [*USER, {"role": "assistant", "content": "x"}]}, 400, "messages"),
        ({"temperature": 2.5}, 400, "temperature"),
        ({"temperature": True}, 400, "temperature"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"seed": 1.5}, 400, "seed"),
        ({"n": 0}, 400, "n"),
        ({"n": 9}, 400, "n"),
        ({"n": 2, "model": "edge-cloud"}, 400, "n"),
        ({"stop": ["a"] * 17}, 400, "stop"),
        ({"top_p": 1.5}, 400, "top_p"),
        ({"presence_penalty": 3}, 400, "presence_penalty"),
        ({"logprobs": 1}, 400, "logprobs"),
        ({"top_logprobs": 2}, 400, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, 400, "top_logprobs"),
        ({"stop": ""}, 400, "stop"),
        ({"stream": "yes"}, 400, "stream"),
        ({"stream_options": {"include_usage": True}}, 400, "stream_options"),
        ({"tools": [{"type": "function"}]}, 400, "tools"),
    ],
)
def test_what_cannot_be_served_is_refused_with_its_name(fields: dict[str, Any], status: int, param: str) -> None:
    problem = refused(**fields)
    assert (problem.status, problem.param) == (status, param)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"temperature": NaN}', b"\xff\xfe{", b"[" * 100_000])
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(RequestProblem) as caught:
        parse_chat_request(body, "id1")
    assert caught.value.status == 400


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(FIELDS), JSON_VALUES), st.booleans())
def test_any_json_object_is_either_parsed_or_refused(value: dict[str, Any], with_messages: bool) -> None:
    body = {**value, "messages": USER} if with_messages else value
    try:
        status, asked = 200, len(parse_chat_request(json.dumps(body).encode(), "id1").question.messages)
    except RequestProblem as problem:
        status, asked = problem.status, 0
    assert (status == 200 and asked > 0) or 400 <= status < 500
