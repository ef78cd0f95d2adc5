"""Valid and invalid requests generated from the endpoint's description are sent to every route: no crash, and answers as described."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import CHECKS, load_all_checks

from edge.serve.access import LOOPBACK_NAMES
from edge.serve.chat_schemas import ANSWER_HEADERS
from edge.serve.endpoint import build_app
from edge.serve.ports import AnswerNote
from edge.testing.backend import ScriptedBackend
from edge.testing.clock import ManualClock
from edge.testing.endpoint import ScriptedAnswers, ScriptedControl

pytest_plugins = ("schemathesis.pytest.plugin",)
TOKEN = "a-token-of-enough-letters"
NOTE = AnswerNote("", "cloud", "asked", "stop", 11, 7, 1.25, 0.5, 3, None, 20, 99, 6, 0.4, "4", "math", 0.2, 0.3, 10)
ANSWERS = ScriptedAnswers(["<think>\na\n</think>\n<answer>", "\\boxed{4}", "</answer>"], note=NOTE)
CONTROL = ScriptedControl(ANSWERS)
CONTROL.log = [{"step": number, "assist_rate": 0.4, "target_rate": 0.3} for number in (1, 2)]
CONTROL.versions = [
    {
        "version": 2, "folder": "/none/step-2/adapter", "at": 0.0, "phase": 0, "task": "math", "source": "practice", "base": 1,
        "size_bytes": 2048, "gate": "", "gate_reason": "", "gate_before": None, "gate_after": None, "kept_accuracy": 0.8,
        "joint_accuracy": 0.9, "assist_rate": 0.25, "serving": True, "head": True, "on_line": True, "damage": "",
    }
]  # fmt: skip
TEXTS = ScriptedBackend(["some text"])
APP = build_app(ANSWERS, CONTROL, ManualClock(1000.0), names=(*LOOPBACK_NAMES, "testserver"), token=TOKEN, texts=TEXTS)
AUTHORIZED = {"authorization": f"Bearer {TOKEN}"}
SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", APP, headers=AUTHORIZED)
load_all_checks()
OVERSTATED = CHECKS.get_by_names(["positive_data_acceptance"])
"""The parsers refuse more than a schema can express: a last message that is the assistant's, a task that two places name differently."""
LENIENT = CHECKS.get_by_names(["negative_data_rejection"])
"""What nobody reads, a query of another name or a header, is nobody's mistake; bodies are read closely."""


@pytest.fixture(autouse=True)
def _little_to_remember() -> None:
    ANSWERS.asked.clear()


@SCHEMA.parametrize()
@settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_every_route_answers_as_described(case: schemathesis.Case) -> None:
    _of_a_known_model(case)
    response = case.call(headers=AUTHORIZED)
    assert response.status_code < 500
    excluded = OVERSTATED if list(case.operation.body) else [*OVERSTATED, *LENIENT]
    case.validate_response(response, headers=AUTHORIZED, excluded_checks=excluded)


def _of_a_known_model(case: schemathesis.Case) -> None:
    """Random model names would always be unknown; the description allows any name, so a known one is used."""
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
        case.body["model"] = "edge"


@SCHEMA.parametrize()
@settings(max_examples=3, deadline=None, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
def test_every_route_except_liveness_requires_the_token(case: schemathesis.Case) -> None:
    case.headers.pop("authorization", None)
    case.headers.pop("x-api-key", None)
    for headers in ({}, {"authorization": "Bearer other"}, {"authorization": TOKEN}, {"x-api-key": "other"}):
        response = case.call(headers=headers)
        assert response.status_code == (200 if case.operation.path == "/health" else 401)
    assert ANSWERS.asked == []


def test_the_description_names_no_422_and_its_errors_have_the_form_of_their_api() -> None:
    described = build_app(ANSWERS, CONTROL, ManualClock(), texts=TEXTS).app.openapi()
    for path, operations in described["paths"].items():
        for operation in operations.values():
            assert "422" not in operation["responses"], path
            refused = operation["responses"]["400"]["content"]["application/json"]["schema"]
            form = "AnthropicError" if path.startswith("/v1/messages") else "ErrorBody"
            assert refused == {"$ref": f"#/components/schemas/{form}"}
    assert set(described["paths"]["/v1/chat/completions"]["post"]["responses"]["200"]["headers"]) == set(ANSWER_HEADERS)
