"""Seeded faults: the same seed gives the same fate, every fault is what it says, and the ledger never charges less than is billed."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
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
from tests.faulty_provider import FAULTS, FaultRates, FaultyProvider
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
async def test_the_same_seed_and_request_meet_the_same_fate_in_any_order() -> None:
    one, other = (FaultyProvider(7, FaultRates.evenly(0.9), latency_s=LATENCY_S) for _ in range(2))
    requests = [asks(number) for number in range(60)]
    fates = await asyncio.gather(*(fate(one, request) for request in requests))
    again = await asyncio.gather(*(fate(other, request) for request in reversed(requests)))
    assert fates == again[::-1]
    elsewhere = await asyncio.gather(*(fate(FaultyProvider(8, one.rates, latency_s=LATENCY_S), request) for request in requests))
    assert fates != elsewhere


@in_virtual_time
async def test_every_fault_comes_as_often_as_its_rate_says() -> None:
    provider = FaultyProvider(1, FaultRates.evenly(0.6), latency_s=LATENCY_S)
    await asyncio.gather(*(fate(provider, asks(number, deadline_s=10.0)) for number in range(2400)))
    counts = Counter(entry.fault for entry in provider.log)
    assert set(counts) == {*FAULTS, ""}
    assert 880 < counts[""] < 1040  # 960 expected, standard deviation 24
    assert all(70 < counts[name] < 170 for name in FAULTS)  # 120 expected, standard deviation 11


@pytest.mark.parametrize(
    ("fault", "kind", "executed", "billed"),
    [
        ("refuse", "refused", False, False),
        ("busy", "http_429", False, False),
        ("rejected", "http_400", False, False),
        ("timeout_before", "deadline", None, False),
        ("timeout_after", "deadline", None, True),
        ("cut", "cut", None, True),
        ("garbage", "garbage", True, True),
    ],
)
@in_virtual_time
async def test_a_fault_seems_and_is_what_its_name_says(fault: str, kind: str, executed: bool | None, billed: bool) -> None:
    provider = FaultyProvider(3, FaultRates(**{fault: 1.0}), latency_s=LATENCY_S)
    failed = await fate(provider, asks())
    assert not isinstance(failed, ProviderResult)
    assert failed[:2] == (kind, executed)
    assert (provider.log[0].billed is not None) is billed
    assert (failed[2] is not None) is (fault == "busy")


@in_virtual_time
async def test_some_server_errors_were_billed_and_some_not() -> None:
    provider = FaultyProvider(3, FaultRates(server_error=1.0), latency_s=LATENCY_S)
    fates = await asyncio.gather(*(fate(provider, asks(number)) for number in range(40)))
    assert set(fates) == {("http_500", None, None)}
    assert {entry.billed is None for entry in provider.log} == {True, False}


@in_virtual_time
async def test_answers_that_lie_or_run_over_are_told_apart_from_the_truth() -> None:
    lying = FaultyProvider(3, FaultRates(wrong_usage=1.0), latency_s=LATENCY_S)
    told = [await lying.complete(asks(number)) for number in range(30)]
    assert all(result.usage != entry.billed for result, entry in zip(told, lying.log, strict=True))
    assert {result.usage is None for result in told} == {True, False}
    long = FaultyProvider(3, FaultRates(too_long=1.0), latency_s=LATENCY_S)
    result = await long.complete(asks())
    assert result.usage is not None and result.usage.output_tokens > asks().max_output_tokens


@in_virtual_time
async def test_a_duplicate_answer_comes_twice_in_a_stream() -> None:
    provider = FaultyProvider(3, FaultRates(duplicate=1.0), latency_s=LATENCY_S)
    results = [delta.result async for delta in provider.stream(asks()) if delta.result is not None]
    assert len(results) == 2 and results[0] == results[1]


@in_virtual_time
async def test_slow_bytes_end_at_the_deadline() -> None:
    provider = FaultyProvider(5, FaultRates(slow=1.0), latency_s=1.0)
    assert await fate(provider, asks(deadline_s=1.5)) == ("deadline", None, None)
    assert isinstance(await fate(provider, asks(deadline_s=60.0)), ProviderResult)


@pytest.mark.parametrize("rates", [{"refuse": -0.1}, {"refuse": 0.7, "cut": 0.4}])
def test_chances_that_are_none_are_refused(rates: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="chances"):
        FaultRates(**rates)


@pytest.mark.parametrize("seed", range(3))
@in_virtual_time
async def test_whatever_upstreams_do_the_ledger_is_whole_and_never_below_the_bill(seed: int) -> None:
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
