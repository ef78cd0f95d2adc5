"""The shapes of what the endpoint takes and gives, as JSON Schema. Knows the ranges of the parsers; knows nothing of routes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Shape = Mapping[str, Any]


def record(required: Mapping[str, Shape], optional: Mapping[str, Shape] | None = None) -> dict[str, Any]:
    """An object with these fields, and maybe others."""
    return {"type": "object", "required": list(required), "properties": {**required, **(optional or {})}}


def or_null(shape: Shape) -> dict[str, Any]:
    """The shape or null."""
    return {"anyOf": [shape, {"type": "null"}]}


def ref(name: str) -> dict[str, str]:
    """A shape by its name."""
    return {"$ref": f"#/components/schemas/{name}"}


def list_of(field: str, name: str) -> dict[str, Any]:
    """An object with one list."""
    return record({field: {"type": "array", "items": ref(name)}})


def whole(low: int | None = None, high: int | None = None) -> dict[str, Any]:
    """A whole number."""
    bounds = {"minimum": low, "maximum": high}
    return {"type": "integer", **{name: value for name, value in bounds.items() if value is not None}}


TEXT: Shape = {"type": "string"}
NUMBER: Shape = {"type": "number"}
FLAG: Shape = {"type": "boolean"}
COUNT = whole(0)
LABEL: Shape = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._:+-]{0,63}$"}
_ANYTHING: Shape = {}
_IGNORED: Shape = {"description": "Taken, and without effect; edge.ignored_parameters names it."}
_MODE: Shape = {"enum": [None, "auto", "prefer-local", "local-only", "cloud-only"]}
_FINISH: Shape = {"enum": ["stop", "length", "tool_calls", "content_filter"]}
_TOOL_NAME: Shape = {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"}

TOLD_HEADERS = {
    "x-edge-answer-id": "The answer's number, for edge-agent why.",
    "x-edge-source": "local, cloud or local-fallback; not of a stream, whose last chunk tells it.",
    "x-edge-adapter-version": "The adapter that answered.",
    "x-edge-task": "The task's label, whose budget and dial apply.",
    "x-edge-help-log-odds": "How much the model wished to ask, in nats; not of a stream.",
    "x-edge-dual": "λ, the price of asking.",
    "x-edge-assist-rate": "The realised share of answers that asked.",
    "x-edge-target-rate": "τ, the share that may ask.",
    "x-edge-calls-left": "Calls that the budget still allows.",
    "x-edge-tokens-left": "Tokens that the budget still allows.",
    "x-edge-spend-left-uusd": "Spend that the budget still allows, in micro-USD.",
}

_CONTENT: Shape = {
    "anyOf": [TEXT, {"type": "array", "minItems": 1, "items": record({"type": {"const": "text"}, "text": TEXT})}],
}
_CALLED = record({"name": TEXT})
_CALL: Shape = {
    "anyOf": [
        record({"id": TEXT, "function": _CALLED}, {"type": {"const": "function"}}),
        record({"id": TEXT, "type": {"const": "custom"}, "custom": _CALLED}),
    ]
}
_MESSAGE: Shape = {
    "anyOf": [
        record({"role": {"enum": ["system", "developer", "user", "assistant"]}, "content": _CONTENT}),
        record(
            {"role": {"const": "assistant"}, "tool_calls": {"type": "array", "minItems": 1, "items": _CALL}},
            {"content": or_null(_CONTENT)},
        ),
        record({"role": {"const": "tool"}, "content": _CONTENT, "tool_call_id": {"type": "string", "minLength": 1}}),
    ]
}
_NAMED = record({"name": _TOOL_NAME}, {"description": _ANYTHING, "parameters": or_null({"type": "object"}), "strict": _ANYTHING})
_TOOL: Shape = {
    "anyOf": [
        record({"type": {"const": "function"}, "function": _NAMED}),
        record({"type": {"const": "custom"}, "custom": _NAMED}),
    ]
}
_FORM: Shape = {
    "anyOf": [
        record({"type": {"enum": ["text", "json_object"]}}),
        record({"type": {"const": "json_schema"}, "json_schema": {"type": "object"}}),
    ]
}
_STOP = {"type": "string", "minLength": 1, "maxLength": 256}
_METADATA = {
    "type": "object",
    "maxProperties": 16,
    "additionalProperties": {"type": "string", "maxLength": 512},
    "properties": {"task": {"anyOf": [LABEL, {"const": ""}], "maxLength": 512}, "no_cloud": {"type": "string", "maxLength": 512}},
}

_SHARE = {"type": "number", "minimum": 0, "maximum": 1}
_LABEL = {"type": "string", "maxLength": 200, "pattern": "^[ -~]*$"}
_RATES = {"anyOf": [_SHARE, {"type": "array", "minItems": 1, "maxItems": 64, "items": _SHARE}]}
_TASK_BUDGET = record({"task": TEXT, "state": TEXT, "line": TEXT, "dial": record({"task": TEXT, "questions": COUNT})})
_OUTLOOK = record({"rate": _SHARE, "calls": COUNT, "notes": {"type": "array", "items": TEXT}})
_PENALTY = {"type": "number", "minimum": -2, "maximum": 2}
_STOPS = or_null({"anyOf": [_STOP, {"type": "array", "maxItems": 16, "items": _STOP}]})
_SOME_TEXT: Shape = {"type": "string", "minLength": 1}
IDS: Shape = {"type": "array", "minItems": 1, "items": whole(0, 2**31 - 1)}
_PROMPT: Shape = {
    "anyOf": [_SOME_TEXT, IDS, {"type": "array", "minItems": 1, "maxItems": 128, "items": {"anyOf": [_SOME_TEXT, IDS]}}]
}
_COMPLETION_REQUEST = record(
    {"prompt": _PROMPT},
    {
        "model": {"type": "string", "default": "edge"},
        "max_tokens": or_null(whole(0, 2**31 - 1)),
        "temperature": or_null({"type": "number", "minimum": 0, "maximum": 2}),
        "top_p": or_null(_SHARE),
        "frequency_penalty": or_null(_PENALTY),
        "presence_penalty": or_null(_PENALTY),
        "n": or_null(whole(1, 8)),
        "seed": or_null(whole(-(2**63), 2**63 - 1)),
        "stop": _STOPS,
        "echo": or_null(FLAG),
        "logprobs": or_null({"anyOf": [FLAG, whole(0, 5)]}),
        "stream": or_null(FLAG),
        "stream_options": or_null(record({}, {"include_usage": or_null(FLAG)})),
    },
)
_TEXT_CHOICE = record(
    {"index": COUNT, "text": TEXT, "finish_reason": {"enum": ["stop", "length"]}, "logprobs": or_null({"type": "object"})}
)

_CHAT_REQUEST = record(
    {"messages": {"type": "array", "minItems": 1, "maxItems": 256, "items": ref("Message")}},
    {
        "model": {"type": "string", "default": "edge"},
        "stream": or_null(FLAG),
        "stream_options": or_null(record({}, {"include_usage": or_null(FLAG)})),
        "temperature": or_null({"type": "number", "minimum": 0, "maximum": 2}),
        "max_tokens": _ANYTHING,
        "max_completion_tokens": or_null(whole(1, 2**31 - 1)),
        "seed": or_null(whole(-(2**63), 2**63 - 1)),
        "stop": _STOPS,
        "metadata": or_null(_METADATA),
        "tools": or_null({"type": "array", "maxItems": 128, "items": ref("Tool")}),
        "tool_choice": {"anyOf": [{"enum": [None, "none", "auto", "required"]}, record({"type": TEXT})]},
        "parallel_tool_calls": or_null(FLAG),
        "response_format": or_null(_FORM),
        "top_p": or_null(_SHARE),
        "frequency_penalty": or_null(_PENALTY),
        "presence_penalty": or_null(_PENALTY),
        "n": or_null(whole(1, 8)),
        "logprobs": or_null(FLAG),
        "top_logprobs": or_null(whole(0, 20)),
        "logit_bias": _IGNORED,
        "reasoning_effort": _IGNORED,
    },
)
_EDGE = record(
    {
        "id": TEXT,
        "source": {"enum": ["local", "cloud", "local-fallback"]},
        "reason": TEXT,
        "help_log_odds": or_null(NUMBER),
        "dual": or_null(NUMBER),
        "calls_left": or_null(COUNT),
        "spend_left_uusd": or_null(COUNT),
        "cloud_tokens": COUNT,
        "spend_uusd": COUNT,
        "adapter_version": COUNT,
        "latency_s": NUMBER,
        "final": TEXT,
        "task": TEXT,
        "assist_rate": or_null(NUMBER),
        "target_rate": or_null(NUMBER),
        "tokens_left": or_null(COUNT),
        "ignored_parameters": {"type": "array", "items": TEXT},
    }
)
_USAGE_OF_ANSWER = record({"prompt_tokens": COUNT, "completion_tokens": COUNT, "total_tokens": COUNT})
_ANSWER = record(
    {"role": {"const": "assistant"}, "content": or_null(TEXT), "refusal": or_null(TEXT)},
    {"reasoning_content": TEXT, "tool_calls": {"type": "array", "minItems": 1, "items": {"type": "object"}}},
)
_CHOICE = record({"index": COUNT, "message": _ANSWER, "finish_reason": _FINISH}, {"logprobs": _ANYTHING})
_COMPLETION = record(
    {
        "id": TEXT,
        "object": {"const": "chat.completion"},
        "created": COUNT,
        "model": TEXT,
        "choices": {"type": "array", "minItems": 1, "items": _CHOICE},
        "usage": _USAGE_OF_ANSWER,
        "edge": ref("Edge"),
    }
)
_ABOUT_MODEL = record({"mode": _MODE, "description": TEXT, "context_length": or_null(whole(1))})
_MODEL = record({"id": TEXT, "object": {"const": "model"}, "created": COUNT, "owned_by": TEXT, "edge": _ABOUT_MODEL})
_UNITS = record({"calls": COUNT, "tokens": COUNT, "spend_uusd": COUNT})
_BOUNDS = record({"calls": or_null(COUNT), "tokens": or_null(COUNT), "spend_uusd": or_null(COUNT)})
_USED = record({"answers": COUNT, "serving": _UNITS, "learning": _UNITS})
_LEDGER = record({"used": _UNITS, "limits": _BOUNDS, "left": _BOUNDS, "dual": NUMBER, "target_rate": NUMBER})
_USAGE = record(
    {
        "object": {"const": "edge.usage"},
        "day": {"type": "string", "format": "date"},
        "today": _USED,
        "all": _USED,
        "ledger": or_null(_LEDGER),
        "online": FLAG,
        "offline_reason": TEXT,
    }
)
_READY = record(
    {"ready": FLAG, "model": TEXT, "adapter_version": COUNT, "coordinator": {"enum": ["reached", "away"]}, "learning": TEXT}
)
_ERROR = record({"error": record({"message": TEXT, "type": TEXT, "param": or_null(TEXT), "code": or_null(TEXT)})})

SHAPES: Mapping[str, Shape] = {
    "Error": _ERROR,
    "Message": _MESSAGE,
    "Tool": _TOOL,
    "ChatRequest": _CHAT_REQUEST,
    "ChatCompletion": _COMPLETION,
    "CompletionRequest": _COMPLETION_REQUEST,
    "Completion": record(
        {
            "id": TEXT,
            "object": {"const": "text_completion"},
            "created": COUNT,
            "model": TEXT,
            "choices": {"type": "array", "minItems": 1, "items": _TEXT_CHOICE},
            "usage": _USAGE_OF_ANSWER,
        }
    ),
    "Tokens": record({"tokens": {"type": "array", "items": COUNT}, "count": COUNT, "max_model_len": COUNT}),
    "Edge": _EDGE,
    "Model": _MODEL,
    "Models": record({"object": {"const": "list"}, "data": {"type": "array", "items": ref("Model")}}),
    "Usage": _USAGE,
    "Alive": record({"status": {"const": "ok"}}),
    "Ready": _READY,
    "Status": record({"mode": TEXT, "model": record({"name": TEXT})}),
    "Step": record({"step": whole(1)}),
    "Record": record({"id": TEXT, "source": TEXT, "reason": TEXT}),
    "Adapter": record({"version": COUNT}),
    "Line": record({"head": COUNT, "serving": COUNT}),
    "Rollback": record({"version": whole(0, 10**12 - 1)}),
    "Feedback": record(
        {"id": {"type": "string", "minLength": 1}, "verdict": {"enum": ["good", "bad", "none"]}}, {"correction": or_null(TEXT)}
    ),
    "Report": record(
        {
            "since": NUMBER,
            "now": NUMBER,
            "tasks": {"type": "array"},
            "answers": {"type": "array"},
            "cloud": {"type": "object"},
            "spend": {"type": "object"},
        }
    ),
    "Departure": record({"id": COUNT}, {"at": NUMBER, "kind": TEXT, "why": TEXT, "bytes": COUNT}),
    "Sent": record(
        {"sent": {"type": "array", "items": ref("Departure")}, "next_before": or_null(COUNT), "waiting": {"type": "array"}}
    ),
    "Budgets": record(
        {
            "origin": TEXT,
            "device": {"type": ["object", "null"]},
            "paused": {"type": "boolean"},
            "tasks": {"type": "array", "items": _TASK_BUDGET},
        }
    ),
    "Label": record({"task": _LABEL}),
    "Dial": record({"target_rate": or_null(_SHARE)}, {"task": or_null(_LABEL)}),
    "WhatIf": record({"answers": COUNT, "present": _OUTLOOK, "outlooks": {"type": "array", "items": _OUTLOOK}}),
    "WhatIfRequest": record({"target_rate": _RATES}, {"task": or_null(_LABEL), "last": whole(1, 100_000)}),
}
