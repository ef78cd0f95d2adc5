"""OpenAI's tools said in the words of Anthropic's Messages API, and its calls of tools said in OpenAI's. Knows both vocabularies; knows
nothing of HTTP or streams.

What that API has no word for is NotSayable, so that it is refused before it is sent rather than left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_CHOICES = {"auto": "auto", "none": "none", "required": "any"}
_NO_PARAMETERS = {"type": "object", "properties": {}}


class NotSayable(ValueError):
    """A request that the Messages API has no word for; the message is one line for whoever asked."""


def said_to_anthropic(openai_json: str) -> dict[str, Any]:
    """The body's `system`, `messages`, `tools` and `tool_choice`, as far as a checked `openai_json` says them. Raises NotSayable."""
    fields = json.loads(openai_json)
    if (fields.get("response_format") or {"type": "text"}) != {"type": "text"}:
        raise NotSayable("Anthropic's API takes no response_format")
    said = _conversation(fields["messages"]) if "messages" in fields else {}
    if tools := fields.get("tools"):
        said |= {"tools": [_tool(each) for each in tools], "tool_choice": _choice(fields)}
    return said


def tool_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """A call of a tool as OpenAI says it. `arguments` is JSON text; the model may have left it unfinished."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments or "{}"}}


def _conversation(messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """System turns go into a field of their own; turns of one side that follow each other become one, as results of tools must."""
    system = "\n\n".join(_text(turn) for turn in messages if turn["role"] in ("system", "developer"))
    turns: list[dict[str, Any]] = []
    for turn in messages:
        role = "assistant" if turn["role"] == "assistant" else "user"
        blocks = [] if turn["role"] in ("system", "developer") else list(_blocks(turn))
        if blocks and turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    return conversation(turns, system)


def conversation(turns: Sequence[Mapping[str, Any]], system: str) -> dict[str, Any]:
    """The body's `messages` and, where there is one, `system`. Raises NotSayable without a turn."""
    if not turns:
        raise NotSayable("a conversation needs a turn besides the system's")
    return {"messages": turns, **({"system": system} if system else {})}


def _blocks(turn: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    text = _text(turn)
    if turn["role"] == "tool":
        yield {"type": "tool_result", "tool_use_id": _word(turn, "tool_call_id"), "content": text}
        return
    if text.strip():  # the API refuses a block without text
        yield {"type": "text", "text": text}
    for call in turn.get("tool_calls") or ():
        function = _function(call)
        yield {"type": "tool_use", "id": _word(call, "id"), "name": _word(function, "name"), "input": _arguments(function)}


def _text(turn: Mapping[str, Any]) -> str:
    content = turn.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text") or part.get("refusal") or "" for part in content)


def _arguments(function: Mapping[str, Any]) -> dict[str, Any]:
    try:
        found = json.loads(function.get("arguments") or "{}")
    except (TypeError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise NotSayable("Anthropic's API takes the arguments of a tool as a JSON object only")
    return found


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = _function(tool)
    about = {"description": function["description"]} if function.get("description") else {}
    return {"name": _word(function, "name"), **about, "input_schema": function.get("parameters") or _NO_PARAMETERS}


def _choice(fields: Mapping[str, Any]) -> dict[str, Any]:
    wish = fields.get("tool_choice") or "auto"
    if isinstance(wish, dict) and wish.get("type") == "function":
        choice: dict[str, Any] = {"type": "tool", "name": _word(_function(wish), "name")}
    elif isinstance(wish, str) and wish in _CHOICES:
        choice = {"type": _CHOICES[wish]}
    else:
        raise NotSayable("Anthropic's API takes as tool_choice auto, none, required or one function")
    one_only = fields.get("parallel_tool_calls") is False and choice["type"] != "none"
    return {**choice, **({"disable_parallel_tool_use": True} if one_only else {})}


def _function(holder: Mapping[str, Any]) -> Mapping[str, Any]:
    function = holder.get("function")
    if not isinstance(function, dict):
        raise NotSayable("Anthropic's API takes tools that are functions only")
    return function


def _word(holder: Mapping[str, Any], name: str) -> str:
    word = holder.get(name)
    if not (isinstance(word, str) and word):
        raise NotSayable(f"a tool, or a call or result of one, has no {name}")
    return word
