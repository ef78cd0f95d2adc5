"""Schemas from clients: a form, a form that only the cloud can follow, or a refusal with its path; never an exception."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from edge.core.types import AnswerForm, ToolConversation, ToolUse
from edge.serve.answer_forms import answer_form, tool_use
from edge.serve.errors import RequestProblem
from tests.random_schemas import what_is_hardly_a_schema

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
