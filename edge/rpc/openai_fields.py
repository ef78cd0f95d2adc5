"""OpenAI's fields that plain messages cannot carry, as a call and its completion carry them.

A call's `openai_json` is the JSON text of one object with any of FIELDS, as the client sent them; `messages`, where it is there, replaces
the call's own. What an upstream bills for the text and the tools in it has a bound; other contents have none, so they are refused.
A completion's is an object with `finish_reason` and, where the assistant's message had them, `tool_calls` and `refusal`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NoReturn

from edge.core.errors import InvalidRequest

MAX_OPENAI_BYTES = 1 << 20
SAMPLING = (
    "top_p", "top_k", "min_p", "stop", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias",
    "reasoning_effort", "verbosity",
)  # fmt: skip
"""How the answer is drawn: these are no part of the prompt, and cost nothing there."""
_BEYOND = ("tools", "tool_choice", "parallel_tool_calls", "response_format", "messages")
FIELDS = (*_BEYOND, *SAMPLING)
ROLES = ("assistant", "developer", "system", "tool", "user")
CANNOT_FOLLOW = "this upstream cannot follow "
"""Begins the refusal of a call whose fields the upstream never follows, whatever they hold; the fields' names follow it."""
_TOOL_KINDS = ("function", "custom")
_TEXT_KINDS = ("text", "refusal")


def openai_fields(text: str) -> dict[str, Any]:
    """The fields of a call's `openai_json`; {} for "". Raises InvalidRequest, in one line, on what it may not be."""
    if not text:
        return {}
    if len(text.encode("utf-8", "replace")) > MAX_OPENAI_BYTES:
        raise InvalidRequest(
            f"openai_json is larger than the {MAX_OPENAI_BYTES} bytes allowed", hint="send less of the conversation"
        )
    fields = _object(text)
    unknown = sorted(fields.keys() - set(FIELDS))
    if unknown:
        raise InvalidRequest(
            f"openai_json has an unknown field {unknown[0][:40]!r}; it may hold {', '.join(_BEYOND)} and how to sample"
        )
    for name, check in _CHECKS.items():
        if name in fields:
            check(fields[name])
    return fields


@lru_cache(maxsize=64)
def _finish_json(finish_reason: str) -> str:
    return json.dumps({"finish_reason": finish_reason}, ensure_ascii=False, separators=(",", ":"))


def completion_json(finish_reason: str, beyond_text: str) -> str:
    """A completion's `openai_json`. `beyond_text`: the JSON object of what the assistant's message had beyond its text, or ""."""
    text = _finish_json(finish_reason)
    return f"{text[:-1]},{beyond_text[1:]}" if beyond_text else text  # as text: what was paid for arrives as it was stored


def _object(text: str) -> dict[str, Any]:
    """Strict JSON: no NaN, no half of a surrogate pair, no name twice, since two readers would understand it differently."""
    try:
        value = json.loads(text, object_pairs_hook=_distinct, parse_constant=_refuse_constant)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise InvalidRequest("openai_json is not JSON that can be passed on") from error
    if not isinstance(value, dict):
        raise InvalidRequest("openai_json must be one JSON object")
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _check_messages(messages: Any) -> None:
    if not (isinstance(messages, list) and messages and all(isinstance(turn, dict) for turn in messages)):
        raise InvalidRequest("messages of openai_json must be a list of at least one message")
    for number, turn in enumerate(messages):
        if turn.get("role") not in ROLES:
            raise InvalidRequest(f"message {number} of openai_json has no role that is known: {', '.join(ROLES)}")
        if not _is_text(turn.get("content")):
            raise InvalidRequest(
                f"message {number} of openai_json has a content other than text",
                hint="the cost of images and files has no bound here",
            )
        if not _is_list_of(turn.get("tool_calls", []) or [], _TOOL_KINDS):
            raise InvalidRequest(f"tool_calls of message {number} of openai_json must be a list of calls of functions")


def _check_tools(tools: Any) -> None:
    if not _is_list_of(tools, _TOOL_KINDS):
        raise InvalidRequest(
            "tools of openai_json must be a list of functions", hint="what tools of the cloud's own cost has no bound here"
        )


def _is_text(content: Any) -> bool:
    if content is None or isinstance(content, str):
        return True
    return _is_list_of(content, _TEXT_KINDS) and all(isinstance(part.get(part["type"]), str) for part in content)


def _is_list_of(entries: Any, kinds: tuple[str, ...]) -> bool:
    """A list of objects whose `type`, a function's where it is missing, is one of these."""
    first = "function" if "function" in kinds else ""
    return isinstance(entries, list) and all(isinstance(each, dict) and each.get("type", first) in kinds for each in entries)


_CHECKS: Mapping[str, Callable[[Any], None]] = {"messages": _check_messages, "tools": _check_tools}
