"""Two coordinator processes on one PostgreSQL: one ledger, whoever is asked; and one of them dies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edge.core.errors import BudgetExhausted, CoordinatorUnavailable, OutcomeUnknown
from edge.rpc.client import StepUnits
from edge.rpc.grpc_client import ClientPolicy, GrpcCoordinatorClient
from tests.postgres_server import PostgresServer
from tests.service.in_process import call
from tests.service.processes import (
    CoordinatorProcess,
    FakeUpstream,
    command,
    coordinator_process,
    fake_upstream,
    good_reply,
    settings_for,
)

CHARGE_UUSD = 10 + 2 * 5
LIMIT = 6


@dataclass
class Replicas:
    """Both processes, a client of each, and the upstream they share."""

    first: CoordinatorProcess
    second: CoordinatorProcess
    clients: tuple[GrpcCoordinatorClient, GrpcCoordinatorClient]
    upstream: FakeUpstream

    async def ledger(self, *arguments: str) -> tuple[int, str]:
        """A command that reads the shared ledger, as an operator of the second replica."""
        config = str(self.second.folder / "coordinator.yaml")
        code, stdout, stderr = await command(*arguments, "--config", config, "--state", str(self.second.state))
        return code, stdout + stderr

    async def fleet(self) -> dict[str, Any]:
        """The fleet's balances."""
        code, told = await self.ledger("budget", "show", "--json")
        assert code == 0, told
        return next(row for row in json.loads(told)["budgets"] if row["key"] == "fleet")


@pytest.fixture
async def replicas(postgres_server: PostgresServer, tmp_path: Path, monkeypatch) -> AsyncIterator[Replicas]:
    monkeypatch.setenv("TEST_LEDGER_DSN", await postgres_server.ledger_database())
    storage = {"backend": "postgres", "dsn_env": "TEST_LEDGER_DSN", "replica_lease_s": 4.0}
    async with fake_upstream() as upstream, AsyncExitStack() as stack:
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


async def test_two_replicas_are_one_ledger(replicas: Replicas) -> None:
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
    code, told = await replicas.ledger("ledger", "verify")
    assert code == 0, told


async def test_a_replica_killed_in_the_middle_of_a_call_is_swept_by_the_other(replicas: Replicas, tmp_path: Path) -> None:
    """While it lives its hold stands; dead, the other charges the hold as in doubt, and the key ends for good."""
    upstream, (first, second) = replicas.upstream, replicas.clients
    upstream.reply = upstream.hang
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
    code, told = await replicas.ledger("ledger", "verify")
    assert code == 0, told
    whole, rest = tmp_path / "whole.jsonl.gz", tmp_path / "rest.jsonl"
    assert (await replicas.ledger("ledger", "export", "--output", str(whole)))[0] == 0
    code, told = await replicas.ledger("ledger", "export", "--after", "3", "--output", str(rest))
    assert code == 0, told
    assert json.loads(rest.read_text().splitlines()[0])["seq"] == 4


async def test_what_one_replica_charges_rings_for_who_watches_at_the_other(replicas: Replicas) -> None:
    """Within seconds, where the heartbeat is 30 s."""
    spending, watching = replicas.clients
    seen: list[int] = []
    async with asyncio.timeout(25.0), aclosing(watching.watch_budget("math")) as budgets:
        async for budget in budgets:
            seen.append(budget.spend_uusd)
            if len(seen) == 1:
                await spending.complete(call("k1", "one"), 10.0)
            if seen[-1] == CHARGE_UUSD:
                break
    assert seen[0] == 0 and seen[-1] == CHARGE_UUSD
