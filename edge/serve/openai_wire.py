"""The OpenAI wire shapes: request bodies in, response bodies out. Knows fields and limits; knows nothing of sockets or agents."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from edge.core.types import Message, Role
from edge.serve.chat_logprobs import choices_of, top_logprobs_of
from edge.serve.failures import RequestProblem
from edge.serve.fields import MAX_TOKENS, parse_json, sampling_wishes
from edge.serve.fields import bad as _bad
from edge.serve.fields import boolean as _boolean
from edge.serve.fields import encodable as _encodable
from edge.serve.fields import include_usage as _include_usage
from edge.serve.fields import integer as _integer
from edge.serve.fields import number as _number
from edge.serve.fields import stops as _stops
from edge.serve.ports import AnswerNote, Mode, Question

MODELS: dict[str, Mode | None] = {
    "edge": None,
    "edge-auto": "auto",
    "edge-prefer-local": "prefer-local",
    "edge-local": "local-only",
    "edge-cloud": "cloud-only",
}
"""Model names and the mode each one means; None is the agent's own."""

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_UNSUPPORTED = ("tools", "functions", "tool_choice", "function_call", "audio")
_WITHOUT_EFFECT = ("logit_bias", "response_format", "reasoning_effort")
_NEUTRAL: dict[str, Any] = {
    "logit_bias": {},
    "response_format": {"type": "text"},
}
_MAX_MESSAGES = 256


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A checked body of POST /v1/chat/completions. `ignored` names parameters that were given and have no effect here."""

    model: str
    question: Question
    stream: bool
    include_usage: bool
    stops: tuple[str, ...]
    ignored: tuple[str, ...]
    choices: int = 1


def models_with(loaded: str) -> Mapping[str, Mode | None]:
    """The names a client may ask for when this model is loaded; its own name means `edge`."""
    return {**MODELS, loaded: None} if loaded and loaded not in MODELS else MODELS


def parse_chat_request(body: bytes, answer_id: str, models: Mapping[str, Mode | None] = MODELS) -> ChatRequest:
    """The checked request, to be answered under this id. Raises RequestProblem naming the field at fault."""
    value = parse_json(body)
    model = named_model(value.get("model", "edge"), models)
    _refuse_unsupported(value)
    question = Question(
        id=answer_id,
        messages=_messages(value.get("messages")),
        mode=models[model],
        max_tokens=_max_tokens(value),
        temperature=_number(value, "temperature", 0.0, 2.0),
        seed=_integer(value, "seed", -(2**63), 2**63 - 1),
        wishes=sampling_wishes(value, top_logprobs_of(value)),
    )
    choices = choices_of(value, question.mode)
    stream = _boolean(value, "stream")
    return ChatRequest(
        model, question, stream, _include_usage(value, stream), _stops(value.get("stop")), _ignored(value), choices
    )


def completion_body(
    request: ChatRequest,
    note: AnswerNote,
    content: str,
    reasoning: str,
    created: int,
    logprobs: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The whole answer as a `chat.completion` object."""
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if reasoning:
        message["reasoning_content"] = reasoning
    choice = {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": note.finish}
    return {
        "id": completion_id(note.id),
        "object": "chat.completion",
        "created": created,
        "model": request.model,
        "choices": [choice],
        "usage": usage_body(note),
        "edge": edge_body(request, note),
    }


def chunk_body(
    request: ChatRequest, stream_id: str, created: int, delta: Mapping[str, Any], finish: str | None = None, **more: Any
) -> dict[str, Any]:
    """One `chat.completion.chunk` object."""
    choice = {"index": 0, "delta": dict(delta), "logprobs": None, "finish_reason": finish}
    head = {"id": stream_id, "object": "chat.completion.chunk", "created": created, "model": request.model}
    usage = {"usage": None} if request.include_usage else {}
    return {**head, "choices": [choice], **usage, **more}


def usage_chunk(request: ChatRequest, stream_id: str, created: int, note: AnswerNote) -> dict[str, Any]:
    """The chunk after the last one, asked for by stream_options.include_usage."""
    return {**chunk_body(request, stream_id, created, {}), "choices": [], "usage": usage_body(note)}


def usage_body(note: AnswerNote) -> dict[str, int]:
    """Tokens of the prompt and of the answer."""
    total = note.prompt_tokens + note.completion_tokens
    return {"prompt_tokens": note.prompt_tokens, "completion_tokens": note.completion_tokens, "total_tokens": total}


def edge_body(request: ChatRequest, note: AnswerNote) -> dict[str, Any]:
    """Where the answer came from, and what was asked for in vain."""
    return {**note.to_json(), "ignored_parameters": list(request.ignored)}


def edge_headers(note: AnswerNote) -> dict[str, str]:
    """The same as response headers, for clients that drop unknown fields."""
    pairs = {
        "x-edge-source": note.source,
        "x-edge-answer-id": note.id,
        "x-edge-adapter-version": str(note.adapter_version),
        "x-edge-dual": _shown(note.dual),
        "x-edge-help-log-odds": _shown(note.help_log_odds),
        "x-edge-calls-left": "" if note.calls_left is None else str(note.calls_left),
    }
    return {name: value for name, value in pairs.items() if value}


def models_body(created: int, models: Mapping[str, Mode | None] = MODELS) -> dict[str, Any]:
    """The list of models: `edge` leaves the mode to the agent, the others name one."""
    return {"object": "list", "data": [model_body(name, created, models) for name in models]}


def model_body(name: str, created: int, models: Mapping[str, Mode | None] = MODELS) -> dict[str, Any]:
    """One model. Raises RequestProblem when there is none of this name."""
    return {"id": named_model(name, models), "object": "model", "created": created, "owned_by": "edge-agent"}


def completion_id(answer_id: str) -> str:
    """The id of an answer as OpenAI clients expect it."""
    return f"chatcmpl-{answer_id}"


def sse(value: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(value, ensure_ascii=False, allow_nan=False).encode() + b"\n\n"


SSE_DONE = b"data: [DONE]\n\n"


def _shown(number: float | None) -> str:
    return "" if number is None else f"{number:.4f}"


def named_model(name: Any, models: Mapping[str, Mode | None]) -> str:
    """The name, if there is such a model. Raises RequestProblem."""
    if not isinstance(name, str):
        raise _bad("model", "must be a string")
    if name not in models:
        message = f"the model {name[:80]!r} does not exist; there are {', '.join(models)}"
        raise RequestProblem(404, message, code="model_not_found", param="model")
    return name


def _messages(value: Any) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise _bad("messages", "must be a list of at least one message")
    if len(value) > _MAX_MESSAGES:
        raise _bad("messages", f"at most {_MAX_MESSAGES} messages")
    messages = tuple(_message(f"messages[{index}]", entry) for index, entry in enumerate(value))
    if messages[-1].role != "user":
        raise _bad("messages", "the last message must come from the user")
    return messages


def _message(param: str, value: Any) -> Message:
    if not isinstance(value, dict):
        raise _bad(param, "must be an object")
    role = value.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise _bad(f"{param}.role", f"must be one of {', '.join(_ROLES)}")
    return Message(cast(Role, _ROLES[role]), _content(f"{param}.content", value.get("content")))


def _content(param: str, value: Any) -> str:
    if isinstance(value, str):
        return _encodable(param, value)
    if isinstance(value, list) and value and all(isinstance(part, dict) for part in value):
        return _encodable(param, "".join(_part_text(param, part) for part in value))
    raise _bad(param, "must be a string or a list of text parts")


def _part_text(param: str, part: Mapping[str, Any]) -> str:
    if part.get("type") != "text" or not isinstance(part.get("text"), str):
        raise _bad(param, "only parts of type text are supported", "unsupported_value")
    return cast(str, part["text"])


def _refuse_unsupported(value: Mapping[str, Any]) -> None:
    for name in _UNSUPPORTED:
        if value.get(name) not in (None, False, [], "none", 0):
            raise RequestProblem(400, f"{name}: not supported by this endpoint", code="unsupported_parameter", param=name)


def _ignored(value: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(name for name in _WITHOUT_EFFECT if value.get(name) is not None and value[name] != _NEUTRAL.get(name))


def _max_tokens(value: Mapping[str, Any]) -> int | None:
    wanted = _integer(value, "max_completion_tokens", 1, 2**31 - 1)
    if wanted is None:
        wanted = _integer(value, "max_tokens", 1, 2**31 - 1)
    return None if wanted is None else min(wanted, MAX_TOKENS)
