"""Where a running coordinator is measured: around RPCs, providers and the ledger, and the event loop itself. Knows what surrounds what;
knows nothing of exposition or HTTP.

Each observer wraps a role and behaves exactly as what it wraps, so that nothing inside has to know that it is measured.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, cast

from coordinator.ledger.accounts import (
    Amount,
    AttemptRow,
    BudgetRow,
    BudgetTerms,
    CallState,
    CloseStepRequest,
    OpenStepRequest,
    Reserved,
    ReserveOutcome,
    ReserveRequest,
    Resolution,
    Settlement,
    StepRow,
)
from coordinator.ledger.budgets import BudgetBook
from coordinator.ledger.stores.store import LedgerStore, Operation, WrappedStore
from coordinator.providers.provider import CloudProvider, ProviderDelta, ProviderError, ProviderRequest, ProviderResult
from coordinator.service.metrics import BudgetGauge, Histogram, Meters
from edge.core.clock import Clock
from edge.core.errors import BudgetExhausted, CoordinatorUnavailable

T = TypeVar("T")
P = ParamSpec("P")
LAG_EVERY_S = 0.5
MAX_REFUSALS = 50
MAX_REFUSAL_CHARS = 200
UNITS = ("calls", "tokens", "uusd")
Time = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A call that ended with an error: when (seconds since the epoch), of whom, and why."""

    at: float
    method: str
    who: str
    code: str
    reason: str
    message: str


class Refusals:
    """The last refusals, newest last."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rows: deque[Refusal] = deque(maxlen=MAX_REFUSALS)

    def note(self, method: str, who: str, code: str, reason: str, message: str) -> None:
        """Remember one."""
        self._rows.append(Refusal(self._clock.now(), method, who, code, reason, message[:MAX_REFUSAL_CHARS]))

    def latest(self) -> tuple[Refusal, ...]:
        """Newest first."""
        return tuple(reversed(self._rows))


class ItemMeter:
    """Counts the items of batches as if each were an RPC of its own."""

    METHOD = "CompleteBatch.item"

    def __init__(self, meters: Meters, refusals: Refusals) -> None:
        self._meter = meters.rpc(self.METHOD)
        self._refusals = refusals

    def ended(self, device: str, seconds: float, reply: Any) -> None:
        """An item got its reply (a CompleteBatchResponse): an answer, or an error."""
        self._meter.seconds.observe(seconds)
        if reply.WhichOneof("outcome") == "finished":
            self._meter.answered += 1
            return
        from edge.rpc.errors import from_status, row_for

        error = from_status(reply.error)
        code = row_for(error).code.name
        self._meter.refused[code, error.reason] += 1
        self._refusals.note(self.METHOD, device, code, error.reason, str(error))


class ObservedProvider:
    """A CloudProvider whose completions are timed; everything else is the inner provider's."""

    def __init__(self, inner: CloudProvider, alias: str, meters: Meters, time: Time) -> None:
        self._inner = inner
        self._alias = alias
        self._meters = meters
        self._time = time
        self.input_token_bound = inner.input_token_bound

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def complete(self, request: ProviderRequest) -> ProviderResult:
        """Complete once."""
        began, outcome = self._time(), "cut"
        try:
            result = await self._inner.complete(request)
            outcome = "ok"
        except ProviderError as error:
            outcome = error.kind
            raise
        finally:
            self._meters.upstream_took(self._alias, outcome, self._time() - began)
        return result

    async def stream(self, request: ProviderRequest) -> AsyncGenerator[ProviderDelta, None]:
        """Complete once, piece by piece."""
        began, outcome = self._time(), "cut"
        try:
            async with aclosing(_generator(self._inner.stream(request))) as deltas:
                async for delta in deltas:
                    outcome = "ok" if delta.result is not None else outcome
                    yield delta
        except ProviderError as error:
            outcome = error.kind
            raise
        finally:
            self._meters.upstream_took(self._alias, outcome, self._time() - began)


def observed_provider(inner: CloudProvider, alias: str, meters: Meters, time: Time) -> CloudProvider:
    """The provider, timed."""
    return cast(CloudProvider, ObservedProvider(inner, alias, meters, time))


def _generator(deltas: AsyncIterator[ProviderDelta]) -> AsyncGenerator[ProviderDelta, None]:
    return cast("AsyncGenerator[ProviderDelta, None]", deltas)


@dataclass(frozen=True, slots=True)
class _Hold:
    """What an open attempt holds, and what its charge will be counted under."""

    task: str
    model: str
    amount: Amount


