"""What an administrator does at one replica holds at the other: two coordinator processes on one PostgreSQL."""
# ruff: noqa: F811 - the fixture is imported

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from edge.core.errors import BudgetExhausted, PermissionDenied
from edge.rpc.client import BudgetSnapshot
from edge.rpc.grpc_client import GrpcCoordinatorClient
from tests.service.in_process import call
from tests.service.processes import CoordinatorProcess, command
from tests.service.test_replicas import Replicas, replicas  # noqa: F401 - a fixture

SECONDS = 15.0


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
    assert "limit of fleet: 1 calls (total); by `budget set`: calls" in await at(replicas.second, "budget", "show")
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


async def test_what_another_device_spends_of_the_fleet_at_one_replica_reaches_who_watches_at_the_other(replicas: Replicas) -> None:
    async with aclosing(replicas.clients[1].watch_budget("math")) as budgets:
        await until(budgets, "calls", 0)
        other = GrpcCoordinatorClient(replicas.first.address, device_id="other")
        try:
            for number in range(3):
                await other.complete(call(f"k{number}", f"prompt {number}"), 10.0)
            await until(budgets, "calls", 3)
        finally:
            await other.aclose()
