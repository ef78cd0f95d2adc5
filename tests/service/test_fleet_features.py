"""Features shared by many devices over real gRPC: shared λ, floors, answers, rates and turns; and terms that change at run time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from coordinator.app import Coordinator
from coordinator.calls.admission import Gate
from coordinator.config import RatePoint, ServerConfig
from coordinator.ledger.stores.memory import MemoryLedgerStore
from coordinator.ledger.verify import verify
from edge.core.errors import BudgetExhausted, NotFound, RateLimited
from edge.dagrpo.dual import dual_step, shared_lr
from edge.rpc.client import StepUnits
from edge.rpc.grpc_client import GrpcCoordinatorClient
from edge.testing.clock import ManualClock
from tests.worlds.coordinator import ProgrammedProvider, call, connected, upstream

NOW = 1_760_000_000.0  # 2025-10-09 08:53:20 UTC
FAST = {"max_retries": 0}


@dataclass
class World:
    """A coordinator with a manual clock, and clients of it by device."""

    coordinator: Coordinator
    store: MemoryLedgerStore
    provider: ProgrammedProvider
    clock: ManualClock
    config: ServerConfig
    clients: dict[str, GrpcCoordinatorClient]

    def __getitem__(self, device: str) -> GrpcCoordinatorClient:
        return self.clients[device]


@asynccontextmanager
async def world(folder: Path, devices: str = "d1 d2", *, gate: Gate | None = None, **settings: Any) -> AsyncIterator[World]:
    config = ServerConfig.model_validate({"listen": (f"unix:{folder}/c.sock",), "state_dir": str(folder), **settings})
    store, provider, clock = MemoryLedgerStore(NOW), ProgrammedProvider(), ManualClock(NOW)
    upstreams = {"default": upstream(provider, **({"gate": gate} if gate else {}))}
    coordinator = Coordinator(config, store=store, upstreams=upstreams, clock=clock)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(coordinator)
        names = devices.split()
        clients = {name: await stack.enter_async_context(connected(folder, name, **FAST)) for name in names}
        yield World(coordinator, store, provider, clock, config, clients)
    report = verify(store.tables)
    assert report.ok, report.differences


async def test_devices_of_a_fleet_dual_move_it_together_and_receive_it(tmp_path) -> None:
    async with world(tmp_path, "d1 d2 late", tasks={"math": {"dual_scope": "fleet", "dual_lr": 0.1}}) as it:
        for device in ("d1", "d2"):
            assert (await it[device].open_step("math", 0, 4, 8, 0.3)).dual == 0.5
        first = await it["d1"].close_step("math", 0, StepUnits(32, 32, 32))
        assert first.dual_after == dual_step(0.5, 1.0, 0.3, shared_lr(0.1, 32, 64))
        assert (await it["d2"].get_budget("math")).dual == first.dual_after
        second = await it["d2"].close_step("math", 0, StepUnits(32, 32, 32))
        assert (second.dual_before, second.dual_after) == (first.dual_after, pytest.approx(0.5 + 0.1 * 0.7))
        assert (await it["late"].get_budget("math")).dual == second.dual_after
        assert (await it["late"].register("1.0", ["math"])).tasks[0].dual == second.dual_after
        served = await it["late"].complete(call(), 5.0)
        assert served.budget is not None
        assert served.budget.dual == second.dual_after


async def test_schedule_sets_the_target_rate_of_each_step_instead_of_the_device(tmp_path) -> None:
    points = [
        {"from_step": 1, "target_rate": 0.4},
        {"from_step": 2, "target_rate": 0.5},
        {"from_date": "2025-10-10", "target_rate": 0.7},
    ]
    async with world(tmp_path, "d1", tasks={"math": {"target_rate": 0.2, "target_rate_schedule": points}}) as it:
        rates = []
        for step in range(4):
            if step == 3:
                it.clock.advance(86400.0)
            rates.append((await it["d1"].open_step("math", step, 4, 8, 0.9)).target_rate)
            await it["d1"].close_step("math", step, StepUnits(32, 0))
        assert rates == [0.9, 0.4, 0.5, 0.7]  # before the first point the device is asked, as without a schedule
        journalled = [
            float.fromhex(entry.data()["target_rate"]) for entry in it.store.tables.journal if entry.kind == "open_step"
        ]
        assert journalled == rates


async def test_schedule_applies_from_the_first_contact(tmp_path) -> None:
    """On any kind of first contact with a task, the device receives and the ledger stores the τ of its first step."""
    points = [{"from_step": 0, "target_rate": 0.2}, {"from_step": 1, "target_rate": 0.4}]
    async with world(tmp_path, "d1 d2", tasks={"math": {"target_rate": 0.3, "target_rate_schedule": points}}) as it:
        registered = await it["d1"].register("1.0", ["math"])
        before = await it["d1"].get_budget("math")
        served = await it["d1"].complete(call(), 5.0)
        kept = await it.store.get_task("d1", "math")
        assert served.budget is not None and kept is not None
        assert [registered.tasks[0].target_rate, before.target_rate, served.budget.target_rate, kept.target_rate] == [0.2] * 4
        assert (await it["d1"].open_step("math", 0, 4, 8, 0.9)).target_rate == 0.2
        assert (await it["d2"].open_step("math", 0, 4, 8, 0.9)).target_rate == 0.2


def test_date_without_a_zone_is_utc_and_a_zone_is_used() -> None:
    begin = 1_760_054_400.0  # 2025-10-10 00:00 UTC
    plain = RatePoint.model_validate({"from_date": "2025-10-10", "target_rate": 0.3})
    zoned = RatePoint.model_validate({"from_date": "2025-10-10T02:00:00+02:00", "target_rate": 0.3})
    for point in (plain, zoned):
        assert (point.holds(0, begin - 1.0), point.holds(0, begin)) == (False, True)


async def test_task_budget_covers_the_whole_fleet(tmp_path) -> None:
    async with world(tmp_path, budgets={"fleet_task": {"calls_limit": 1}}) as it:
        await it["d1"].complete(call("k1", "one"), 5.0)
        with pytest.raises(BudgetExhausted) as refused:
            await it["d2"].complete(call("k2", "two"), 5.0)
        assert refused.value.metadata["budget"] == "fleet_task[task:math]"
        await it["d2"].complete(call("k3", "three", task="code"), 5.0)


@pytest.mark.parametrize(
    ("terms", "own", "other"),
    [
        ({}, True, False),
        ({"answer_cache": "off"}, False, False),
        ({"answer_cache": "fleet"}, True, True),
        ({"answer_cache": "fleet", "answer_cache_ttl_s": 5.0}, False, True),  # d2 gets what d1 had to ask for again
    ],
)
@pytest.mark.parametrize("cold", [None, 0.0])
async def test_answers_are_reused_as_the_task_configures(tmp_path, cold, terms, own, other) -> None:
    async with world(tmp_path, tasks={"math": terms}) as it:
        await it["d1"].complete(call("k1", temperature=cold), 5.0)
        await it["d1"].complete(call("w1", temperature=1.0), 5.0)
        it.clock.advance(10.0)
        again = await it["d1"].complete(call("k2", temperature=cold), 5.0)
        crossed = await it["d2"].complete(call("k1", temperature=cold), 5.0)
        heated = await it["d1"].complete(call("w2", temperature=1.0), 5.0)
        assert [again.cached, crossed.cached, heated.cached] == [own, other, False]
        assert all(answer.charged_uusd == 0 for answer in (again, crossed, heated) if answer.cached)
        assert {again.text, crossed.text, heated.text} == {"WHAT IS 2+2?"}


async def test_rate_limited_call_gets_a_retry_delay_and_no_hold(tmp_path) -> None:
    async with world(tmp_path, rates={"device": {"calls_per_min": 6, "burst": 2}}) as it:
        for number in range(2):
            await it["d1"].complete(call(f"k{number}", f"prompt {number}"), 5.0)
        entries = len(it.store.tables.journal)
        with pytest.raises(RateLimited) as refused:
            await it["d1"].complete(call("k2", "prompt 2"), 5.0)
        assert refused.value.retry_after_s == pytest.approx(10.0)
        assert len(it.store.tables.journal) == entries
        await it["d2"].complete(call("k2", "prompt 2"), 5.0)
        it.clock.advance(10.0)
        await it["d1"].complete(call("k2", "prompt 2"), 5.0)


async def test_limits_tasks_rates_and_prices_are_reloaded_and_open_steps_keep_theirs(tmp_path) -> None:
    async with world(
        tmp_path, tasks={"math": {"target_rate": 0.2, "target_rate_from_device": False, "controller": "paper"}}
    ) as it:
        await it["d1"].open_step("math", 0, 4, 8, 0.3)
        before = await it["d1"].complete(call("k1", "one"), 5.0)
        changed = ServerConfig.model_validate(
            {
                **it.config.model_dump(),
                "tasks": {"math": {"target_rate": 0.6, "dual_scope": "fleet", "target_rate_from_device": False}},
                "budgets": {"device": {"calls_limit": 2}},
                "rates": {"fleet": {"calls_per_min": 3, "burst": 3}},
                "upstreams": {"default": {"price_in_uusd_per_mtok": 0, "price_out_uusd_per_mtok": 0}, "new": {}},
            }
        )
        assert it.coordinator.reload(changed).restart == ("upstreams.new",)
        opened = await it["d1"].open_step("math", 0, 4, 8, 0.3)
        closed = await it["d1"].close_step("math", 0, StepUnits(32, 0))
        assert (opened.target_rate, closed.dual_after) == (0.2, dual_step(0.5, 0.0, 0.2, 0.01))
        following = await it["d1"].open_step("math", 1, 4, 8, 0.3)
        assert (following.target_rate, following.dual) == (0.6, closed.dual_after)
        free = await it["d1"].complete(call("k2", "two"), 5.0)
        assert before.charged_uusd > 0 == free.charged_uusd
        with pytest.raises(BudgetExhausted):
            await it["d1"].complete(call("k3", "three"), 5.0)
        with pytest.raises(NotFound):
            await it["d2"].complete(call("k4", "four", task="code"), 5.0)
        await it["d2"].complete(call("k5", "five"), 5.0)
        with pytest.raises(RateLimited):
            await it["d2"].complete(call("k6", "six"), 5.0)
