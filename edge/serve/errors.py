"""Errors as clients see them: status code, the error object of OpenAI's or Anthropic's API, headers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from edge.core.errors import (
    BudgetExhausted,
    CloudOff,
    ContextOverflow,
    CoordinatorError,
    CoordinatorUnavailable,
    EdgeError,
    InvalidRequest,
    NotFound,
    RateLimited,
    TooFewAnswers,
    UnfitAnswer,
    Unsupported,
    UsageError,
    Withheld,
)

_CLEARER = {
    "Field required": "is missing",
    " after validation": "",
    "a valid dictionary or object to extract fields from": "an object",
    "a valid dictionary": "an object",
    "a valid list": "a list",
    "a valid boolean": "true or false",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid string": "a string",
}
MESSAGES_PATH = "/v1/messages"
"""Where Anthropic's API begins, whose errors have a form of their own."""
_ANTHROPIC_KINDS: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}
CLOUD_OFF = "cloud_off"
"""The error code of a demand for the cloud where it may not be asked."""
_TABLE: tuple[tuple[type[EdgeError], int, str], ...] = (
    (CloudOff, 400, CLOUD_OFF),
    (Unsupported, 400, "unsupported_parameter"),
    (UsageError, 400, "invalid_value"),
    (UnfitAnswer, 502, "invalid_cloud_answer"),
    (ContextOverflow, 400, "context_length_exceeded"),
    (TooFewAnswers, 409, "too_few_answers"),
    (InvalidRequest, 400, ""),
    (NotFound, 404, ""),
    (BudgetExhausted, 429, ""),
    (RateLimited, 429, ""),
    (CoordinatorUnavailable, 503, ""),
    (Withheld, 403, ""),
)
"""The first row that fits counts. The code of a CoordinatorError is its reason."""


class RequestProblem(Exception):
    """A request that cannot be served: `status` HTTP code, `code` for programs, `param` the field at fault, `headers` of the reply."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The error object of the OpenAI API."""
        client_error = "rate_limit_error" if self.status == 429 else "invalid_request_error"
        kind = client_error if self.status < 500 else "server_error"
        return error_body(str(self), kind=kind, code=self.code, param=self.param)

    def anthropic_body(self) -> dict[str, Any]:
        """The error object of Anthropic's API, with `code` and `param` besides what it has there; an event of a stream as well."""
        kind = _ANTHROPIC_KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": str(self), "code": self.code, "param": self.param}}

    def body_at(self, path: str) -> dict[str, Any]:
        """The error object of the API that this path belongs to."""
        return self.anthropic_body() if path == MESSAGES_PATH or path.startswith(f"{MESSAGES_PATH}/") else self.body()


def error_body(message: str, *, kind: str, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    """`{"error": {message, type, param, code}}`."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def invalid_request(errors: Sequence[Any]) -> RequestProblem:
    """The first of pydantic's errors, in one line that names the field."""
    first = errors[0]
    context = first.get("ctx") or {}
    if first["type"] == "json_invalid":
        return RequestProblem(400, f"the body is not JSON ({context.get('error', '')})", code="invalid_json")
    places = "".join(f"[{place}]" if isinstance(place, int) else f".{place}" for place in first["loc"][1:])
    field = context.get("field", "")
    param = (f"{places}.{field}" if field else places).replace(".[", "[").strip(".")  # as OpenAI writes it: messages[0].content
    message = first["msg"]
    for sentence, clearer in _CLEARER.items():
        message = message.replace(sentence, clearer)
    message = re.sub("^(Input|List|String|Dictionary) should ", "must ", message)
    if not param:
        return RequestProblem(400, f"the body {message}", code="invalid_json")
    return RequestProblem(400, f"{param}: {message}", code=context.get("code", "invalid_value"), param=param)


def invalid_value(param: str, message: str, code: str = "invalid_value") -> RequestProblem:
    """A field that cannot be taken as it is."""
    return RequestProblem(400, f"{param}: {message}", code=code, param=param)


def problem_of(error: Exception) -> RequestProblem:
    """The failure as a client sees it. What is not an EdgeError is named by its class only: its text may hold a prompt."""
    if isinstance(error, RequestProblem):
        return error
    if not isinstance(error, EdgeError):
        return RequestProblem(500, f"internal error ({type(error).__name__})", code="internal")
    status, code = next(((status, code) for kind, status, code in _TABLE if isinstance(error, kind)), (500, "internal"))
    headers: dict[str, str] = {}
    if isinstance(error, CoordinatorError):
        code = error.reason.lower()
        if isinstance(error, BudgetExhausted) or code in ("upstream_rejected", "unpriced"):
            headers["x-should-retry"] = "false"  # OpenAI's clients ask again by themselves unless a header forbids it
        if error.retry_after_s is not None:
            headers["retry-after"] = str(math.ceil(error.retry_after_s))
        if isinstance(error, CoordinatorUnavailable) and error.metadata.get("cause") == "too_long":
            status, code = (
                400,
                "context_length_exceeded",
            )  # the cloud LLM's context cannot hold the prompt: asking again is pointless
    param = error.parameter if isinstance(error, Unsupported) else None
    return RequestProblem(status, error.with_hint, code=code, param=param, headers=headers)
