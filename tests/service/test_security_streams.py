"""Credentials that expire while a stream is open, and answers of tasks that a token may not use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

import grpc
import pytest

from edge.core.clock import SystemClock
from edge.core.errors import CoordinatorError, NotFound, PermissionDenied, Unauthenticated
from edge.rpc import codec
from edge.rpc.client import CallProgress
from edge.rpc.errors import from_rpc_error
from edge.rpc.v1 import admin_pb2, admin_pb2_grpc, budget_pb2, device_pb2_grpc
from edge.testing.clock import ManualClock
from tests.until import until
from tests.worlds.coordinator import Held, call
from tests.worlds.secure_fleet import SecureFleet, device

QUICK_HEARTBEATS = {"watch_heartbeat_s": 0.05}
LIFE_S = {"token": 900.0 + 30.0, "certificate": 7 * 86400.0, "both": 930.0}


@pytest.fixture
def fleet(tmp_path) -> SecureFleet:
    return SecureFleet(tmp_path, ManualClock(SystemClock().now()))


def shown(fleet: SecureFleet, kind: str) -> tuple[grpc.ChannelCredentials, tuple[tuple[str, str], ...]]:
    """A channel's credentials and a call's metadata of the device `lamp`."""
    tls = fleet.tls(None if kind == "token" else fleet.client_certificate("lamp"))
    token = "" if kind == "certificate" else fleet.tokens.issue("device", "lamp")
    return tls.channel_credentials(), ((("authorization", f"Bearer {token}"),) if token else ())


@asynccontextmanager
async def open_connection(fleet: SecureFleet, kind: str) -> AsyncIterator[tuple[Any, Any]]:
    """A channel of `lamp` as what asks one question over it, after one answer, and a watch with one update."""
    credentials, metadata = shown(fleet, kind)
    async with AsyncExitStack() as stack:
        running = fleet.running(client_cert=kind != "token", service=QUICK_HEARTBEATS)
        _, address = await stack.enter_async_context(running)
        channel = await stack.enter_async_context(grpc.aio.secure_channel(address, credentials))
        stub = device_pb2_grpc.DeviceServiceStub(channel)

        async def ask(prompt: str) -> str:
            try:
                reply = await stub.Complete(codec.encode_call(call(prompt, prompt)), metadata=metadata, timeout=20)
            except grpc.RpcError as error:
                raise from_rpc_error(error) from error
            return reply.completion.text

        assert await ask("before") == "BEFORE"
        watch = stub.WatchBudget(budget_pb2.WatchBudgetRequest(task="math"), metadata=metadata, timeout=20)
        assert (await watch.read()).HasField("budget")
        yield ask, watch


async def ended(stream: Any) -> CoordinatorError:
    """The error that ends a stream; its messages before are skipped."""
    try:
        while await stream.read() is not grpc.aio.EOF:
            pass
    except grpc.RpcError as error:
        return from_rpc_error(error)
    raise AssertionError("the stream ended well")


async def is_over(ask: Any, watch: Any, cause: str) -> None:
    """A credential is over for the next call and for the open stream."""
    with pytest.raises(Unauthenticated) as refused:
        await ask("after")
    for error in (refused.value, await ended(watch)):
        assert isinstance(error, Unauthenticated) and error.metadata["cause"] == cause


@pytest.mark.parametrize("kind", ["token", "certificate"])
async def test_revoked_credential_spends_nothing_more_through_its_open_connection(fleet, kind) -> None:
    async with open_connection(fleet, kind) as (ask, watch):
        fleet.tokens.revoke("device", "lamp")
        await is_over(ask, watch, "REVOKED")
    assert [request.messages[-1].content for request in fleet.provider.requests] == ["before"]


async def test_revoking_a_leaked_key_ends_the_streams_of_its_tokens(fleet) -> None:
    async with open_connection(fleet, "both") as (ask, watch):
        fleet.tokens.rotate()
        assert await ask("overlap") == "OVERLAP"
        fleet.tokens.rotate(at_once=True)
        await is_over(ask, watch, "UNKNOWN_KEY")
    assert [request.messages[-1].content for request in fleet.provider.requests] == ["before", "overlap"]


@pytest.mark.parametrize("kind", ["token", "certificate", "both"])
async def test_expired_credential_spends_nothing_more_through_its_open_connection(fleet, kind) -> None:
    async with open_connection(fleet, kind) as (ask, watch):
        fleet.clock.advance(LIFE_S[kind] - 5.0)
        assert await ask("in time") == "IN TIME"
        fleet.clock.advance(5.0)
        await is_over(ask, watch, "EXPIRED")
    assert [request.messages[-1].content for request in fleet.provider.requests] == ["before", "in time"]


async def test_calls_read_before_the_credential_ended_are_still_answered(fleet) -> None:
    held = fleet.provider.behaviour = Held()
    held.release.set()
    async with open_connection(fleet, "token") as (ask, watch):
        held.release.clear()
        held.reached.clear()
        running = asyncio.create_task(ask("running"))
        await held.reached.wait()
        fleet.tokens.revoke("device", "lamp")
        await is_over(ask, watch, "REVOKED")
        held.release.set()
        assert await running == "RUNNING"


async def test_a_revoked_administrator_reads_no_more_of_the_journal(fleet) -> None:
    held = fleet.provider.behaviour = Held()
    held.release.set()
    listen = (f"unix:{fleet.folder}/a.sock",)
    async with AsyncExitStack() as stack:
        _, address = await stack.enter_async_context(fleet.running(client_cert=False, admin_listen=listen))
        token = fleet.tokens.issue("admin", "eve")
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(listen[0]))
        request = admin_pb2.ReadJournalRequest(follow=True)
        admin = admin_pb2_grpc.AdminServiceStub(channel)
        journal = admin.ReadJournal(request, metadata=(("authorization", f"Bearer {token}"),), timeout=20)
        lamp_token = fleet.token_file(fleet.tokens.issue("device", "lamp"))
        lamp = await stack.enter_async_context(device(address, fleet.tls(), lamp_token))
        await lamp.complete(call("k1"), 10.0)
        await journal.read()
        fleet.tokens.revoke("admin", "eve")
        await lamp.complete(call("k2", "another"), 10.0)
        assert (await ended(journal)).metadata["cause"] == "REVOKED"


async def test_after_token_renewal_a_watch_continues_and_calls_are_made(tmp_path) -> None:
    fleet = SecureFleet(tmp_path)
    async with AsyncExitStack() as stack:
        running = fleet.running(client_cert=False, auth={"clock_skew_s": 0}, service=QUICK_HEARTBEATS)
        _, address = await stack.enter_async_context(running)
        file = fleet.token_file(fleet.tokens.issue("device", "lamp", life_s=4))
        first = file.token()
        lamp = await stack.enter_async_context(device(address, fleet.tls(), file))
        budgets = await stack.enter_async_context(aclosing(lamp.watch_budget("math")))
        assert (await anext(budgets)).calls == 0
        await lamp.complete(call("k0", "question 0"), 10.0)
        ends_at = fleet.tokens.check(first).expires_at
        await until(lambda: file.token() != first and fleet.clock.now() >= ends_at)
        answers = [await lamp.complete(call(f"k{number}", f"question {number}"), 10.0) for number in range(1, 5)]
        assert [answer.text for answer in answers] == [f"QUESTION {number}" for number in range(1, 5)]
        async with asyncio.timeout(60):
            while (await anext(budgets)).calls < 5:
                pass
    assert len(fleet.provider.requests) == 5


@asynccontextmanager
async def of_two_tasks(fleet: SecureFleet) -> AsyncIterator[tuple[Any, Any]]:
    """Two holders of tokens of the same device, one for `math` and one for `secrets`."""
    async with AsyncExitStack() as stack:
        _, address = await stack.enter_async_context(fleet.running(client_cert=False))
        clients = []
        for task in ("math", "secrets"):
            token = fleet.token_file(fleet.tokens.issue("device", "lamp", [task]), task)
            clients.append(await stack.enter_async_context(device(address, fleet.tls(), token)))
        yield clients[0], clients[1]


async def message_of(attempt: Any) -> str:
    with pytest.raises(NotFound) as caught:
        await attempt
    return str(caught.value)


async def test_call_of_another_task_is_refused_to_a_limited_token_without_its_task(fleet) -> None:
    async with of_two_tasks(fleet) as (math, secrets):
        await secrets.complete(call("k1", task="secrets"), 10.0)
        assert (await secrets.get_call("k1")).text == "WHAT IS 2+2?"
        assert (await secrets.cancel_call("k1")).progress is CallProgress.COMPLETED
        for ask in (math.get_call, math.cancel_call):
            with pytest.raises(PermissionDenied) as refused:  # NOT_FOUND would say that it was never made, and cost nothing
                await ask("k1")
            assert "secrets" not in str(refused.value)
            with pytest.raises(NotFound):
                await ask("k2")


async def test_stored_answer_of_a_device_is_not_reused_in_another_task(fleet) -> None:
    async with of_two_tasks(fleet) as (math, secrets):
        await secrets.complete(call("k1", task="secrets"), 10.0)
        assert (await secrets.complete(call("k2", task="secrets"), 10.0)).cached
        assert not (await math.complete(call("k3", task="math"), 10.0)).cached
        assert (await math.complete(call("k4", task="math"), 10.0)).cached
