"""Errors as clients see them: status code, OpenAI's error object, headers."""

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
CLOUD_OFF = "cloud_off"
"""The error code of a demand for the cloud where it may not be asked."""


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
        return error_body(str(self), kind=_kind(self.status), code=self.code, param=self.param)


def error_body(message: str, *, kind: str, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    """`{"error": {message, type, param, code}}`."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def invalid_request(errors: Sequence[Any]) -> RequestProblem:
    """The first of pydantic's errors, in one line that names the field."""
    first = errors[0]
    context = first.get("ctx") or {}
    if first["type"] == "json_invalid":
        return RequestProblem(400, f"the body is not JSON ({context.get('error', '')})", code="invalid_json")
    param = _path(first["loc"][1:], context.get("field", ""))
    message = _in_one_line(first["msg"])
    if not param:
        return RequestProblem(400, f"the body {message}", code="invalid_json")
    return RequestProblem(400, f"{param}: {message}", code=context.get("code", "invalid_value"), param=param)


def _in_one_line(message: str) -> str:
    """Pydantic's sentence behind the name of a field."""
    for sentence, clearer in _CLEARER.items():
        message = message.replace(sentence, clearer)
    return re.sub("^(Input|List|String|Dictionary) should ", "must ", message)


def _path(places: Sequence[str | int], field: str) -> str:
    """The name of a field as OpenAI writes it: messages[0].content."""
    written = "".join(f"[{place}]" if isinstance(place, int) else f".{place}" for place in places)
    return (f"{written}.{field}" if field else written).replace(".[", "[").strip(".")


def invalid_value(param: str, message: str, code: str = "invalid_value") -> RequestProblem:
    """A field that cannot be taken as it is."""
    return RequestProblem(400, f"{param}: {message}", code=code, param=param)


def problem_of(error: Exception) -> RequestProblem:
    """The failure as a client sees it. What is not an EdgeError is named by its class only: its text may hold a prompt."""
    if isinstance(error, RequestProblem):
        return error
    if isinstance(error, EdgeError):
        message = f"{error}; {error.hint}" if error.hint else str(error)
        param = error.parameter if isinstance(error, Unsupported) else None
        return RequestProblem(_status(error), message, code=_code(error), param=param, headers=_headers(error))
    return RequestProblem(500, f"internal error ({type(error).__name__})", code="internal")


def _is_too_long(error: EdgeError) -> bool:
    """A prompt that the cloud LLM's context cannot hold: asking again is pointless, and it would leave the device again."""
    return isinstance(error, CoordinatorUnavailable) and error.metadata.get("cause") == "too_long"


def _status(error: EdgeError) -> int:
    if _is_too_long(error):
        return 400
    table: tuple[tuple[type[EdgeError], int], ...] = (
        (UsageError, 400),
        (ContextOverflow, 400),
        (InvalidRequest, 400),
        (NotFound, 404),
        (TooFewAnswers, 409),
        (BudgetExhausted, 429),
        (RateLimited, 429),
        (CoordinatorUnavailable, 503),
        (Withheld, 403),
    )
    return next((status for kind, status in table if isinstance(error, kind)), 500)


def _headers(error: EdgeError) -> dict[str, str]:
    """When asking again makes sense; clients of OpenAI's ask again by themselves unless a header forbids it."""
    rejected = isinstance(error, CoordinatorUnavailable) and error.reason == "UPSTREAM_REJECTED"
    if isinstance(error, BudgetExhausted) or rejected:
        return {"x-should-retry": "false"}
    wait_s = error.retry_after_s if isinstance(error, CoordinatorError) else None
    return {} if wait_s is None else {"retry-after": str(math.ceil(wait_s))}


def _code(error: EdgeError) -> str:
    """A word for programs: the coordinator's reason, or what kind of mistake it was."""
    if _is_too_long(error):
        return "context_length_exceeded"
    if isinstance(error, CoordinatorError):
        return error.reason.lower()
    if isinstance(error, ContextOverflow):
        return "context_length_exceeded"
    if isinstance(error, CloudOff):
        return CLOUD_OFF
    if isinstance(error, Unsupported):
        return "unsupported_parameter"
    if isinstance(error, TooFewAnswers):
        return "too_few_answers"
    return "invalid_value" if isinstance(error, UsageError) else "internal"


def _kind(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"
