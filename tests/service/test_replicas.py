"""Two coordinator processes on one PostgreSQL share a ledger for all requests and administration, also when one of them is killed."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from coordinator.service.tokens import CHECK_FILES_S
from edge.core.errors import BudgetExhausted, CoordinatorUnavailable, OutcomeUnknown, PermissionDenied
from edge.rpc.client import BudgetSnapshot, StepUnits
from edge.rpc.errors import from_rpc_error
from edge.rpc.grpc_client import ClientPolicy, GrpcCoordinatorClient
from edge.rpc.v1 import admin_pb2, admin_pb2_grpc, budget_pb2, device_pb2_grpc
from tests.worlds.coordinator import call
from tests.worlds.coordinator_process import CoordinatorProcess, command, coordinator_process, settings_for
from tests.worlds.postgres_server import PostgresServer
from tests.worlds.upstream_server import Upstream, good_reply, hangs, running_upstream

CHARGE_UUSD = 10 + 2 * 5
LIMIT = 6


@dataclass
class Replicas:
    """Both processes, a client of each, and the upstream they share."""

    first: CoordinatorProcess
    second: CoordinatorProcess
    clients: tuple[GrpcCoordinatorClient, GrpcCoordinatorClient]
    upstream: Upstream

    async def ledger(self, *arguments: str) -> tuple[int, str]:
        """A command that reads the shared ledger, as an operator of the second replica."""
        config = str(self.second.folder / "coordinator.yaml")
        code, stdout, stderr = await command(*arguments, "--config", config, "--state", str(self.second.state))
        return code, stdout + stderr

    async def fleet(self) -> dict[str, Any]:
        """The fleet's balances."""
        code, out = await self.ledger("budget", "show", "--json")
        assert code == 0, out
        return next(row for row in json.loads(out)["budgets"] if row["key"] == "fleet")


@pytest.fixture
async def replicas(postgres_server: PostgresServer, tmp_path: Path, monkeypatch) -> AsyncIterator[Replicas]:
    monkeypatch.setenv("TEST_LEDGER_DSN", await postgres_server.ledger_database())
    storage = {"backend": "postgres", "dsn_env": "TEST_LEDGER_DSN", "replica_lease_s": 4.0}
    async with running_upstream() as upstream, AsyncExitStack() as stack:
        auth = {"folder": str(tmp_path / "auth")}
        settings = settings_for(upstream, storage=storage, auth=auth, budgets={"fleet": {"calls_limit": LIMIT}})
        folders = [tmp_path / name for name in ("first", "second")]
        for folder in folders:
            folder.mkdir()
        children = [await stack.enter_async_context(coordinator_process(folder, settings)) for folder in folders]
        policy = ClientPolicy(max_retries=20, max_backoff_s=0.3)
        clients = [GrpcCoordinatorClient(child.address, policy=policy) for child in children]
        yield Replicas(children[0], children[1], (clients[0], clients[1]), upstream)
        for client in clients:
            await client.aclose()


async def test_two_replicas_share_one_ledger(replicas: Replicas) -> None:
    """The same key asked at both is sent once and answered to both; a step closes once; a limit holds for both together."""
    upstream, (first, second) = replicas.upstream, replicas.clients
    release = asyncio.Event()

    async def when_released(request: Any) -> Any:
        await release.wait()
        return await good_reply(request)

    upstream.reply = when_released
    await first.open_step("math", 0, 4, 4, 0.5)
    twice = [asyncio.create_task(client.complete(call("same", step=0), 30.0)) for client in (first, second)]
    await upstream.asked.wait()
    release.set()
    answers = await asyncio.gather(*twice)
    assert [answer.text for answer in answers] == ["WHAT IS 2+2?"] * 2
    assert upstream.keys == ["local|same|1"]
    closed = await asyncio.gather(*(client.close_step("math", 0, StepUnits(16, 1)) for client in (first, second)))
    assert closed[0] == closed[1]

    asked = [client.complete(call(f"k{number}", f"prompt {number}"), 30.0) for number in range(12) for client in (first, second)]
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    refused = sum(isinstance(outcome, BudgetExhausted) for outcome in outcomes)
    assert refused == 2 * (12 - (LIMIT - 1)), outcomes
    assert len(upstream.keys) == LIMIT == len(set(upstream.keys))
    fleet = await replicas.fleet()
    assert fleet["calls"] == {"committed": LIMIT, "reserved": 0, "limits": LIMIT}
    assert fleet["uusd"]["committed"] == LIMIT * CHARGE_UUSD
    code, out = await replicas.ledger("ledger", "verify")
    assert code == 0, out


async def test_replica_killed_during_a_call_is_swept_by_the_other(replicas: Replicas) -> None:
    """While it lives its hold stays; once it is dead, the other charges the hold as in doubt, and the key is spent."""
    upstream, (first, second) = replicas.upstream, replicas.clients
    upstream.reply = hangs
    lost = asyncio.create_task(first.complete(call("cut", "one"), 60.0))
    await upstream.asked.wait()
    assert (await replicas.fleet())["calls"]["reserved"] == 1
    await replicas.first.kill_9()
    lost.cancel()
    upstream.reply = good_reply
    assert (await second.complete(call("other", "two"), 20.0)).text == "TWO"
    async with asyncio.timeout(60.0):
        while (await replicas.fleet())["calls"]["reserved"]:
            await asyncio.sleep(0.2)
    with pytest.raises(OutcomeUnknown) as caught:
        await second.complete(call("cut", "one"), 20.0)
    assert caught.value.metadata["cause"] == "coordinator stopped"
    assert upstream.keys == ["local|cut|1", "local|other|1"]
    await replicas.first.start()
    with pytest.raises((OutcomeUnknown, CoordinatorUnavailable)) as again:
        await first.complete(call("cut", "one"), 20.0)
    assert isinstance(again.value, OutcomeUnknown)
    code, out = await replicas.ledger("ledger", "verify")
    assert code == 0, out


