"""CompleteBatch, WatchBudget and CancelCall over real gRPC: deadlines, flow control, drains, broken connections."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import grpc
import pytest

from coordinator.calls.admission import Gate
from coordinator.ledger.stores.memory import MemoryLedgerStore
from coordinator.providers.provider import ProviderResult
from edge.core.errors import BudgetExhausted, CallCancelled, CoordinatorError, CoordinatorUnavailable, InvalidRequest, NotFound
from edge.core.types import TokenUsage
from edge.rpc import codec
from edge.rpc.client import CallProgress
from edge.rpc.errors import from_rpc_error
from edge.rpc.v1 import admin_pb2, admin_pb2_grpc, budget_pb2, call_pb2, device_pb2_grpc
from tests.service.in_process import Held, ProgrammedProvider, answer, call, connected, running_coordinator
from tests.until import until

CHARGE_UUSD = 10 + 2 * 5


def raw_channel(folder, listener: str = "c.sock") -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(f"unix:{folder}/{listener}")


async def of(calls):
    for each in calls:
        yield each


async def fleet_calls(store: MemoryLedgerStore) -> tuple[int, int]:
    """Calls committed and reserved."""
    row = next(row for row in await store.list_budgets_after("", 1_000, with_steps=True) if row.key == "fleet")
    return row.committed.calls, row.reserved.calls


async def replies_of(client, calls, deadline_s: float = 10.0):
    return {reply.call_key: reply.outcome async for reply in client.complete_batch(of(calls), deadline_s)}


def numbered(count: int):
    return [call(f"k{number}", f"question {number}") for number in range(count)]


@pytest.fixture
async def make_client(tmp_path):
    """Makes one client whose device may make `calls_limit` calls; everything is closed at the end."""
    opened = []

    async def make(calls_limit: int | None = None):
        opened.append(running_coordinator(tmp_path, ProgrammedProvider(), budgets={"device": {"calls_limit": calls_limit}}))
        await opened[-1].__aenter__()
        opened.append(connected(tmp_path))
        return await opened[-1].__aenter__()

    yield make
    for context in reversed(opened):
        await context.__aexit__(None, None, None)


async def test_a_batch_answers_every_call_once_and_a_bad_one_ends_nothing(make_client) -> None:
    client = await make_client()
    calls = [call(f"k{number}", f"question {number}") for number in range(20)]
    calls.insert(5, call("bad", max_output_tokens=0))
    calls.insert(9, call("worse", messages=()))
    replies = [reply async for reply in client.complete_batch(of(calls), 5.0)]
    outcomes = {reply.call_key: reply.outcome for reply in replies}
    assert sorted(outcomes) == sorted(each.call_key for each in calls) and len(replies) == len(calls)
    assert all(outcomes[f"k{number}"].text == f"QUESTION {number}" for number in range(20))
    assert isinstance(outcomes["bad"], InvalidRequest) and (await client.get_budget("math")).calls == 20


async def test_batch_without_budget_left_answers_the_rest_with_the_refusal(make_client) -> None:
    client = await make_client(calls_limit=3)
    calls = [call(f"k{number}", f"question {number}") for number in range(5)]
    outcomes = [reply.outcome async for reply in client.complete_batch(of(calls), 5.0)]
    assert sum(isinstance(outcome, BudgetExhausted) for outcome in outcomes) == 2


async def test_a_batch_can_be_left_early(make_client) -> None:
    client = await make_client()
    async with aclosing(client.complete_batch(of([call("k1"), call("k2", "two")]), 5.0)) as replies:
        async for reply in replies:
            assert reply.outcome.text
            break
    assert (await client.complete(call("k1"), 5.0)).text == "WHAT IS 2+2?"


async def test_replies_arrive_in_the_order_of_the_answers(tmp_path) -> None:
    first_may_end = asyncio.Event()

    async def behave(request):
        if request.messages[-1].content == "question 0":
            await first_may_end.wait()
        return await answer(request)

    async with running_coordinator(tmp_path, ProgrammedProvider(behave)), connected(tmp_path) as client:
        replies = client.complete_batch(of(numbered(3)), 10.0)
        early = {(await anext(replies)).call_key, (await anext(replies)).call_key}
        first_may_end.set()
        last = await anext(replies)
        await replies.aclose()
    assert early == {"k1", "k2"} and last.call_key == "k0"


async def test_batch_runs_no_more_items_than_allowed(tmp_path) -> None:
    held = Held()
    provider = ProgrammedProvider(held)
    service = {"batch_items": 3}
    gate = {"gate": Gate("default", 64, 64)}
    async with running_coordinator(tmp_path, provider, service=service, alias_settings=gate), connected(tmp_path) as client:
        asking = asyncio.create_task(replies_of(client, numbered(10)))
        await until(lambda: len(provider.requests) == 3)
        await client.get_budget("math")
        assert provider.running == 3
        held.release.set()
        assert len(await asking) == 10


async def test_a_hundred_keys_sent_twice_in_one_batch_are_charged_once(tmp_path) -> None:
    store, provider = MemoryLedgerStore(), ProgrammedProvider()
    async with running_coordinator(tmp_path, provider, store=store), connected(tmp_path) as client:
        replies = [reply async for reply in client.complete_batch(of([*numbered(100), *numbered(100)]), 20.0)]
        assert await fleet_calls(store) == (100, 0)
    assert len(replies) == 200 and len(provider.requests) == 100


async def test_item_deadline_reaches_the_upstream_minus_a_margin(tmp_path) -> None:
    provider = ProgrammedProvider()
    async with running_coordinator(tmp_path, provider), connected(tmp_path) as client:
        await replies_of(client, [call("k1", "batch")], 6.0)
        _ = [delta async for delta in client.stream_complete(call("k2", "stream"), 11.0)]
        await client.complete(call("k3", "unary"), 16.0)
    deadlines = {request.messages[-1].content: request.deadline_s for request in provider.requests}
    assert 1.0 < deadlines["batch"] < 6.0 and 6.0 < deadlines["stream"] < 11.0 and 11.0 < deadlines["unary"] < 16.0


async def test_expired_item_is_reported_and_the_others_are_answered(tmp_path) -> None:
    async def behave(request):
        if request.messages[-1].content == "slow":
            await asyncio.sleep(0.2)
        return await answer(request)

    async def items(stub_calls):
        for each, timeout_s in stub_calls:
            yield codec.encode_item(each, timeout_s)

    async with running_coordinator(tmp_path, ProgrammedProvider(behave)), raw_channel(tmp_path) as channel:
        asked = items([(call("late", "late"), 0.0), (call("slow", "slow"), 10.0), (call("fine", "fine"), 10.0)])
        rpc = device_pb2_grpc.DeviceServiceStub(channel).CompleteBatch(asked, timeout=20.0)
        replies = {reply.call_key: codec.decode_reply(reply).outcome async for reply in rpc}
    assert isinstance(replies["late"], CoordinatorUnavailable) and replies["late"].reason == "DEADLINE_EXCEEDED"
    assert (replies["slow"].text, replies["fine"].text) == ("SLOW", "FINE")


async def test_unreadable_items_get_an_error_and_end_nothing(tmp_path) -> None:
    async def items():
        yield b"\xff\xff"
        yield b""
        yield codec.encode_item(call("good"), 10.0).SerializeToString()
        yield codec.encode_item(call("x" * 300), 10.0).SerializeToString()

    async with running_coordinator(tmp_path, ProgrammedProvider()), raw_channel(tmp_path) as channel:
        rpc = channel.stream_stream(
            "/edge.rpc.v1.DeviceService/CompleteBatch",
            request_serializer=None,
            response_deserializer=call_pb2.CompleteBatchResponse.FromString,
        )(items(), timeout=20.0)
        replies = [codec.decode_reply(reply) async for reply in rpc]
    refused = [reply for reply in replies if isinstance(reply.outcome, InvalidRequest)]
    assert len(replies) == 4 and len(refused) == 3
    assert [reply.outcome.text for reply in replies if reply.call_key == "good"] == ["WHAT IS 2+2?"]


async def test_call_too_large_for_the_coordinator_is_refused_and_the_others_are_answered(tmp_path) -> None:
    store = MemoryLedgerStore()
    service = {"max_message_bytes": 2048}
    async with running_coordinator(tmp_path, ProgrammedProvider(), store=store, service=service), connected(tmp_path) as client:
        outcomes = await replies_of(client, [call("k1", "one"), call("big", "x" * 3000), call("k2", "two")])
        assert await fleet_calls(store) == (2, 0)
    assert isinstance(outcomes[""], InvalidRequest)  # its key was not read
    assert (outcomes["k1"].text, outcomes["k2"].text) == ("ONE", "TWO")


async def test_a_drain_answers_what_was_read_and_ends_the_stream_with_draining(tmp_path) -> None:
    held, store = Held(), MemoryLedgerStore()
    async with (
        running_coordinator(tmp_path, ProgrammedProvider(held), store=store),
        raw_channel(tmp_path) as channel,
        raw_channel(tmp_path, "admin.sock") as admins,
    ):
        rpc = device_pb2_grpc.DeviceServiceStub(channel).CompleteBatch()
        await rpc.write(codec.encode_item(call("k1"), 20.0))
        await held.reached.wait()
        admin = admin_pb2_grpc.AdminServiceStub(admins)
        await admin.Drain(admin_pb2.DrainRequest())
        while not (await admin.ListUpstreams(admin_pb2.ListUpstreamsRequest())).draining:
            await asyncio.sleep(0.005)
        await rpc.write(codec.encode_item(call("k2", "another"), 20.0))
        held.release.set()
        reply = codec.decode_reply(await rpc.read())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rpc.read()
    assert (reply.call_key, reply.outcome.text) == ("k1", "WHAT IS 2+2?")
    assert from_rpc_error(caught.value).reason == "DRAINING"
    assert await fleet_calls(store) == (1, 0)


async def test_a_call_on_a_stream_that_breaks_runs_on_and_is_answered_by_its_key(tmp_path) -> None:
    held, store = Held(), MemoryLedgerStore()
    provider = ProgrammedProvider(held)
    async with running_coordinator(tmp_path, provider, store=store), connected(tmp_path) as client:
        async with raw_channel(tmp_path) as channel:
            rpc = device_pb2_grpc.DeviceServiceStub(channel).CompleteBatch()
            await rpc.write(codec.encode_item(call("k1"), 20.0))
            await held.reached.wait()
        held.release.set()
        assert (await client.complete(call("k1"), 10.0)).text == "WHAT IS 2+2?"
        assert await fleet_calls(store) == (1, 0)
    assert len(provider.requests) == 1


async def test_unreachable_coordinator_fails_every_call_of_a_batch_soon(tmp_path) -> None:
    async with connected(tmp_path, connect_timeout_s=0.05) as client:
        outcomes = await replies_of(client, numbered(8), 30.0)
    assert len(outcomes) == 8 and {outcome.reason for outcome in outcomes.values()} == {"UNREACHABLE"}


async def test_cancelling_a_queued_call_drops_it_without_charge(tmp_path) -> None:
    held, store = Held(), MemoryLedgerStore()
    gate = Gate("default", 1, 10)
    provider = ProgrammedProvider(held)
    async with running_coordinator(tmp_path, provider, store=store, alias_settings={"gate": gate}), connected(tmp_path) as client:
        first = asyncio.create_task(client.complete(call("k1", "one"), 20.0))
        await held.reached.wait()
        second = asyncio.create_task(client.complete(call("k2", "two"), 20.0))
        await until(lambda: gate.waiting)
        cancelled = await client.cancel_call("k2")
        with pytest.raises(CallCancelled):
            await second
        held.release.set()
        await first
        with pytest.raises(NotFound):
            await client.get_call("k2")
        assert await fleet_calls(store) == (1, 0)
    assert (cancelled.progress, cancelled.charged_uusd) == (CallProgress.DROPPED, 0) and len(provider.requests) == 1


async def test_cancelling_a_running_call_releases_the_caller_and_charges_its_cost(tmp_path) -> None:
    held, store = Held(), MemoryLedgerStore()
    async with running_coordinator(tmp_path, ProgrammedProvider(held), store=store), connected(tmp_path) as client:
        alone = asyncio.create_task(client.complete(call("k1"), 20.0))
        in_batch = asyncio.create_task(replies_of(client, [call("k1")]))
        await held.reached.wait()
        await until(lambda: True)
        cancelled = await client.cancel_call("k1")
        with pytest.raises(CallCancelled):
            await alone
        assert (cancelled.progress, await fleet_calls(store)) == (CallProgress.RUNNING, (0, 1))
        in_batch.cancel()
        held.release.set()
        async with asyncio.timeout(10.0):
            while (await fleet_calls(store)) != (1, 0):
                await asyncio.sleep(0.005)
        assert (await client.get_call("k1")).charged_uusd == CHARGE_UUSD
        assert (await client.cancel_call("k1")).charged_uusd == CHARGE_UUSD
        await asyncio.gather(in_batch, return_exceptions=True)


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


async def test_unexpected_item_failure_reveals_nothing_and_ends_nothing(tmp_path, caplog) -> None:
    async def behave(request):
        if request.messages[-1].content == "bug":
            return ProviderResult("x", TokenUsage(10, -5), "u", "stop")
        return await answer(request)

    async with running_coordinator(tmp_path, ProgrammedProvider(behave)), connected(tmp_path) as client:
        outcomes = await replies_of(client, [call("k1", "bug"), call("k2", "fine")])
    assert outcomes["k2"].text == "FINE" and outcomes["k1"].reason == "INTERNAL" and "negative" not in str(outcomes["k1"])


@pytest.mark.parametrize("most", [1, 4])
async def test_unencodable_reply_is_an_internal_error_and_ends_nothing(tmp_path, most) -> None:
    async def behave(request):
        if request.messages[-1].content == "bug":
            raise CoordinatorError("the provider's bug", metadata={"attempts": 5})  # type: ignore[dict-item]
        return await answer(request)

    calls = [call(f"k{number}", "bug" if number % 2 else "fine") for number in range(12)]
    terms = {"service": {"batch_items": most}}
    async with running_coordinator(tmp_path, ProgrammedProvider(behave), **terms), connected(tmp_path) as client:
        outcomes = await replies_of(client, calls)
    assert [outcomes[f"k{number}"].text for number in range(0, 12, 2)] == ["FINE"] * 6
    assert {outcomes[f"k{number}"].reason for number in range(1, 12, 2)} == {"INTERNAL"}
