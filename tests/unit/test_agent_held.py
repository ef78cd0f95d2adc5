"""Answers in a form, and local tool calls: constraints, fallbacks and records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edge.answering.ask_cloud import NO_FORMS_S
from edge.core.errors import (
    BudgetExhausted,
    CloudOff,
    ContextOverflow,
    CoordinatorUnavailable,
    InvalidRequest,
    UnfitAnswer,
    Unsupported,
)
from edge.core.tool_calls import CALL_FORMATS, HERMES, CallFormat
from edge.core.types import ONLY_TEXT, AnswerForm, BeyondText, Message, Sampling, ToolConversation, ToolUse
from edge.learning.own_items import own_items
from edge.state.answer_record import AnswerDelta, AnswerRecord, AnswerRequest
from edge.state.feedback import Feedback, FeedbackBook
from edge.state.usage import used_today
from edge.testing.coordinator import ScriptedCoordinatorClient
from tests.worlds.agent import HELP, QUESTION, World, give_feedback

SCHEMA = json.dumps({"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]})
FORM = AnswerForm("response_format", SCHEMA, "root ::= object")
SENT = json.dumps({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": json.loads(SCHEMA)}}})
THOUGHT = "<think>\nStep 1: hard\n</think>\n"
LOCAL, CLOUD = '{"answer": 5}', '{"answer": 6}'
UNHELD = AnswerForm("response_format.json_schema.schema.not", SCHEMA, "", "response_format.json_schema.schema.not: cannot")


class Speaks:
    """A model that thinks and answers in the form, or asks; it notes how it was asked."""

    def __init__(self, *, thought: str = THOUGHT, asks: bool = False, answer: str = LOCAL) -> None:
        self.thought, self.asks, self.answer = thought, asks, answer
        self.asked: list[Sampling] = []

    def __call__(self, messages: Sequence[Message], sampling: Sampling, seed: int) -> str:
        self.asked.append(sampling)
        if sampling.grammar:
            return f"{self.thought}<answer>{self.answer}" if self.thought else self.answer
        return HELP if self.asks else f"{self.thought}<answer>\\boxed{{5}}</answer>"


async def answered(world: World, **options: Any) -> tuple[AnswerRecord, list[AnswerDelta]]:
    return await world.ask(**{"form": FORM, "beyond": BeyondText(SENT), **options})


def world_of(tmp_path: Path, script: Any, cloud: str = CLOUD, **options: Any) -> World:
    world = World(tmp_path / "state", script=script, **options)
    world.client = ScriptedCoordinatorClient(lambda call: cloud, terms=world.terms)
    return world


async def test_the_model_thinks_freely_and_then_writes_the_form(tmp_path: Path) -> None:
    model = Speaks()
    record, pieces = await answered(world_of(tmp_path, model, mode="local-only"))
    assert (record.final, record.source, record.finish, record.held) == (LOCAL, "local", "stop", True)
    assert "".join(piece.text for piece in pieces if piece.verbatim) == LOCAL
    assert "".join(piece.text for piece in pieces).startswith("<think>\nStep 1: hard")
    assert [bool(sampling.grammar) for sampling in model.asked] == [False, True]
    assert model.asked[0].max_tokens < model.asked[1].max_tokens


async def test_model_without_thinking_writes_the_form_immediately_and_reports_truncation(tmp_path: Path) -> None:
    record, _ = await answered(world_of(tmp_path / "whole", Speaks(thought=""), mode="local-only"))
    assert (record.text, record.local_text) == (LOCAL, LOCAL)
    model = Speaks(thought="", answer="{ 1 2 3 4 5")
    record, _ = await answered(world_of(tmp_path / "cut", model, mode="local-only"), max_tokens=3)
    assert record.finish == "length"


async def test_text_after_the_thinking_part_is_not_shown(tmp_path: Path) -> None:
    def bare(messages: Sequence[Message], sampling: Sampling, seed: int) -> str:
        return f"{THOUGHT}<answer>{LOCAL}" if sampling.grammar else f"{THOUGHT}It is five, as everybody knows. {LOCAL}"

    record, pieces = await answered(world_of(tmp_path, bare))
    assert "".join(piece.text for piece in pieces) == f"{THOUGHT.strip()}{LOCAL}"
    assert (record.source, record.final) == ("local", LOCAL)


async def test_request_for_help_gets_the_cloud_answer_in_the_form(tmp_path: Path) -> None:
    world = world_of(tmp_path, Speaks(asks=True))
    record, pieces = await answered(world)
    assert (record.source, record.final, record.reason, record.asked) == ("cloud", CLOUD, "the model asked for help", True)
    assert [call.openai_json for call in world.client.calls] == [SENT]
    assert [piece.text for piece in pieces if piece.verbatim] == [CLOUD]


@pytest.mark.parametrize("cloud", ['{"answer": "six"}', "six", '{"answer": NaN}', "[6]"])
async def test_nonconforming_cloud_answer_is_dropped_but_recorded_as_paid(tmp_path: Path, cloud: str) -> None:
    record, pieces = await answered(world_of(tmp_path, Speaks(asks=True), cloud))
    assert (record.source, record.final) == ("local-fallback", LOCAL)
    assert record.cloud_tokens > 0 and "response_format" in record.reason
    assert cloud not in "".join(piece.text for piece in pieces)


@pytest.mark.parametrize(
    ("failure", "switched_off", "kind"),
    [
        (InvalidRequest("it cannot"), "", Unsupported),
        (CoordinatorUnavailable("gone"), "", CoordinatorUnavailable),
        (CoordinatorUnavailable("not asked"), "off", CloudOff),
    ],
)
async def test_failed_cloud_only_request_is_an_error(tmp_path: Path, failure: Any, switched_off: str, kind: Any) -> None:
    world = world_of(tmp_path, Speaks(), mode="cloud-only", switched_off=switched_off)
    world.client.fail_next("stream_complete", failure)
    with pytest.raises(kind):
        await answered(world)


@pytest.mark.parametrize("options", [{"mode": "cloud-only"}, {"form": UNHELD}], ids=["demanded", "no grammar"])
async def test_nonconforming_cloud_answer_without_a_fallback_is_an_error_and_recorded(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    world = world_of(tmp_path, Speaks(), "six")
    with pytest.raises(UnfitAnswer, match="response_format"):
        await answered(world, **options)
    async with world.agent() as agent:
        assert used_today(agent.components.state.database, agent.components.clock.now()).today.calls == 1


NO_FORMS = InvalidRequest("model 'cloud' does not take this request: this upstream cannot follow response_format")


@pytest.mark.parametrize("mode", ["auto", "prefer-local", "cloud-only"])
async def test_form_without_a_grammar_goes_to_the_cloud(tmp_path: Path, mode: str) -> None:
    record, _ = await answered(world_of(tmp_path, Speaks(), mode=mode), form=UNHELD)
    assert (record.source, record.final) == ("cloud", CLOUD)


@pytest.mark.parametrize("options", [{"mode": "local-only"}, {"switched_off": "off"}])
async def test_form_without_a_grammar_is_refused_with_its_path_where_no_cloud_may_be_asked(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    world = world_of(tmp_path, Speaks(), **options)
    with pytest.raises(Unsupported, match=r"schema\.not: cannot") as caught:
        await answered(world, form=UNHELD)
    assert caught.value.parameter == UNHELD.parameter
    with pytest.raises(Unsupported, match=r"schema\.not: cannot"):
        await answered(world_of(tmp_path / "own", Speaks()), form=UNHELD, no_cloud="private", mode="local-only")


async def test_cloud_without_form_support_is_not_asked_for_one_for_an_hour(tmp_path: Path) -> None:
    world = world_of(tmp_path, Speaks(asks=True))
    world.client.fail_next("stream_complete", NO_FORMS)
    request = AnswerRequest(QUESTION, form=FORM, beyond=BeyondText(SENT))
    async with world.agent() as agent:
        first, second = await agent.answerer.answer(request), await agent.answerer.answer(request)
        with pytest.raises(Unsupported, match=r"schema\.not"):
            await agent.answerer.answer(replace(request, form=UNHELD))
        with pytest.raises(Unsupported, match="response_format"):
            await agent.answerer.answer(replace(request, mode="cloud-only"))
        assert (first.asked, second.asked, second.source, second.final) == (True, False, "local", LOCAL)
        assert "follows no form" in second.reason and world.client.calls == []
        assert (await agent.answerer.answer(AnswerRequest(QUESTION))).source == "cloud"
        world.clock.advance(NO_FORMS_S + 1)
        assert (await agent.answerer.answer(request)).source == "cloud"


async def test_engine_without_grammar_support_is_refused_by_the_callers_name(tmp_path: Path) -> None:
    def refuses(messages: Sequence[Message], sampling: Sampling, seed: int) -> str:
        if sampling.grammar:
            raise Unsupported("a model folder cannot be held to a form", parameter="grammar")
        return THOUGHT

    with pytest.raises(Unsupported, match=r"text\.format: a model folder") as caught:
        await answered(world_of(tmp_path, refuses, mode="local-only"), form=AnswerForm("text.format", SCHEMA, "root ::= object"))
    assert caught.value.parameter == "text.format"


async def test_an_answer_in_a_form_is_not_learned_from(tmp_path: Path) -> None:
    world = world_of(tmp_path, Speaks(), mode="local-only")
    async with world.agent() as agent:
        for form in (FORM, None):
            record = await agent.answerer.answer(AnswerRequest(QUESTION, form=form))
            give_feedback(agent, Feedback(record.id, "good", None))
            assert len(own_items(FeedbackBook(agent.components.state), feedback=True, agreement=False)) == (form is None)


CONVERSATION = ToolConversation(QUESTION, ({"role": "user", "content": "What is 4 + 1?"},), ({"type": "function"},))
TOOLS: dict[str, Any] = {"form": None, "beyond": BeyondText('{"tools": []}', ("tools",))}
CALLS = """{"name": "add", "arguments": {"a": 4, "text": "</tool_call>"}}
</tool_call>
<tool_call>
{"name": "now", "arguments": {}}
</tool_call>"""


def calls(messages: Sequence[Message], sampling: Sampling, seed: int) -> str:
    if sampling.grammar == "either":
        return HERMES.mark + CALLS
    return f"I look.\n{HERMES.mark}{CALLS}"


def calling_world(tmp_path: Path, script: Any, calls: CallFormat = HERMES, **options: Any) -> World:
    return world_of(tmp_path, script, calls=calls, **options)


@pytest.mark.parametrize("mode", ["auto", "prefer-local", "local-only"])
@pytest.mark.parametrize(
    ("tools", "text"),
    [
        (ToolUse(CONVERSATION, "calls"), "I look.\n"),
        (ToolUse(CONVERSATION, "calls", calls_or_form="either"), ""),
        (ToolUse(CONVERSATION, "either", required=True), ""),  # written at once
    ],
)
async def test_the_local_model_calls_tools(tmp_path: Path, mode: str, tools: ToolUse, text: str) -> None:
    world = calling_world(tmp_path, calls, mode=mode)
    record, pieces = await answered(world, **TOOLS, tools=tools)
    assert (record.source, record.finish, "".join(piece.text for piece in pieces)) == ("local", "tool_calls", text)
    functions = [call["function"] for call in json.loads(record.openai_json)["tool_calls"]]
    assert [(each["name"], json.loads(each["arguments"])) for each in functions] == [
        ("add", {"a": 4, "text": "</tool_call>"}),
        ("now", {}),
    ]
    assert world.client.calls == []


@pytest.mark.parametrize("written", CALL_FORMATS, ids=lambda written: written.name)
@pytest.mark.parametrize("required", [False, True])
async def test_every_family_of_calls_is_read_and_nothing_of_it_is_text(
    tmp_path: Path, written: CallFormat, required: bool
) -> None:
    call = f'{written.head("add")}{{"a": 4}}}}'
    two = f"{written.opening}{written.between.join([call, call])}{written.closing}"
    world = calling_world(tmp_path, lambda *_: f"{'' if required else written.mark}{two}", written)
    record, pieces = await answered(world, **TOOLS, tools=ToolUse(CONVERSATION, "calls", required, written=written))
    functions = [each["function"] for each in json.loads(record.openai_json)["tool_calls"]]
    assert [(each["name"], json.loads(each["arguments"])) for each in functions] == [("add", {"a": 4})] * 2
    assert (record.finish, "".join(piece.text for piece in pieces).strip()) == ("tool_calls", "")


@pytest.mark.parametrize("written", [each for each in CALL_FORMATS if each.whole_turn], ids=lambda written: written.name)
async def test_what_looks_like_a_call_within_a_text_stays_text(tmp_path: Path, written: CallFormat) -> None:
    text = f"An example: {written.begins[-1]} 1}} is an object."
    world = calling_world(tmp_path, lambda *_: text, written)
    record, pieces = await answered(world, **TOOLS, tools=ToolUse(CONVERSATION, "calls", written=written))
    assert (record.finish, record.openai_json, "".join(piece.text for piece in pieces)) == ("stop", "", text)


async def test_calls_in_another_form_than_the_models_are_the_clouds(tmp_path: Path) -> None:
    world = calling_world(tmp_path, calls, CALL_FORMATS[-1])
    record, _ = await answered(world, **TOOLS, tools=ToolUse(CONVERSATION, "calls"))
    assert record.source == "cloud"


async def test_model_with_tools_may_just_answer(tmp_path: Path) -> None:
    world = calling_world(tmp_path, lambda *_: "Five.")
    record, _ = await answered(world, **TOOLS, tools=ToolUse(CONVERSATION, "calls"))
    assert (record.finish, record.final, record.openai_json) == ("stop", "Five.", "")


async def test_truncated_tool_calls_are_dropped(tmp_path: Path) -> None:
    world = calling_world(tmp_path, calls)
    record, _ = await answered(world, **TOOLS, tools=ToolUse(CONVERSATION, "calls"), max_tokens=8)
    assert (record.finish, record.openai_json) == ("length", "")
    record, _ = await answered(world, **TOOLS, tools=ToolUse(CONVERSATION, "calls"), mode="cloud-only")
    assert (record.source, len(world.client.calls)) == ("cloud", 1), "a demand for the cloud has it call the tools"


TOO_LONG: dict[str, Any] = {"form": None, "beyond": ONLY_TEXT}


@pytest.mark.parametrize("mode", ["auto", "prefer-local"])
async def test_a_conversation_that_is_too_long_here_is_the_clouds(tmp_path: Path, mode: str) -> None:
    world = world_of(tmp_path, Speaks(), mode=mode, context_tokens=4, cloud_prompt_form="full")
    record, _ = await answered(world, **TOO_LONG)
    assert (record.source, record.final, record.asked, record.local_text) == ("cloud", CLOUD, False, "")
    assert "context 4" in record.reason and "cloud" in record.reason
    assert not record.might_ask and record.charged_uusd > 0
    assert len(world.client.calls) == 1
    held, _ = await answered(world)
    assert (held.source, held.final) == ("cloud", CLOUD), "also where the answer has a form"


@pytest.mark.parametrize(
    ("options", "cloud_prompt_form"),
    [
        ({"mode": "local-only"}, "full"),
        ({"no_cloud": "private"}, "full"),
        ({}, "compact"),  # such a cloud reads the last question alone
    ],
)
async def test_where_no_cloud_reads_it_a_conversation_that_is_too_long_is_refused(
    tmp_path: Path, options: dict[str, str], cloud_prompt_form: str
) -> None:
    world = world_of(tmp_path, Speaks(), context_tokens=4, cloud_prompt_form=cloud_prompt_form)
    with pytest.raises(ContextOverflow, match="context 4"):
        await answered(world, **TOO_LONG, **options)
    assert world.client.calls == []


async def test_a_conversation_that_is_too_long_here_and_beyond_the_budget_is_refused_with_the_reason(tmp_path: Path) -> None:
    world = world_of(tmp_path, Speaks(), context_tokens=4, cloud_prompt_form="full")
    world.client.fail_next("stream_complete", BudgetExhausted("no calls are left today"))
    with pytest.raises(BudgetExhausted):
        await answered(world, **TOO_LONG)
