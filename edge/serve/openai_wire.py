"""The OpenAI wire shapes: request bodies in, response bodies out. Knows fields and limits; knows nothing of sockets or agents."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edge.core.limits import TASK_LABEL_FORM, is_task_label
from edge.serve.chat_logprobs import choices_of, top_logprobs_of
from edge.serve.failures import RequestProblem
from edge.serve.fields import MAX_TOKENS, parse_json, sampling_wishes
from edge.serve.fields import bad as _bad
from edge.serve.fields import boolean as _boolean
from edge.serve.fields import include_usage as _include_usage
from edge.serve.fields import integer as _integer
from edge.serve.fields import number as _number
from edge.serve.fields import stops as _stops
from edge.serve.openai_messages import parse_conversation
from edge.serve.openai_tools import parse_beyond
from edge.serve.ports import AnswerNote, Mode, Question
from edge.serve.told import edge_body

MODELS: dict[str, Mode | None] = {
    "edge": None,
    "edge-auto": "auto",
    "edge-prefer-local": "prefer-local",
    "edge-local": "local-only",
    "edge-cloud": "cloud-only",
}
"""Model names and the mode each one means; None is the agent's own."""

_ABOUT: Mapping[Mode | None, str] = {
    None: "answers as the agent is set up",
    "auto": "answers on this device and asks the cloud where the model wishes to and the budget allows",
    "prefer-local": "asks the cloud only where its own answer is unusable",
    "local-only": "never asks the cloud",
    "cloud-only": "asks the cloud for every answer",
}

_UNSUPPORTED = ("audio",)
_WITHOUT_EFFECT = ("logit_bias", "reasoning_effort")
_NEUTRAL: dict[str, Any] = {
    "logit_bias": {},
}
_MAX_LABELS, _MAX_LABEL_CHARS, _MAX_LABEL_TEXT = 16, 64, 512


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


def parse_chat_request(
    body: bytes, answer_id: str, models: Mapping[str, Mode | None] = MODELS, task_header: str = ""
) -> ChatRequest:
    """The checked request, to be answered under this id. Raises RequestProblem naming the field at fault.

    `task_header`: the task's label where a header names it.
    """
    value = parse_json(body)
    model = named_model(value.get("model", "edge"), models)
    _refuse_unsupported(value)
    conversation = parse_conversation(value.get("messages"))
    task, no_cloud = _task(value, task_header), _no_cloud(value, models[model])
    question = Question(
        id=answer_id,
        messages=conversation.messages,
        mode="local-only" if no_cloud else models[model],
        max_tokens=_max_tokens(value),
        temperature=_number(value, "temperature", 0.0, 2.0),
        seed=_integer(value, "seed", -(2**63), 2**63 - 1),
        task=task,
        beyond=parse_beyond(value, conversation),
        wishes=sampling_wishes(value, top_logprobs_of(value)),
        no_cloud=no_cloud,
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
    if note.tool_calls:
        message |= {"content": content or None, "tool_calls": list(note.tool_calls)}
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
        "edge": edge_of(request, note),
    }


def chunk_body(
    request: ChatRequest, stream_id: str, created: int, delta: Mapping[str, Any], finish: str | None = None, **more: Any
) -> dict[str, Any]:
    """One `chat.completion.chunk` object."""
    choice = {"index": 0, "delta": dict(delta), "logprobs": None, "finish_reason": finish}
    head = {"id": stream_id, "object": "chat.completion.chunk", "created": created, "model": request.model}
    usage = {"usage": None} if request.include_usage else {}
    return {**head, "choices": [choice], **usage, **more}


def tool_call_deltas(note: AnswerNote) -> list[dict[str, Any]]:
    """The calls of tools as deltas of a stream, one for each."""
    return [{"tool_calls": [{"index": index, **call}]} for index, call in enumerate(note.tool_calls)]


def usage_chunk(request: ChatRequest, stream_id: str, created: int, note: AnswerNote) -> dict[str, Any]:
    """The chunk after the last one, asked for by stream_options.include_usage."""
    return {**chunk_body(request, stream_id, created, {}), "choices": [], "usage": usage_body(note)}


def usage_body(note: AnswerNote) -> dict[str, int]:
    """Tokens of the prompt and of the answer."""
    total = note.prompt_tokens + note.completion_tokens
    return {"prompt_tokens": note.prompt_tokens, "completion_tokens": note.completion_tokens, "total_tokens": total}


def edge_of(request: ChatRequest, note: AnswerNote) -> dict[str, Any]:
    """Where the answer came from, and what was asked for in vain: what the cloud alone follows, of an answer that is not its own."""
    unfollowed = () if note.source == "cloud" else request.question.beyond.wants
    return edge_body(note, (*request.ignored, *unfollowed))


def models_body(created: int, models: Mapping[str, Mode | None] = MODELS, context_tokens: int | None = None) -> dict[str, Any]:
    """The list of models: `edge` leaves the mode to the agent, the others name one."""
    return {"object": "list", "data": [model_body(name, created, models, context_tokens) for name in models]}


def model_body(
    name: str, created: int, models: Mapping[str, Mode | None] = MODELS, context_tokens: int | None = None
) -> dict[str, Any]:
    """One model. Raises RequestProblem when there is none of this name."""
    mode = models[named_model(name, models)]
    about = {"mode": mode, "description": _ABOUT[mode], "context_length": context_tokens}
    return {"id": name, "object": "model", "created": created, "owned_by": "edge-agent", "edge": about}


def completion_id(answer_id: str) -> str:
    """The id of an answer as OpenAI clients expect it."""
    return f"chatcmpl-{answer_id}"


def sse(value: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(value, ensure_ascii=False, allow_nan=False).encode() + b"\n\n"


SSE_DONE = b"data: [DONE]\n\n"


def named_model(name: Any, models: Mapping[str, Mode | None]) -> str:
    """The name, if there is such a model. Raises RequestProblem."""
    if not isinstance(name, str):
        raise _bad("model", "must be a string")
    if name not in models:
        message = f"the model {name[:80]!r} does not exist; there are {', '.join(models)}"
        raise RequestProblem(404, message, code="model_not_found", param="model")
    return name


def _task(value: Mapping[str, Any], header: str) -> str | None:
    """The task's label, from OpenAI's metadata or from a header of our own."""
    metadata = value.get("metadata")
    if metadata is not None and not _is_metadata(metadata):
        raise _bad("metadata", f"must be an object of at most {_MAX_LABELS} texts of at most {_MAX_LABEL_TEXT} characters")
    named = (metadata or {}).get("task") or None
    if named and header and named != header:
        raise _bad("metadata.task", "is another one than the header x-edge-task says")
    task = named or header or None
    if task is not None and not is_task_label(task):
        raise _bad("metadata.task" if named else "x-edge-task", f"must be {TASK_LABEL_FORM}")
    return task


def _no_cloud(value: Mapping[str, Any], mode: Mode | None) -> str:
    """Why the client keeps this request from the cloud, in one line, from the metadata that `_task` has checked."""
    why = " ".join(str((value.get("metadata") or {}).get("no_cloud", "")).split())
    if why and mode == "cloud-only":
        raise _bad("metadata.no_cloud", "forbids what the model edge-cloud demands")
    return why


def _is_metadata(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= _MAX_LABELS
        and all(len(name) <= _MAX_LABEL_CHARS and isinstance(text, str) for name, text in value.items())
        and all(len(text) <= _MAX_LABEL_TEXT for text in value.values())
    )


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
