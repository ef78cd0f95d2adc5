"""The messages of a chat request. Knows their roles, parts and calls of tools; knows nothing of the rest of the request.

The SLM reads plain text. A conversation with calls of tools is told to it in words, and kept as the client wrote it for the cloud LLM.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from edge.core.types import Message, Role
from edge.serve.fields import bad, encodable

MAX_MESSAGES = 256
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "user"}


@dataclass(frozen=True, slots=True)
class Conversation:
    """The messages as plain text, the last one the user's; `original` as they came, where plain text does not say all of them."""

    messages: tuple[Message, ...]
    original: tuple[Mapping[str, Any], ...] | None = None


def parse_conversation(value: Any) -> Conversation:
    """The conversation. Raises RequestProblem naming the message at fault."""
    if not isinstance(value, list) or not value:
        raise bad("messages", "must be a list of at least one message")
    if len(value) > MAX_MESSAGES:
        raise bad("messages", f"at most {MAX_MESSAGES} messages")
    messages = tuple(_message(f"messages[{index}]", entry) for index, entry in enumerate(value))
    if messages[-1].role != "user":
        raise bad("messages", "the last message must come from the user or a tool")
    return Conversation(messages, tuple(value) if any(map(_has_tools, value)) else None)


def _has_tools(entry: Mapping[str, Any]) -> bool:
    return entry["role"] == "tool" or bool(entry.get("tool_calls"))


def _message(param: str, entry: Any) -> Message:
    if not isinstance(entry, dict):
        raise bad(param, "must be an object")
    role = entry.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise bad(f"{param}.role", f"must be one of {', '.join(_ROLES)}")
    if role == "tool":
        return Message("user", f"The tool answered: {_tool_answer(param, entry)}")
    if role == "assistant" and entry.get("tool_calls"):
        return Message("assistant", _with_calls(param, entry))
    return Message(cast(Role, _ROLES[role]), _content(f"{param}.content", entry.get("content")))


def _tool_answer(param: str, entry: Mapping[str, Any]) -> str:
    if not isinstance(entry.get("tool_call_id"), str) or not entry["tool_call_id"]:
        raise bad(f"{param}.tool_call_id", "must name the call that is answered")
    return _content(f"{param}.content", entry.get("content"))


def _with_calls(param: str, entry: Mapping[str, Any]) -> str:
    calls = entry["tool_calls"]
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise bad(f"{param}.tool_calls", "must be a list of objects")
    said = "" if entry.get("content") is None else _content(f"{param}.content", entry["content"])
    told = [f"I call the tool {_call(f'{param}.tool_calls[{index}]', call)}." for index, call in enumerate(calls)]
    return "\n".join(filter(None, [said, *told]))


def _call(param: str, call: Mapping[str, Any]) -> str:
    kind = call.get("type", "function")
    named = call.get(kind) if kind in ("function", "custom") else None
    if not isinstance(call.get("id"), str) or not isinstance(named, dict) or not isinstance(named.get("name"), str):
        raise bad(param, "must have an id, a type and a name")
    given = named.get("arguments", named.get("input", ""))
    return encodable(param, f"{named['name']} with {given if isinstance(given, str) else json.dumps(given)}")


def _content(param: str, value: Any) -> str:
    if isinstance(value, str):
        return encodable(param, value)
    if isinstance(value, list) and value and all(isinstance(part, dict) for part in value):
        return encodable(param, "".join(_part_text(param, part) for part in value))
    raise bad(param, "must be a string or a list of text parts")


def _part_text(param: str, part: Mapping[str, Any]) -> str:
    kind = part.get("type")
    if kind != "text":
        shown = kind[:40] if isinstance(kind, str) else "no name"
        raise bad(param, f"a part of type {shown!r} is not supported; this model reads text", "unsupported_value")
    if not isinstance(part.get("text"), str):
        raise bad(param, "a part of type text needs its text")
    return cast(str, part["text"])
