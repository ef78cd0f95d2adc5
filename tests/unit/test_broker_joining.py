"""Who joins a call that is under way, and who begins it anew."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from coordinator.calls.admission import Gate
from coordinator.calls.broker import Broker
from coordinator.calls.upstreams import UpstreamTable
from coordinator.config import ServerConfig
from coordinator.control.steps import StepController
from coordinator.ledger.budgets import BudgetBook
from coordinator.ledger.stores.memory import MemoryLedgerStore
from edge.core.clock import SystemClock
from edge.core.errors import CallCancelled
from tests.until import until
from tests.worlds.coordinator import Held, ProgrammedProvider, call, upstream


@pytest.mark.parametrize("leaving", ["its client goes away", "CancelCall"])
async def test_call_that_was_dropped_from_the_queue_begins_anew_when_it_is_sent_again(leaving: str) -> None:
    config, clock, store, held = ServerConfig(), SystemClock(), MemoryLedgerStore(), Held()
    provider, gate = ProgrammedProvider(held), Gate("default", 1, 8)
    table = UpstreamTable({"default": upstream(provider, gate=gate)})
    controller = StepController(store, config.effective_tasks, clock)
    broker = Broker(store, table, controller, BudgetBook(config.budgets, 0.0), clock)

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
