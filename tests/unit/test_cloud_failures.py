"""Errors of the cloud: what a person does next, and whether a client's retry makes sense."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.app.settings import cloud_place
from edge.config.schema import AgentConfig
from edge.core.errors import CoordinatorError, CoordinatorUnavailable, OutcomeUnknown, RateLimited
from edge.core.types import Message
from edge.rpc.errors import from_status, to_status
from edge.serve.errors import problem_of
from edge.state.answer_record import AnswerRequest
from tests.worlds.agent import World

PROVIDER = {"upstream": "openai_compatible", "base_url": "https://me:secret@cloud.example/v1", "api_key_env": "CLOUD_KEY"}


def upstream_error(cause: str) -> CoordinatorUnavailable:
    return CoordinatorUnavailable("the cloud LLM did not take the call", reason="UPSTREAM_FAILED", metadata={"cause": cause})


@pytest.mark.parametrize(
    "error",
    [
        upstream_error("refused"),
        CoordinatorUnavailable("gone", reason="CONNECTION_LOST"),
        OutcomeUnknown("cut"),
        RateLimited("soon"),
    ],
    ids=lambda error: error.reason,
)
async def test_who_demanded_the_cloud_is_told_what_to_do_next(tmp_path: Path, error: CoordinatorError) -> None:
    world = World(tmp_path / "state")
    world.client.fail_next("stream_complete", error)
    async with world.agent() as agent:
        with pytest.raises(type(error)) as raised:
            await agent.answerer.answer(AnswerRequest((Message("user", "What is 4 + 1?"),), mode="cloud-only"))
    assert raised.value.hint


@pytest.mark.parametrize(
    ("coordinator", "error", "named"),
    [
        ({"embedded": PROVIDER}, upstream_error("refused"), "https://cloud.example/v1"),
        ({"embedded": PROVIDER}, upstream_error("http_401"), "$CLOUD_KEY"),
        ({"embedded": {**PROVIDER, "api_key_env": None}}, upstream_error("http_401"), "coordinator.embedded.api_key_env"),
        ({"embedded": PROVIDER}, CoordinatorUnavailable("gone", hint="is it running there?"), "coordinator.log"),
        ({"address": "10.0.0.7:8443"}, upstream_error("http_401"), "10.0.0.7:8443"),
        ({"address": "10.0.0.7:8443"}, CoordinatorUnavailable("gone", hint="is it running there?"), "running there"),
    ],
)
def test_it_names_the_address_or_the_variable_of_the_key_and_no_secret(
    coordinator: dict[str, object], error: CoordinatorError, named: str
) -> None:
    advice = cloud_place(AgentConfig.model_validate({"coordinator": coordinator})).what_next(error)
    assert named in advice and "secret" not in advice


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
