"""The wire only grows: no number of a field, method or enum value is ever used for something else.

`wire.json` next to this file lists what was released. A new field or method is added there in the same change; nothing in it may be altered
or removed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from edge.rpc.v1 import admin_pb2, budget_pb2, call_pb2, credential_pb2, device_pb2, step_pb2

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
