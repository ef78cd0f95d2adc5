"""`edge-coordinator serve` as a real process with a real SQLite ledger: crashes, bad upstreams, signals, the death of its parent."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import sys

import pytest
from aiohttp import web

from edge.core.errors import BudgetExhausted, CoordinatorUnavailable, OutcomeUnknown, StepMismatch
from edge.rpc.client import StepUnits
from edge.rpc.grpc_client import ClientPolicy, GrpcCoordinatorClient
from tests.service.in_process import call
from tests.service.processes import (
    CoordinatorProcess,
    balances,
    command,
    coordinator_process,
    fake_upstream,
    good_reply,
    is_running,
    settings_for,
)

CHARGE_UUSD = 10 + 2 * 5


@pytest.fixture
async def upstream():
    async with fake_upstream() as upstream:
        yield upstream


def client_of(child: CoordinatorProcess, **policy) -> GrpcCoordinatorClient:
    return GrpcCoordinatorClient(child.address, policy=ClientPolicy(**policy))


async def verify(child: CoordinatorProcess) -> None:
    code, stdout, stderr = await command("ledger", "verify", "--state", str(child.state))
    assert code == 0, stdout + stderr


async def test_a_backup_made_while_serving_takes_the_ledgers_place(tmp_path, upstream) -> None:
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


async def test_a_step_with_calls_survives_a_restart_and_verifies(tmp_path, upstream) -> None:
    async with coordinator_process(tmp_path, settings_for(upstream)) as child:
        client = client_of(child)
        await client.open_step("math", 0, 4, 4, 0.5)
        first = await client.complete(call("k1", step=0), 10.0)
        closed = await client.close_step("math", 0, StepUnits(16, 4))
        await verify(child)
        assert await child.stop() == ""
        assert child.process.returncode == 0
        await child.start()
        again = await client.complete(call("k1", step=0), 10.0)
        assert (again.text, again.charged_uusd) == (first.text, first.charged_uusd) == ("WHAT IS 2+2?", CHARGE_UUSD)
        assert await client.close_step("math", 0, StepUnits(16, 4)) == closed
        with pytest.raises(StepMismatch) as caught:
            await client.open_step("math", 5, 4, 4, 0.5)
        assert caught.value.expected_step == 1
        await client.aclose()
        await child.stop()
        await verify(child)
    assert upstream.keys == ["local|k1|1"]


async def test_kill_9_in_the_middle_of_a_cloud_call_charges_once_and_loses_nothing(tmp_path, upstream) -> None:
    """The hold becomes IN_DOUBT and is charged; the same key gets OUTCOME_UNKNOWN for ever; a new key works; the books add up."""
    async with coordinator_process(tmp_path, settings_for(upstream)) as child:
        client = client_of(child, max_retries=2)
        await client.open_step("math", 0, 4, 4, 0.5)
        settled = await client.complete(call("before", "one", step=0, prompt_id="p0"), 10.0)
        upstream.reply = upstream.hang
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


async def test_a_client_rides_out_a_restart_with_the_same_key(tmp_path, upstream) -> None:
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


async def test_kill_9_during_many_calls_leaves_books_that_add_up(tmp_path, upstream) -> None:
    settings = settings_for(upstream, budgets={"device": {"calls_limit": 12}})
    async with coordinator_process(tmp_path, settings) as child:
        client = client_of(child, max_retries=0)

        async def sometimes_slow(request: web.Request) -> web.StreamResponse:
            if len(upstream.keys) % 3 == 0:
                return await upstream.hang(request)
            return await good_reply(request)

        upstream.reply = sometimes_slow
        calls = [call(f"k{number}", f"q{number}") for number in range(20)]
        asking = [asyncio.create_task(client.complete(each, 30.0)) for each in calls]
        async with asyncio.timeout(60):
            while len(upstream.keys) < 12:
                await asyncio.sleep(0.01)
        await child.kill_9()
        await asyncio.gather(*asking, return_exceptions=True)
        upstream.reply = good_reply
        await child.start()
        await client.aclose()
        client = client_of(child, max_retries=0)
        outcomes = await asyncio.gather(*(client.complete(each, 30.0) for each in calls), return_exceptions=True)
        await client.aclose()
        answered = [each for each in outcomes if not isinstance(each, Exception)]
        doubtful = [each for each in outcomes if isinstance(each, OutcomeUnknown)]
        refused = [each for each in outcomes if isinstance(each, BudgetExhausted)]
        assert (len(answered) + len(doubtful), len(refused)) == (12, 8)
        spent = sum(each.charged_uusd for each in answered) + sum(int(each.metadata["charged_uusd"]) for each in doubtful)
        device = (await balances(child.state))["device[device:local]"]
        assert device["calls"] == {"committed": 12, "reserved": 0, "limits": 12}
        assert device["uusd"]["committed"] == spent
        assert len(upstream.keys) == len(set(upstream.keys)) == 12
        await child.stop()
        await verify(child)


FAULTS = {
    "500": (lambda request: _status(500), "OUTCOME_UNKNOWN"),
    "429": (lambda request: _status(429), "UPSTREAM_FAILED"),
    "401": (lambda request: _status(401), "UPSTREAM_REJECTED"),
    "garbage": (lambda request: _text("<html>not json</html>"), "OUTCOME_UNKNOWN"),
    "empty object": (lambda request: _text("{}"), "OUTCOME_UNKNOWN"),
    "hang": (lambda request: asyncio.Event().wait(), "OUTCOME_UNKNOWN"),
}


async def test_bad_upstreams_become_typed_errors_and_the_books_add_up(tmp_path, upstream) -> None:
    reasons = {}
    patient = {"deadline_s": 3.0, "breaker": {"failures_to_open": 100, "longest_retry_after_s": 0.001}}
    async with coordinator_process(tmp_path, settings_for(upstream, upstream=patient)) as child:
        client = client_of(child, max_retries=0)
        for name, (reply, _) in FAULTS.items():
            upstream.reply = reply
            with pytest.raises((OutcomeUnknown, CoordinatorUnavailable)) as caught:
                await client.complete(call(name), 20.0)
            reasons[name] = caught.value.reason
        upstream.reply = good_reply
        assert (await client.complete(call("good"), 20.0)).text == "WHAT IS 2+2?"
        await client.aclose()
        fleet = (await balances(child.state))["fleet"]
        await child.stop()
        await verify(child)
    assert reasons == {name: reason for name, (_, reason) in FAULTS.items()}
    assert fleet["calls"]["committed"] == 1 + list(reasons.values()).count("OUTCOME_UNKNOWN") and fleet["uusd"]["reserved"] == 0


async def test_an_upstream_that_is_not_there_costs_nothing(tmp_path, upstream) -> None:
    settings = settings_for(upstream, upstream={"base_url": "http://127.0.0.1:9/v1"})
    async with coordinator_process(tmp_path, settings) as child:
        client = client_of(child, max_retries=0)
        with pytest.raises(CoordinatorUnavailable) as caught:
            await client.complete(call(), 10.0)
        await client.aclose()
        assert caught.value.reason == "UPSTREAM_FAILED"
        assert (await balances(child.state))["fleet"]["calls"]["committed"] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_signal_settles_the_running_call_first(tmp_path, upstream, number) -> None:
    release = asyncio.Event()

    async def held(request: web.Request) -> web.StreamResponse:
        await release.wait()
        return await good_reply(request)

    upstream.reply = held
    async with coordinator_process(tmp_path, settings_for(upstream)) as child:
        client = client_of(child, max_retries=0)
        asking = asyncio.create_task(client.complete(call(), 30.0))
        await upstream.asked.wait()
        child.process.send_signal(number)
        assert await _first_refusal(client) == "DRAINING"
        release.set()
        assert (await asking).charged_uusd == CHARGE_UUSD
        assert await child.stop() == "" and child.process.returncode == 0
        stopping, stopped = child.log.splitlines()
        assert stopping.endswith("stopping: waiting for 1 call") and stopped.endswith("stopped")
        await client.aclose()
        assert not (tmp_path / "c.sock").exists()
        await verify(child)


async def test_a_second_stop_signal_cuts_what_hangs_and_charges_it(tmp_path, upstream) -> None:
    upstream.reply = upstream.hang
    async with coordinator_process(tmp_path, settings_for(upstream)) as child:
        client = client_of(child, max_retries=0)
        asking = asyncio.create_task(client.complete(call(), 60.0))
        await upstream.asked.wait()
        child.process.send_signal(signal.SIGTERM)
        assert await _first_refusal(client) == "DRAINING"
        await child.stop(signal.SIGTERM)
        await asyncio.gather(asking, return_exceptions=True)
        await client.aclose()
        fleet = (await balances(child.state))["fleet"]
        assert (fleet["calls"]["committed"], fleet["calls"]["reserved"]) == (1, 0)
        await verify(child)


async def test_limits_set_from_outside_hold_within_seconds(tmp_path, upstream) -> None:
    settings = settings_for(upstream, service={"sweep_interval_s": 0.05})
    async with coordinator_process(tmp_path, settings) as child:
        client = client_of(child)
        await client.complete(call("k1", "a"), 10.0)
        code, stdout, _ = await command("budget", "set", "device", "--calls", "1", "--state", str(child.state))
        assert (code, stdout) == (0, "device: 1 call (total)\n")
        async with asyncio.timeout(20):
            while (await client.get_budget("math")).calls_limit != 1:
                await asyncio.sleep(0.05)
        with pytest.raises(BudgetExhausted):
            await client.complete(call("k2", "b"), 10.0)
        await command("budget", "set", "device", "--calls", "none", "--state", str(child.state))
        async with asyncio.timeout(20):
            while (await client.get_budget("math")).calls_limit is not None:
                await asyncio.sleep(0.05)
        assert (await client.complete(call("k2", "b"), 10.0)).text == "B"
        await client.aclose()


async def test_it_stops_when_its_parent_was_killed(tmp_path, upstream) -> None:
    """The parent is killed with -9 while a call runs; the child settles what it can and goes, and frees the ledger."""
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
    async with asyncio.timeout(30):
        while is_running(pid):
            await asyncio.sleep(0.05)
    await verify(child)


async def test_without_a_configuration_the_bundled_model_answers_and_spend_moves(tmp_path) -> None:
    async with coordinator_process(tmp_path, {}) as child:
        client = client_of(child)
        completion = await client.complete(call(prompt="What is 2 + 3?"), 60.0)
        budget = await client.get_budget("math")
        await client.aclose()
        await child.stop()
    assert completion.model == "nano-cloud" and completion.usage.output_tokens > 0
    assert 0 < completion.charged_uusd == budget.spend_uusd


async def test_a_model_file_that_cannot_be_read_is_one_line_and_exit_code_1(tmp_path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"not a model")
    config = ("--set", f"upstreams.default.path={tmp_path}/broken.gguf")
    code, stdout, stderr = await command("serve", *config, "--listen", f"unix:{tmp_path}/c.sock", "--state", str(tmp_path / "s"))
    assert (code, stdout) == (1, "") and "broken.gguf" in stderr and stderr.count("\n") == 1


async def test_a_second_coordinator_on_the_same_ledger_is_refused_in_one_line(tmp_path, upstream) -> None:
    async with coordinator_process(tmp_path, settings_for(upstream)) as child:
        listen = f"unix:{tmp_path}/other.sock"
        code, stdout, stderr = await command("serve", "--listen", listen, "--state", str(child.state))
        assert (code, stdout) == (1, "") and "in use" in stderr and stderr.count("\n") == 1


async def test_serving_is_told_as_json_when_asked(tmp_path, upstream) -> None:
    child = CoordinatorProcess(tmp_path, settings_for(upstream), "--json", "--listen", "127.0.0.1:0")
    told = json.loads(await child.start())
    await child.stop()
    assert [line.partition("app: ")[2] for line in child.log.splitlines()] == ["stopping", "stopped"]
    assert told["kind"] == "serving" and told["upstreams"] == ["default"] and told["addresses"][1].startswith("127.0.0.1:")
    assert not told["addresses"][1].endswith(":0")


async def test_a_tampered_ledger_fails_to_verify_with_a_line_that_names_the_difference(tmp_path, upstream) -> None:
    async with coordinator_process(tmp_path, settings_for(upstream)) as child:
        client = client_of(child)
        await client.complete(call(), 10.0)
        await client.aclose()
        await child.stop()
        ledger = sqlite3.connect(child.state / "ledger.sqlite3")
        ledger.execute("UPDATE budget SET committed_uusd = committed_uusd - 1 WHERE key = 'fleet'")
        ledger.commit()
        ledger.close()
        code, stdout, stderr = await command("ledger", "verify", "--state", str(child.state))
    assert code == 1 and "fleet" in stdout + stderr


async def test_no_prompt_and_no_answer_reaches_the_log(tmp_path, upstream) -> None:
    upstream.reply = lambda request: _status(500)
    async with coordinator_process(tmp_path, settings_for(upstream), "--log-level", "debug") as child:
        client = client_of(child, max_retries=0)
        with pytest.raises(OutcomeUnknown):
            await client.complete(call(prompt="SECRET-PROMPT"), 10.0)
        upstream.reply = good_reply
        await client.complete(call("k2", prompt="secret-answer"), 10.0)
        await client.aclose()
        log = await child.stop()
    assert "http_500" in log and "SECRET" not in log and "secret-answer" not in log


async def _first_refusal(client: GrpcCoordinatorClient) -> str:
    """Open a step again and again; the reason of the first refusal."""
    while True:
        try:
            await client.open_step("math", 0, 4, 4, 0.5)
        except CoordinatorUnavailable as error:
            return error.reason
        await asyncio.sleep(0.02)


async def _status(code: int) -> web.StreamResponse:
    return web.Response(status=code, text="no")


async def _text(text: str) -> web.StreamResponse:
    return web.Response(text=text, content_type="application/json")
