"""Tools and forms of answers in a chat request. Knows OpenAI's fields for them; knows nothing of who follows them.

The SLM calls no tools: what is asked of them goes to the cloud LLM as the client wrote it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from edge.core.types import BeyondText
from edge.serve.failures import RequestProblem
from edge.serve.fields import bad
from edge.serve.openai_messages import Conversation

MAX_TOOLS = 128
MAX_BYTES = 1 << 20
"""What a coordinator takes of it."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_KINDS = ("function", "custom")
_CHOICES = ("none", "auto", "required")
_FORMS = ("text", "json_object", "json_schema")


def parse_beyond(value: Mapping[str, Any], conversation: Conversation) -> BeyondText:
    """What of the request is for the cloud LLM alone. Raises RequestProblem naming the field at fault."""
    _refuse_the_old_form(value)
    tools, choice, form = _tools(value.get("tools")), _choice(value), _form(value.get("response_format"))
    parallel = _parallel(value)
    usable = bool(tools) and choice != "none"
    fields: dict[str, Any] = {}
    if tools:
        given = {"tools": tools, "tool_choice": choice, "parallel_tool_calls": parallel}
        fields |= {name: item for name, item in given.items() if item is not None}
    if form is not None:
        fields["response_format"] = form
    if conversation.original is not None:
        fields["messages"] = list(conversation.original)
    wants = tuple(name for name, wanted in (("tools", usable), ("response_format", form is not None)) if wanted)
    return BeyondText(_json(fields) if fields else "", wants, "tool_choice" if usable and choice not in (None, "auto") else "")


def _json(fields: Mapping[str, Any]) -> str:
    try:
        text = json.dumps(fields, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        size = len(text.encode())
    except (ValueError, RecursionError) as error:
        raise RequestProblem(400, "tools or messages hold what is not plain JSON text", code="invalid_json") from error
    if size > MAX_BYTES:
        raise RequestProblem(413, f"tools and messages together are larger than {MAX_BYTES} bytes", code="request_too_large")
    return text


def _refuse_the_old_form(value: Mapping[str, Any]) -> None:
    for old, new in (("functions", "tools"), ("function_call", "tool_choice")):
        if value.get(old) not in (None, [], "none"):
            raise bad(old, f"is the older form, which is not supported; use {new}", "unsupported_parameter")


def _tools(value: Any) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > MAX_TOOLS:
        raise bad("tools", f"must be a list of at most {MAX_TOOLS}")
    for index, tool in enumerate(value):
        _check_tool(f"tools[{index}]", tool)
    return value


def _check_tool(param: str, tool: Any) -> None:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if not isinstance(kind, str):
        raise bad(param, "must be an object with a type")
    if kind not in _KINDS:
        raise bad(f"{param}.type", f"must be one of {', '.join(_KINDS)}", "unsupported_value")
    named = tool.get(kind)
    if not isinstance(named, dict) or not isinstance(named.get("name"), str) or not _NAME.fullmatch(named["name"]):
        raise bad(f"{param}.{kind}.name", "must be 1 to 64 letters, digits, _ or -")
    if named.get("parameters") is not None and not isinstance(named["parameters"], dict):
        raise bad(f"{param}.{kind}.parameters", "must be a JSON Schema object")


def _choice(value: Mapping[str, Any]) -> Any:
    choice = value.get("tool_choice")
    if isinstance(choice, str) and choice not in _CHOICES:
        raise bad("tool_choice", f"must be one of {', '.join(_CHOICES)}, or name a tool")
    if isinstance(choice, dict) and not isinstance(choice.get("type"), str):
        raise bad("tool_choice", "an object must have a type")
    if choice is not None and not isinstance(choice, str | dict):
        raise bad("tool_choice", "must be a word or an object")
    if choice not in (None, "none", "auto") and not value.get("tools"):
        raise bad("tool_choice", "only together with tools")
    return choice


def _parallel(value: Mapping[str, Any]) -> bool | None:
    parallel = value.get("parallel_tool_calls")
    if parallel is not None and not isinstance(parallel, bool):
        raise bad("parallel_tool_calls", "must be true or false")
    return parallel


def _form(value: Any) -> Mapping[str, Any] | None:
    """A form that plain text does not have, or None."""
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    if kind not in _FORMS:
        raise bad("response_format", f"must be an object whose type is one of {', '.join(_FORMS)}")
    if kind == "json_schema" and not isinstance(value.get("json_schema"), dict):
        raise bad("response_format.json_schema", "must be an object")
    form: Mapping[str, Any] = value
    return None if kind == "text" else form