class ObservedStore(WrappedStore):
    """A LedgerStore whose operations are timed and whose money is counted."""

    def __init__(self, inner: LedgerStore, meters: Meters, time: Time) -> None:
        super().__init__(inner)
        self._meters = meters
        self._time = time
        self._holds: dict[tuple[str, str, int], _Hold] = {}
        self._notes: Mapping[str, Callable[..., None]] = {
            "reserve": self._reserved,
            "settle": self._settled,
            "refund": self._ended(CallState.REFUNDED),
            "fail": self._ended(CallState.FAILED),
            "doubt": self._ended(CallState.IN_DOUBT),
            "sweep": self._swept,
            "open_step": self._opened,
            "close_step": self._closed,
            "get_budget": lambda *_: None,
        }

    async def perform(self, operation: Operation[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run one operation; those that calls and steps are made of are timed and noted."""
        name = operation.name
        note = self._notes.get(name)
        if note is None:
            return await self._inner.perform(operation, *args, **kwargs)
        histogram: Histogram = self._meters.ledger_seconds.get(name) or self._meters.ledger(name)
        began = self._time()
        try:
            outcome = await self._inner.perform(operation, *args, **kwargs)
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
            label = self._meters.task_label(request.task)
            self._holds[request.device, request.key, outcome.attempt] = _Hold(label, request.model, request.hold)
            self._meters.holds += 1
            self._meters.hold_uusd += request.hold.uusd

    def _settled(self, resolution: Resolution, settlement: Settlement) -> None:
        hold = self._released(settlement.device, settlement.key, settlement.attempt)
        if hold is not None and resolution.applied:
            self._charge(hold, CallState.COMPLETED, settlement.charge.capped(hold.amount))
            self._meters.tokens[hold.task, hold.model, "input"] += settlement.input_tokens
            self._meters.tokens[hold.task, hold.model, "output"] += settlement.output_tokens

    def _ended(self, state: CallState) -> Callable[..., None]:
        """Notes an attempt that ended without an answer, charged at nothing, at what `fail` says, or at its hold."""

        def note(resolution: Resolution, device: str, key: str, number: int, reason: str, *charge_and_now: Any) -> None:
            hold = self._released(device, key, number)
            if hold is None or not resolution.applied:
                return
            charge: Amount | None = charge_and_now[0] if state is CallState.FAILED else None
            if state is CallState.REFUNDED:
                charge = Amount()
            self._charge(hold, state, hold.amount if charge is None else charge.capped(hold.amount))

        return note

    def _swept(self, swept: tuple[AttemptRow, ...], now: float) -> None:
        for row in swept:
            hold = self._released(row.device, row.key, row.number) or _Hold("", "", row.hold)
            self._charge(hold, CallState.IN_DOUBT, row.charged)

    def _opened(self, row: StepRow, request: OpenStepRequest) -> None:
        self._meters.task_now(row.device, row.task, row.dual, row.target_rate)

    def _closed(self, row: StepRow, request: CloseStepRequest) -> None:
        label = self._meters.task_label(row.task)
        self._meters.total_units[label] += row.total_units
        self._meters.help_units[label] += row.help_units
        task = self._meters.task_now(row.device, row.task, row.dual_after, row.target_rate)
        task.assist_rate, task.units = row.assist_rate, row.total_units

    def _released(self, device: str, key: str, attempt: int) -> _Hold | None:
        hold = self._holds.pop((device, key, attempt), None)
        if hold is not None:
            self._meters.holds -= 1
            self._meters.hold_uusd -= hold.amount.uusd
        return hold

    def _charge(self, hold: _Hold, state: CallState, charge: Amount) -> None:
        self._meters.attempts[hold.task, str(state)] += 1
        if charge.uusd:
            self._meters.charged_uusd[hold.task, hold.model] += charge.uusd
        if state is CallState.IN_DOUBT:
            self._meters.doubt_uusd += charge.uusd


async def remember_tasks(store: LedgerStore, meters: Meters) -> None:
    """Learn λ and τ of the tasks that the ledger knows already."""
    for row in await store.list_tasks():
        meters.task_now(row.device, row.task, row.dual, row.target_rate)


async def budgets_now(
    store: LedgerStore, book: BudgetBook, pairs: Sequence[tuple[str, str]], now: float
) -> tuple[BudgetGauge, ...]:
    """The budgets of the present windows that these (device, task) pairs and the fleet are held to; one transaction. Changes nothing."""
    terms = {each.key: (each, device, task) for device, task in pairs for each in book.terms(device, task, now)}
    terms |= {each.key: (each, "", "") for each in book.terms("", "", now) if scope_of(each.key) == "fleet"}
    wanted = list(terms.values())
    view = await store.get_budget("", "", [each for each, _, _ in wanted])
    if book.learn(view.limits):
        return await budgets_now(store, book, pairs, now)
    rows = zip(view.budgets, wanted, strict=True)
    return tuple(gauge for row, (each, device, task) in rows for gauge in _gauges(row, each, device, task))


def scope_of(key: str) -> str:
    """The scope that a budget's key names."""
    return key.split("@")[0].split("[")[0]


def _gauges(row: BudgetRow, terms: BudgetTerms, device: str, task: str) -> list[BudgetGauge]:
    scope, limits = scope_of(row.key), terms.limits
    owner = (device if scope.startswith("device") else "", task if scope.endswith("task") else "")
    return [BudgetGauge(scope, *owner, unit, getattr(row.used, unit), getattr(limits, unit)) for unit in UNITS]


async def watch_loop(meters: Meters, beat: Callable[[], None] = lambda: None) -> None:
    """Note how late the event loop comes, until cancelled; `beat` is called at each look."""
    time = asyncio.get_running_loop().time
    while True:
        due = time() + LAG_EVERY_S
        await asyncio.sleep(LAG_EVERY_S)
        meters.lagged(max(0.0, time() - due))
        beat()
