"""SIGHUP: a real process reloads its file; limits, prices, tasks and rates change, and the log lists the changes in one line."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from coordinator.config import ServerConfig
from coordinator.service.reload import changes_of, same_upstreams
from edge.core.errors import BudgetExhausted, NotFound
from edge.rpc.grpc_client import GrpcCoordinatorClient
from tests.worlds.coordinator import call
from tests.worlds.coordinator_process import START_TIMEOUT_S, CoordinatorProcess, coordinator_process, settings_for
from tests.worlds.upstream_server import running_upstream

FREE = {"price_in_uusd_per_mtok": 0, "price_out_uusd_per_mtok": 0}


async def until_the_limit_is(client: GrpcCoordinatorClient, calls: int) -> None:
    async with asyncio.timeout(20.0):
        while (await client.get_budget("math")).calls_limit != calls:
            await asyncio.sleep(0.02)


async def next_configuration_line(child: CoordinatorProcess) -> str:
    """The next line of its log that is about the configuration."""
    assert child.process.stderr is not None
    async with asyncio.timeout(START_TIMEOUT_S):
        while "configuration" not in (line := (await child.process.stderr.readline()).decode()):
            assert line, "the coordinator has ended"
    return line


async def test_sighup_reloads_the_reloadable_settings_and_ignores_a_bad_file(tmp_path: Path) -> None:
    async with running_upstream() as upstream, coordinator_process(tmp_path, settings_for(upstream)) as child:
        client = GrpcCoordinatorClient(child.address)
        assert (await client.complete(call("k1", "one"), 10.0)).charged_uusd == 20
        changed = {"budgets": {"device": {"calls_limit": 2}}, "tasks": {"math": {"target_rate": 0.7}}}
        child.reconfigure(settings_for(upstream, upstream=FREE, service={"max_rpcs": 7}, **changed))
        await until_the_limit_is(client, 2)
        assert (await client.complete(call("k2", "two"), 10.0)).charged_uusd == 0
        with pytest.raises(BudgetExhausted):
            await client.complete(call("k3", "three"), 10.0)
        with pytest.raises(NotFound):
            await client.complete(call("k4", "four", task="code"), 10.0)
        lines = [await next_configuration_line(child)]
        for text in ("tasks: {math: {target_rate: 7}}", "", "# cut short\n"):
            child.reconfigure(text)
            lines.append(await next_configuration_line(child))
        assert (await client.get_budget("math")).calls_limit == 2
        child.reconfigure(settings_for(upstream, upstream=FREE, service={"max_rpcs": 7}, budgets={"device": {"calls_limit": 3}}))
        await until_the_limit_is(client, 3)
        for model, price in (("another", 5), ("m", 7)):
            lines.append(await next_configuration_line(child))
            changed = {"service": {"max_rpcs": 7}, "budgets": {"device": {"calls_limit": 3}}}
            child.reconfigure(
                settings_for(upstream, upstream={**FREE, "model": model, "price_in_uusd_per_mtok": price}, **changed)
            )
        await client.aclose()
        lines += [line for line in (await child.stop()).splitlines() if "configuration" in line]
    first, bad, *empty, second, another, back = lines
    assert "budgets.device.calls_limit None -> 2" in first and "tasks.math.target_rate None -> 0.7" in first
    assert "upstreams.default.price_in_uusd_per_mtok 1000000 -> 0" in first and "needs a restart: service.max_rpcs" in first
    assert "stays as it was" in bad and "coordinator.yaml:1" in bad
    assert len(empty) == 2 and all("stays as it was" in line and "would lift every limit" in line for line in empty)
    assert "budgets.device.calls_limit 2 -> 3" in second and "price_in" not in second
    assert "needs a restart: service.max_rpcs, upstreams.default" in another and "price_in" not in another
    assert "upstreams.default.price_in_uusd_per_mtok 0 -> 7" in back


def test_new_price_is_taken_only_where_the_upstream_is_unchanged() -> None:
    def of(**upstream: object) -> ServerConfig:
        return ServerConfig.model_validate({"upstreams": {"default": upstream}})

    started, dearer, other = of(), of(price_in_uusd_per_mtok=5), of(price_in_uusd_per_mtok=5, model="other")
    assert same_upstreams(started, dearer) == {"default"} and not same_upstreams(started, other)
    assert changes_of(started, started, dearer).taken == ("upstreams.default.price_in_uusd_per_mtok None -> 5",)
    assert changes_of(started, dearer, other).restart == ("upstreams.default",) and not changes_of(started, dearer, other).taken
    assert str(changes_of(started, started, started)) == "nothing changed"
