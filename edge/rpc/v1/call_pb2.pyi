from edge.rpc.v1 import budget_pb2 as _budget_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_SYSTEM: _ClassVar[Role]
    ROLE_USER: _ClassVar[Role]
    ROLE_ASSISTANT: _ClassVar[Role]

class CallState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CALL_STATE_UNSPECIFIED: _ClassVar[CallState]
    CALL_STATE_DROPPED: _ClassVar[CallState]
    CALL_STATE_RUNNING: _ClassVar[CallState]
    CALL_STATE_COMPLETED: _ClassVar[CallState]
    CALL_STATE_REFUNDED: _ClassVar[CallState]
    CALL_STATE_FAILED: _ClassVar[CallState]
    CALL_STATE_IN_DOUBT: _ClassVar[CallState]
ROLE_UNSPECIFIED: Role
ROLE_SYSTEM: Role
ROLE_USER: Role
ROLE_ASSISTANT: Role
CALL_STATE_UNSPECIFIED: CallState
CALL_STATE_DROPPED: CallState
CALL_STATE_RUNNING: CallState
CALL_STATE_COMPLETED: CallState
CALL_STATE_REFUNDED: CallState
CALL_STATE_FAILED: CallState
CALL_STATE_IN_DOUBT: CallState

class ChatMessage(_message.Message):
    __slots__ = ("role", "content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: Role
    content: str
    def __init__(self, role: _Optional[_Union[Role, str]] = ..., content: _Optional[str] = ...) -> None: ...

class SamplingOptions(_message.Message):
    __slots__ = ("temperature",)
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    def __init__(self, temperature: _Optional[float] = ...) -> None: ...

class CompleteRequest(_message.Message):
    __slots__ = ("call_key", "task", "step", "prompt_id", "help_units", "model_alias", "messages", "max_output_tokens", "sampling", "openai_json")
    CALL_KEY_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PROMPT_ID_FIELD_NUMBER: _ClassVar[int]
    HELP_UNITS_FIELD_NUMBER: _ClassVar[int]
    MODEL_ALIAS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    OPENAI_JSON_FIELD_NUMBER: _ClassVar[int]
    call_key: str
    task: str
    step: int
    prompt_id: str
    help_units: int
    model_alias: str
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    max_output_tokens: int
    sampling: SamplingOptions
    openai_json: str
    def __init__(self, call_key: _Optional[str] = ..., task: _Optional[str] = ..., step: _Optional[int] = ..., prompt_id: _Optional[str] = ..., help_units: _Optional[int] = ..., model_alias: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ..., max_output_tokens: _Optional[int] = ..., sampling: _Optional[_Union[SamplingOptions, _Mapping]] = ..., openai_json: _Optional[str] = ...) -> None: ...

class TokenUsage(_message.Message):
    __slots__ = ("input_tokens", "output_tokens")
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    input_tokens: int
    output_tokens: int
    def __init__(self, input_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ...) -> None: ...

class Completion(_message.Message):
    __slots__ = ("call_key", "text", "usage", "charged_uusd", "cached", "model", "openai_json")
    CALL_KEY_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    CHARGED_UUSD_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    OPENAI_JSON_FIELD_NUMBER: _ClassVar[int]
    call_key: str
    text: str
    usage: TokenUsage
    charged_uusd: int
    cached: bool
    model: str
    openai_json: str
    def __init__(self, call_key: _Optional[str] = ..., text: _Optional[str] = ..., usage: _Optional[_Union[TokenUsage, _Mapping]] = ..., charged_uusd: _Optional[int] = ..., cached: bool = ..., model: _Optional[str] = ..., openai_json: _Optional[str] = ...) -> None: ...

class CompleteResponse(_message.Message):
    __slots__ = ("completion", "budget")
    COMPLETION_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    completion: Completion
    budget: _budget_pb2.BudgetSnapshot
    def __init__(self, completion: _Optional[_Union[Completion, _Mapping]] = ..., budget: _Optional[_Union[_budget_pb2.BudgetSnapshot, _Mapping]] = ...) -> None: ...

class StreamCompleteRequest(_message.Message):
    __slots__ = ("call",)
    CALL_FIELD_NUMBER: _ClassVar[int]
    call: CompleteRequest
    def __init__(self, call: _Optional[_Union[CompleteRequest, _Mapping]] = ...) -> None: ...

class StreamCompleteResponse(_message.Message):
    __slots__ = ("started", "delta", "finished")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    started: CallStarted
    delta: str
    finished: CompleteResponse
    def __init__(self, started: _Optional[_Union[CallStarted, _Mapping]] = ..., delta: _Optional[str] = ..., finished: _Optional[_Union[CompleteResponse, _Mapping]] = ...) -> None: ...

class CallStarted(_message.Message):
    __slots__ = ("call_key",)
    CALL_KEY_FIELD_NUMBER: _ClassVar[int]
    call_key: str
    def __init__(self, call_key: _Optional[str] = ...) -> None: ...

class GetCallRequest(_message.Message):
    __slots__ = ("call_key", "fingerprint")
    CALL_KEY_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    call_key: str
    fingerprint: str
    def __init__(self, call_key: _Optional[str] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class GetCallResponse(_message.Message):
    __slots__ = ("completion", "budget")
    COMPLETION_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    completion: Completion
    budget: _budget_pb2.BudgetSnapshot
    def __init__(self, completion: _Optional[_Union[Completion, _Mapping]] = ..., budget: _Optional[_Union[_budget_pb2.BudgetSnapshot, _Mapping]] = ...) -> None: ...

class CancelCallRequest(_message.Message):
    __slots__ = ("call_key",)
    CALL_KEY_FIELD_NUMBER: _ClassVar[int]
    call_key: str
    def __init__(self, call_key: _Optional[str] = ...) -> None: ...

class CancelCallResponse(_message.Message):
    __slots__ = ("call_key", "state", "charged_uusd")
    CALL_KEY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CHARGED_UUSD_FIELD_NUMBER: _ClassVar[int]
    call_key: str
    state: CallState
    charged_uusd: int
    def __init__(self, call_key: _Optional[str] = ..., state: _Optional[_Union[CallState, str]] = ..., charged_uusd: _Optional[int] = ...) -> None: ...
