"""A real process is stopped under the load of many devices: the order of the drain seen from outside, and the resulting state."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from pathlib import Path

import pytest

from edge.core.errors import CoordinatorError
from edge.rpc.health import is_serving
from tests.until import until
from tests.worlds.coordinator import call
from tests.worlds.coordinator_process import CHARGE_UUSD, balances, client_of, command, coordinator_process, settings_for, verify
from tests.worlds.metrics_page import scraped, value
from tests.worlds.upstream_server import good_reply, hangs, running_upstream

DEVICES = 12


async def test_drain_announces_refuses_settles_checkpoints_and_stops_in_this_order(tmp_path, upstream) -> None:
    release = asyncio.Event()

    async def held(request):
        await release.wait()
        return await good_reply(request)

    upstream.reply = held
    settings = settings_for(upstream, metrics_listen="127.0.0.1:0")
    async with coordinator_process(tmp_path, settings, "--json") as child:
        serving = json.loads(child.serving_line)
        client = client_of(child, max_retries=0)
        asking = [asyncio.create_task(client.complete(call(f"k{n}", f"q{n}", prompt_id=f"p{n}"), 60.0)) for n in range(DEVICES)]
        await until(lambda: len(upstream.keys) == DEVICES)
        child.process.send_signal(signal.SIGTERM)
        await not_serving(child.address)
        assert await refusal(client) == "DRAINING"
        seen = await scraped(serving["metrics_url"])
        assert value(seen, "admitting") == 0 and value(seen, "holds_open") == value(seen, "calls_in_flight") == DEVICES
        admin = serving["admin_addresses"][0]
        assert await is_serving(admin), "administrators are served until the end"
        assert not await is_serving(admin, service="edge.rpc.v1.DeviceService"), "and reports that devices are not"
        assert child.process.returncode is None and not any(task.done() for task in asking)
        release.set()
        answers = await asyncio.gather(*asking)
        assert [answer.charged_uusd for answer in answers] == [CHARGE_UUSD] * DEVICES
        await client.aclose()
        assert await child.stop() == "" and child.process.returncode == 0
    assert_checkpointed(child.state)
    await verify(child)
    fleet = (await balances(child.state))["fleet"]
    assert fleet["uusd"] == {"committed": DEVICES * CHARGE_UUSD, "reserved": 0, "limits": None}
    assert len(upstream.keys) == DEVICES


async def test_the_drain_command_waits_until_the_coordinator_has_stopped(tmp_path, upstream) -> None:
    upstream.reply = hangs
    async with coordinator_process(tmp_path, settings_for(upstream)) as child:
        client = client_of(child, max_retries=0)
        asking = asyncio.create_task(client.complete(call(), 60.0))
        await until(lambda: len(upstream.keys) == 1)
        code, out, _ = await command("drain", "--json", "--grace-s", "1", "--state", str(child.state))
        lines = [json.loads(line) for line in out.splitlines()]
        assert code == 0 and lines[0] == {"kind": "draining", "in_flight": 1}
        assert lines[-1] == {"kind": "stopped", "in_flight": 0}
        with pytest.raises(CoordinatorError):
            await asking
        await client.aclose()
        assert await child.process.wait() == 0
    await verify(child)


async def test_second_signal_speeds_up_the_drain_and_the_ledger_stays_consistent(tmp_path, upstream) -> None:
    upstream.reply = hangs
    settings = settings_for(upstream, service={"drain_grace_s": 600.0})
    async with coordinator_process(tmp_path, settings) as child:
        client = client_of(child, max_retries=0)
        asking = [asyncio.create_task(client.complete(call(f"k{n}", f"q{n}", prompt_id=f"p{n}"), 900.0)) for n in range(DEVICES)]
        await until(lambda: len(upstream.keys) == DEVICES)
        child.process.send_signal(signal.SIGTERM)
        assert await refusal(client) == "DRAINING"
        assert not any(task.done() for task in asking)
        await child.stop(signal.SIGTERM)
        outcomes = await asyncio.gather(*asking, return_exceptions=True)
        await client.aclose()
    assert child.process.returncode == 0 and all(isinstance(each, CoordinatorError) for each in outcomes)
    assert_checkpointed(child.state)
    fleet = (await balances(child.state))["fleet"]
    assert (fleet["calls"]["committed"], fleet["calls"]["reserved"]) == (DEVICES, 0)
    await verify(child)


async def test_service_manager_is_notified_of_ready_alive_and_stopping(tmp_path, monkeypatch) -> None:
    path = tmp_path / "n.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as manager:
        manager.bind(str(path))
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        async with running_upstream() as upstream, coordinator_process(tmp_path, settings_for(upstream)) as child:
            messages = [await received(manager)]
            while not messages[-1].startswith("READY=1"):
                messages.append(await received(manager))
            assert child.address in messages[-1]
            while messages[-1] != "WATCHDOG=1":
                messages.append(await received(manager))
            child.process.send_signal(signal.SIGINT)
            while not messages[-1].startswith("STOPPING=1"):
                messages.append(await received(manager))
            assert await child.stop() == "" and child.process.returncode == 0
            assert_checkpointed(child.state)


def assert_checkpointed(state: Path) -> None:
    wal = state / "ledger.sqlite3-wal"
    assert not wal.exists() or wal.stat().st_size == 0


async def received(manager: socket.socket) -> str:
    async with asyncio.timeout(60):
        return (await asyncio.get_running_loop().sock_recv(manager, 4096)).decode()


async def not_serving(address: str) -> None:
    async with asyncio.timeout(60):
        while await is_serving(address):
            await asyncio.sleep(0.01)


async def refusal(client) -> str:
    """Why new work is refused, once it is."""
    async with asyncio.timeout(60):
        while True:
            try:
                await client.open_step("drained", 0, 4, 4, 0.5)
            except CoordinatorError as error:
                if error.reason != "STEP_MISMATCH":
                    return error.reason
            await asyncio.sleep(0.01)
