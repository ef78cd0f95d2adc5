"""Messages <-> the values of edge/rpc/client.py.

`step` -1 (outside training) travels as an absent field; a limit that is None travels as an absent field; λ travels as binary64, so
encoding and decoding give back the same bits. Decoders raise InvalidRequest on a message that cannot be a value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from edge.core.errors import InvalidRequest
from edge.core.types import Message, Role, TokenUsage
from edge.rpc.client import (
    BudgetSnapshot,
    CallProgress,
    CancelledCall,
    CloudCall,
    CloudCompletion,
    Registration,
    StepUnits,
    TaskTerms,
)
from edge.rpc.v1 import budget_pb2, call_pb2, device_pb2, step_pb2

MessageT = TypeVar("MessageT")
ValueT = TypeVar("ValueT")
PROTOCOL_VERSION = 1
DEFAULT_ALIAS = "default"
_ROLE_TO_WIRE: dict[Role, call_pb2.Role] = {
    "system": call_pb2.ROLE_SYSTEM,
    "user": call_pb2.ROLE_USER,
    "assistant": call_pb2.ROLE_ASSISTANT,
}
_PROGRESS_TO_WIRE: dict[CallProgress, call_pb2.CallState] = {
    CallProgress.DROPPED: call_pb2.CALL_STATE_DROPPED,
    CallProgress.RUNNING: call_pb2.CALL_STATE_RUNNING,
    CallProgress.COMPLETED: call_pb2.CALL_STATE_COMPLETED,
    CallProgress.REFUNDED: call_pb2.CALL_STATE_REFUNDED,
    CallProgress.FAILED: call_pb2.CALL_STATE_FAILED,
    CallProgress.IN_DOUBT: call_pb2.CALL_STATE_IN_DOUBT,
}
_PROGRESS_FROM_WIRE: dict[int, CallProgress] = {wire: progress for progress, wire in _PROGRESS_TO_WIRE.items()}
_ROLE_FROM_WIRE: dict[int, Role] = {wire: role for role, wire in _ROLE_TO_WIRE.items()}


def encode_call(call: CloudCall) -> call_pb2.CompleteRequest:
    """The request for one cloud call. Raises ValueError or TypeError on a value the wire cannot carry."""
    return call_pb2.CompleteRequest(
        call_key=call.call_key,
        task=call.task,
        step=None if call.step < 0 else call.step,
        prompt_id=call.prompt_id,
        help_units=call.help_units,
        model_alias=call.model_alias,
        messages=[call_pb2.ChatMessage(role=_ROLE_TO_WIRE[turn.role], content=turn.content) for turn in call.messages],
        max_output_tokens=call.max_output_tokens,
        sampling=call_pb2.SamplingOptions(temperature=call.temperature),
        openai_json=call.openai_json,
    )


def decode_call(request: call_pb2.CompleteRequest) -> CloudCall:
    """The call that a request describes. Raises InvalidRequest on an unknown role."""
    if unknown := [turn.role for turn in request.messages if turn.role not in _ROLE_FROM_WIRE]:
        raise InvalidRequest(f"a message has the unknown role {unknown[0]}")
    return CloudCall(
        call_key=request.call_key,
        task=request.task,
        step=request.step if request.HasField("step") else -1,
        prompt_id=request.prompt_id,
        help_units=request.help_units,
        messages=tuple(Message(_ROLE_FROM_WIRE[turn.role], turn.content) for turn in request.messages),
        max_output_tokens=request.max_output_tokens,
        model_alias=request.model_alias or DEFAULT_ALIAS,
        temperature=request.sampling.temperature if request.sampling.HasField("temperature") else None,
        openai_json=request.openai_json,
    )


def encode_completion(completion: CloudCompletion) -> call_pb2.CompleteResponse:
    """The reply that carries a completion and, where known, the budget after it."""
    return call_pb2.CompleteResponse(
        completion=call_pb2.Completion(
            call_key=completion.call_key,
            text=completion.text,
            usage=call_pb2.TokenUsage(input_tokens=completion.usage.input_tokens, output_tokens=completion.usage.output_tokens),
            charged_uusd=completion.charged_uusd,
            cached=completion.cached,
            model=completion.model,
            openai_json=completion.openai_json,
        ),
        budget=None if completion.budget is None else to_message(budget_pb2.BudgetSnapshot, completion.budget),
    )


def decode_completion(response: call_pb2.CompleteResponse | call_pb2.GetCallResponse) -> CloudCompletion:
    """The completion of a reply to Complete or GetCall."""
    wire = response.completion
    return CloudCompletion(
        call_key=wire.call_key,
        text=wire.text,
        usage=TokenUsage(wire.usage.input_tokens, wire.usage.output_tokens),
        charged_uusd=wire.charged_uusd,
        cached=wire.cached,
        model=wire.model,
        budget=to_value(BudgetSnapshot, response.budget) if response.HasField("budget") else None,
        openai_json=wire.openai_json,
    )


def encode_cancelled(cancelled: CancelledCall) -> call_pb2.CancelCallResponse:
    """The reply to CancelCall."""
    return call_pb2.CancelCallResponse(
        call_key=cancelled.call_key, state=_PROGRESS_TO_WIRE[cancelled.progress], charged_uusd=cancelled.charged_uusd
    )


def decode_cancelled(response: call_pb2.CancelCallResponse) -> CancelledCall:
    """What became of a cancelled call; a state of a later version counts as RUNNING."""
    progress = _PROGRESS_FROM_WIRE.get(response.state, CallProgress.RUNNING)
    return CancelledCall(response.call_key, progress, response.charged_uusd)


def encode_progress(progress: CallProgress) -> call_pb2.CallState:
    """A call's state on the wire."""
    return _PROGRESS_TO_WIRE[progress]


