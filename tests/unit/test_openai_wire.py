"""Request bodies are accepted, or refused with the name of the field; schemas in them are a form, a form that only the cloud can follow, or
refused with their path."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from pydantic import ValidationError

from edge.core.types import AnswerForm, BeyondText, Message, SamplingWishes, ToolConversation, ToolUse
from edge.serve.answer_forms import answer_form, tool_use
from edge.serve.chat_routes import questions_of
from edge.serve.chat_schemas import ChatRequest
from edge.serve.completion_routes import CompletionRequest
from edge.serve.errors import RequestProblem, invalid_request
from edge.serve.response_schemas import ResponsesRequest
from edge.state.answer_record import AnswerRequest
from tests.random_schemas import what_is_hardly_a_schema

USER = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def request_of(fields: Any) -> ChatRequest:
    """As FastAPI reads it: JSON in Python's values, and pydantic's errors as a client sees them."""
    try:
        return ChatRequest.model_validate(json.loads(json.dumps(fields)), from_attributes=True)
    except ValidationError as error:
        raise invalid_request([{**one, "loc": ("body", *one["loc"])} for one in error.errors()]) from error


def parse(task_header: str = "", **fields: Any) -> AnswerRequest:
    return request_of({"model": "edge", "messages": USER, **fields}).question("id1", task_header=task_header)


def refused(**fields: Any) -> RequestProblem:
    with pytest.raises(RequestProblem) as caught:
        parse(**fields)
    return caught.value


def test_request_fields_become_choices_and_missing_ones_stay_open() -> None:
    plain = parse()
    assert plain.messages == (Message("user", "hi"),)
    assert (plain.mode, plain.temperature, plain.max_tokens, plain.wishes) == (None, None, None, SamplingWishes())
    assert parse(model="edge-local").mode == "local-only"
    assert parse(model="edge-cloud").mode == "cloud-only"
    assert parse(max_tokens=5, max_completion_tokens=7).max_tokens == 7


def test_text_parts_are_joined_and_developer_is_system() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = parse(messages=[{"role": "developer", "content": "be brief"}, {"role": "user", "content": parts}]).messages
    assert messages == (Message("system", "be brief"), Message("user", "ab"))


@pytest.mark.parametrize(
    "read",
    [
        lambda fields: ChatRequest.model_validate({"messages": USER, **fields}),
        lambda fields: CompletionRequest.model_validate({"prompt": "hi", **fields}),
        lambda fields: ResponsesRequest.model_validate({"input": "hi", **fields}),
    ],
    ids=["chat", "completions", "responses"],
)
def test_every_parameter_without_effect_is_named_and_what_asks_for_nothing_is_not(read: Callable[[Any], Any]) -> None:
    neutral = {"logit_bias": {}, "include": [], "truncation": "disabled", "user": None, "temperature": 0.5, "top_p": 1.0}
    assert read(neutral).ignored == ()
    given = {
        "typical_p": 0.9,
        "mirostat_tau": 5,
        "samplers": ["top_k"],
        "seed_of_mine": 0,
        "cache_prompt": False,
        "logit_bias": {"5": 1},
    }
    assert sorted(read({**neutral, **given}).ignored) == sorted(given)
    nested = {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": True}, "x" * 900: 1}
    named, long = sorted(read(nested).ignored)
    assert named == "stream_options.include_obfuscation"
    assert len(long) < 200


def test_a_parameter_that_the_other_parameters_make_void_is_named_too() -> None:
    formed = {"messages": USER, "stop": ["."], "response_format": {"type": "json_object"}, "reasoning_effort": "low"}
    assert request_of(formed).ignored == ("reasoning_effort", "stop")
    assert request_of({**formed, "response_format": {"type": "text"}}).ignored == ()
    assert ResponsesRequest.model_validate({"input": "hi", "text": {"verbosity": "low"}}).ignored == ("text.verbosity",)


def test_reasoning_effort_has_the_local_model_reason_unless_the_form_is_named() -> None:
    efforts = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
    assert [parse(reasoning_effort=effort).reasoned for effort in efforts] == [False] * 2 + [True] * 5
    assert parse().reasoned is parse(reasoning_effort=None).reasoned is False
    plain = {"messages": USER, "reasoning_effort": "high", "metadata": {"form": "plain"}}
    assert (parse(**plain).reasoned, request_of(plain).ignored) == (False, ("reasoning_effort",))
    assert request_of({"messages": USER, "tools": [TOOL], "reasoning_effort": "high"}).ignored == ("reasoning_effort",)
    response = ResponsesRequest.model_validate({"input": "hi", "reasoning": {"effort": "high", "summary": "auto"}})
    assert (response.as_chat(()).question("id1").reasoned, response.ignored) == (True, ("reasoning.summary",))


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
def test_every_role_may_have_text_parts(role: str) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    further = {"tool_call_id": "c1"} if role == "tool" else {}
    assert parse(messages=[{"role": role, "content": parts, **further}, *USER]).messages[0].content.endswith("ab")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"content": [{"type": "refusal", "refusal": "I may not."}]}, "I may not."),
        ({"content": [{"type": "text", "text": "Well, "}, {"type": "refusal", "refusal": "no."}]}, "Well, no."),
        ({"content": None, "refusal": "I will not."}, "I will not."),
        ({"refusal": "I will not."}, "I will not."),
        ({"content": "", "refusal": "I will not."}, "I will not."),
        ({"content": "Yes.", "refusal": None}, "Yes."),
    ],
)
def test_what_an_assistant_refused_is_read_as_its_turn(said: dict[str, Any], words: str) -> None:
    messages = [*USER, {"role": "assistant", **said}, *USER]
    question = parse(messages=messages, tools=[TOOL])
    assert question.messages[1] == Message("assistant", words)
    assert question.tools is not None
    assert question.tools.conversation.turns[1]["content"] == words


@pytest.mark.parametrize(
    "said", [{"content": None}, {"refusal": ""}, {"content": [{"type": "refusal", "text": "no"}]}, {"refusal": 5}]
)
def test_an_assistant_turn_without_words_is_refused(said: dict[str, Any]) -> None:
    assert (refused(messages=[*USER, {"role": "assistant", **said}, *USER]).param or "").startswith("messages[1]")


def test_supported_parameters_are_passed_to_the_local_engine() -> None:
    fields = {"top_p": 0.5, "presence_penalty": 1, "frequency_penalty": -0.5, "stop": ["a", "b"], "logprobs": True}
    wishes = parse(**fields, top_logprobs=3).wishes
    assert wishes == SamplingWishes(0.5, 1.0, -0.5, ("a", "b"), 3)
    assert parse(logprobs=True).wishes.top_logprobs == 0
    assert parse(top_p=0).wishes.top_p > 0


def test_several_answers_are_local_with_their_own_seeds_and_ids() -> None:
    questions = questions_of(parse(n=3, seed=7), 3)
    assert [question.mode for question in questions] == ["local-only"] * 3
    assert [question.id for question in questions] == ["id1-0", "id1-1", "id1-2"]
    assert questions[0].seed == 7
    assert len({question.seed for question in questions}) == 3
    assert questions_of(parse(n=1, model="edge-cloud"), 1)[0].mode == "cloud-only"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"model": "edge"}, "n is 2: several answers are made on this device"),
        ({"model": "edge-auto"}, "n is 2: several answers are made on this device"),
        ({"model": "edge-local"}, ""),
        ({"metadata": {"no_cloud": "my own reason"}}, "my own reason"),
    ],
)
def test_several_answers_report_why_the_cloud_was_not_asked(fields: dict[str, Any], why: str) -> None:
    assert [question.no_cloud for question in questions_of(parse(n=2, **fields), 2)] == [why, why]


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"model": "gpt-4o"}, 404, "model"),
        ({"messages": [{"role": "robot", "content": "x"}]}, 400, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, 400, "messages[0].content"),
        ({"messages": [*USER, {"role": "assistant", "content": "x"}]}, 400, "messages"),
        ({"temperature": 2.5}, 400, "temperature"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"seed": 1.5}, 400, "seed"),
        ({"max_completion_tokens": 0}, 400, "max_completion_tokens"),
        ({"reasoning_effort": "much"}, 400, "reasoning_effort"),
        ({"n": 9}, 400, "n"),
        ({"n": 2, "model": "edge-cloud"}, 400, "n"),
        ({"stop": ["a"] * 17}, 400, "stop"),
        ({"top_logprobs": 2}, 400, "top_logprobs"),
        ({"stream": "yes"}, 400, "stream"),
        ({"stream_options": {"include_usage": True}}, 400, "stream_options"),
        ({"tools": [{"type": "function"}]}, 400, "tools[0].function.name"),
        ({"tools": [TOOL] * 129}, 400, "tools"),
        ({"tool_choice": "required"}, 400, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "always"}, 400, "tool_choice"),
        ({"functions": [{"name": "f"}]}, 400, "functions"),
        ({"response_format": {"type": "json_schema"}}, 400, "response_format.json_schema"),
        ({"messages": [{"role": "tool", "content": "4"}]}, 400, "messages[0].tool_call_id"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}, *USER]}, 400, "messages[0].tool_calls[0]"),
        ({"metadata": {"task": "../etc"}}, 400, "metadata.task"),
        ({"metadata": "math"}, 400, "metadata"),
    ],
)
def test_unsupported_parameter_is_refused_by_name(fields: dict[str, Any], status: int, param: str) -> None:
    problem = refused(**fields)
    assert (problem.status, problem.param) == (status, param)
    assert "\n" not in str(problem)


def test_the_header_and_the_metadata_name_the_task_and_must_agree() -> None:
    def task(header: str, **fields: Any) -> str | None:
        return parse(header, **fields).task

    assert task("") is None
    assert task("math") == task("", metadata={"task": "math"}) == task("math", metadata={"task": "math"}) == "math"
    for header, fields in (("math", {"metadata": {"task": "code"}}), ("no label", {}), ("a" * 65, {})):
        with pytest.raises(RequestProblem):
            task(header, **fields)


def test_tools_are_passed_on_unchanged_and_plain_text_has_no_extra_fields() -> None:
    assert parse(response_format={"type": "text"}, tool_choice="none", tools=[]).beyond == BeyondText()
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    beyond = parse(tools=[TOOL], tool_choice="required", parallel_tool_calls=False, response_format=schema).beyond
    sent = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False, "response_format": schema}
    assert (json.loads(beyond.openai_json), beyond.wants) == (sent, ("tools",))
    unused = parse(tools=[TOOL], tool_choice="none").beyond
    assert (json.loads(unused.openai_json), unused.wants) == ({"tools": [TOOL], "tool_choice": "none"}, ())


def test_conversation_with_tools_is_rendered_as_text_and_stored_unchanged() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
    messages = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "rain"}]},
    ]
    question = parse(messages=messages, tools=[TOOL])
    assert question.messages == (
        Message("user", "hi"),
        Message("assistant", 'I call the tool weather with {"city": "Bern"}.'),
        Message("user", "The tool answered: rain"),
    )
    assert json.loads(question.beyond.openai_json) == {"tools": [TOOL], "messages": messages}


def test_client_may_keep_its_request_from_the_cloud_with_a_reason() -> None:
    question = parse(metadata={"no_cloud": "the person's\n own switch"})
    assert (question.mode, question.no_cloud) == ("local-only", "the person's own switch")
    assert parse(metadata={"no_cloud": " "}).mode is None
    assert refused(model="edge-cloud", metadata={"no_cloud": "never"}).param == "metadata.no_cloud"


NO_SCHEMAS: list[tuple[Any, str]] = [
    ({"oneOf": [{"type": [{}]}, {"type": "string"}]}, "s.oneOf[0].type"),
    ({"allOf": [{"required": 5}, {"required": ["a"]}]}, "s.allOf[0].required"),
    ({"allOf": [{"minimum": "a"}, {"minimum": 1}]}, "s.allOf[0].minimum"),
    ({"allOf": [{"properties": [1]}, {"properties": {}}]}, "s.allOf[0].properties"),
    ({"properties": {"a": {"minLength": -1}}}, "s.properties.a.minLength"),
    ({"allOf": [{"$ref": "#/x"}, {"type": "object"}], "x": [1, 2]}, "s.x"),
    ({"type": "integer", "const": float("inf")}, "s"),
    ({"type": "string", "minLength": float("inf")}, "s"),
    ({"type": "string", "minLength": float("nan")}, "s"),
    ({"enum": [[{"a": float("nan")}]]}, "s"),
    ({"enum": ["\ud800"]}, "s"),
    ({"type": "strin"}, "s.type"),
    ({"properties": []}, "s.properties"),
    ({"anyOf": []}, "s.anyOf"),
    ({"items": {"minItems": -1, "type": "array"}}, "s.items.minItems"),
    ({"$ref": "#/$defs/none"}, "s"),
]


def use(parameters: Any, *, strict: bool = False) -> ToolUse | None:
    function = {"name": "f", "parameters": parameters, "strict": strict}
    tools = [{"type": "function", "function": function}]
    return tool_use(tools, "auto", ToolConversation((), (), ()), None, ["s"], parallel=True)


@pytest.mark.parametrize(("schema", "place"), NO_SCHEMAS, ids=repr)
def test_invalid_schema_is_refused_with_its_path_for_answers_and_tools(schema: Any, place: str) -> None:
    for read in (lambda: answer_form(schema, "f", "s"), lambda: use(schema)):
        with pytest.raises(RequestProblem) as caught:
            read()
        assert (caught.value.status, caught.value.code, caught.value.param) == (400, "invalid_json_schema", place)


def outcome(read: Callable[[], AnswerForm | ToolUse | None]) -> str:
    """The outcome of a request: "held", "unheld", or the status and path of its refusal."""
    try:
        found = read()
    except RequestProblem as problem:
        return f"{problem.status} {problem.param}"
    return "unheld" if isinstance(found, AnswerForm) and not found.grammar else "held"


def test_any_schema_like_value_is_a_form_or_refused() -> None:
    schemas = [what_is_hardly_a_schema(Random(seed)) for seed in range(3000)]
    forms = [outcome(lambda schema=schema: answer_form(schema, "f", "s")) for schema in schemas]  # type: ignore[misc]
    tools = [outcome(lambda schema=schema: use(schema)) for schema in schemas if isinstance(schema, dict)]  # type: ignore[misc]
    assert all(each in ("held", "unheld") or each.startswith("400 s") for each in (*forms, *tools))
    assert min(forms.count("held"), forms.count("unheld"), tools.count("held")) > 20
