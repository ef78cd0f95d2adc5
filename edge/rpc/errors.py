"""One table: what went wrong <-> how it travels.

Every error leaves the service with `google.rpc.ErrorInfo{reason, domain, metadata}`; `RetryInfo` where a delay is known and `QuotaFailure`
where a budget is gone. A reason belongs to exactly one (class, code); a class may have several reasons. UNREACHABLE (nothing was sent),
CONNECTION_LOST (sent, no reply), REPLY_LOST (the same, and nobody may say what became of it), DEADLINE_EXCEEDED and WITHHELD (kept on the
device) are what a client finds out by itself; the service never sends them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc import StatusCode

from edge.core import errors

DOMAIN = "edge.rpc.v1"
DETAILS_KEY = "grpc-status-details-bin"
MAX_MESSAGE_CHARS = 1000
MAX_RETRY_AFTER_S = 31 * 86400.0
"""A month, the longest window of a budget."""


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """One kind of failure: the reason on the wire, its class here, its status code.

    `retry_after_s` is what RetryInfo states where the error itself knows no delay; None: no RetryInfo then.
    """

    reason: str
    error: type[errors.CoordinatorError]
    code: StatusCode
    retry_after_s: float | None = None


TABLE: tuple[ErrorRow, ...] = (
    ErrorRow("BUDGET_EXHAUSTED", errors.BudgetExhausted, StatusCode.RESOURCE_EXHAUSTED),
    ErrorRow("RATE_LIMITED", errors.RateLimited, StatusCode.RESOURCE_EXHAUSTED, 1.0),
    ErrorRow("OVERLOADED", errors.CoordinatorUnavailable, StatusCode.UNAVAILABLE, 1.0),
    ErrorRow("DRAINING", errors.CoordinatorUnavailable, StatusCode.UNAVAILABLE, 1.0),
    ErrorRow("UPSTREAM_OPEN", errors.CoordinatorUnavailable, StatusCode.UNAVAILABLE, 1.0),
    ErrorRow("UPSTREAM_FAILED", errors.CoordinatorUnavailable, StatusCode.UNAVAILABLE),
    ErrorRow("UPSTREAM_REJECTED", errors.CoordinatorUnavailable, StatusCode.FAILED_PRECONDITION),
    ErrorRow("LEDGER_UNAVAILABLE", errors.CoordinatorUnavailable, StatusCode.UNAVAILABLE, 1.0),
    ErrorRow("UNREACHABLE", errors.CoordinatorUnavailable, StatusCode.UNAVAILABLE),
    ErrorRow("CONNECTION_LOST", errors.CoordinatorUnavailable, StatusCode.UNAVAILABLE),
    ErrorRow("DEADLINE_EXCEEDED", errors.CoordinatorUnavailable, StatusCode.DEADLINE_EXCEEDED),
    ErrorRow("OUTCOME_UNKNOWN", errors.OutcomeUnknown, StatusCode.ABORTED),
    ErrorRow("REPLY_LOST", errors.OutcomeUnknown, StatusCode.ABORTED),
    ErrorRow("IN_PROGRESS", errors.CallInProgress, StatusCode.ABORTED, 0.5),
    ErrorRow("CALL_CANCELLED", errors.CallCancelled, StatusCode.CANCELLED),
    ErrorRow("KEY_REUSED", errors.KeyReused, StatusCode.INVALID_ARGUMENT),
    ErrorRow("INVALID_REQUEST", errors.InvalidRequest, StatusCode.INVALID_ARGUMENT),
    ErrorRow("STEP_MISMATCH", errors.StepMismatch, StatusCode.FAILED_PRECONDITION),
    ErrorRow("UNPRICED", errors.Unpriced, StatusCode.FAILED_PRECONDITION),
    ErrorRow("NOT_FOUND", errors.NotFound, StatusCode.NOT_FOUND),
    ErrorRow("UNIMPLEMENTED", errors.NotImplementedThere, StatusCode.UNIMPLEMENTED),
    ErrorRow("UNAUTHENTICATED", errors.Unauthenticated, StatusCode.UNAUTHENTICATED),
    ErrorRow("PERMISSION_DENIED", errors.PermissionDenied, StatusCode.PERMISSION_DENIED),
    ErrorRow("DEVICE_DISABLED", errors.PermissionDenied, StatusCode.PERMISSION_DENIED),
    ErrorRow("WITHHELD", errors.Withheld, StatusCode.FAILED_PRECONDITION),
    ErrorRow("KEYS_NOT_SHARED", errors.CoordinatorError, StatusCode.FAILED_PRECONDITION),
    ErrorRow("INTERNAL", errors.CoordinatorError, StatusCode.INTERNAL),
)
BY_REASON = {row.reason: row for row in TABLE}
# What a bare status means when no ErrorInfo came along: written by gRPC itself or by a proxy, not by the coordinator.
BARE_CODES = {
    StatusCode.UNAVAILABLE: "CONNECTION_LOST",
    StatusCode.CANCELLED: "CONNECTION_LOST",  # the server stopped under the call; a local cancel is asyncio.CancelledError instead
    StatusCode.DEADLINE_EXCEEDED: "DEADLINE_EXCEEDED",
    StatusCode.RESOURCE_EXHAUSTED: "INVALID_REQUEST",  # gRPC's own use: a message over the size limit
    StatusCode.INVALID_ARGUMENT: "INVALID_REQUEST",
    StatusCode.NOT_FOUND: "NOT_FOUND",
    StatusCode.UNIMPLEMENTED: "UNIMPLEMENTED",
    StatusCode.UNAUTHENTICATED: "UNAUTHENTICATED",
    StatusCode.PERMISSION_DENIED: "PERMISSION_DENIED",
}
_CODE_BY_NUMBER: dict[int, StatusCode] = {code.value[0]: code for code in StatusCode}


def is_worth_retrying(error: errors.CoordinatorError) -> bool:
    """True for what travels as UNAVAILABLE, except that a coordinator which cannot be connected to was waited for already."""
    row = row_for(error)
    return row.code is StatusCode.UNAVAILABLE and row.reason != "UNREACHABLE"


def row_for(error: errors.CoordinatorError) -> ErrorRow:
    """The table row of an error; one whose reason belongs to another class travels as its class's own reason."""
    row = BY_REASON.get(error.reason)
    if row is not None and row.error is type(error):
        return row
    return BY_REASON[type(error).reason]


