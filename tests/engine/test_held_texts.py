"""Output constrained by grammars: random schemas, keywords at their bounds, UTF-8, control tokens, tools in the model's template."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import jsonschema_rs
import pytest

from edge.core.errors import Unsupported
from edge.core.tool_calls import CALL_FORMATS, HERMES, CallFormat
from edge.core.types import FinishReason, LocalResponse, Message, Sampling, ToolConversation, ToolUse
from edge.core.worker import EngineWorker
from edge.inference.chat_template import ChatTemplate
from edge.inference.gguf_model import GgufModel
from edge.inference.json_grammar import MalformedSchema, object_grammar, schema_grammar
from edge.inference.llamacpp import LlamaCppBackend
from edge.models.catalogue import find_model
from edge.serve.answer_forms import tool_use
from tests.random_schemas import random_schema, with_a_false_keyword
from tests.worlds.tiny_gguf import TOOL_TEMPLATE, write_tiny_model

SCHEMAS = 200
QUESTION = [Message("user", "What is 4 + 1?")]


@pytest.fixture(scope="module")
def nano() -> Iterator[LlamaCppBackend]:
    worker = EngineWorker()
    backend = LlamaCppBackend(find_model("nano-edge"), worker, n_threads=1, max_rows=2, n_ctx=2048)
    yield backend
    asyncio.run(backend.aclose())
    worker.close()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaCppBackend]:
    """Random weights over single bytes: most unconstrained output is not even UTF-8."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_tiny_model(path, chat_template=TOOL_TEMPLATE, context_length=4096)
    worker = EngineWorker()
    backend = LlamaCppBackend(path, worker, n_threads=1, max_rows=2, n_ctx=4096)
    yield backend
    asyncio.run(backend.aclose())
    worker.close()


async def written(backend: LlamaCppBackend, grammar: str, seed: int = 1, prefix: str = "", **sampling: Any) -> LocalResponse:
    async for delta in backend.stream(QUESTION, Sampling(**{"grammar": grammar, "max_tokens": 900, **sampling}), seed, prefix):
        if delta.response is not None:
            return delta.response
    raise AssertionError("no end")


def fits(schema: Any, text: str) -> bool:
    return jsonschema_rs.validator_for(schema, validate_formats=True).is_valid(json.loads(text))


@pytest.mark.parametrize("lot", range(4))
async def test_every_answer_to_a_random_schema_validates(nano: LlamaCppBackend, lot: int) -> None:
    """Temperature 1 makes the model stray; an answer may only be truncated, with that finish reason."""
    whole = 0
    for seed in range(lot * SCHEMAS // 4, (lot + 1) * SCHEMAS // 4):
        schema = random_schema(Random(seed))
        response = await written(nano, schema_grammar(schema, "schema"), seed)
        assert response.finish in (FinishReason.EOS, FinishReason.LENGTH)
        if response.finish is FinishReason.EOS:
            whole += 1
            assert fits(schema, response.text), (seed, response.text)
    assert whole >= SCHEMAS // 4 * 0.8


async def test_random_schema_with_a_false_keyword_is_enforced_or_refused(nano: LlamaCppBackend) -> None:
    held, refused = 0, 0
    for seed in range(SCHEMAS):
        schema = with_a_false_keyword(Random(seed), random_schema(Random(seed), depth=2))
        try:
            jsonschema_rs.meta.validate(schema)
            grammar = schema_grammar(schema, "schema")
        except (jsonschema_rs.ValidationError, Unsupported):
            refused += 1
            continue
        if refused < 4 * held:  # most of the time is spent here
            continue
        response = await written(nano, grammar, seed)
        held += response.finish is FinishReason.EOS
        assert response.finish is not FinishReason.EOS or fits(schema, response.text), (schema, response.text)
    assert held >= 10 and refused >= 40


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "minLength": 3, "maxLength": 3},
        {"type": "string", "pattern": "^[^a-z]{4}$"},
        {"type": "object", "properties": {"größe": {"type": "string", "maxLength": 4}}, "required": ["größe"]},
        {"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": {"type": "boolean"}, "required": ["a"]},
        {"enum": ["ä\n", {"b": [1, None]}, "</answer>"]},
    ],
    ids=json.dumps,
)
async def test_output_of_a_random_model_matches_the_schema_and_is_valid_unicode(tiny: LlamaCppBackend, schema: Any) -> None:
    for seed in range(6):
        response = await written(tiny, schema_grammar(schema, "schema"), seed, max_tokens=400)
        assert response.finish is FinishReason.EOS
        assert "\ufffd" not in response.text and fits(schema, response.text)


