"""The messages of requests that left, for people. Knows which message belongs to which method; knows nothing of where they are kept."""

from __future__ import annotations

import base64
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as WireMessage

from edge.agent.sent import SentEntry
from edge.rpc.v1 import budget_pb2, call_pb2, device_pb2, step_pb2

_MESSAGES: dict[str, type[WireMessage]] = {
    "Complete": call_pb2.CompleteRequest,
    "StreamComplete": call_pb2.CompleteRequest,
    "CompleteBatch": call_pb2.CompleteRequest,
    "GetCall": call_pb2.GetCallRequest,
    "CancelCall": call_pb2.CancelCallRequest,
    "GetBudget": budget_pb2.GetBudgetRequest,
    "WatchBudget": budget_pb2.WatchBudgetRequest,
    "RegisterDevice": device_pb2.RegisterDeviceRequest,
    "OpenStep": step_pb2.OpenStepRequest,
    "CloseStep": step_pb2.CloseStepRequest,
}


def entry_json(entry: SentEntry, message: bytes) -> dict[str, Any]:
    """An entry with its content: `payload` as a JSON object (None: not readable any more), `payload_base64` the very bytes."""
    return {
        **entry.to_json(),
        "payload": decoded(entry.method, message),
        "payload_base64": base64.b64encode(message).decode("ascii"),
    }


def decoded(method: str, message: bytes) -> dict[str, Any] | None:
    """A message as a JSON object; None for one of a method, or in a form, that is not known here."""
    kind = _MESSAGES.get(method)
    if kind is None:
        return None
    try:
        value: dict[str, Any] = MessageToDict(kind.FromString(message), preserving_proto_field_name=True)
    except DecodeError:
        return None
    return value
