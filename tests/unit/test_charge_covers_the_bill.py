"""Whatever the upstreams of a route do, the ledger never charges less than is billed: the simulation's upstreams, in its virtual time."""

from __future__ import annotations

import asyncio
from random import Random

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
from edge.core.errors import CoordinatorError
from edge.core.types import TokenUsage
from edge.testing.clock import ManualClock
from tests.worlds.coordinator import PRICE, call
from tests.worlds.fleet import in_virtual_time
from tools.simulate.faults.upstream import ACTS, SimulatedUpstream, UpstreamMood
from tools.simulate.virtual.loop import SeededLoop

MOOD = UpstreamMood({act: 0.08 for act in ACTS if act not in ("answer", "understate")}, duplicate=0.2)
"""Every fault but the one that lies about the bill."""


@pytest.mark.parametrize("seed", range(3))
def test_ledger_is_consistent_and_never_below_the_bill_whatever_upstreams_do(seed: int) -> None:
    store = MemoryLedgerStore()

    async def ask_all(loop: SeededLoop) -> list[SimulatedUpstream]:
        providers = [SimulatedUpstream(loop, Random(f"{seed} {number}"), MOOD) for number in range(2)]
        broker = broker_over(providers, store)

        async def ask(number: int) -> None:
            await asyncio.sleep(2.0 * number)
            await broker.complete("d1", call(f"k{number}", f"question {number}"), None)

        ended = await asyncio.gather(*map(ask, range(120)), return_exceptions=True)
        assert all(not isinstance(each, BaseException) or isinstance(each, CoordinatorError) for each in ended)
        return providers

    logs = [provider.log for provider in in_virtual_time(ask_all, seed=seed)]
    assert verify(store.tables).ok and min(map(len, logs)) > 5
    billed = {event.key: event.usage for log in logs for event in log if event.what == "executed"}
    attempts = {attempt.billing_key: attempt for attempt in store.tables.all(ATTEMPT)}
    assert set(billed) <= set(attempts) and max(attempt.number for attempt in attempts.values()) == 2
    for key, attempt in attempts.items():
        usage = billed.get(key)
        assert attempt.state is not CallState.DISPATCHED
        assert attempt.charged.uusd >= (0 if usage is None else PRICE.charge(TokenUsage(*usage)).uusd)
        assert attempt.state is not CallState.REFUNDED or usage is None


def broker_over(providers: list[SimulatedUpstream], store: MemoryLedgerStore) -> Broker:
    """A broker that asks these providers in their order."""
    names, clock = [f"upstream-{number}" for number in range(len(providers))], ManualClock()
    upstreams = {
        name: Upstream(name, provider, "m", PRICE, Gate(name, 2, 1000), 10.0, 1000, Breaker(BreakerConfig(longest_pause_s=2.0)))
        for name, provider in zip(names, providers, strict=True)
    }
    legs = [LegConfig(upstream=name, order=order) for order, name in enumerate(names)]
    controller = StepController(store, {"*": TaskConfig()}, clock)
    return Broker(store, UpstreamTable(upstreams, {"default": legs}), controller, BudgetBook(BudgetsConfig()), clock)
