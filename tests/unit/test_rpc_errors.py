"""The error table is a bijection, and every error survives the wire."""

from __future__ import annotations

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from coordinator.endpoint.requests import BadParameter
from coordinator.service.http_server import HttpProblem
from edge.core import errors
from edge.rpc.errors import (
    BY_REASON,
    DOMAIN,
    TABLE,
    from_rpc_error,
    from_status,
    is_worth_retrying,
    row_for,
    to_status,
    trailing_metadata,
)

WIRE_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=40)


def all_error_classes() -> set[type[errors.CoordinatorError]]:
    """Those of the shared tree; what a service derives from them in its own modules travels as its parent."""
    found, todo = set(), [errors.CoordinatorError]
    while todo:
        found.add(current := todo.pop())
        todo += [each for each in current.__subclasses__() if each.__module__ == errors.__name__]
    return found


def test_an_error_that_a_service_derives_travels_as_its_parent() -> None:
    for error in (BadParameter("n", "is 2"), HttpProblem(413, "too large")):
        assert row_for(error).reason == "INVALID_REQUEST"


def test_every_error_class_has_exactly_one_row_under_its_reason() -> None:
    assert len({row.reason for row in TABLE}) == len(TABLE) == len(BY_REASON)
    assert {row.error for row in TABLE} == all_error_classes()
    assert all(BY_REASON[error.reason].error is error for error in all_error_classes())


def test_only_unavailable_is_retried_with_the_same_key() -> None:
    retryable = {row.reason for row in TABLE if is_worth_retrying(row.error("x", reason=row.reason))}
    sent_by_the_service = {"OVERLOADED", "DRAINING", "UPSTREAM_OPEN", "UPSTREAM_FAILED", "LEDGER_UNAVAILABLE"}
    assert retryable == sent_by_the_service | {"CONNECTION_LOST"}
    assert all(BY_REASON[reason].code is grpc.StatusCode.UNAVAILABLE for reason in retryable)


@pytest.mark.parametrize("delay_s", [float("inf"), 1e300, 1e19, float("nan"), -5.0])
def test_delay_beyond_a_duration_is_sent_as_a_month_or_not_at_all(delay_s: float) -> None:
    got = from_status(to_status(errors.CoordinatorUnavailable("x", retry_after_s=delay_s)))
    assert got.retry_after_s == (31 * 86400.0 if delay_s > 0.0 else 0.0)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.reason)
def test_decoding_an_encoded_error_gives_the_same_error(row) -> None:
    sent = row.error("it broke", hint="do this", reason=row.reason, retry_after_s=1.25, metadata={"expected_step": "7"})
    status, info = to_status(sent), error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info) and (info.reason, info.domain) == (row.reason, DOMAIN)
    got = from_status(status)
    assert (type(got), got.reason, str(got), got.hint) == (row.error, row.reason, "it broke", "do this")
    assert (got.retry_after_s, got.metadata) == (1.25, {"expected_step": "7"})


@given(
    row=st.sampled_from(TABLE), message=WIRE_TEXT, metadata=st.dictionaries(WIRE_TEXT.filter(lambda k: k != "hint"), WIRE_TEXT)
)
def test_any_message_and_metadata_survive_as_one_line(row, message, metadata) -> None:
    got = from_status(to_status(row.error(message, reason=row.reason, metadata=metadata)))
    assert got.metadata == metadata and got.retry_after_s == row.retry_after_s
    assert str(got) == (" ".join(message.split()) or row.reason)


def test_exhausted_budget_is_named_in_quota_failure() -> None:
    status = to_status(errors.BudgetExhausted("device calls are used up", metadata={"budget": "device:local/calls"}))
    quota = error_details_pb2.QuotaFailure()
    assert any(detail.Unpack(quota) for detail in status.details)
    assert quota.violations[0].subject == "device:local/calls"


SPECIFIED = [  # reason, code, whether RetryInfo has a retry delay
    ("BUDGET_EXHAUSTED", grpc.StatusCode.RESOURCE_EXHAUSTED, False),
    ("RATE_LIMITED", grpc.StatusCode.RESOURCE_EXHAUSTED, True),
    ("OVERLOADED", grpc.StatusCode.UNAVAILABLE, True),
    ("DRAINING", grpc.StatusCode.UNAVAILABLE, True),
    ("UPSTREAM_OPEN", grpc.StatusCode.UNAVAILABLE, True),
    ("LEDGER_UNAVAILABLE", grpc.StatusCode.UNAVAILABLE, True),
    ("UPSTREAM_FAILED", grpc.StatusCode.UNAVAILABLE, False),
    ("OUTCOME_UNKNOWN", grpc.StatusCode.ABORTED, False),
    ("KEY_REUSED", grpc.StatusCode.INVALID_ARGUMENT, False),
    ("IN_PROGRESS", grpc.StatusCode.ABORTED, True),
    ("STEP_MISMATCH", grpc.StatusCode.FAILED_PRECONDITION, False),
    ("UNPRICED", grpc.StatusCode.FAILED_PRECONDITION, False),
    ("INVALID_REQUEST", grpc.StatusCode.INVALID_ARGUMENT, False),
    ("UNAUTHENTICATED", grpc.StatusCode.UNAUTHENTICATED, False),
    ("PERMISSION_DENIED", grpc.StatusCode.PERMISSION_DENIED, False),
    ("UNIMPLEMENTED", grpc.StatusCode.UNIMPLEMENTED, False),
    ("CALL_CANCELLED", grpc.StatusCode.CANCELLED, False),
]


@pytest.mark.parametrize(("reason", "code", "has_retry_info"), SPECIFIED, ids=lambda value: str(value))
def test_each_case_has_its_code_and_retry_delay(reason, code, has_retry_info) -> None:
    row = BY_REASON[reason]
    status, retry = to_status(row.error("x", reason=reason)), error_details_pb2.RetryInfo()
    assert status.code == code.value[0]
    assert any(detail.Unpack(retry) for detail in status.details if detail.Is(retry.DESCRIPTOR)) is has_retry_info


@given(code=st.integers(-3, 40), reason=st.sampled_from(["", "NONSENSE", *BY_REASON]))
def test_an_unknown_status_still_becomes_a_coordinator_error(code, reason) -> None:
    status = status_pb2.Status(code=code, message="odd")
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN))
    assert isinstance(from_status(status), errors.CoordinatorError)


def test_error_info_of_another_domain_is_ignored() -> None:
    status = status_pb2.Status(code=grpc.StatusCode.UNAVAILABLE.value[0], message="proxy")
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason="OVERLOADED", domain="proxy.example"))
    assert from_status(status).reason == "CONNECTION_LOST"
    for bare in grpc.StatusCode:
        error = from_rpc_error(grpc.aio.AioRpcError(bare, grpc.aio.Metadata(), grpc.aio.Metadata(), details="gone"))
        assert isinstance(error, errors.CoordinatorError)


def test_details_are_in_trailing_metadata_and_garbage_there_is_ignored() -> None:
    status = to_status(errors.StepMismatch("stale", metadata={"expected_step": "3"}))
    good = grpc.aio.AioRpcError(
        grpc.StatusCode.FAILED_PRECONDITION, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing_metadata(status)), details="stale"
    )
    decoded = from_rpc_error(good)
    assert isinstance(decoded, errors.StepMismatch) and decoded.expected_step == 3
    bad = grpc.aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE,
        grpc.aio.Metadata(),
        grpc.aio.Metadata(("grpc-status-details-bin", b"\xff\xff")),
        details="cut",
    )
    assert from_rpc_error(bad).reason == "CONNECTION_LOST"
