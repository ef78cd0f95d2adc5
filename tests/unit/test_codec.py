"""Encoding and decoding give back the same values, bit for bit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.core.errors import InvalidRequest
from edge.core.types import Message, TokenUsage
from edge.rpc import codec
from edge.rpc.client import BudgetSnapshot, CloudCall, CloudCompletion, Registration, StepClosed, StepOpened, TaskTerms
from edge.rpc.v1 import call_pb2, device_pb2, step_pb2

TEXT = st.text(st.characters(codec="utf-8"), max_size=30)
NAME = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
REAL = st.floats(allow_nan=False)
LIMIT = st.none() | U64
BUDGET = st.builds(
    BudgetSnapshot,
    version=U64,
    dual=REAL,
    target_rate=REAL,
    calls=U64,
    calls_limit=LIMIT,
    tokens=U64,
    tokens_limit=LIMIT,
    spend_uusd=U64,
    spend_limit_uusd=LIMIT,
)
CALL = st.builds(
    CloudCall,
    call_key=TEXT,
    task=TEXT,
    step=st.integers(-1, 2**63),
    prompt_id=TEXT,
    help_units=U32,
    messages=st.lists(st.builds(Message, st.sampled_from(["system", "user", "assistant"]), TEXT), max_size=4).map(tuple),
    max_output_tokens=U32,
    model_alias=NAME,
    temperature=REAL,
)
COMPLETION = st.builds(
    CloudCompletion,
    call_key=TEXT,
    text=TEXT,
    usage=st.builds(TokenUsage, U64, U64),
    charged_uusd=U64,
    cached=st.booleans(),
    model=TEXT,
    budget=st.none() | BUDGET,
)


def over_the_wire(message):
    """What the other side parses from the bytes."""
    return type(message).FromString(message.SerializeToString())


@given(CALL)
def test_a_call_survives(call) -> None:
    assert codec.decode_call(over_the_wire(codec.encode_call(call))) == call


@given(COMPLETION)
def test_a_completion_survives_with_and_without_a_budget(completion) -> None:
    assert codec.decode_completion(over_the_wire(codec.encode_completion(completion))) == completion


@given(BUDGET)
def test_a_budget_survives_and_no_limit_is_not_a_limit_of_zero(budget) -> None:
    assert codec.decode_budget(over_the_wire(codec.encode_budget(budget))) == budget


@given(st.builds(StepOpened, task=TEXT, step=U64, dual=REAL, target_rate=REAL, call_credit=LIMIT))
def test_an_opened_step_survives(opened) -> None:
    assert codec.decode_step_opened(over_the_wire(codec.encode_step_opened(opened))) == opened


@given(
    st.builds(
        StepClosed,
        task=TEXT,
        step=U64,
        dual_before=REAL,
        dual_after=REAL,
        assist_rate=REAL,
        discrepancies=st.lists(TEXT, max_size=3).map(tuple),
    )
)
def test_a_closed_step_survives(closed) -> None:
    assert codec.decode_step_closed(over_the_wire(codec.encode_step_closed(closed))) == closed


@given(
    st.builds(
        Registration,
        device_id=TEXT,
        protocol_version=U32,
        tasks=st.lists(st.builds(TaskTerms, TEXT, REAL, REAL, U64), max_size=4).map(tuple),
    )
)
def test_a_registration_survives(registration) -> None:
    assert codec.decode_registration(over_the_wire(codec.encode_registration(registration))) == registration


@given(REAL)
def test_lambda_keeps_its_bits(dual) -> None:
    closed = over_the_wire(step_pb2.CloseStepResponse(dual_after=dual))
    assert closed.dual_after.hex() == dual.hex()


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="unknown role"):
        codec.decode_call(call_pb2.CompleteRequest(messages=[call_pb2.ChatMessage(content="hi")]))


def test_an_empty_alias_means_the_default_one() -> None:
    assert codec.decode_call(call_pb2.CompleteRequest()).model_alias == "default"


@pytest.mark.parametrize("message", [call_pb2.Role.DESCRIPTOR], ids=["Role"])
def test_enums_start_at_unspecified(message) -> None:
    assert message.values_by_number[0].name.endswith("_UNSPECIFIED")


def test_every_rpc_has_messages_of_its_own_name() -> None:
    service = device_pb2.DESCRIPTOR.services_by_name["DeviceService"]
    for method in service.methods:
        assert method.input_type.name == f"{method.name}Request"
        assert method.output_type.name == f"{method.name}Response"