def decode_progress(wire: int) -> CallProgress | None:
    """The state that a number means; None for unspecified. Raises InvalidRequest on an unknown one."""
    if wire == call_pb2.CALL_STATE_UNSPECIFIED:
        return None
    if wire not in _PROGRESS_FROM_WIRE:
        raise InvalidRequest(f"{wire} is no state of a call")
    return _PROGRESS_FROM_WIRE[wire]


def to_message(kind: Callable[..., MessageT], value: Any) -> MessageT:
    """The message of a value (budget, terms, opened or closed step) that has the same fields; None is an absent field."""
    return kind(**{name: getattr(value, name) for name in value.__slots__})


def to_value(kind: Callable[..., ValueT], message: Any) -> ValueT:
    """The value of such a message."""
    fields: dict[str, Any] = {}
    for name, field in message.DESCRIPTOR.fields_by_name.items():
        if field.is_repeated:
            fields[name] = tuple(getattr(message, name))
        else:
            fields[name] = None if field.has_presence and not message.HasField(name) else getattr(message, name)
    return kind(**fields)


def encode_registration(registration: Registration) -> device_pb2.RegisterDeviceResponse:
    """The reply to RegisterDevice."""
    tasks = [to_message(device_pb2.TaskTerms, terms) for terms in registration.tasks]
    return device_pb2.RegisterDeviceResponse(
        device_id=registration.device_id, protocol_version=registration.protocol_version, tasks=tasks
    )


def decode_registration(response: device_pb2.RegisterDeviceResponse) -> Registration:
    """The registration in a reply."""
    tasks = tuple(to_value(TaskTerms, terms) for terms in response.tasks)
    return Registration(response.device_id, response.protocol_version, tasks)


def encode_register(agent_version: str, tasks: Sequence[str]) -> device_pb2.RegisterDeviceRequest:
    """The request that announces this device. Raises ValueError or TypeError on a value the wire cannot carry, as those below."""
    return device_pb2.RegisterDeviceRequest(agent_version=agent_version, protocol_version=PROTOCOL_VERSION, tasks=list(tasks))


def encode_open_step(task: str, step: int, planned_prompts: int, group_size: int, target_rate: float) -> step_pb2.OpenStepRequest:
    """The request that opens a learning step."""
    return step_pb2.OpenStepRequest(
        task=task, step=step, planned_prompts=planned_prompts, group_size=group_size, target_rate=target_rate
    )


def encode_close_step(task: str, step: int, units: StepUnits) -> step_pb2.CloseStepRequest:
    """The request that reports a learning step."""
    return step_pb2.CloseStepRequest(
        task=task,
        step=step,
        total_units=units.total,
        help_units=units.help,
        uncalled_units=units.uncalled,
        own_rate=units.own_rate,
    )
