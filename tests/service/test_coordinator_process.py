"""`edge-coordinator serve` as a real process with a real SQLite ledger: backups, crashes, and the end of its parent."""

from __future__ import annotations

import asyncio
import sys

import pytest

from edge.core.errors import CoordinatorUnavailable, OutcomeUnknown
from edge.rpc.client import StepUnits
from tests.until import until
from tests.worlds.coordinator import call
from tests.worlds.coordinator_process import (
    CHARGE_UUSD,
    CoordinatorProcess,
    balances,
    client_of,
    command,
    coordinator_process,
    is_running,
    settings_for,
    verify,
)
from tests.worlds.upstream_server import good_reply, hangs


async def test_backup_made_while_serving_can_replace_the_ledger(tmp_path, upstream) -> None:
    first, second, copy = tmp_path / "first", tmp_path / "second", tmp_path / "backup.sqlite3"
    first.mkdir()
    (second / "state").mkdir(parents=True)
    async with coordinator_process(first, settings_for(upstream)) as child:
        answered = await client_of(child).complete(call("before"), 10.0)
        serving = asyncio.gather(
            *(client_of(child).complete(call(f"k{number}", f"question {number}"), 30.0) for number in range(40))
        )
        code, stdout, stderr = await command("ledger", "backup", str(copy), "--state", str(child.state))
        assert (code, stdout.startswith("verified")) == (0, True), stderr
        assert len(await serving) == 40
        assert await child.stop() == ""
    copy.rename(second / "state" / "ledger.sqlite3")
    asked = len(upstream.keys)
    async with coordinator_process(second, settings_for(upstream), "--verify") as child:
        assert (await client_of(child).complete(call("before"), 10.0)).text == answered.text
        await verify(child)
    assert len(upstream.keys) == asked


async def test_kill_9_during_a_cloud_call_charges_once_and_loses_nothing(tmp_path, upstream) -> None:
    """The hold becomes IN_DOUBT and is charged; the same key gets OUTCOME_UNKNOWN for ever; a new key works; the books add up."""
    async with coordinator_process(tmp_path, settings_for(upstream)) as child:
        client = client_of(child, max_retries=2)
        await client.open_step("math", 0, 4, 4, 0.5)
        settled = await client.complete(call("before", "one", step=0, prompt_id="p0"), 10.0)
        upstream.reply = hangs
        upstream.asked.clear()
        asking = asyncio.create_task(client.complete(call("cut", step=0), 30.0))
        await upstream.asked.wait()
        await child.kill_9()
        with pytest.raises(CoordinatorUnavailable) as lost:
            await asking
        assert lost.value.reason == "UNREACHABLE"

        upstream.reply = good_reply
        await child.start()
        await client.aclose()
        client = client_of(child)  # with more patience: a machine may be busy
        for _ in range(2):
            with pytest.raises(OutcomeUnknown) as caught:
                await client.complete(call("cut", step=0), 10.0)
        with pytest.raises(OutcomeUnknown):
            await client.get_call("cut")
        hold_uusd = int(caught.value.metadata["charged_uusd"])
        assert caught.value.metadata["state"] == "in_doubt" and hold_uusd > CHARGE_UUSD
        fresh = await client.complete(call("new", step=0), 10.0)
        assert (fresh.text, fresh.charged_uusd) == ("WHAT IS 2+2?", CHARGE_UUSD)
        assert (await client.complete(call("before", "one", step=0, prompt_id="p0"), 10.0)).text == settled.text
        assert (await client.close_step("math", 0, StepUnits(16, 8))).assist_rate == 0.5
        await client.aclose()

        fleet = (await balances(child.state))["fleet"]
        assert fleet["calls"] == {"committed": 3, "reserved": 0, "limits": None}
        assert fleet["uusd"] == {"committed": 2 * CHARGE_UUSD + hold_uusd, "reserved": 0, "limits": None}
        assert upstream.keys == ["local|before|1", "local|cut|1", "local|new|1"]
        await verify(child)
        await child.stop()
        await verify(child)


async def test_client_survives_a_restart_with_the_same_key(tmp_path, upstream) -> None:
    """Killed before anything was asked upstream: the client waits for the new process and is answered once."""
    async with coordinator_process(tmp_path, settings_for(upstream)) as child:
        client = client_of(child, connect_timeout_s=20.0)
        assert (await client.get_budget("math")).calls == 0
        await child.kill_9()
        asking = asyncio.create_task(client.complete(call(), 40.0))
        await child.start()
        assert (await asking).charged_uusd == CHARGE_UUSD
        await client.aclose()
    assert upstream.keys == ["local|k1|1"]


async def test_it_stops_when_its_parent_was_killed(tmp_path, upstream) -> None:
    """The parent is killed with -9 during a call; the child settles what it can, stops, and releases the ledger."""
    child = CoordinatorProcess(tmp_path, settings_for(upstream), "--exit-with-parent")
    starter = (
        "import subprocess, sys\n"
        "child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True)\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", starter, sys.executable, "-m", "coordinator", "serve", "--exit-with-parent"),
        *("--config", str(tmp_path / "coordinator.yaml"), "--listen", child.address, "--state", str(child.state)),
        stdout=asyncio.subprocess.PIPE,
    )
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    async with asyncio.timeout(60):
        assert (await parent.stdout.readline()).startswith(b"SERVING on unix:")
    client = client_of(child)
    assert (await client.complete(call(), 10.0)).charged_uusd == CHARGE_UUSD
    await client.aclose()
    parent.kill()
    await parent.wait()
    await until(lambda: not is_running(pid))
    await verify(child)


async def test_without_configuration_the_bundled_model_answers_and_spend_is_counted(tmp_path) -> None:
    async with coordinator_process(tmp_path, {}) as child:
        client = client_of(child)
        completion = await client.complete(call(prompt="What is 2 + 3?"), 60.0)
        budget = await client.get_budget("math")
        await client.aclose()
        await child.stop()
    assert completion.model == "nano-cloud" and completion.usage.output_tokens > 0
    assert 0 < completion.charged_uusd == budget.spend_uusd
