"""What an administrator does at one replica holds at the other: two coordinator processes on one PostgreSQL."""
# ruff: noqa: F811 - the fixture is imported

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from coordinator.service.tokens import CHECK_FILES_S
from edge.core.errors import BudgetExhausted, PermissionDenied
from edge.rpc.client import BudgetSnapshot
from edge.rpc.errors import from_rpc_error
from edge.rpc.grpc_client import GrpcCoordinatorClient
from edge.rpc.v1 import admin_pb2, admin_pb2_grpc, budget_pb2, device_pb2_grpc
from tests.service.in_process import call
from tests.service.metrics_page import scraped, value
from tests.service.processes import CoordinatorProcess, command, coordinator_process
from tests.service.test_replicas import Replicas, replicas  # noqa: F401 - a fixture

SECONDS = 25.0


async def at(child: CoordinatorProcess, *arguments: str) -> str:
    """A command of this replica's operator that succeeds; what it prints."""
    config = str(child.folder / "coordinator.yaml")
    code, stdout, stderr = await command(*arguments, "--config", config, "--state", str(child.state))
    assert code == 0, stderr
    return stdout


async def to_the_end(budgets: AsyncIterator[BudgetSnapshot]) -> None:
    """Watch until the stream ends."""
    async for _ in budgets:
        pass


async def until(budgets: AsyncIterator[BudgetSnapshot], field: str, value: Any) -> None:
    """Watch until a field has this value."""
    async with asyncio.timeout(SECONDS):
        async for budget in budgets:
            if getattr(budget, field) == value:
                return


async def test_a_device_disabled_at_one_replica_is_refused_by_both_until_it_is_enabled(replicas: Replicas) -> None:
    first, second = replicas.clients
    await second.complete(call("k1", "one"), 10.0)
    async with asyncio.timeout(SECONDS), aclosing(second.watch_budget("math")) as budgets:
        await anext(budgets)
        await at(replicas.first, "devices", "disable", "local")
        with pytest.raises(PermissionDenied, match="'local' is disabled"):
            await to_the_end(budgets)
    for client in (first, second):
        for refused in (client.complete(call("k2", "two"), 10.0), client.get_call("k1"), client.get_budget("math")):
            with pytest.raises(PermissionDenied) as caught:
                await refused
            assert caught.value.reason == "DEVICE_DISABLED"
    assert json.loads(await at(replicas.second, "devices", "--json"))["disabled"] is True
    assert replicas.upstream.keys == ["local|k1|1"]
    await at(replicas.second, "devices", "enable", "local")
    assert (await second.complete(call("k2", "two"), 10.0)).text == "TWO"
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                assert (await first.get_call("k1")).text == "ONE"
                break
            except PermissionDenied:
                await asyncio.sleep(0.05)
    await at(replicas.first, "ledger", "verify")


async def test_limits_set_at_one_replica_hold_at_the_other_and_reach_who_watches_there(replicas: Replicas) -> None:
    """The configuration of both says 6 calls; what is set wins at once, survives SIGHUP and a restart, and is proved by the journal."""
    first, second = replicas.clients
    async with aclosing(second.watch_budget("math")) as budgets:
        await until(budgets, "calls_limit", 6)
        await at(replicas.first, "budget", "set", "fleet", "--calls", "1")
        await until(budgets, "calls_limit", 1)
    await second.complete(call("k1", "one"), 10.0)
    for client in (first, second):
        with pytest.raises(BudgetExhausted):
            await client.complete(call("k2", "two"), 10.0)
    assert "limit of fleet: 1 call (total); by `budget set`: calls" in await at(replicas.second, "budget", "show")
    replicas.second.process.send_signal(signal.SIGHUP)
    await replicas.first.kill_9()
    await replicas.first.start()
    for client in (first, second):
        with pytest.raises(BudgetExhausted):
            await client.complete(call("k3", "three"), 10.0)
    await at(replicas.second, "budget", "set", "fleet", "--calls", "config")
    assert (await first.complete(call("k4", "four"), 10.0)).text == "FOUR"
    assert (await first.get_budget("math")).calls_limit == (await second.get_budget("math")).calls_limit == 6
    assert (await at(replicas.first, "ledger", "verify")).startswith("verified")


async def test_what_another_device_spends_of_the_fleet_at_one_replica_reaches_who_watches_at_the_other(
    replicas: Replicas,
) -> None:
    async with aclosing(replicas.clients[1].watch_budget("math")) as budgets:
        await until(budgets, "calls", 0)
        other = GrpcCoordinatorClient(replicas.first.address, device_id="other")
        try:
            for number in range(3):
                await other.complete(call(f"k{number}", f"prompt {number}"), 10.0)
            await until(budgets, "calls", 3)
        finally:
            await other.aclose()


async def budget_with(token: str, child: CoordinatorProcess) -> int:
    """What a device that shows this token has spent, as this replica tells."""
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
        code, stdout, _ = await command("config", "check", *here)
        assert code == 0 and "KEYS_NOT_SHARED" in stdout and "auth.folder" in stdout


@pytest.mark.long
async def test_a_second_replica_in_the_same_state_folder_is_refused_in_one_line(replicas: Replicas, tmp_path: Path) -> None:
    config = str(replicas.first.folder / "coordinator.yaml")
    listen = ("--listen", f"unix:{tmp_path}/other.sock")
    code, stdout, stderr = await command("serve", "--config", config, "--state", str(replicas.first.state), *listen)
    assert (code, stdout) == (1, "") and stderr.count("\n") == 1
    assert "admin.sock: another process is using it" in stderr and "--state" in stderr
    assert (await replicas.clients[0].complete(call("k1", "one"), 10.0)).text == "ONE"
    assert json.loads(await at(replicas.first, "budget", "show", "--json"))["budgets"], "the first one's socket is still its own"


async def test_a_replica_counts_its_commits_and_their_operations(replicas: Replicas, tmp_path: Path) -> None:
    folder = tmp_path / "counted"
    folder.mkdir()
    settings = yaml.safe_load((replicas.first.folder / "coordinator.yaml").read_text())
    async with coordinator_process(folder, {**settings, "metrics_listen": "127.0.0.1:0"}, "--json") as child:
        url = json.loads(child.serving_line)["metrics_url"]
        before = await scraped(url)
        client = GrpcCoordinatorClient(child.address)
        try:
            for number in range(3):
                await client.complete(call(f"k{number}", f"prompt {number}"), 10.0)
        finally:
            await client.aclose()
        seen = await scraped(url)
    commits, operations = (
        value(seen, name) - value(before, name) for name in ("ledger_commits_total", "ledger_operations_total")
    )
    assert operations >= commits >= 6, "a hold and a settlement each"
    told = {dict(labels)["operation"] for name, labels in seen if name == "edge_coordinator_ledger_operation_seconds_count"}
    assert {"reserve", "settle"} <= told
    assert value(seen, "ledger_conflicts_total") >= 0
