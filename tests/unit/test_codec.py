"""Encoding and decoding return the same values, bit for bit; and the wire only grows: no number of a field, method or enum value is ever
used for something else.

`wire.json` next to this file lists what was released. A new field or method is added there in the same change; nothing in it may be altered
or removed."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given
from hypothesis import strategies as st

from edge.core.errors import InvalidRequest
from edge.core.types import Message, TokenUsage
from edge.rpc import codec
from edge.rpc.client import (
    BudgetSnapshot,
    CallProgress,
    CancelledCall,
    CloudCall,
    CloudCompletion,
    Registration,
    StepClosed,
    StepOpened,
    TaskTerms,
)
from edge.rpc.v1 import admin_pb2, budget_pb2, call_pb2, credential_pb2, device_pb2, step_pb2

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
    temperature=st.none() | REAL,
    openai_json=TEXT,
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
    openai_json=TEXT,
)


def over_the_wire(message):
    """The values that the other side parses from the bytes."""
    return type(message).FromString(message.SerializeToString())


OPENED = st.builds(StepOpened, task=TEXT, step=U64, dual=REAL, target_rate=REAL, call_credit=LIMIT)
CLOSED = st.builds(
    StepClosed,
    task=TEXT,
    step=U64,
    dual_before=REAL,
    dual_after=REAL,
    assist_rate=REAL,
    discrepancies=st.lists(TEXT, max_size=3).map(tuple),
)
REGISTRATION = st.builds(
    Registration,
    device_id=TEXT,
    protocol_version=U32,
    tasks=st.lists(st.builds(TaskTerms, TEXT, REAL, REAL, U64), max_size=4).map(tuple),
)
CANCELLED = st.builds(CancelledCall, TEXT, st.sampled_from(CallProgress), U64)
VALUES = {
    "call": (CALL, codec.encode_call, codec.decode_call),
    "completion": (COMPLETION, codec.encode_completion, codec.decode_completion),
    "budget": (BUDGET, partial(codec.to_message, budget_pb2.BudgetSnapshot), partial(codec.to_value, BudgetSnapshot)),
    "opened step": (OPENED, partial(codec.to_message, step_pb2.OpenStepResponse), partial(codec.to_value, StepOpened)),
    "closed step": (CLOSED, partial(codec.to_message, step_pb2.CloseStepResponse), partial(codec.to_value, StepClosed)),
    "registration": (REGISTRATION, codec.encode_registration, codec.decode_registration),
    "cancelled call": (CANCELLED, codec.encode_cancelled, codec.decode_cancelled),
}


@pytest.mark.parametrize(("values", "encode", "decode"), VALUES.values(), ids=VALUES)
@given(data=st.data())
def test_a_value_survives_the_wire(values, encode, decode, data) -> None:
    """Also a limit of none, which is not a limit of zero, and every bit of λ."""
    value = data.draw(values)
    assert decode(over_the_wire(encode(value))) == value


def test_state_of_a_later_version_does_not_mean_the_call_is_over() -> None:
    assert codec.decode_cancelled(call_pb2.CancelCallResponse(state=99)).progress is CallProgress.RUNNING


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="unknown role"):
        codec.decode_call(call_pb2.CompleteRequest(messages=[call_pb2.ChatMessage(content="hi")]))


def test_an_empty_alias_means_the_default_one() -> None:
    assert codec.decode_call(call_pb2.CompleteRequest()).model_alias == "default"


RELEASED = Path(__file__).parent / "wire.json"
FILES = (admin_pb2, budget_pb2, call_pb2, credential_pb2, device_pb2, step_pb2)


def _type_of(field: FieldDescriptor) -> str:
    named = field.message_type or field.enum_type
    kind = named.full_name if named is not None else f"type {field.type}"
    return f"repeated {kind}" if field.is_repeated else f"optional {kind}" if field.has_presence else kind


def wire() -> dict[str, Any]:
    """Every message, enum and method as it travels."""
    fields: dict[str, Any] = {}
    for file in FILES:
        described = file.DESCRIPTOR
        for message in described.message_types_by_name.values():
            fields[message.full_name] = {f"{field.number} {field.name}": _type_of(field) for field in message.fields}
        for enum in described.enum_types_by_name.values():
            fields[enum.full_name] = {value.name: str(value.number) for value in enum.values}
        for service in described.services_by_name.values():
            fields[service.full_name] = {method.name: _kind_of(method) for method in service.methods}
    return fields


def _kind_of(method: Any) -> str:
    stream = "stream " if method.server_streaming else ""
    return f"{method.input_type.name} -> {stream}{method.output_type.name}"


def test_every_released_field_still_exists_and_the_list_is_complete() -> None:
    assert json.loads(RELEASED.read_text()) == wire()