async def at(child: CoordinatorProcess, *arguments: str) -> str:
    """Run a command of this replica's operator; it must succeed. Returns its output."""
    config = str(child.folder / "coordinator.yaml")
    code, stdout, stderr = await command(*arguments, "--config", config, "--state", str(child.state))
    assert code == 0, stderr
    return stdout


async def until(budgets: AsyncIterator[BudgetSnapshot], field: str, value: Any) -> None:
    """Watch until a field has this value; within seconds, where the heartbeat is 30 s."""
    async with asyncio.timeout(25.0):
        async for budget in budgets:
            if getattr(budget, field) == value:
                return


async def test_limits_spending_and_disabled_devices_are_shared_between_replicas(replicas: Replicas) -> None:
    """The configuration of both allows 6 calls; a set limit applies immediately, survives SIGHUP and a restart, and is in the journal."""
    first, second = replicas.clients
    async with aclosing(second.watch_budget("math")) as budgets:
        await until(budgets, "calls_limit", LIMIT)
        await first.complete(call("k1", "one"), 10.0)
        await until(budgets, "spend_uusd", CHARGE_UUSD)
        await at(replicas.first, "budget", "set", "fleet", "--calls", "1")
        await until(budgets, "calls_limit", 1)
    for client in (first, second):
        with pytest.raises(BudgetExhausted):
            await client.complete(call("k2", "two"), 10.0)
    replicas.second.process.send_signal(signal.SIGHUP)
    await replicas.first.kill_9()
    await replicas.first.start()
    for client in (first, second):
        with pytest.raises(BudgetExhausted):
            await client.complete(call("k3", "three"), 10.0)
    await at(replicas.second, "budget", "set", "fleet", "--calls", "config")
    assert (await first.complete(call("k4", "four"), 10.0)).text == "FOUR"
    assert (await first.get_budget("math")).calls_limit == (await second.get_budget("math")).calls_limit == LIMIT

    async with asyncio.timeout(25.0), aclosing(second.watch_budget("math")) as budgets:
        await anext(budgets)
        await at(replicas.first, "devices", "disable", "local")
        with pytest.raises(PermissionDenied, match="'local' is disabled"):
            await until(budgets, "calls", -1)
    for client in (first, second):
        for refused in (client.complete(call("k5", "five"), 10.0), client.get_call("k1"), client.get_budget("math")):
            with pytest.raises(PermissionDenied) as caught:
                await refused
            assert caught.value.reason == "DEVICE_DISABLED"
    assert replicas.upstream.keys == ["local|k1|1", "local|k4|1"]
    await at(replicas.second, "devices", "enable", "local")
    assert (await second.complete(call("k5", "five"), 10.0)).text == "FIVE"
    assert (await at(replicas.first, "ledger", "verify")).startswith("verified")


async def budget_with(token: str, child: CoordinatorProcess) -> int:
    """The spending of a device with this token, as reported by this replica."""
    async with grpc.aio.insecure_channel(child.address) as channel:
        request = budget_pb2.GetBudgetRequest(task="math")
        shown = (("authorization", f"Bearer {token}"),)
        reply = await device_pb2_grpc.DeviceServiceStub(channel).GetBudget(request, metadata=shown, timeout=10.0)
        return int(reply.budget.calls)


@pytest.mark.long
async def test_a_token_revoked_at_one_replica_is_refused_at_the_other(replicas: Replicas) -> None:
    both = (replicas.first, replicas.second)
    token = (await at(replicas.first, "token", "issue", "lamp")).strip()
    assert [await budget_with(token, child) for child in both] == [0, 0]
    async with grpc.aio.insecure_channel(f"unix:{replicas.first.state}/admin.sock") as channel:
        await admin_pb2_grpc.AdminServiceStub(channel).RevokeDevice(admin_pb2.RevokeDeviceRequest(device="lamp"))
    await asyncio.sleep(CHECK_FILES_S)
    for child in both:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await budget_with(token, child)
        assert from_rpc_error(caught.value).metadata["cause"] == "REVOKED"
    fresh = (await at(replicas.second, "token", "issue", "lamp")).strip()
    assert [await budget_with(fresh, child) for child in both] == [0, 0]


@pytest.mark.long
async def test_a_replica_without_a_shared_folder_neither_issues_nor_revokes(replicas: Replicas, tmp_path: Path) -> None:
    alone = yaml.safe_load((replicas.first.folder / "coordinator.yaml").read_text())
    del alone["auth"]
    folder = tmp_path / "alone"
    folder.mkdir()
    async with coordinator_process(folder, alone) as child:
        here = ("--config", str(folder / "coordinator.yaml"))
        for act in (("issue", "lamp"), ("revoke", "lamp"), ("rotate",)):
            code, stdout, stderr = await command("token", *act, *here, "--state", str(child.state))
            assert (code, stdout) == (1, "") and "auth.folder" in stderr and stderr.count("\n") == 1
        async with grpc.aio.insecure_channel(f"unix:{child.state}/admin.sock") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await admin_pb2_grpc.AdminServiceStub(channel).RevokeDevice(admin_pb2.RevokeDeviceRequest(device="lamp"))
        refused = from_rpc_error(caught.value)
        assert (caught.value.code(), refused.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "KEYS_NOT_SHARED")
