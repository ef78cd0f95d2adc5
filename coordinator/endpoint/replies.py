"""What is sent back, in OpenAI's forms: completions, chunks, errors."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from coordinator.endpoint.requests import Asked, BadParameter
from coordinator.ledger.budgets import opens_at
from coordinator.service.http_server import HttpProblem
from edge.core.errors import BudgetExhausted, CoordinatorError, OutcomeUnknown
from edge.rpc.client import CloudCompletion
from edge.rpc.errors import row_for

encode = msgspec.json.encode
SSE_DONE = b"data: [DONE]\n\n"
_STATUS: Mapping[str, tuple[int, bool]] = {
    "BUDGET_EXHAUSTED": (429, False),
    "RATE_LIMITED": (429, True),
    "OVERLOADED": (503, True),
    "DRAINING": (503, True),
    "UPSTREAM_OPEN": (503, True),
    "UPSTREAM_FAILED": (502, True),
    "UPSTREAM_REJECTED": (400, False),
    "LEDGER_UNAVAILABLE": (503, True),
    "DEADLINE_EXCEEDED": (504, True),
    "OUTCOME_UNKNOWN": (502, False),
    "IN_PROGRESS": (409, True),
    "CALL_CANCELLED": (409, False),
    "KEY_REUSED": (409, False),
    "INVALID_REQUEST": (400, False),
    "UNPRICED": (400, False),
    "NOT_FOUND": (404, False),
    "UNAUTHENTICATED": (401, False),
    "PERMISSION_DENIED": (403, False),
    "DEVICE_DISABLED": (403, False),
}
"""By reason: the status, and whether the same request may be sent again by itself. Other reasons are 500 and are not."""
_PERHAPS_CHARGED = frozenset({"LEDGER_UNAVAILABLE"})
"""Reasons after which a hold may stay, and be charged: only the same key makes the same request the same call."""
UNNAMED = "unnamed"
"""In an error's metadata: the request had no key."""
_HINTS = {
    "OUTCOME_UNKNOWN": "to ask again send another Idempotency-Key, which may be charged again",
    "KEY_REUSED": "send another Idempotency-Key for another request",
}
_OF_STATUS = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED", 408: "TIMEOUT", 413: "REQUEST_TOO_LARGE"}
_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def sse(value: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + encode(value) + b"\n\n"


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An error as a client sees it."""

    status: int
    body: dict[str, Any]
    """OpenAI's error object."""
    headers: dict[str, str] = field(default_factory=dict)


def error_reply(error: CoordinatorError, now: float) -> ErrorReply:
    """Status, error object and headers. Of a budget that is used up also which one (`budget`), and when it opens (`opens_at`, UTC).

    OpenAI's clients send a request again by themselves after 408, 409, 429 and 5xx, unless `x-should-retry` forbids it.
    """
    reason = row_for(error).reason
    status, again = _STATUS.get(reason, (500, False))
    if reason == "UPSTREAM_REJECTED" and error.metadata.get("cause") == "too_long":
        reason = "CONTEXT_LENGTH_EXCEEDED"
    again = again and not (reason in _PERHAPS_CHARGED and UNNAMED in error.metadata)
    headers = {"x-should-retry": "true" if again else "false"}
    about: dict[str, Any] = {}
    if isinstance(error, BudgetExhausted):
        about["budget"] = error.metadata.get("budget", "")
        opens = None if error.retry_after_s is None else opens_at(about["budget"], now)
        about["opens_at"] = None if opens is None else utc(opens)
    if isinstance(error, OutcomeUnknown):
        about |= {"call_key": error.metadata.get("call_key"), "charged_uusd": int(error.metadata.get("charged_uusd", "0"))}
    hint = error.hint or _HINTS.get(reason, "")
    if isinstance(error, BudgetExhausted) and error.metadata.get("unit", "calls") != "calls":
        hint = "a smaller max_tokens holds less"
    if isinstance(error, HttpProblem):
        status, reason, headers = error.status, _OF_STATUS.get(error.status, reason), {**headers, **error.headers}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(math.ceil(error.retry_after_s))
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    kind = "insufficient_quota" if isinstance(error, BudgetExhausted) else _TYPES.get(status, "invalid_request_error")
    return ErrorReply(
        status,
        error_body(
            f"{error}; {hint}" if hint else str(error),
            kind=kind if status < 500 else "server_error",
            code=reason.lower(),
            param=error.param if isinstance(error, BadParameter) else None,
            **about,
        ),
        headers,
    )


def error_body(message: str, *, kind: str, code: str, param: str | None = None, **about: Any) -> dict[str, Any]:
    """`{"error": {message, type, param, code, ...}}`."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code, **about}}


INTERNAL = error_body("internal error; the coordinator's log has the details", kind="server_error", code="internal")


def utc(seconds: float) -> str:
    """A time as clients read it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def completion_body(asked: Asked, completion: CloudCompletion, created: int) -> dict[str, Any]:
    """The `chat.completion` object; `edge` is what OpenAI's has no place for."""
    ended = _ended(completion)
    message = {"role": "assistant", "content": completion.text, "refusal": ended.get("refusal")}
    if "tool_calls" in ended:
        message |= {"content": completion.text or None, "tool_calls": ended["tool_calls"]}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": ended["finish_reason"]}
    return {
        "id": f"chatcmpl-{asked.call.call_key}",
        "object": "chat.completion",
        "created": created,
        "model": asked.call.model_alias,
        "choices": [choice],
        "usage": usage_body(completion),
        "edge": edge_body(asked, completion),
    }


def chunks(asked: Asked, created: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """What all chunks of a stream have in common, and the first one, with the role."""
    head = {
        "id": f"chatcmpl-{asked.call.call_key}",
        "object": "chat.completion.chunk",
        "created": created,
        "model": asked.call.model_alias,
    }
    return head, chunk(head, {"role": "assistant", "content": ""})


def chunk(head: Mapping[str, Any], delta: Mapping[str, Any], finish: str | None = None) -> dict[str, Any]:
    """A `chat.completion.chunk` object."""
    return {**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]}


def last_chunks(asked: Asked, completion: CloudCompletion, head: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The end of a stream: calls of tools, why it ended, and the usage where it was asked for."""
    ended = _ended(completion)
    if calls := ended.get("tool_calls"):
        yield chunk(head, {"tool_calls": [{"index": number, **call} for number, call in enumerate(calls)]})
    if refusal := ended.get("refusal"):
        yield chunk(head, {"refusal": refusal})
    yield {**chunk(head, {}, ended["finish_reason"]), "edge": edge_body(asked, completion)}
    if asked.include_usage:
        yield {**head, "choices": [], "usage": usage_body(completion)}


def usage_body(completion: CloudCompletion) -> dict[str, int]:
    """OpenAI's `usage`, as the cloud LLM counted."""
    usage = completion.usage
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


def edge_body(asked: Asked, completion: CloudCompletion) -> dict[str, Any]:
    """The call's key, what it was charged in micro-USD, whether its answer was stored, and the fields that had no effect."""
    return {
        "call_key": completion.call_key,
        "charged_uusd": completion.charged_uusd,
        "cached": completion.cached,
        "ignored_parameters": list(asked.ignored),
    }


def _ended(completion: CloudCompletion) -> dict[str, Any]:
    return {"finish_reason": "stop", **json.loads(completion.openai_json or "{}")}