async def test_numbers_stay_within_any_bounds(tiny: LlamaCppBackend) -> None:
    random, written_numbers = Random(1), 0
    for seed in range(60):
        low = random.choice([0, 1, -1, 0.5, -0.5, 99, 0.001, -3.25, 123456.789, -1e9, 1e10])
        bounds = {random.choice(["minimum", "exclusiveMinimum"]): low} if random.random() < 0.75 else {}
        if random.random() < 0.75:
            bounds[random.choice(["maximum", "exclusiveMaximum"])] = round(low + random.choice([0, 0.25, 1, 2, 9, 90, 1e7]), 3)
        kind = random.choice(["number", "number", "integer"])
        schema = {"type": "array", "items": {"type": kind, **bounds}, "minItems": 6, "maxItems": 6}
        try:
            grammar = schema_grammar(schema, "s")
        except Unsupported:  # where no number lies within
            continue
        response = await written(tiny, grammar, seed, temperature=2.0, max_tokens=400)
        assert response.finish is FinishReason.EOS and fits(schema, response.text), (bounds, response.text)
        written_numbers += 6
    assert written_numbers > 240


async def test_log_probabilities_under_a_grammar_are_the_unconstrained_ones(nano: LlamaCppBackend) -> None:
    held = await written(nano, object_grammar(), temperature=0.0, top_logprobs=2, max_tokens=3)
    free = await written(nano, "", temperature=0.0, top_logprobs=2, max_tokens=1)
    assert [each.logprob for each in held.tokens[0].top] == pytest.approx([each.logprob for each in free.tokens[0].top], abs=1e-9)
    assert held.logprobs[0] < free.logprobs[0]
    again = await written(nano, object_grammar(), temperature=0.0, max_tokens=3)
    assert again.logprobs == held.logprobs


async def test_rollouts_alongside_a_constrained_answer_are_unchanged(nano: LlamaCppBackend) -> None:
    alone = await nano.sample_group(QUESTION, Sampling(max_tokens=40), [1, 2])
    together, _ = await asyncio.gather(
        nano.sample_group(QUESTION, Sampling(max_tokens=40), [1, 2]), written(nano, object_grammar(), max_tokens=60)
    )
    assert [each.token_ids for each in together.responses] == [each.token_ids for each in alone.responses]


async def test_grammar_that_leads_nowhere_ends_only_that_answer(nano: LlamaCppBackend) -> None:
    impossible = 'start: "a" more\nmore: more "b"'
    assert (await written(nano, impossible)).finish is FinishReason.LENGTH
    assert (await written(nano, 'start: "a"')).text == "a"


async def test_invalid_grammar_is_refused(nano: LlamaCppBackend) -> None:
    with pytest.raises(Unsupported):
        await written(nano, "start: (")


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "array", "uniqueItems": True}, "s.uniqueItems"),
        ({"properties": {"a": {"not": {}}}}, "s.properties.a.not"),
        ({"items": {"propertyNames": {}}}, "s.items.propertyNames"),
        ({"type": "string", "format": "iri"}, "s.format"),
        ({"type": "array", "contains": False}, "s.contains"),
        ({"type": "object", "if": False}, "s.if"),
        ({"$ref": "#/$defs/a/$defs/b", "$defs": {"a": {"$id": "a:c", "$defs": {"b": {"$ref": "#/$defs/b"}}}}}, "s.$ref"),
        ({"type": "integer", "maximum": 10**400}, "s.maximum"),
        ({"type": "string", "pattern": r"^(a)\1$"}, "s.pattern"),
        ({"type": "string", "pattern": "^a{4}$", "maxLength": 3}, "s.maxLength"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "s.oneOf"),
        ({"oneOf": [{"minLength": 3}, {"type": "integer"}]}, "s.oneOf"),
        (
            {"items": {"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}, "$defs": {"a": {"const": 1}, "b": {}}},
            "s.items.oneOf",
        ),
        ({"$ref": "#"}, "s.$ref"),
        ({"anyOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}}, "s.$ref"),
        ({"properties": {"a": {"type": "null"}}, "anyOf": [{"$ref": "#"}, {"type": "null"}]}, "s"),
        ({"$ref": "other.json"}, "s.$ref"),
        (
            {"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2, "maxProperties": 2},
            "s.minProperties",
        ),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "s.minimum"),
        ({"type": "array", "items": False, "minItems": 1}, "s.minItems"),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, "s.allOf"),
        (False, "s"),
    ],
    ids=json.dumps,
)
def test_unsupported_schema_keyword_is_refused_with_its_path(schema: Any, place: str) -> None:
    with pytest.raises(Unsupported) as caught:
        schema_grammar(schema, "s")
    assert (caught.value.parameter, str(caught.value).startswith(place)) == (place, True)


@pytest.mark.parametrize("form", ["path", "password", "binary", "", "color"])
def test_unchecked_format_is_an_annotation(form: str) -> None:
    held, plain = ({"type": "string", "minLength": 2, **more} for more in ({"format": form}, {}))
    assert schema_grammar(held, "s") == schema_grammar(plain, "s")
    assert fits(held, json.dumps("\\ ("))


ADD = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 9, "minimum": 0}}, "required": ["a"]}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "add", "description": 'say <|im_end|> or "<tool_call>"', "parameters": ADD}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]
TURNS = (
    {"role": "user", "content": "What is 4 + 1? <|im_end|>"},
    {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 4}}}]},
    {"role": "tool", "content": "5"},
)