def to_status(error: errors.CoordinatorError) -> status_pb2.Status:
    """The google.rpc.Status of an error, with its details."""
    row, message = row_for(error), _one_line(str(error))
    metadata = {**error.metadata, **({"hint": error.hint} if error.hint else {})}
    details: list[Any] = [error_details_pb2.ErrorInfo(reason=row.reason, domain=DOMAIN, metadata=metadata)]
    retry_after_s = row.retry_after_s if error.retry_after_s is None else error.retry_after_s
    if retry_after_s is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(round(_bounded(retry_after_s) * 1e9))
        details.append(retry)
    if isinstance(error, errors.BudgetExhausted):
        violation = error_details_pb2.QuotaFailure.Violation(subject=error.metadata.get("budget", ""), description=message)
        details.append(error_details_pb2.QuotaFailure(violations=[violation]))
    status = status_pb2.Status(code=row.code.value[0], message=message)
    for detail in details:
        status.details.add().Pack(detail)
    return status


def from_status(status: status_pb2.Status) -> errors.CoordinatorError:
    """The error that a google.rpc.Status describes. Never raises: an unknown reason falls back to the code."""
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    has_info = _unpack(status, info) and info.domain == DOMAIN
    retry_after_s = _bounded(retry.retry_delay.ToNanoseconds() / 1e9) if _unpack(status, retry) else None
    code = _CODE_BY_NUMBER.get(status.code, StatusCode.INTERNAL)
    row = BY_REASON.get(info.reason) if has_info else None
    if row is None or row.code is not code:
        row = BY_REASON[BARE_CODES.get(code, "INTERNAL")]
    metadata = dict(info.metadata) if has_info else {}
    hint = metadata.pop("hint", "")
    message = status.message or row.reason
    return row.error(message, hint=hint, reason=row.reason, retry_after_s=retry_after_s, metadata=metadata)


def trailing_metadata(status: status_pb2.Status) -> tuple[tuple[str, bytes], ...]:
    """The metadata that carries the details in addition to code and message."""
    return ((DETAILS_KEY, status.SerializeToString()),)


def from_rpc_error(error: grpc.RpcError) -> errors.CoordinatorError:
    """The typed error of a failed RPC (grpc.aio.AioRpcError); the cause is for the caller to keep with `from`."""
    failed: Any = error
    for key, value in failed.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            with suppress(DecodeError):
                return from_status(status_pb2.Status.FromString(value))
            break
    code, details = failed.code(), failed.details()
    return from_status(status_pb2.Status(code=code.value[0], message=_one_line(details or code.name)))


def _bounded(retry_after_s: float) -> float:
    """A delay in seconds between none and the longest; what is no number is none."""
    return min(max(0.0, retry_after_s), MAX_RETRY_AFTER_S)


def _unpack(status: status_pb2.Status, into: Any) -> bool:
    return any(detail.Is(into.DESCRIPTOR) and detail.Unpack(into) for detail in status.details)


def _one_line(text: str) -> str:
    return " ".join(text.split())[:MAX_MESSAGE_CHARS]
