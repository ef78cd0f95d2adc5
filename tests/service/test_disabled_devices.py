"""A device is disabled and enabled by an administrator's call, by the command, and without a running coordinator."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from coordinator.cli import main
from coordinator.ledger.stores.sqlite import SqliteLedgerStore
from coordinator.ledger.verify import verify_file
from edge.core.errors import PermissionDenied
from edge.rpc.v1 import admin_pb2
from tests.worlds.coordinator import Held, ProgrammedProvider, administrator, call, connected, running_coordinator

ASIDE = {"console_listen": "127.0.0.1:0"}


def shut_out(device: str = "lamp", disabled: bool = True) -> admin_pb2.SetDeviceDisabledRequest:
    return admin_pb2.SetDeviceDisabledRequest(device=device, disabled=disabled)


async def opened(folder: Path) -> SqliteLedgerStore:
    return await SqliteLedgerStore.open(folder / "ledger.sqlite3", 0.0)


async def console_devices(url: str) -> dict[str, Any]:
    """The devices as the console's page receives them."""
    import aiohttp

    async with aiohttp.ClientSession() as session, session.get(f"{url}/api/state") as response:
        return {row["device"]: row for row in (await response.json())["devices"]}


async def test_a_disabled_device_is_refused_with_a_reason_while_its_open_call_is_settled(tmp_path) -> None:
    held = Held()
    provider = ProgrammedProvider(held)
    async with (
        running_coordinator(tmp_path, provider, store=await opened(tmp_path), **ASIDE) as it,
        administrator(tmp_path) as admin,
        connected(tmp_path, "lamp", max_retries=0) as lamp,
        connected(tmp_path, "desk") as desk,
    ):
        await lamp.register("1.0", ["math"])
        running = asyncio.create_task(lamp.complete(call("open", "one"), 10.0))
        await held.reached.wait()
        record = (await admin.SetDeviceDisabled(shut_out())).device
        assert (record.device, record.disabled, record.agent_version) == ("lamp", True, "1.0")
        for refused in (lamp.complete(call("k2", "two"), 5.0), lamp.get_budget("math"), lamp.open_step("math", 0, 4, 4, 0.3)):
            with pytest.raises(PermissionDenied, match="'lamp' is disabled") as caught:
                await refused
            assert caught.value.reason == "DEVICE_DISABLED" and "devices enable lamp" in caught.value.hint
        held.release.set()
        assert (await running).text == "ONE"
        assert (await desk.complete(call("other", "two"), 5.0)).text == "TWO"
        calls = (await admin.ListCalls(admin_pb2.ListCallsRequest(device="lamp"))).calls
        assert [(row.call_key, row.charged.uusd) for row in calls] == [("open", 20)]
        listed = {row.device: row.disabled for row in (await admin.ListDevices(admin_pb2.ListDevicesRequest())).devices}
        assert listed == {"lamp": True}
        assert (await console_devices(it.serving.console_url))["lamp"]["disabled"] is True
        entries = [entry async for entry in admin.ReadJournal(admin_pb2.ReadJournalRequest())]
        assert [json.loads(entry.body) for entry in entries if entry.kind == "device"] == [
            {"device": "lamp", "disabled": False},
            {"device": "lamp", "disabled": True},
        ]
    async with (
        running_coordinator(tmp_path, provider, store=await opened(tmp_path)),
        administrator(tmp_path) as admin,
        connected(tmp_path, "lamp", max_retries=0) as lamp,
    ):
        with pytest.raises(PermissionDenied):
            await lamp.get_call("open")
        assert not (await admin.SetDeviceDisabled(shut_out(disabled=False))).device.disabled
        assert (await lamp.get_call("open")).text == "ONE"
    assert verify_file(tmp_path / "ledger.sqlite3").ok


async def test_watcher_is_notified_immediately_when_its_device_is_disabled(tmp_path) -> None:
    async with (
        running_coordinator(tmp_path, ProgrammedProvider(), store=await opened(tmp_path)),
        administrator(tmp_path) as admin,
        connected(tmp_path, "lamp", max_retries=0) as lamp,
        aclosing(lamp.watch_budget("math")) as budgets,
    ):
        assert (await anext(budgets)).spend_uusd == 0
        await admin.SetDeviceDisabled(shut_out())
        with pytest.raises(PermissionDenied):
            await asyncio.wait_for(anext(budgets), 10.0)


async def test_the_commands_disable_and_enable_with_and_without_a_coordinator(tmp_path, capsys) -> None:
    async def run(*arguments: str) -> tuple[int, str, str]:
        code = await asyncio.to_thread(main, [*arguments, "--state", str(tmp_path)])
        return (code, *capsys.readouterr())

    code, out, err = await run("devices", "disable", "lamp", "--json")
    assert (code, err) == (0, "") and json.loads(out)["disabled"] is True
    out = (await run("devices", "disable", "lamp"))[1]
    assert "lamp: agent unknown, no task, never seen, disabled" in out and "note: no device called 'lamp' has registered" in out
    listed = (await run("devices", "disable", "lamp", "--set", "auth.devices.lamp.tasks=[math]"))[1]
    assert listed == "lamp: agent unknown, no task, never seen, disabled\n"
    code, out, err = await run("devices", "enable", "ghost")
    assert (code, out, err.count("\n")) == (1, "", 1) and "no device is called 'ghost'" in err
    async with (
        running_coordinator(tmp_path, ProgrammedProvider(), store=await opened(tmp_path)),
        connected(tmp_path, "lamp", max_retries=0) as lamp,
    ):
        with pytest.raises(PermissionDenied):
            await lamp.register("1.0", ["math"])
        code, out, err = await run("devices")
        assert code == 0 and out.startswith("lamp: ") and out.endswith(", disabled\n"), err
        code, out, err = await run("devices", "enable", "lamp")
        assert code == 0 and "disabled" not in out, err
        await lamp.register("1.0", ["math"])
        assert "never seen" not in (await run("devices"))[1]
        assert "note:" not in (await run("devices", "disable", "lamp"))[1]
        assert (await run("devices", "enable", "lamp"))[0] == 0
        code, out, err = await run("devices", "enable", "ghost")
        assert (code, out, err.count("\n")) == (1, "", 1) and "no device is called 'ghost'" in err
        assert "ghost" not in (await run("devices"))[1]
        code, out, err = await run("devices", "disable", "no device")
        assert (code, out) == (1, "") and err.count("\n") == 1
    code, _, err = await run("devices", "disable", "lamp", "--config", str(tmp_path / "none.yaml"))
    assert code == 1 and "none.yaml" in err
    assert main(["devices", "--json", "disable", "lamp"]) == 2
    assert "options belong after" in capsys.readouterr().err
