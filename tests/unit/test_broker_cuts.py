"""Calls that are cut: by a drain while the ledger writes for them, or in the queue, and then sent again."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from coordinator.calls.admission import Gate
from coordinator.calls.broker import Broker
from coordinator.calls.upstreams import Upstream, UpstreamTable
from coordinator.config import LegConfig, ServerConfig
from coordinator.control.steps import StepController
from coordinator.ledger.accounts import CallState
from coordinator.ledger.budgets import BudgetBook
from coordinator.ledger.stores.memory import MemoryLedgerStore
from coordinator.ledger.tables import ATTEMPT, BUDGET
from coordinator.ledger.verify import verify
from coordinator.providers.provider import ProviderError, ProviderRequest
from edge.core.clock import SystemClock
from edge.core.errors import CallCancelled, CoordinatorError, CoordinatorUnavailable
from edge.core.types import TokenUsage
from edge.rpc.client import CloudCompletion
from tests.until import until
from tests.worlds.coordinator import Held, ProgrammedProvider, answer, call, upstream

HELD_UUSD = 10 + 4 * len("what is 2+2?") + 2 * 20


class SlowLedger(MemoryLedgerStore):
    """Its answer to one operation comes only after `release`; what was asked for is done by then."""

    def __init__(self, slow: str) -> None:
        super().__init__()
        self.slow, self.reached, self.release = slow, asyncio.Event(), asyncio.Event()

    async def perform(self, operation: Any, *args: Any, **kwargs: Any) -> Any:
        outcome = await super().perform(operation, *args, **kwargs)
        if operation.name == self.slow:
            self.reached.set()
            await self.release.wait()
        return outcome


def fails(executed: bool | None, kind: str = "http_400") -> Any:
    async def behave(request: ProviderRequest) -> Any:
        raise ProviderError("no", kind=kind, executed=executed, usage=TokenUsage(10, 5) if executed else None)

    return behave


@pytest.mark.parametrize(
    ("operation", "behaviour", "state", "charged_uusd", "asked"),
    [
        ("reserve", answer, CallState.REFUNDED, 0, 0),
        ("settle", answer, CallState.COMPLETED, 20, 1),
        ("refund", fails(False), CallState.REFUNDED, 0, 1),
        ("fail", fails(True), CallState.FAILED, 20, 1),
        ("doubt", fails(None), CallState.IN_DOUBT, HELD_UUSD, 1),
    ],
)
async def test_call_cut_while_the_ledger_writes_is_resolved_when_the_drain_returns(
    operation: str, behaviour: Any, state: CallState, charged_uusd: int, asked: int
) -> None:
    store, provider = SlowLedger(operation), ProgrammedProvider(behaviour)
    broker = broker_of(store, {"default": upstream(provider)})
    asking = await cut_while_writing(broker, store)
    rows = store.tables
    assert [(attempt.state, attempt.charged.uusd) for attempt in rows.all(ATTEMPT)] == [(state, charged_uusd)]
    assert {(budget.reserved.uusd, budget.committed.uusd) for budget in rows.all(BUDGET)} == {(0, charged_uusd)}
    assert verify(rows).ok and len(provider.requests) == asked
    (ended,) = await asyncio.gather(asking, return_exceptions=True)
    assert isinstance(ended, CoordinatorError) == (state is not CallState.COMPLETED)


async def test_call_cut_after_one_upstream_refused_it_is_not_sent_to_another() -> None:
    store, refusing, other = SlowLedger("refund"), ProgrammedProvider(fails(False, "http_429")), ProgrammedProvider()
    upstreams = {"default": upstream(refusing), "other": upstream(other, alias="other")}
    legs = {"default": [LegConfig(upstream="default"), LegConfig(upstream="other", order=1)]}
    asking = await cut_while_writing(broker_of(store, upstreams, legs), store)
    assert [attempt.state for attempt in store.tables.all(ATTEMPT)] == [CallState.REFUNDED] and other.requests == []
    with pytest.raises(CoordinatorUnavailable):
        await asking


def broker_of(store: MemoryLedgerStore, upstreams: dict[str, Upstream], routes: Any = None) -> Broker:
    config, clock = ServerConfig(), SystemClock()
    controller = StepController(store, config.effective_tasks, clock)
    return Broker(store, UpstreamTable(upstreams, routes), controller, BudgetBook(config.budgets), clock)


async def cut_while_writing(broker: Broker, store: SlowLedger) -> asyncio.Task[CloudCompletion]:
    """A call that is cut while the slow operation runs; the drain has returned."""
    asking = asyncio.create_task(broker.complete("d1", call(), 60.0))
    await store.reached.wait()
    draining = asyncio.create_task(broker.drain(0.0))
    await asyncio.sleep(0.05)
    store.release.set()
    await draining
    return asking


@pytest.mark.parametrize("leaving", ["its client goes away", "CancelCall"])
async def test_call_that_was_dropped_from_the_queue_begins_anew_when_it_is_sent_again(leaving: str) -> None:
    held, gate = Held(), Gate("default", 1, 8)
    provider = ProgrammedProvider(held)
    broker = broker_of(MemoryLedgerStore(), {"default": upstream(provider, gate=gate)})

    async def ask(key: str) -> str:
        return (await broker.complete("d1", call(key, key), 60.0)).text

    first = asyncio.create_task(ask("k1"))
    await held.reached.wait()
    queued = asyncio.create_task(ask("k2"))
    await until(lambda: gate.waiting)
    if leaving == "CancelCall":
        await broker.cancel_call("d1", "k2")
    else:
        queued.cancel()
    again = asyncio.create_task(ask("k2"))
    with suppress(asyncio.CancelledError, CallCancelled):
        await queued
    held.release.set()
    assert [await first, await again] == ["K1", "K2"] and len(provider.requests) == 2
