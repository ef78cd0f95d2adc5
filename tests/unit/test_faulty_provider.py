"""Seeded faults: the same seed gives the same fault, every fault behaves as documented, and the ledger never charges less than is
billed."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from coordinator.calls.admission import Gate
from coordinator.calls.breaker import Breaker
from coordinator.calls.broker import Broker
from coordinator.calls.upstreams import Upstream, UpstreamTable
from coordinator.config import BreakerConfig, BudgetsConfig, LegConfig, TaskConfig
from coordinator.control.steps import StepController
from coordinator.ledger.accounts import CallState
from coordinator.ledger.budgets import BudgetBook
from coordinator.ledger.stores.memory import MemoryLedgerStore
from coordinator.ledger.tables import ATTEMPT
from coordinator.ledger.verify import verify
from coordinator.providers.provider import ProviderError, ProviderRequest, ProviderResult
from edge.core.errors import CoordinatorError
from edge.core.types import Message
from edge.testing.clock import ManualClock
from tests.faulty_provider import FaultRates, FaultyProvider
from tests.service.in_process import PRICE, call
from tests.unit.virtual_time import run_in_virtual_time

LATENCY_S = 0.5


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """An async test as one that jumps over every wait."""

    @functools.wraps(test)
    def run(*args: Any, **named: Any) -> None:
        run_in_virtual_time(test(*args, **named))

    return run


def asks(number: int = 0, deadline_s: float = 10.0) -> ProviderRequest:
    return ProviderRequest((Message("user", f"question {number}"),), "m", 20, 0.0, deadline_s, f"d1|k{number}|1")


async def fate(provider: FaultyProvider, request: ProviderRequest) -> ProviderResult | tuple[str, bool | None, float | None]:
    """The answer, or how it failed."""
    try:
        return await provider.complete(request)
    except ProviderError as error:
        return error.kind, error.executed, error.retry_after_s


@in_virtual_time
async def test_fault_depends_on_seed_and_request_only() -> None:
    one, other = (FaultyProvider(7, FaultRates.evenly(0.9), latency_s=LATENCY_S) for _ in range(2))
    requests = [asks(number) for number in range(60)]
    fates = await asyncio.gather(*(fate(one, request) for request in requests))
    again = await asyncio.gather(*(fate(other, request) for request in reversed(requests)))
    assert fates == again[::-1]
    elsewhere = await asyncio.gather(*(fate(FaultyProvider(8, one.rates, latency_s=LATENCY_S), request) for request in requests))
    assert fates != elsewhere


@pytest.mark.parametrize("seed", range(3))
@in_virtual_time
async def test_ledger_is_consistent_and_never_below_the_bill_whatever_upstreams_do(seed: int) -> None:
    rates = replace(FaultRates.evenly(0.7), wrong_usage=0.0, too_long=0.0)  # these two lie about the bill itself
    providers = [FaultyProvider(seed, rates, latency_s=LATENCY_S, name=name) for name in ("first", "second")]
    store = MemoryLedgerStore()
    await _ask_all(store, providers, calls=120)
    assert verify(store.tables).ok
    entries = {entry.billing_key: entry for provider in providers for entry in provider.log}
    attempts = {attempt.billing_key: attempt for attempt in store.tables.all(ATTEMPT)}
    assert sum(len(provider.log) for provider in providers) == len(entries)
    assert set(entries) <= set(attempts)
    for key, attempt in attempts.items():
        billed = entries[key].billed
        assert attempt.state is not CallState.DISPATCHED
        assert attempt.charged.uusd >= (0 if billed is None else PRICE.charge(billed).uusd)
        assert attempt.state is not CallState.REFUNDED or billed is None
    assert max(attempt.number for attempt in attempts.values()) == 2 and len(entries) > 60


def _upstream(provider: FaultyProvider) -> Upstream:
    breaker = Breaker(BreakerConfig(first_pause_s=1.0, longest_pause_s=2.0))
    return Upstream(provider.name, provider, "m", PRICE, Gate(provider.name, 2, 1000), 10.0, 1000, breaker)


async def _ask_all(store: MemoryLedgerStore, providers: list[FaultyProvider], calls: int) -> None:
    """Ask through a broker over these providers, in order."""
    upstreams = {each.name: _upstream(each) for each in providers}
    legs = [LegConfig(upstream=each.name, order=order) for order, each in enumerate(providers)]
    clock = ManualClock()
    controller = StepController(store, {"*": TaskConfig()}, clock)
    broker = Broker(store, UpstreamTable(upstreams, {"default": legs}), controller, BudgetBook(BudgetsConfig()), clock)

    async def ask(number: int) -> None:
        await asyncio.sleep(2.0 * number)
        await broker.complete("d1", call(f"k{number}", f"question {number}"), None)

    ended = await asyncio.gather(*map(ask, range(calls)), return_exceptions=True)
    assert all(not isinstance(each, BaseException) or isinstance(each, CoordinatorError) for each in ended)
