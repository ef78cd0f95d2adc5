"""An agent that watches its budget: it shows limits and spending without polling, and works unchanged where no watch is available."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from edge.cloud import client as budget_watch
from edge.cloud.client import BudgetWatch
from edge.config.schema import PhaseConfig
from edge.core.errors import CoordinatorUnavailable, NotImplementedThere, PermissionDenied
from edge.rpc.client import BudgetSnapshot
from edge.rpc.v1 import admin_pb2, admin_pb2_grpc
from edge.serve.running_agent import RunningAgent
from edge.testing.coordinator import ScriptedCoordinatorClient
from tests.until import until
from tests.worlds.agent import World
from tests.worlds.coordinator import ProgrammedProvider, call, connected, raw_channel, running_coordinator


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget_watch, "FIRST_PAUSE_S", 0.02)


async def shown(watch: BudgetWatch, is_it: Callable[[BudgetSnapshot | None], bool], task: str = "math") -> BudgetSnapshot | None:
    """The watched budget, once it has the expected value."""
    async with asyncio.timeout(30.0):
        while not is_it(newest := watch.newest(task)):
            await asyncio.sleep(0.005)
    return newest


async def test_limits_and_spending_are_watched_without_polling_and_across_a_restart(tmp_path) -> None:
    async with connected(tmp_path, connect_timeout_s=0.2, max_retries=1) as client:
        watch = BudgetWatch(client, random.Random(1))
        async with running_coordinator(tmp_path, ProgrammedProvider()), raw_channel(tmp_path, "admin.sock") as admins:
            await watch.follow("math")
            assert (await shown(watch, lambda budget: budget is not None)).calls_limit is None
            change = admin_pb2.SetBudgetRequest(scope="device", calls=admin_pb2.LimitChange(value=7))
            await admin_pb2_grpc.AdminServiceStub(admins).SetBudget(change)
            await shown(watch, lambda budget: budget is not None and budget.calls_limit == 7)
            await client.complete(call(), 5.0)
            await shown(watch, lambda budget: budget is not None and budget.calls == 1)
            assert watch.newest("code") is None
        await shown(watch, lambda budget: budget is None)
        async with running_coordinator(tmp_path, ProgrammedProvider()):
            await shown(watch, lambda budget: budget is not None and budget.calls == 0)
        await watch.aclose()
        await watch.aclose()
        assert watch.newest("math") is None


@pytest.mark.parametrize(
    "error",
    [CoordinatorUnavailable("nobody there"), PermissionDenied("not your task"), CoordinatorUnavailable("x", reason="DRAINING")],
)
async def test_refused_watch_is_retried_until_it_works(error) -> None:
    client = ScriptedCoordinatorClient(lambda asked: "A")
    client.fail_next("watch_budget", error, times=3)
    watch = BudgetWatch(client, random.Random(1))
    await watch.follow("math")
    await shown(watch, lambda budget: budget is not None)
    await watch.aclose()


async def test_coordinator_without_watch_support_is_asked_once(monkeypatch) -> None:
    client, asked = ScriptedCoordinatorClient(lambda asked: "A"), []

    def refuse(task: str):
        asked.append(task)
        raise NotImplementedThere("unknown RPC")

    monkeypatch.setattr(client, "watch_budget", refuse)
    watch = BudgetWatch(client, random.Random(1))
    await watch.follow("math")
    await asyncio.sleep(0.2)
    assert asked == ["math"] and watch.newest("math") is None
    await watch.aclose()


async def test_running_agent_shows_the_watched_budget_and_polls_only_without_a_watch(tmp_path) -> None:
    world = World(tmp_path)
    async with world.agent() as agent:
        await until(lambda: agent.link.watch.newest(agent.link.watch.task) is not None)
        world.client.fail_next("get_budget", CoordinatorUnavailable("must not be asked"), times=9)
        assert (await RunningAgent(agent).status()).budget.dual == world.terms.dual_init
        await agent.link.watch.aclose()
        assert (await RunningAgent(agent).status()).budget is None


async def test_watched_task_is_the_one_being_learned(tmp_path) -> None:
    phases = (PhaseConfig(source="sums", task="first", steps=1), PhaseConfig(source="sums", task="second", steps=1))
    world = World(tmp_path, phases=phases)
    async with world.agent() as agent:
        await agent.learn(max_steps=1)
        await agent.learn()
        async with asyncio.timeout(30.0):
            while (budget := agent.link.watch.newest(agent.link.watch.task)) is None:
                await asyncio.sleep(0.005)
    assert budget.dual == (await world.client.get_budget("second")).dual
