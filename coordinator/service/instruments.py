"""What measures and traces a running coordinator: around RPCs, the ledger and providers.

Each wraps a role once, counts in the metrics and, where traces are configured, makes the span. It behaves exactly as what it wraps.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.rpc import error_details_pb2, status_pb2

from coordinator.ledger.accounts import (
    CallEnded,
    CloseStepRequest,
    InProgress,
    OpenStepRequest,
    Outdated,
    Replayed,
    Reserved,
    ReserveOutcome,
    ReserveRequest,
    Resolution,
    Settlement,
    StepRow,
)
from coordinator.ledger.stores.store import LedgerOperation, LedgerStore
from coordinator.ledger.transitions import Ledger
from coordinator.providers.provider import CloudProvider, ProviderDelta, ProviderError, ProviderRequest, ProviderResult
from coordinator.service.methods import RunningRpc
from coordinator.service.metrics import OK, CoordinatorMeters, Histogram, Refusals
from coordinator.service.tracing import Tracing, end_served
from edge.core.errors import BudgetExhausted, CoordinatorUnavailable
from edge.rpc.errors import DETAILS_KEY

T = TypeVar("T")
P = ParamSpec("P")
Time = Callable[[], float]
CANCELLED = ("CANCELLED", "CALLER_LEFT")
_TRACED_OPERATIONS = frozenset({"reserve", "settle", "refund", "fail", "doubt"})
_WORDS_OF_RESERVE: Mapping[type[ReserveOutcome], str] = {
    Reserved: "reserved",
    Replayed: "replay",
    InProgress: "inprogress",
    CallEnded: "ended",
    Outdated: "outdated",
}
"""How a reservation went, as its span names it: queries over traces must not depend on the names of classes."""
_CODES = {code.value[0]: code.name for code in grpc.StatusCode}


class MeasuredRpcs:
    """Times, counts and traces every RPC, what is refused included; the duration of a lasting stream means nothing."""

    def __init__(self, meters: CoordinatorMeters, refusals: Refusals, tracing: Tracing | None) -> None:
        self.meters = meters
        self.refusals = refusals
        self.tracing = tracing

    def measure(self, method: MethodDescriptor, lasting: bool) -> Callable[[Any], RunningRpc]:
        """What makes a running RPC of the method of its context."""
        seconds, time = self.meters.rpc(method.name), None if lasting else asyncio.get_running_loop().time
        return partial(_MeasuredRpc, self, method, seconds, time)


class _MeasuredRpc(RunningRpc):
    """A class, since a generator's context manager costs too much at every call."""

    __slots__ = ("_began", "_context", "_method", "_rpcs", "_seconds", "_span", "_time")

    def __init__(self, rpcs: MeasuredRpcs, method: MethodDescriptor, seconds: Histogram, time: Time | None, context: Any) -> None:
        super().__init__(context)
        self._rpcs = rpcs
        self._method = method
        self._seconds = seconds
        self._context = context
        self._time = time
        self._began = 0.0 if time is None else time()
        self._span = None if rpcs.tracing is None else rpcs.tracing.begin_rpc(method, context.invocation_metadata())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """It is over: without an error, or with its context's status; a caller that left gets nothing."""
        code, reason = OK if kind is None else self._failed()
        self._rpcs.meters.rpcs[self._method.name, code, reason] += 1
        if self._time is not None:
            self._seconds.observe(self._time() - self._began)
        if self._span is not None:
            end_served(self._span, ("rpc.response.status_code", code), reason)

    def _failed(self) -> tuple[str, str]:
        status = _status_of(self._context)
        if status is None:
            code, reason = CANCELLED
        else:
            code, reason = str(_CODES.get(status.code, "UNKNOWN")), _reason_of(status)
            who = self.who or str(self._context.peer())[:64]
            self._rpcs.refusals.note(self._method.name, who, code, reason, str(status.message))
        return code, reason


def _status_of(context: Any) -> status_pb2.Status | None:
    for key, value in context.trailing_metadata() or ():
        if key == DETAILS_KEY:
            return status_pb2.Status.FromString(value)
    return None


def _reason_of(status: status_pb2.Status) -> str:
    info = error_details_pb2.ErrorInfo()
    return str(info.reason) if any(detail.Unpack(info) for detail in status.details if detail.Is(info.DESCRIPTOR)) else ""


class MeasuredProvider:
    """A CloudProvider whose completions are timed and traced; everything else is the inner provider's."""

    def __init__(self, inner: CloudProvider, alias: str, meters: CoordinatorMeters, time: Time, tracing: Tracing | None) -> None:
        self._inner = inner
        self._alias = alias
        self._meters = meters
        self._time = time
        self._tracing = tracing
        self.input_token_bound = inner.input_token_bound

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def complete(self, request: ProviderRequest) -> ProviderResult:
        """Complete once."""
        with self._asking(request) as asking:
            asking.result = await self._inner.complete(asking.request)
            return asking.result

    async def stream(self, request: ProviderRequest) -> AsyncGenerator[ProviderDelta, None]:
        """Complete once, piece by piece."""
        with self._asking(request) as asking:
            async with aclosing(self._inner.stream(asking.request)) as deltas:
                async for delta in deltas:
                    asking.result = delta.result or asking.result
                    yield delta

    def _asking(self, request: ProviderRequest) -> _Asking:
        return _Asking(request, self._alias, self._meters, self._time, self._tracing)


