from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BudgetSnapshot(_message.Message):
    __slots__ = ("version", "dual", "target_rate", "calls", "calls_limit", "tokens", "tokens_limit", "spend_uusd", "spend_limit_uusd", "calls_period", "tokens_period", "spend_period")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DUAL_FIELD_NUMBER: _ClassVar[int]
    TARGET_RATE_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    CALLS_LIMIT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_LIMIT_FIELD_NUMBER: _ClassVar[int]
    SPEND_UUSD_FIELD_NUMBER: _ClassVar[int]
    SPEND_LIMIT_UUSD_FIELD_NUMBER: _ClassVar[int]
    CALLS_PERIOD_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PERIOD_FIELD_NUMBER: _ClassVar[int]
    SPEND_PERIOD_FIELD_NUMBER: _ClassVar[int]
    version: int
    dual: float
    target_rate: float
    calls: int
    calls_limit: int
    tokens: int
    tokens_limit: int
    spend_uusd: int
    spend_limit_uusd: int
    calls_period: str
    tokens_period: str
    spend_period: str
    def __init__(self, version: _Optional[int] = ..., dual: _Optional[float] = ..., target_rate: _Optional[float] = ..., calls: _Optional[int] = ..., calls_limit: _Optional[int] = ..., tokens: _Optional[int] = ..., tokens_limit: _Optional[int] = ..., spend_uusd: _Optional[int] = ..., spend_limit_uusd: _Optional[int] = ..., calls_period: _Optional[str] = ..., tokens_period: _Optional[str] = ..., spend_period: _Optional[str] = ...) -> None: ...

class GetBudgetRequest(_message.Message):
    __slots__ = ("task",)
    TASK_FIELD_NUMBER: _ClassVar[int]
    task: str
    def __init__(self, task: _Optional[str] = ...) -> None: ...

class GetBudgetResponse(_message.Message):
    __slots__ = ("budget",)
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    budget: BudgetSnapshot
    def __init__(self, budget: _Optional[_Union[BudgetSnapshot, _Mapping]] = ...) -> None: ...

class WatchBudgetRequest(_message.Message):
    __slots__ = ("task",)
    TASK_FIELD_NUMBER: _ClassVar[int]
    task: str
    def __init__(self, task: _Optional[str] = ...) -> None: ...

class WatchBudgetResponse(_message.Message):
    __slots__ = ("budget", "heartbeat")
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    budget: BudgetSnapshot
    heartbeat: BudgetHeartbeat
    def __init__(self, budget: _Optional[_Union[BudgetSnapshot, _Mapping]] = ..., heartbeat: _Optional[_Union[BudgetHeartbeat, _Mapping]] = ...) -> None: ...

class BudgetHeartbeat(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...
