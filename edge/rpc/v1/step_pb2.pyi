from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class OpenStepRequest(_message.Message):
    __slots__ = ("task", "step", "planned_prompts", "group_size", "target_rate")
    TASK_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PLANNED_PROMPTS_FIELD_NUMBER: _ClassVar[int]
    GROUP_SIZE_FIELD_NUMBER: _ClassVar[int]
    TARGET_RATE_FIELD_NUMBER: _ClassVar[int]
    task: str
    step: int
    planned_prompts: int
    group_size: int
    target_rate: float
    def __init__(self, task: _Optional[str] = ..., step: _Optional[int] = ..., planned_prompts: _Optional[int] = ..., group_size: _Optional[int] = ..., target_rate: _Optional[float] = ...) -> None: ...

class OpenStepResponse(_message.Message):
    __slots__ = ("task", "step", "dual", "target_rate", "call_credit")
    TASK_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    DUAL_FIELD_NUMBER: _ClassVar[int]
    TARGET_RATE_FIELD_NUMBER: _ClassVar[int]
    CALL_CREDIT_FIELD_NUMBER: _ClassVar[int]
    task: str
    step: int
    dual: float
    target_rate: float
    call_credit: int
    def __init__(self, task: _Optional[str] = ..., step: _Optional[int] = ..., dual: _Optional[float] = ..., target_rate: _Optional[float] = ..., call_credit: _Optional[int] = ...) -> None: ...

class CloseStepRequest(_message.Message):
    __slots__ = ("task", "step", "total_units", "help_units", "uncalled_units", "own_rate")
    TASK_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TOTAL_UNITS_FIELD_NUMBER: _ClassVar[int]
    HELP_UNITS_FIELD_NUMBER: _ClassVar[int]
    UNCALLED_UNITS_FIELD_NUMBER: _ClassVar[int]
    OWN_RATE_FIELD_NUMBER: _ClassVar[int]
    task: str
    step: int
    total_units: int
    help_units: int
    uncalled_units: int
    own_rate: float
    def __init__(self, task: _Optional[str] = ..., step: _Optional[int] = ..., total_units: _Optional[int] = ..., help_units: _Optional[int] = ..., uncalled_units: _Optional[int] = ..., own_rate: _Optional[float] = ...) -> None: ...

class CloseStepResponse(_message.Message):
    __slots__ = ("task", "step", "dual_before", "dual_after", "assist_rate", "discrepancies")
    TASK_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    DUAL_BEFORE_FIELD_NUMBER: _ClassVar[int]
    DUAL_AFTER_FIELD_NUMBER: _ClassVar[int]
    ASSIST_RATE_FIELD_NUMBER: _ClassVar[int]
    DISCREPANCIES_FIELD_NUMBER: _ClassVar[int]
    task: str
    step: int
    dual_before: float
    dual_after: float
    assist_rate: float
    discrepancies: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, task: _Optional[str] = ..., step: _Optional[int] = ..., dual_before: _Optional[float] = ..., dual_after: _Optional[float] = ..., assist_rate: _Optional[float] = ..., discrepancies: _Optional[_Iterable[str]] = ...) -> None: ...
