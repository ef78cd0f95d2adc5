"""The form of an answer and the tools that it may call, from OpenAI's words to what holds a local model to them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from edge.answering.held_answers import schema_validator
from edge.core.errors import Unsupported
from edge.core.tool_calls import HERMES, CallFormat
from edge.core.types import AnswerForm, ToolConversation, ToolUse
from edge.inference.json_grammar import MalformedSchema, Schema, grammar_of, literal, object_grammar
from edge.serve.errors import invalid_value

if TYPE_CHECKING:
    from edge.serve.chat_schemas import ChatMessage

MOST_CALLS = 16
"""Calls of tools in one answer."""
_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


def answer_form(schema: Any, parameter: str, place: str) -> AnswerForm:
    """The form of a schema (None: any object). `parameter` and `place` of the schema are the client's names. Raises RequestProblem."""
    if schema is None:
        return AnswerForm(parameter, "", object_grammar())
    read = _schema(schema, place)
    try:
        form = AnswerForm(parameter, grammar=_grammar(read))
    except Unsupported as error:
        form = AnswerForm(error.parameter, unheld=str(error))
    return replace(form, schema=json.dumps(schema, ensure_ascii=False))


def _schema(schema: Any, place: str) -> Schema:
    """A schema as its standard has it, which is checked before anything else reads it. Raises RequestProblem."""
    try:
        read = Schema(schema, place)
        schema_validator(schema)
    except MalformedSchema as error:
        raise invalid_value(error.place, str(error), "invalid_json_schema") from error
    except ValueError as error:
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in getattr(error, "instance_path", ()))
        message = " ".join(str(getattr(error, "message", error)).split())[:200]
        raise invalid_value(f"{place}{''.join(steps)}", message, "invalid_json_schema") from error
    return read


def _grammar(read: Schema) -> str:
    """The grammar of one schema. Raises Unsupported, RequestProblem."""
    try:
        return grammar_of({"root": read}, "root")
    except MalformedSchema as error:
        raise invalid_value(error.place, str(error), "invalid_json_schema") from error


def tool_use(
    tools: Sequence[Mapping[str, Any]],
    choice: Any,
    conversation: ToolConversation,
    form: AnswerForm | None,
    places: Sequence[str],
    *,
    parallel: bool,
    written: CallFormat = HERMES,
) -> ToolUse | None:
    """How a local model calls functions; None where it cannot, as with custom tools.

    `choice` as the client sent it; `places`: its names for the tools' parameters; `written`: how the model's template writes calls.
    Parameters of a tool that is not strict may have keywords that no grammar holds: its arguments are some object then. Raises
    RequestProblem where a strict one has.
    """
    if any(tool["type"] != "function" for tool in tools) or (form is not None and not form.grammar):
        return None
    named = ""
    if isinstance(choice, Mapping):
        named = (choice.get("function") or {}).get("name", "")
        if choice.get("type") != "function":
            return None
        if named not in [tool["function"]["name"] for tool in tools]:
            raise invalid_value("tool_choice", f"names {named[:64]!r}, which is not among the tools")
    schemas, calls = dict[str, Schema](), list[str]()
    for number, (tool, place) in enumerate(zip(tools, places, strict=True)):
        function = tool["function"]
        if named in ("", function["name"]):
            schemas[f"t{number}"] = _parameters(function, place)
            calls.append(f"{literal(written.head(function['name']))} t{number} {literal('}')}")
    several = parallel and not named and written.between
    another = f"( {literal(written.between)} call ){{0,{MOST_CALLS - 1}}}" if several else ""
    opening, closing, mark = (literal(text) if text else "" for text in (written.opening, written.closing, written.text_mark))
    rules = {"call": " | ".join(calls), "calls": " ".join(filter(None, (opening, "call", another, closing)))}
    required, either = bool(named) or choice == "required", ""
    if form is not None and not required:
        forms = {"form": Schema(json.loads(form.schema) if form.schema else _ANY_OBJECT, form.parameter)}
        either = grammar_of({**schemas, **forms}, f"form | {mark} calls", rules)
    return ToolUse(conversation, grammar_of(schemas, "calls", rules), required, either, written)


def _parameters(function: Mapping[str, Any], place: str) -> Schema:
    read = _schema(function.get("parameters") or _ANY_OBJECT, place)
    try:
        _grammar(read)
    except Unsupported as error:
        if function.get("strict"):
            raise invalid_value(
                error.parameter, f"cannot be enforced while a local model writes: {error}", "unsupported_value"
            ) from error
        return Schema(_ANY_OBJECT, place)
    return read


def turns_of(messages: Sequence[ChatMessage]) -> tuple[Mapping[str, Any], ...]:
    """The messages as chat templates read them: texts in one piece, arguments of calls as values."""
    return tuple(map(_turn, messages))


def _turn(message: ChatMessage) -> Mapping[str, Any]:
    turn: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role, "content": message.text}
    if message.tool_calls:
        turn["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.called.name, "arguments": _arguments(call.called.model_extra)},
            }
            for call in message.tool_calls
            if call.called
        ]
    return turn | ({"tool_call_id": message.tool_call_id} if message.tool_call_id else {})


def _arguments(fields: Mapping[str, Any] | None) -> Any:
    given = (fields or {}).get("arguments", "")
    try:
        return json.loads(given) if isinstance(given, str) else given
    except ValueError:
        return given
