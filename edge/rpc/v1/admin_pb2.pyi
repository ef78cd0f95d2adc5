import datetime

from edge.rpc.v1 import call_pb2 as _call_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AmountUsed(_message.Message):
    __slots__ = ("calls", "tokens", "uusd")
    CALLS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    UUSD_FIELD_NUMBER: _ClassVar[int]
    calls: int
    tokens: int
    uusd: int
    def __init__(self, calls: _Optional[int] = ..., tokens: _Optional[int] = ..., uusd: _Optional[int] = ...) -> None: ...

class UnitLimits(_message.Message):
    __slots__ = ("calls", "tokens", "uusd")
    CALLS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    UUSD_FIELD_NUMBER: _ClassVar[int]
    calls: int
    tokens: int
    uusd: int
    def __init__(self, calls: _Optional[int] = ..., tokens: _Optional[int] = ..., uusd: _Optional[int] = ...) -> None: ...

class ScopeLimits(_message.Message):
    __slots__ = ("scope", "window", "limits", "set")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    SET_FIELD_NUMBER: _ClassVar[int]
    scope: str
    window: str
    limits: UnitLimits
    set: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, scope: _Optional[str] = ..., window: _Optional[str] = ..., limits: _Optional[_Union[UnitLimits, _Mapping]] = ..., set: _Optional[_Iterable[str]] = ...) -> None: ...

class BudgetRecord(_message.Message):
    __slots__ = ("key", "committed", "reserved", "limits")
    KEY_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    RESERVED_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    key: str
    committed: AmountUsed
    reserved: AmountUsed
    limits: UnitLimits
    def __init__(self, key: _Optional[str] = ..., committed: _Optional[_Union[AmountUsed, _Mapping]] = ..., reserved: _Optional[_Union[AmountUsed, _Mapping]] = ..., limits: _Optional[_Union[UnitLimits, _Mapping]] = ...) -> None: ...

class ListBudgetsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "include_steps")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_STEPS_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    include_steps: bool
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., include_steps: bool = ...) -> None: ...

