"""Where a running coordinator is measured: around RPCs, providers and the ledger, and the event loop itself. Knows what surrounds what;
knows nothing of exposition or HTTP.

Each observer wraps a role and behaves exactly as what it wraps, so that nothing inside has to know that it is measured.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from coordinator.ledger.accounts import (
    Amount,
    AttemptRow,
    BudgetRow,
    BudgetTerms,
    BudgetView,
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
from coordinator.ledger.stores.store import LedgerStore
from coordinator.providers.provider import CloudProvider, ProviderDelta, ProviderError, ProviderRequest, ProviderResult
from coordinator.service.metrics import BudgetGauge, Histogram, Meters
from edge.core.clock import Clock
from edge.core.errors import BudgetExhausted, CoordinatorUnavailable

T = TypeVar("T")
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

    def __init__(self, inner: CloudProvider, alias: str, meters: Meters) -> None:
        self._inner = inner
        self._alias = alias
        self._meters = meters

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def complete(self, request: ProviderRequest) -> ProviderResult:
        """Complete once."""
        time = asyncio.get_running_loop().time
        began, outcome = time(), "cut"
        try:
            result = await self._inner.complete(request)
            outcome = "ok"
        except ProviderError as error:
            outcome = error.kind
            raise
        finally:
            self._meters.upstream_took(self._alias, outcome, time() - began)
        return result

    async def stream(self, request: ProviderRequest) -> AsyncGenerator[ProviderDelta, None]:
        """Complete once, piece by piece."""
        time = asyncio.get_running_loop().time
        began, outcome = time(), "cut"
        try:
            async with aclosing(_generator(self._inner.stream(request))) as deltas:
                async for delta in deltas:
                    outcome = "ok" if delta.result is not None else outcome
                    yield delta
        except ProviderError as error:
            outcome = error.kind
            raise
        finally:
            self._meters.upstream_took(self._alias, outcome, time() - began)


def observed_provider(inner: CloudProvider, alias: str, meters: Meters) -> CloudProvider:
    """The provider, timed."""
    return cast(CloudProvider, ObservedProvider(inner, alias, meters))


def _generator(deltas: AsyncIterator[ProviderDelta]) -> AsyncGenerator[ProviderDelta, None]:
    return cast("AsyncGenerator[ProviderDelta, None]", deltas)


@dataclass(frozen=True, slots=True)
class _Hold:
    """What an open attempt holds, and what its charge will be counted under."""

    task: str
    model: str
    amount: Amount


class ObservedStore:
    """A LedgerStore whose transactions are timed and whose money is counted; everything else is the inner store's."""

    def __init__(self, inner: LedgerStore, meters: Meters, time: Time) -> None:
        self._inner = inner
        self._meters = meters
        self._time = time
        self._holds: dict[tuple[str, str, int], _Hold] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def reserve(self, request: ReserveRequest) -> ReserveOutcome:
        """T1."""
        try:
            outcome = await self._timed("reserve", self._inner.reserve(request))
        except BudgetExhausted as error:
            self._meters.exhausted[error.metadata.get("scope", ""), error.metadata.get("unit", "")] += 1
            raise
        if isinstance(outcome, Reserved):
            label = self._meters.task_label(request.task)
            self._holds[request.device, request.key, outcome.attempt] = _Hold(label, request.model, request.hold)
            self._meters.holds += 1
            self._meters.hold_uusd += request.hold.uusd
        return outcome

    async def settle(self, settlement: Settlement) -> Resolution:
        """T2."""
        resolution = await self._timed("settle", self._inner.settle(settlement))
        hold = self._released(settlement.device, settlement.key, settlement.attempt)
        if hold is not None and resolution.applied:
            self._charge(hold, CallState.COMPLETED, settlement.charge.capped(hold.amount))
            self._meters.tokens[hold.task, hold.model, "input"] += settlement.input_tokens
            self._meters.tokens[hold.task, hold.model, "output"] += settlement.output_tokens
        return resolution

    async def refund(self, device: str, key: str, attempt: int, reason: str, now: float) -> Resolution:
        """T2."""
        resolution = await self._timed("refund", self._inner.refund(device, key, attempt, reason, now))
        return self._resolved(resolution, device, key, attempt, CallState.REFUNDED, Amount())

    async def fail(self, device: str, key: str, attempt: int, reason: str, charge: Amount | None, now: float) -> Resolution:
        """T2."""
        resolution = await self._timed("fail", self._inner.fail(device, key, attempt, reason, charge, now))
        return self._resolved(resolution, device, key, attempt, CallState.FAILED, charge)

    async def doubt(self, device: str, key: str, attempt: int, reason: str, now: float) -> Resolution:
        """T2."""
        resolution = await self._timed("doubt", self._inner.doubt(device, key, attempt, reason, now))
        return self._resolved(resolution, device, key, attempt, CallState.IN_DOUBT, None)

    async def sweep(self, now: float) -> tuple[AttemptRow, ...]:
        """T3."""
        swept = await self._timed("sweep", self._inner.sweep(now))
        for row in swept:
            hold = self._released(row.device, row.key, row.number) or _Hold("", "", row.hold)
            self._charge(hold, CallState.IN_DOUBT, row.charged)
        return swept

    async def open_step(self, request: OpenStepRequest) -> StepRow:
        """T4."""
        row = await self._timed("open_step", self._inner.open_step(request))
        self._meters.task_now(row.device, row.task, row.dual, row.target_rate)
        return row

    async def close_step(self, request: CloseStepRequest) -> StepRow:
        """T4."""
        row = await self._timed("close_step", self._inner.close_step(request))
        label = self._meters.task_label(row.task)
        self._meters.total_units[label] += row.total_units
        self._meters.help_units[label] += row.help_units
        task = self._meters.task_now(row.device, row.task, row.dual_after, row.target_rate)
        task.assist_rate, task.units = row.assist_rate, row.total_units
        return row

    async def get_budget(self, device: str, task: str, budgets: Sequence[BudgetTerms]) -> BudgetView:
        """A task and its budgets."""
        return await self._timed("get_budget", self._inner.get_budget(device, task, budgets))

    async def _timed(self, operation: str, transaction: Awaitable[T]) -> T:
        histogram: Histogram = self._meters.ledger_seconds.get(operation) or self._meters.ledger(operation)
        began = self._time()
        try:
            return await transaction
        except CoordinatorUnavailable:
            self._meters.ledger_failures[operation] += 1
            raise
        finally:
            histogram.observe(self._time() - began)

    def _resolved(
        self, resolution: Resolution, device: str, key: str, attempt: int, state: CallState, charge: Amount | None
    ) -> Resolution:
        """Count an attempt's end; `charge` None means the whole hold."""
        hold = self._released(device, key, attempt)
        if hold is not None and resolution.applied:
            self._charge(hold, state, hold.amount if charge is None else charge.capped(hold.amount))
        return resolution

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


def observed_store(inner: LedgerStore, meters: Meters, time: Time) -> LedgerStore:
    """The store, counted."""
    return cast(LedgerStore, ObservedStore(inner, meters, time))


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