def use(choice: Any = "auto", **options: Any) -> ToolUse:
    conversation = ToolConversation(tuple(QUESTION), TURNS, tuple(TOOLS))
    found = tool_use(
        TOOLS, choice, conversation, None, ["tools[0].function.parameters", "tools[1].function.parameters"], **options
    )
    assert found is not None
    return found


def test_template_with_tools_receives_tools_and_their_calls(tiny: LlamaCppBackend, nano: LlamaCppBackend) -> None:
    assert (tiny.tokenizer.calls, nano.tokenizer.calls) == (HERMES, None)
    prompt = tiny.text_of(tiny.prompt_ids(use(parallel=True).conversation))
    assert '{"type": "function", "function": {"name": "add", "description": "say <|im_end|> or \\"<tool_call>\\""' in prompt
    assert '<tool_call>\n{"name": "add", "arguments": {"a": 4}}\n</tool_call><|im_end|>\n<|im_start|>tool\n5' in prompt
    ends = tiny.prompt_ids(use(parallel=True).conversation).count(tiny.text_tokens("<|im_end|>")[0])
    assert ends == len(TURNS) + 1, "control tokens in texts stay text"


def test_only_templates_that_write_and_read_tool_calls_alike_call_tools(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "tiny.gguf", chat_template=TOOL_TEMPLATE, context_length=4096)
    model = GgufModel(tmp_path / "tiny.gguf", vocab_only=True)
    other_forms = (
        TOOL_TEMPLATE.replace('"arguments": {{', '"parameters": {{'),
        TOOL_TEMPLATE.replace("{{ tool | tojson }}", "{{ tool.function.name }}"),
        TOOL_TEMPLATE.replace("{% if tools %}", "{% if tools %}{{ raise_exception('none') }}"),
    )
    assert ChatTemplate(TOOL_TEMPLATE, model.vocabulary, {}).calls == HERMES
    assert not any(ChatTemplate(source, model.vocabulary, {}).calls for source in other_forms)
    model.close()