class _Asking:
    """`with`: a request under way and, once it is there, its result. A class for the same reason as `_MeasuredRpc`."""

    __slots__ = ("_alias", "_began", "_meters", "_span", "_time", "_traced", "request", "result")

    def __init__(
        self, request: ProviderRequest, alias: str, meters: CoordinatorMeters, time: Time, tracing: Tracing | None
    ) -> None:
        self.request = request
        self.result: ProviderResult | None = None
        self._alias = alias
        self._meters = meters
        self._time = time
        self._traced = None if tracing is None else tracing.upstream(alias, request)

    def __enter__(self) -> _Asking:
        self._began = self._time()
        if self._traced is not None:
            self._span, headers = self._traced.__enter__()
            self.request = replace(self.request, trace_headers=headers)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._traced is not None:
            if kind is None and self.result is not None and self.result.usage is not None:
                self._span.set_attribute("gen_ai.usage.input_tokens", self.result.usage.input_tokens)
                self._span.set_attribute("gen_ai.usage.output_tokens", self.result.usage.output_tokens)
            self._traced.__exit__(kind, error, trace)
        outcome = error.kind if isinstance(error, ProviderError) else "cut" if self.result is None else "ok"
        self._meters.upstream_took(self._alias, outcome, self._time() - self._began)


class MeasuredStore(LedgerStore):
    """A LedgerStore whose operations are timed and traced and whose money is counted."""

    def __init__(self, inner: LedgerStore, meters: CoordinatorMeters, time: Time, tracing: Tracing | None) -> None:
        self._inner = inner
        self.feed, self.writability = inner.feed, inner.writability
        self._meters = meters
        self._time = time
        self._tracing = tracing
        self._notes: Mapping[str, Callable[..., None]] = {
            "reserve": self._reserved,
            **dict.fromkeys(("settle", "refund", "fail", "doubt"), self._resolved),
            "sweep": self._swept,
            "open_step": self._opened,
            "close_step": self._closed,
            "get_budget": lambda *_: None,
        }
        self._swept(inner.recovered, 0.0)

    async def transact(self, work: Callable[[Ledger], T]) -> T:
        """The inner store's."""
        return await self._inner.transact(work)

    async def aclose(self) -> None:
        """Close the inner store."""
        await self._inner.aclose()

    async def perform(self, operation: LedgerOperation[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run one operation; those that calls and steps are made of are timed and noted."""
        name = operation.name
        note = self._notes.get(name)
        if note is None:
            return await self._inner.perform(operation, *args, **kwargs)
        histogram: Histogram = self._meters.ledger_seconds.get(name) or self._meters.ledger(name)
        began = self._time()
        try:
            if self._tracing is None or name not in _TRACED_OPERATIONS:
                outcome = await self._inner.perform(operation, *args, **kwargs)
            else:
                with self._tracing.span(name, **_attributes_asked(args)) as span:
                    outcome = await self._inner.perform(operation, *args, **kwargs)
                    _note_outcome(span, outcome)
        except CoordinatorUnavailable:
            self._meters.ledger_failures[name] += 1
            raise
        except BudgetExhausted as error:
            self._meters.exhausted[error.metadata.get("scope", ""), error.metadata.get("unit", "")] += 1
            raise
        finally:
            histogram.observe(self._time() - began)
        note(outcome, *args, **kwargs)
        return outcome

    def _reserved(self, outcome: ReserveOutcome, request: ReserveRequest) -> None:
        if isinstance(outcome, Reserved):
            self._meters.holds_uusd[request.device, request.key, outcome.attempt] = request.hold.uusd

    def _resolved(self, resolution: Resolution, *asked: Any) -> None:
        attempt, call = resolution.attempt, resolution.call
        self._meters.holds_uusd.pop((attempt.device, attempt.key, attempt.number), None)
        if resolution.applied:
            self._meters.charged(self._meters.task_label(call.task), attempt, call)

    def _swept(self, swept: tuple[Resolution, ...], now: float) -> None:
        for resolution in swept:
            self._resolved(resolution)

    def _opened(self, row: StepRow, request: OpenStepRequest) -> None:
        self._meters.task_now(row.device, row.task, row.dual, row.target_rate)

    def _closed(self, row: StepRow, request: CloseStepRequest) -> None:
        label = self._meters.task_label(row.task)
        self._meters.total_units[label] += row.total_units
        self._meters.help_units[label] += row.help_units
        task = self._meters.task_now(row.device, row.task, row.dual_after, row.target_rate)
        task.assist_rate, task.units = row.assist_rate, row.total_units


def _attributes_asked(args: tuple[Any, ...]) -> dict[str, Any]:
    """A span's attributes of an operation: of a hold its task, model and amount, of a resolution the attempt's number."""
    match args:
        case (ReserveRequest() as request,):
            return {"task": request.task, "model": request.model, "hold_uusd": request.hold.uusd}
        case (Settlement() as settlement,):
            return {"attempt": settlement.attempt}
    return {"attempt": args[2]}


def _note_outcome(span: Any, outcome: Any) -> None:
    if isinstance(outcome, Resolution):
        span.set_attribute("edge.state", str(outcome.call.state))
        span.set_attribute("edge.charged_uusd", outcome.call.charged.uusd)
    else:
        span.set_attribute("edge.outcome", _WORDS_OF_RESERVE[type(outcome)])
