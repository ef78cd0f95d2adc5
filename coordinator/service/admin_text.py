"""What the AdminService lists, for people and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from google.protobuf.json_format import MessageToDict

from edge.core.errors import UsageError
from edge.core.formatting import money, practice_note
from edge.rpc import codec
from edge.rpc.client import CallProgress
from edge.rpc.v1 import admin_pb2, call_pb2

_LISTABLE = tuple(progress for progress in CallProgress if progress is not CallProgress.DROPPED)

_BREAKER_TEXTS = {"open": "open: it failed and is not asked now", "half_open": "half open: one call tries it"}


def as_json(record: Any) -> dict[str, Any]:
    """A record under its fields' own names; states as words, numbers as numbers."""
    fields = MessageToDict(record, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    return {name: _plain(record, name, value) for name, value in fields.items()}


def records_of(reply: Any) -> Sequence[Any]:
    """The records of one page."""
    name = next(field.name for field in reply.DESCRIPTOR.fields if field.message_type is not None)
    return list(getattr(reply, name))


def device_line(device: admin_pb2.DeviceRecord) -> str:
    """One device."""
    tasks = ", ".join(device.tasks) or "no task"
    seen = f"last seen {_moment(device.last_seen_ms)}" if device.last_seen_ms else "never seen"
    seen += ", disabled" if device.disabled else ""
    return f"{device.device}: agent {device.agent_version or 'unknown'}, {tasks}, {seen}"


def call_line(call: admin_pb2.CallRecord) -> str:
    """One call."""
    where = f"step {call.step}" if call.HasField("step") else "serving"
    state = _state_word(call.state) + (f" ({call.reason})" if call.reason else "")
    cost = money(call.charged.uusd) + (" (cached)" if call.cached else "")
    asked = f"{call.model}, " if call.model else ""
    return f"{call.device} {call.call_key}: {call.task}, {where}, {asked}{state}, {cost}, {_moment(call.updated_ms)}"


def upstream_line(upstream: admin_pb2.UpstreamRecord) -> str:
    """One upstream with its price."""
    cost, price = "no price, so its calls are refused", upstream.price
    if upstream.HasField("price"):
        cost = f"{money(price.in_uusd_per_mtok)} / {money(price.out_uusd_per_mtok)} per million tokens in / out"
    return (
        f"{upstream.alias}: {upstream.model}{practice_note(upstream.model)}, {cost}, {upstream.waiting} waiting"
        f", breaker {_BREAKER_TEXTS.get(upstream.breaker, 'closed')}"
    )


def call_state_of(word: str | None) -> call_pb2.CallState:
    """The state a person wrote; None: all. Raises UsageError."""
    if word is None:
        return call_pb2.CALL_STATE_UNSPECIFIED
    if word not in _LISTABLE:
        raise UsageError(f"no call is in state {word!r}; known: {', '.join(_LISTABLE)}")
    return codec.encode_progress(CallProgress(word))


def _state_word(wire: int) -> str:
    return str(codec.decode_progress(wire) or "unknown")


def _plain(record: Any, name: str, value: Any) -> Any:
    """Undo what JSON of protobuf does to 64-bit numbers and enums."""
    field = record.DESCRIPTOR.fields_by_name[name]
    if field.enum_type is not None:
        return _state_word(getattr(record, name))
    if field.message_type is not None and isinstance(value, dict):
        return as_json(getattr(record, name))
    return int(value) if isinstance(value, str) and field.type in (field.TYPE_UINT64, field.TYPE_INT64) else value


def _moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
