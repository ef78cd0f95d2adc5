from edge.rpc.v1 import budget_pb2 as _budget_pb2
from edge.rpc.v1 import call_pb2 as _call_pb2
from edge.rpc.v1 import step_pb2 as _step_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RegisterDeviceRequest(_message.Message):
    __slots__ = ("agent_version", "protocol_version", "tasks")
    AGENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    agent_version: str
    protocol_version: int
    tasks: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, agent_version: _Optional[str] = ..., protocol_version: _Optional[int] = ..., tasks: _Optional[_Iterable[str]] = ...) -> None: ...

class RegisterDeviceResponse(_message.Message):
    __slots__ = ("device_id", "protocol_version", "tasks", "limits")
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    protocol_version: int
    tasks: _containers.RepeatedCompositeFieldContainer[TaskTerms]
    limits: ServiceLimits
    def __init__(self, device_id: _Optional[str] = ..., protocol_version: _Optional[int] = ..., tasks: _Optional[_Iterable[_Union[TaskTerms, _Mapping]]] = ..., limits: _Optional[_Union[ServiceLimits, _Mapping]] = ...) -> None: ...

class TaskTerms(_message.Message):
    __slots__ = ("task", "target_rate", "dual", "next_step")
    TASK_FIELD_NUMBER: _ClassVar[int]
    TARGET_RATE_FIELD_NUMBER: _ClassVar[int]
    DUAL_FIELD_NUMBER: _ClassVar[int]
    NEXT_STEP_FIELD_NUMBER: _ClassVar[int]
    task: str
    target_rate: float
    dual: float
    next_step: int
    def __init__(self, task: _Optional[str] = ..., target_rate: _Optional[float] = ..., dual: _Optional[float] = ..., next_step: _Optional[int] = ...) -> None: ...

class ServiceLimits(_message.Message):
    __slots__ = ("max_message_bytes", "max_output_tokens")
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    max_message_bytes: int
    max_output_tokens: int
    def __init__(self, max_message_bytes: _Optional[int] = ..., max_output_tokens: _Optional[int] = ...) -> None: ...
