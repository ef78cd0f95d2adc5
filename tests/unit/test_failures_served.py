"""Cloud failures as a client of the endpoint sees them: whether a retry makes sense, in terms of OpenAI's API."""

from __future__ import annotations

import pytest

from edge.core.errors import CoordinatorUnavailable
from edge.rpc.errors import from_status, to_status
from edge.serve.errors import problem_of


@pytest.mark.parametrize(
    ("reason", "cause", "status", "code", "headers"),
    [
        ("UPSTREAM_REJECTED", "too_long", 400, "context_length_exceeded", {"x-should-retry": "false"}),
        ("UPSTREAM_REJECTED", "http_422", 503, "upstream_rejected", {"x-should-retry": "false"}),
        ("UPSTREAM_FAILED", "http_500", 503, "upstream_failed", {}),
    ],
)
def test_permanent_cloud_refusal_is_not_retried_by_clients(
    reason: str, cause: str, status: int, code: str, headers: dict[str, str]
) -> None:
    error = from_status(to_status(CoordinatorUnavailable("not answered", reason=reason, metadata={"cause": cause})))
    problem = problem_of(error)
    assert (problem.status, problem.code) == (status, code)
    assert {name: value for name, value in problem.headers.items() if name == "x-should-retry"} == headers
