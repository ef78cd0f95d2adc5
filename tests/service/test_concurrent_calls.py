"""Concurrent Complete calls, WatchBudget and CancelCall over real gRPC: deadlines, repeated keys, broken connections."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import grpc
import pytest

from coordinator.ledger.stores.memory import MemoryLedgerStore
from coordinator.providers.provider import ProviderResult
from edge.core.errors import CallCancelled, InvalidRequest
from edge.core.types import TokenUsage
from edge.rpc.client import CallProgress
from edge.rpc.errors import from_rpc_error
from edge.rpc.v1 import budget_pb2, device_pb2_grpc
from tests.until import until
from tests.worlds.coordinator import (
    Held,
    ProgrammedProvider,
    answer,
    call,
    connected,
    fleet_use,
    raw_channel,
    running_coordinator,
)

CHARGE_UUSD = 10 + 2 * 5


async def outcomes_of(client, calls):
    """The answer or the error of each call by its key; all are made at once."""
    outcomes = await asyncio.gather(*(client.complete(each, 10.0) for each in calls), return_exceptions=True)
    return dict(zip((each.call_key for each in calls), outcomes, strict=True))


def numbered(count: int):
    return [call(f"k{number}", f"question {number}") for number in range(count)]


async def test_every_concurrent_call_is_answered_once_and_bad_ones_are_refused_alone(tmp_path) -> None:
    store, provider = MemoryLedgerStore(), ProgrammedProvider()
    calls = [*numbered(20), call("bad", max_output_tokens=0), call("worse", messages=())]
    async with running_coordinator(tmp_path, provider, store=store), connected(tmp_path) as client:
        outcomes = await outcomes_of(client, calls)
        assert await fleet_use(store) == ((20, 20 * CHARGE_UUSD), (0, 0))
    assert all(outcomes[f"k{number}"].text == f"QUESTION {number}" for number in range(20)) and len(provider.requests) == 20
    assert isinstance(outcomes["bad"], InvalidRequest) and isinstance(outcomes["worse"], InvalidRequest)


async def test_a_slow_call_holds_up_no_other_one(tmp_path) -> None:
    first_may_end = asyncio.Event()

    async def behave(request):
        if request.messages[-1].content == "question 0":
            await first_may_end.wait()
        return await answer(request)

    async with running_coordinator(tmp_path, ProgrammedProvider(behave)), connected(tmp_path) as client:
        slow, *others = numbered(3)
        asking = asyncio.create_task(client.complete(slow, 10.0))
        assert len(await outcomes_of(client, others)) == 2 and not asking.done()
        first_may_end.set()
        assert (await asking).text == "QUESTION 0"


async def test_a_calls_deadline_reaches_the_upstream_minus_a_margin(tmp_path) -> None:
    provider = ProgrammedProvider()
    async with running_coordinator(tmp_path, provider), connected(tmp_path) as client:
        _ = [delta async for delta in client.stream_complete(call("k2", "stream"), 11.0)]
        await client.complete(call("k3", "unary"), 16.0)
    deadlines = {request.messages[-1].content: request.deadline_s for request in provider.requests}
    assert 6.0 < deadlines["stream"] < 11.0 and 11.0 < deadlines["unary"] < 16.0


async def test_call_too_large_for_the_coordinator_is_refused_without_a_charge(tmp_path) -> None:
    store = MemoryLedgerStore()
    service = {"max_message_bytes": 2048}
    async with running_coordinator(tmp_path, ProgrammedProvider(), store=store, service=service), connected(tmp_path) as client:
        outcomes = await outcomes_of(client, [call("k1", "one"), call("big", "x" * 3000), call("k2", "two")])
        assert await fleet_use(store) == ((2, 2 * CHARGE_UUSD), (0, 0))
    assert isinstance(outcomes["big"], InvalidRequest)
    assert (outcomes["k1"].text, outcomes["k2"].text) == ("ONE", "TWO")


async def test_unreachable_coordinator_fails_every_concurrent_call(tmp_path) -> None:
    async with connected(tmp_path, connect_timeout_s=0.05, max_retries=0) as client:
        outcomes = await outcomes_of(client, numbered(8))
    assert len(outcomes) == 8 and {outcome.reason for outcome in outcomes.values()} == {"UNREACHABLE"}


async def test_cancelling_a_running_call_releases_the_caller_and_charges_its_cost(tmp_path) -> None:
    held, store = Held(), MemoryLedgerStore()
    async with running_coordinator(tmp_path, ProgrammedProvider(held), store=store), connected(tmp_path) as client:
        waiting = [asyncio.create_task(client.complete(call("k1"), 20.0)) for _ in range(2)]
        await held.reached.wait()
        await until(lambda: True)
        cancelled = await client.cancel_call("k1")
        for each in waiting:
            with pytest.raises(CallCancelled):
                await each
        (committed, reserved) = await fleet_use(store)
        assert (cancelled.progress, committed, reserved[0]) == (CallProgress.RUNNING, (0, 0), 1)
        held.release.set()
        async with asyncio.timeout(10.0):
            while (await fleet_use(store)) != ((1, CHARGE_UUSD), (0, 0)):
                await asyncio.sleep(0.005)
        assert (await client.get_call("k1")).charged_uusd == CHARGE_UUSD
        assert (await client.cancel_call("k1")).charged_uusd == CHARGE_UUSD


async def test_watch_heartbeats_stay_inside_the_client(tmp_path) -> None:
    service = {"watch_heartbeat_s": 0.02}
    async with running_coordinator(tmp_path, ProgrammedProvider(), service=service), connected(tmp_path) as client:
        async with raw_channel(tmp_path) as channel:
            rpc = device_pb2_grpc.DeviceServiceStub(channel).WatchBudget(budget_pb2.WatchBudgetRequest(task="math"))
            kinds = [(await rpc.read()).WhichOneof("event") for _ in range(3)]
            rpc.cancel()
        async with aclosing(client.watch_budget("math")) as budgets:
            await anext(budgets)
            await asyncio.sleep(0.1)
            await client.complete(call(), 5.0)
            assert (await anext(budgets)).calls == 1
    assert kinds == ["budget", "heartbeat", "heartbeat"]


async def test_old_connections_end_politely_without_effect_on_the_client(tmp_path) -> None:
    service = {"connection_age_s": 1.0, "connection_grace_s": 1.0}
    async with (
        running_coordinator(tmp_path, ProgrammedProvider(), service=service),
        raw_channel(tmp_path) as channel,
        connected(tmp_path) as client,
        aclosing(client.watch_budget("math")) as budgets,
    ):
        assert (await anext(budgets)).calls == 0
        watching = device_pb2_grpc.DeviceServiceStub(channel).WatchBudget(budget_pb2.WatchBudgetRequest(task="math"))
        assert (await watching.read()).budget.calls == 0
        with pytest.raises(grpc.aio.AioRpcError) as cut:
            await watching.read()
        await asyncio.gather(client.complete(call(), 10.0), until_calls(budgets, 1))
    assert from_rpc_error(cut.value).reason == "CONNECTION_LOST"


async def until_calls(budgets, wanted: int) -> None:
    while (await anext(budgets)).calls != wanted:
        pass


async def test_unexpected_failure_of_a_call_reveals_nothing(tmp_path) -> None:
    async def behave(request):
        if request.messages[-1].content == "bug":
            return ProviderResult("x", TokenUsage(10, -5), "u", "stop")
        return await answer(request)

    async with running_coordinator(tmp_path, ProgrammedProvider(behave)), connected(tmp_path) as client:
        outcomes = await outcomes_of(client, [call("k1", "bug"), call("k2", "fine")])
    assert outcomes["k2"].text == "FINE" and outcomes["k1"].reason == "INTERNAL" and "negative" not in str(outcomes["k1"])