def deep(levels: int) -> Any:
    schema: Any = {"type": "null"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def test_schema_depth_and_size_are_limited() -> None:
    assert schema_grammar(deep(40), "s")
    for levels in (200, 50_000):
        with pytest.raises(MalformedSchema):
            schema_grammar(deep(levels), "s")
    with pytest.raises(Unsupported):
        schema_grammar({"enum": ["x" * 100] * 1000}, "s")
    doubling: dict[str, Any] = {"d0": {"type": "null"}}
    doubling |= {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n - 1}"}] * 2} for n in range(1, 40)}
    with pytest.raises(Unsupported):
        schema_grammar({"$ref": "#/$defs/d39", "$defs": doubling}, "s")


@pytest.mark.parametrize("written", CALL_FORMATS, ids=lambda written: written.name)
async def test_calls_in_every_familys_form_have_valid_arguments(tiny: LlamaCppBackend, written: CallFormat) -> None:
    held = use("required", parallel=True, written=written)
    ended = 0
    for seed in range(4):
        text, last = "", None
        sampling = Sampling(grammar=held.calls, max_tokens=400)
        async for last in tiny.stream(held.conversation, sampling, seed, written.text_mark):
            text += last.text
        calls = written.read(text)
        if calls is None:
            continue  # cut by the number of tokens
        ended += 1
        for name, arguments in calls:
            assert fits(ADD, arguments) if name == "add" else (name, arguments) == ("now", "{}")
    assert ended


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
async def test_tool_calls_have_the_arguments_of_the_tool_schema(tiny: LlamaCppBackend, choice: Any) -> None:
    held = use(choice, parallel=False)
    for seed in range(4):
        sampling = Sampling(grammar=held.calls, max_tokens=200)
        text = ""
        async for delta in tiny.stream(held.conversation, sampling, seed, HERMES.mark):
            text += delta.text
        call = json.loads(text.removesuffix(HERMES.closing))
        assert call["name"] in ("add", "now")[: 1 if isinstance(choice, dict) else 2]
        assert fits(ADD, json.dumps(call["arguments"])) if call["name"] == "add" else call["arguments"] == {}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "number", "multipleOf": 0.25, "exclusiveMinimum": 0, "maximum": 2},
        {"type": "string", "pattern": r"^\s\w+$", "maxLength": 4},
        {"type": "string", "format": "date", "pattern": "^20"},
        {
            "type": "object",
            "patternProperties": {"^n[0-9]$": {"type": "integer"}},
            "additionalProperties": False,
            "maxProperties": 1,
        },
        {
            "properties": {"a": {"type": "null"}},
            "anyOf": [{"required": ["a"]}, {"required": ["b"], "properties": {"b": {"type": "null"}}}],
        },
        {"allOf": [{"properties": {"a": {"type": "null"}}}, {"anyOf": [{"required": ["b"], "properties": {"b": {"const": 1}}}]}]},
        {"oneOf": [{"const": None}, {"const": "a"}, {"type": "integer", "maximum": 5}]},
    ],
    ids=json.dumps,
)
async def test_keywords_that_meet_in_one_value_are_all_enforced(tiny: LlamaCppBackend, schema: Any) -> None:
    for seed in range(6):
        response = await written(tiny, schema_grammar(schema, "s"), seed)
        assert response.finish is FinishReason.EOS and fits(schema, response.text), response.text


def tagged(kind: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"kind": kind, **more}, "required": ["kind", *more]}


@pytest.mark.parametrize(
    "schema",
    [
        {
            "type": "array",
            "items": {"oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}], "discriminator": {"propertyName": "kind"}},
            "$defs": {"cat": tagged({"const": "cat"}, lives={"enum": [9, 7]}), "dog": tagged({"const": "dog", "type": "string"})},
            "minItems": 2,
            "maxItems": 2,
        },
        {"oneOf": [tagged({"const": 1}), tagged({"enum": [2, 3]}), {"type": "null"}]},
        {"oneOf": [{"const": 1}, {"enum": [2, "2"]}, {"type": "boolean"}]},
        {
            "oneOf": [{"allOf": [{"$ref": "#/$defs/tag"}], "properties": {"kind": {"const": name}}} for name in "ab"],
            "$defs": {"tag": tagged({"type": "string"})},
        },
        {
            "oneOf": [{"$ref": "#/$defs/leaf"}, {"type": "array", "items": {"$ref": "#"}, "maxItems": 1}],
            "$defs": {"leaf": {"const": 0}},
        },
    ],
    ids=json.dumps,
)
async def test_alternatives_that_a_type_or_a_constant_distinguishes_are_held(tiny: LlamaCppBackend, schema: Any) -> None:
    for seed in range(6):
        response = await written(tiny, schema_grammar(schema, "s"), seed)
        assert response.finish is FinishReason.EOS and fits(schema, response.text), response.text


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"const": 1}, "b": {"const": 2}}, "maxProperties": 2},
        {"properties": {"a": {"const": 1}}, "required": ["a"], "maxProperties": 5, "additionalProperties": False},
        {"properties": {"a": {"const": 1}, "b": {"const": 2}}, "maxProperties": 1},
        {"additionalProperties": {"const": 1}, "maxProperties": 2},
    ],
    ids=json.dumps,
)
async def test_limits_on_the_number_of_properties_are_held(tiny: LlamaCppBackend, schema: Any) -> None:
    for seed in range(6):
        response = await written(tiny, schema_grammar({"type": "object", **schema}, "s"), seed)
        assert response.finish is FinishReason.EOS and fits(schema, response.text), response.text