class ListBudgetsResponse(_message.Message):
    __slots__ = ("budgets", "next_page_token", "scopes")
    BUDGETS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SCOPES_FIELD_NUMBER: _ClassVar[int]
    budgets: _containers.RepeatedCompositeFieldContainer[BudgetRecord]
    next_page_token: str
    scopes: _containers.RepeatedCompositeFieldContainer[ScopeLimits]
    def __init__(self, budgets: _Optional[_Iterable[_Union[BudgetRecord, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., scopes: _Optional[_Iterable[_Union[ScopeLimits, _Mapping]]] = ...) -> None: ...

class LimitChange(_message.Message):
    __slots__ = ("value", "unlimited", "configured")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    UNLIMITED_FIELD_NUMBER: _ClassVar[int]
    CONFIGURED_FIELD_NUMBER: _ClassVar[int]
    value: int
    unlimited: bool
    configured: bool
    def __init__(self, value: _Optional[int] = ..., unlimited: bool = ..., configured: bool = ...) -> None: ...

class SetBudgetRequest(_message.Message):
    __slots__ = ("scope", "calls", "tokens", "uusd", "window")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    UUSD_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    scope: str
    calls: LimitChange
    tokens: LimitChange
    uusd: LimitChange
    window: str
    def __init__(self, scope: _Optional[str] = ..., calls: _Optional[_Union[LimitChange, _Mapping]] = ..., tokens: _Optional[_Union[LimitChange, _Mapping]] = ..., uusd: _Optional[_Union[LimitChange, _Mapping]] = ..., window: _Optional[str] = ...) -> None: ...

class SetBudgetResponse(_message.Message):
    __slots__ = ("scope",)
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    scope: ScopeLimits
    def __init__(self, scope: _Optional[_Union[ScopeLimits, _Mapping]] = ...) -> None: ...

class TaskRecord(_message.Message):
    __slots__ = ("device", "task", "dual", "target_rate", "next_step", "version", "charged")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    DUAL_FIELD_NUMBER: _ClassVar[int]
    TARGET_RATE_FIELD_NUMBER: _ClassVar[int]
    NEXT_STEP_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CHARGED_FIELD_NUMBER: _ClassVar[int]
    device: str
    task: str
    dual: float
    target_rate: float
    next_step: int
    version: int
    charged: AmountUsed
    def __init__(self, device: _Optional[str] = ..., task: _Optional[str] = ..., dual: _Optional[float] = ..., target_rate: _Optional[float] = ..., next_step: _Optional[int] = ..., version: _Optional[int] = ..., charged: _Optional[_Union[AmountUsed, _Mapping]] = ...) -> None: ...

class ListTasksRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "device")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    device: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., device: _Optional[str] = ...) -> None: ...

class ListTasksResponse(_message.Message):
    __slots__ = ("tasks", "next_page_token", "shared_duals")
    TASKS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SHARED_DUALS_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[TaskRecord]
    next_page_token: str
    shared_duals: _containers.RepeatedCompositeFieldContainer[SharedDualRecord]
    def __init__(self, tasks: _Optional[_Iterable[_Union[TaskRecord, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., shared_duals: _Optional[_Iterable[_Union[SharedDualRecord, _Mapping]]] = ...) -> None: ...

class SharedDualRecord(_message.Message):
    __slots__ = ("key", "dual", "updates")
    KEY_FIELD_NUMBER: _ClassVar[int]
    DUAL_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    key: str
    dual: float
    updates: int
    def __init__(self, key: _Optional[str] = ..., dual: _Optional[float] = ..., updates: _Optional[int] = ...) -> None: ...

class PriceRecord(_message.Message):
    __slots__ = ("in_uusd_per_mtok", "out_uusd_per_mtok")
    IN_UUSD_PER_MTOK_FIELD_NUMBER: _ClassVar[int]
    OUT_UUSD_PER_MTOK_FIELD_NUMBER: _ClassVar[int]
    in_uusd_per_mtok: int
    out_uusd_per_mtok: int
    def __init__(self, in_uusd_per_mtok: _Optional[int] = ..., out_uusd_per_mtok: _Optional[int] = ...) -> None: ...

class UpstreamRecord(_message.Message):
    __slots__ = ("alias", "model", "provider", "deadline_s", "max_output_tokens", "waiting", "breaker", "price")
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    BREAKER_FIELD_NUMBER: _ClassVar[int]
    PRICE_FIELD_NUMBER: _ClassVar[int]
    alias: str
    model: str
    provider: str
    deadline_s: float
    max_output_tokens: int
    waiting: int
    breaker: str
    price: PriceRecord
    def __init__(self, alias: _Optional[str] = ..., model: _Optional[str] = ..., provider: _Optional[str] = ..., deadline_s: _Optional[float] = ..., max_output_tokens: _Optional[int] = ..., waiting: _Optional[int] = ..., breaker: _Optional[str] = ..., price: _Optional[_Union[PriceRecord, _Mapping]] = ...) -> None: ...

class ListUpstreamsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListUpstreamsResponse(_message.Message):
    __slots__ = ("upstreams", "in_flight", "draining", "ledger_unwritable", "openai_url")
    UPSTREAMS_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    LEDGER_UNWRITABLE_FIELD_NUMBER: _ClassVar[int]
    OPENAI_URL_FIELD_NUMBER: _ClassVar[int]
    upstreams: _containers.RepeatedCompositeFieldContainer[UpstreamRecord]
    in_flight: int
    draining: bool
    ledger_unwritable: bool
    openai_url: str
    def __init__(self, upstreams: _Optional[_Iterable[_Union[UpstreamRecord, _Mapping]]] = ..., in_flight: _Optional[int] = ..., draining: bool = ..., ledger_unwritable: bool = ..., openai_url: _Optional[str] = ...) -> None: ...

class DeviceRecord(_message.Message):
    __slots__ = ("device", "agent_version", "tasks", "first_seen_ms", "last_seen_ms", "disabled")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    AGENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEEN_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_MS_FIELD_NUMBER: _ClassVar[int]
    DISABLED_FIELD_NUMBER: _ClassVar[int]
    device: str
    agent_version: str
    tasks: _containers.RepeatedScalarFieldContainer[str]
    first_seen_ms: int
    last_seen_ms: int
    disabled: bool
    def __init__(self, device: _Optional[str] = ..., agent_version: _Optional[str] = ..., tasks: _Optional[_Iterable[str]] = ..., first_seen_ms: _Optional[int] = ..., last_seen_ms: _Optional[int] = ..., disabled: bool = ...) -> None: ...

class ListDevicesRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListDevicesResponse(_message.Message):
    __slots__ = ("devices", "next_page_token")
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    devices: _containers.RepeatedCompositeFieldContainer[DeviceRecord]
    next_page_token: str
    def __init__(self, devices: _Optional[_Iterable[_Union[DeviceRecord, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class SetDeviceDisabledRequest(_message.Message):
    __slots__ = ("device", "disabled")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DISABLED_FIELD_NUMBER: _ClassVar[int]
    device: str
    disabled: bool
    def __init__(self, device: _Optional[str] = ..., disabled: bool = ...) -> None: ...

class SetDeviceDisabledResponse(_message.Message):
    __slots__ = ("device",)
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    device: DeviceRecord
    def __init__(self, device: _Optional[_Union[DeviceRecord, _Mapping]] = ...) -> None: ...

class IssueTokenRequest(_message.Message):
    __slots__ = ("device", "lifetime", "tasks")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    LIFETIME_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    device: str
    lifetime: _duration_pb2.Duration
    tasks: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, device: _Optional[str] = ..., lifetime: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., tasks: _Optional[_Iterable[str]] = ...) -> None: ...

class IssueTokenResponse(_message.Message):
    __slots__ = ("token", "expires_ms")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    token: str
    expires_ms: int
    def __init__(self, token: _Optional[str] = ..., expires_ms: _Optional[int] = ...) -> None: ...

class RevokeDeviceRequest(_message.Message):
    __slots__ = ("device",)
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    device: str
    def __init__(self, device: _Optional[str] = ...) -> None: ...

class RevokeDeviceResponse(_message.Message):
    __slots__ = ("epoch", "known")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    known: bool
    def __init__(self, epoch: _Optional[int] = ..., known: bool = ...) -> None: ...

class CallRecord(_message.Message):
    __slots__ = ("device", "call_key", "task", "step", "prompt_id", "model", "help_units", "state", "attempts", "charged", "input_tokens", "output_tokens", "finish", "reason", "cached", "updated_ms")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    CALL_KEY_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PROMPT_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    HELP_UNITS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    CHARGED_FIELD_NUMBER: _ClassVar[int]
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    UPDATED_MS_FIELD_NUMBER: _ClassVar[int]
    device: str
    call_key: str
    task: str
    step: int
    prompt_id: str
    model: str
    help_units: int
    state: _call_pb2.CallState
    attempts: int
    charged: AmountUsed
    input_tokens: int
    output_tokens: int
    finish: str
    reason: str
    cached: bool
    updated_ms: int
    def __init__(self, device: _Optional[str] = ..., call_key: _Optional[str] = ..., task: _Optional[str] = ..., step: _Optional[int] = ..., prompt_id: _Optional[str] = ..., model: _Optional[str] = ..., help_units: _Optional[int] = ..., state: _Optional[_Union[_call_pb2.CallState, str]] = ..., attempts: _Optional[int] = ..., charged: _Optional[_Union[AmountUsed, _Mapping]] = ..., input_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., finish: _Optional[str] = ..., reason: _Optional[str] = ..., cached: bool = ..., updated_ms: _Optional[int] = ...) -> None: ...

class ListCallsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "device", "state")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    device: str
    state: _call_pb2.CallState
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., device: _Optional[str] = ..., state: _Optional[_Union[_call_pb2.CallState, str]] = ...) -> None: ...

class ListCallsResponse(_message.Message):
    __slots__ = ("calls", "next_page_token")
    CALLS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    calls: _containers.RepeatedCompositeFieldContainer[CallRecord]
    next_page_token: str
    def __init__(self, calls: _Optional[_Iterable[_Union[CallRecord, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ReadJournalRequest(_message.Message):
    __slots__ = ("after", "follow")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    after: int
    follow: bool
    def __init__(self, after: _Optional[int] = ..., follow: bool = ...) -> None: ...

class ReadJournalResponse(_message.Message):
    __slots__ = ("seq", "at_ms", "kind", "body", "previous", "hash")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    seq: int
    at_ms: int
    kind: str
    body: str
    previous: str
    hash: str
    def __init__(self, seq: _Optional[int] = ..., at_ms: _Optional[int] = ..., kind: _Optional[str] = ..., body: _Optional[str] = ..., previous: _Optional[str] = ..., hash: _Optional[str] = ...) -> None: ...

class VerifyLedgerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class VerifyLedgerResponse(_message.Message):
    __slots__ = ("ok", "entries", "head_hash", "budgets", "calls", "attempts", "open_attempts", "steps", "dual_updates", "tasks", "difference_count", "differences")
    OK_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    HEAD_HASH_FIELD_NUMBER: _ClassVar[int]
    BUDGETS_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    OPEN_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    DUAL_UPDATES_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCE_COUNT_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCES_FIELD_NUMBER: _ClassVar[int]
    ok: bool
    entries: int
    head_hash: str
    budgets: int
    calls: int
    attempts: int
    open_attempts: int
    steps: int
    dual_updates: int
    tasks: int
    difference_count: int
    differences: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, ok: bool = ..., entries: _Optional[int] = ..., head_hash: _Optional[str] = ..., budgets: _Optional[int] = ..., calls: _Optional[int] = ..., attempts: _Optional[int] = ..., open_attempts: _Optional[int] = ..., steps: _Optional[int] = ..., dual_updates: _Optional[int] = ..., tasks: _Optional[int] = ..., difference_count: _Optional[int] = ..., differences: _Optional[_Iterable[str]] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("grace",)
    GRACE_FIELD_NUMBER: _ClassVar[int]
    grace: _duration_pb2.Duration
    def __init__(self, grace: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("in_flight",)
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    in_flight: int
    def __init__(self, in_flight: _Optional[int] = ...) -> None: ...
