"""What a client of the endpoint is told of a failure: whether asking again makes sense, in the words of OpenAI's API."""

from __future__ import annotations

from edge.core.errors import CoordinatorUnavailable
from edge.rpc.errors import from_status, to_status
from edge.serve.errors import problem_of


def rejected(cause: str) -> CoordinatorUnavailable:
    """As it arrives on the wire."""
    error = CoordinatorUnavailable("the cloud LLM did not take the call", reason="UPSTREAM_REJECTED", metadata={"cause": cause})
    arrived = from_status(to_status(error))
    assert isinstance(arrived, CoordinatorUnavailable)
    return arrived


def test_a_prompt_that_the_cloud_cannot_hold_is_the_requests_fault() -> None:
    problem = problem_of(rejected("too_long"))
    assert (problem.status, problem.code) == (400, "context_length_exceeded")
    assert problem.body()["error"]["type"] == "invalid_request_error"
    assert problem.headers == {"x-should-retry": "false"}


def test_what_the_cloud_refuses_for_good_is_not_asked_again_by_clients() -> None:
    assert problem_of(rejected("http_422")).headers == {"x-should-retry": "false"}
    assert "x-should-retry" not in problem_of(CoordinatorUnavailable("busy", reason="UPSTREAM_FAILED")).headers
