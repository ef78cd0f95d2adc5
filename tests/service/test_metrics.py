"""/metrics of a running coordinator: exact counts, bounded labels, and no remote access without credentials."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from coordinator.config import ServerConfig
from coordinator.ledger.accounts import Amount
from coordinator.ledger.opening import LEDGER_FILE, open_store
from coordinator.ledger.stores.memory import MemoryLedgerStore
from coordinator.ledger.stores.sqlite import SqliteLedgerStore, copy_file
from coordinator.service.http_server import Reply, Request
from coordinator.service.instruments import MeasuredStore
from coordinator.service.metrics import MAX_OUTCOMES, MAX_TASKS, OTHER, CoordinatorMeters
from coordinator.service.sideport import Route, side_port
from edge.core.clock import SystemClock
from edge.core.errors import (
    BudgetExhausted,
    ConfigError,
    CoordinatorError,
    CoordinatorUnavailable,
    InvalidRequest,
    OutcomeUnknown,
)
from edge.rpc.client import StepUnits
from tests.worlds.coordinator import Held, ProgrammedProvider, answer, call, connected, failing, running_coordinator
from tests.worlds.ledger_requests import HOLD, NOW, reserve_request
from tests.worlds.metrics_page import get, scraped, scraped_after, value
from tests.worlds.secure_fleet import SecureFleet

SIDES = {"metrics_listen": "127.0.0.1:0"}


async def test_calls_tokens_charges_and_refusals_are_counted(tmp_path) -> None:
    provider = ProgrammedProvider()
    limits = {"device": {"calls_limit": 4}}
    async with (
        running_coordinator(tmp_path, provider, budgets=limits, **SIDES) as it,
        connected(tmp_path, max_retries=0) as client,
    ):
        for key in ("a", "b"):
            await client.complete(call(key, key), 10.0)
        provider.behaviour = failing("http_429")
        with pytest.raises(CoordinatorUnavailable):
            await client.complete(call("c", "c"), 10.0)
        provider.behaviour = failing("deadline", None)
        with pytest.raises(OutcomeUnknown) as unconfirmed:
            await client.complete(call("d", "d"), 10.0)
        provider.behaviour = answer
        await client.complete(call("e", "e"), 10.0)
        with pytest.raises(BudgetExhausted):
            await client.complete(call("f", "f"), 10.0)
        seen = await scraped_after(it.serving.metrics_url, "Complete", 6)
    hold_uusd = float(unconfirmed.value.metadata["charged_uusd"])
    assert value(seen, "rpcs_total", method="Complete", code="OK", reason="") == 3
    assert value(seen, "rpcs_total", method="Complete", code="RESOURCE_EXHAUSTED", reason="BUDGET_EXHAUSTED") == 1
    assert value(seen, "rpcs_total", method="Complete", code="ABORTED", reason="OUTCOME_UNKNOWN") == 1
    assert value(seen, "rpcs_total", method="Complete", code="UNAVAILABLE", reason="UPSTREAM_FAILED") == 1
    assert value(seen, "rpc_seconds_count", method="Complete") == 6
    assert value(seen, "attempts_total", task="math", state="completed") == 3
    assert value(seen, "attempts_total", task="math", state="refunded") == 1
    assert value(seen, "attempts_total", task="math", state="in_doubt") == 1
    assert value(seen, "charged_micro_usd_total", task="math", model="m") == 3 * 20 + hold_uusd
    assert value(seen, "in_doubt_micro_usd_total") == hold_uusd > 0
    assert value(seen, "tokens_total", task="math", model="m", direction="input") == 30
    assert value(seen, "tokens_total", task="math", model="m", direction="output") == 15
    assert value(seen, "budget_refusals_total", scope="device", unit="calls") == 1
    assert value(seen, "upstream_seconds_count", upstream="default", outcome="ok") == 3
    assert value(seen, "upstream_seconds_count", upstream="default", outcome="http_429") == 1
    assert value(seen, "holds_open") == value(seen, "holds_micro_usd") == value(seen, "calls_in_flight") == 0


async def test_open_hold_is_shown_until_it_is_settled(tmp_path) -> None:
    held = Held()
    async with running_coordinator(tmp_path, ProgrammedProvider(held), **SIDES) as it, connected(tmp_path) as client:
        asking = asyncio.create_task(client.complete(call(), 10.0))
        await held.reached.wait()
        seen = await scraped(it.serving.metrics_url)
        assert value(seen, "holds_open") == value(seen, "calls_in_flight") == 1 and value(seen, "holds_micro_usd") > 20
        held.release.set()
        await asking
        assert value(await scraped(it.serving.metrics_url), "holds_open") == 0


async def test_hold_charged_by_a_sweep_is_counted_in_doubt() -> None:
    meters = CoordinatorMeters()
    store = MeasuredStore(MemoryLedgerStore(NOW), meters, lambda: 0.0, None)
    await store.reserve(reserve_request(hold=Amount(1, 100, 900)))
    assert list(meters.holds_uusd.values()) == [900]
    await store.sweep(NOW + 1000.0)
    assert (meters.holds_uusd, meters.doubt_uusd, sum(meters.charged_uusd.values())) == ({}, 900, 900)


async def test_what_a_killed_run_left_open_is_counted_in_doubt_and_logged(tmp_path, caplog) -> None:
    killed = await SqliteLedgerStore.open(tmp_path / "killed.sqlite3", NOW)
    for key in ("a", "b", "c"):
        await killed.reserve(reserve_request(key))
    copy_file(tmp_path / "killed.sqlite3", tmp_path / LEDGER_FILE)
    await killed.aclose()
    meters = CoordinatorMeters()
    for _start in range(2):
        store = await open_store(ServerConfig(state_dir=str(tmp_path)), SystemClock())
        MeasuredStore(store, meters, lambda: 0.0, None)
        await store.aclose()
    assert meters.doubt_uusd == 3 * HOLD.uusd and sum("3 calls of an earlier run" in line for line in caplog.messages) == 1


async def test_steps_show_their_rate_dual_and_remaining_budget(tmp_path) -> None:
    budgets = {"fleet": {"spend_limit_uusd": 100}, "device": {"calls_limit": 5}}
    async with running_coordinator(tmp_path, ProgrammedProvider(), budgets=budgets, **SIDES) as it:
        for name, asked in (("one", 8), ("two", 4)):
            async with connected(tmp_path, name) as client:
                await client.open_step("math", 0, 4, 4, 0.5)
                await client.complete(call("k", "q", step=0), 10.0)
                closed = await client.close_step("math", 0, StepUnits(16, asked))
        seen = await scraped(it.serving.metrics_url)
    assert value(seen, "responses_total", task="math") == 32
    assert value(seen, "responses_asking_total", task="math") == 12
    assert value(seen, "assist_rate", task="math") == 12 / 32
    assert value(seen, "target_rate", task="math") == 0.5
    assert value(seen, "device_dual", task="math", device="two") == closed.dual_after
    assert value(seen, "device_assist_rate", task="math", device="two") == 0.25
    assert value(seen, "dual", task="math", kind="max") == 0.5 > value(seen, "dual", task="math", kind="mean")
    assert value(seen, "budget_remaining", scope="fleet", device="", task="", unit="uusd") == 60
    assert value(seen, "budget_limit", scope="fleet", device="", task="", unit="uusd") == 100
    assert value(seen, "budget_remaining", scope="device", device="one", task="", unit="calls") == 4


async def test_refused_calls_are_counted_by_reason_and_streams_that_last_have_no_duration(tmp_path) -> None:
    async with running_coordinator(tmp_path, ProgrammedProvider(), **SIDES) as it, connected(tmp_path) as client:
        async with aclosing(client.watch_budget("math")) as budgets:
            await anext(budgets)
        with pytest.raises(InvalidRequest):
            await client.complete(call("", "q"), 10.0)
        await scraped_after(it.serving.metrics_url, "Complete", 1)
        seen = await scraped_after(it.serving.metrics_url, "WatchBudget", 1)
    assert value(seen, "rpcs_total", method="Complete", code="INVALID_ARGUMENT", reason="INVALID_REQUEST") == 1
    assert value(seen, "rpc_seconds_count", method="WatchBudget") == 0


async def test_disconnected_caller_is_counted_as_disconnected(tmp_path) -> None:
    held = Held()
    async with running_coordinator(tmp_path, ProgrammedProvider(held), **SIDES) as it, connected(tmp_path) as client:
        asking = asyncio.create_task(client.complete(call(), 10.0))
        await held.reached.wait()
        asking.cancel()
        async with asyncio.timeout(20):
            while ("edge_coordinator_rpcs_total", LEFT) not in await scraped(it.serving.metrics_url):
                await asyncio.sleep(0.02)
        held.release.set()


LEFT = frozenset({("method", "Complete"), ("code", "CANCELLED"), ("reason", "CALLER_LEFT")})


async def test_unreadable_ledger_drops_only_the_budget_series(tmp_path) -> None:
    store = MemoryLedgerStore()
    async with (
        running_coordinator(tmp_path, ProgrammedProvider(), store=store, **SIDES) as it,
        connected(tmp_path, max_retries=0) as client,
    ):
        await client.complete(call(), 10.0)
        store.break_down()
        with pytest.raises(CoordinatorError):
            await client.complete(call("other", "other"), 10.0)
        seen = await scraped(it.serving.metrics_url)
        store.heal()
    assert value(seen, "ledger_failures_total", operation="reserve") == 1
    assert value(seen, "attempts_total", task="math", state="completed") == 1
    assert not [name for name, _ in seen if name == "edge_coordinator_budget_used"]


def test_devices_and_tasks_beyond_the_limit_get_no_series() -> None:
    meters = CoordinatorMeters(devices=2)
    for number in range(5):
        meters.task_now(f"d{number}", "math", 0.5, 0.3)
    assert meters.named_pairs() == [("d0", "math"), ("d1", "math")]
    labels = {meters.task_label(task) for task in ("math", *(f"t{number}" for number in range(MAX_TASKS + 20)))}
    assert len(labels) == MAX_TASKS + 1 and OTHER in labels


def test_an_upstream_that_answers_with_every_status_gets_a_bounded_number_of_series() -> None:
    meters = CoordinatorMeters()
    for alias in ("a", "b"):
        for status in range(300, 1000):
            meters.upstream_took(alias, f"http_{status}", 0.1)
    assert len(meters.upstream_seconds) == 2 * (MAX_OUTCOMES + 1)
    for alias in ("a", "b"):
        counted = [sum(each.counts) for (name, _), each in meters.upstream_seconds.items() if name == alias]
        assert (sum(counted), sum(meters.upstream_seconds[alias, OTHER].counts)) == (700, 700 - MAX_OUTCOMES)


async def test_metrics_beyond_loopback_need_tls_and_a_token_of_their_role(tmp_path) -> None:
    fleet = SecureFleet(tmp_path)
    with pytest.raises(ConfigError, match="unencrypted"):
        async with running_coordinator(tmp_path, fleet.provider, metrics_listen="0.0.0.0:0"):
            pass
    async with fleet.running(metrics_listen="0.0.0.0:0", console_listen="0.0.0.0:0") as (it, _):
        url = it.serving.metrics_url.replace("0.0.0.0", "127.0.0.1")
        assert url.startswith("https://")
        console = url.removesuffix("/metrics")
        statuses = {}
        for role in ("", "device", "console", "metrics", "admin"):
            token = fleet.tokens.issue(role, "me") if role else ""
            statuses[role] = tuple([(await get(each, token=token, ssl=False))[0] for each in (url, f"{console}/api/state")])
        assert statuses == {
            "": (401, 401),
            "device": (403, 403),
            "console": (403, 200),
            "metrics": (200, 403),
            "admin": (200, 200),
        }
        assert (await get(f"{console}/", ssl=False))[0] == 200


async def test_a_foreign_host_name_or_page_reads_nothing(tmp_path) -> None:
    async with running_coordinator(tmp_path, ProgrammedProvider(), console_listen="127.0.0.1:0", **SIDES) as it:
        for url in (it.serving.metrics_url, f"{it.serving.console_url}/api/state", f"{it.serving.console_url}/"):
            assert (await get(url))[0] == 200
            assert (await get(url, host="evil.example"))[0] == 403
            assert (await get(url, **{"sec-fetch-site": "cross-site"}))[0] == 403
        followed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
        status, _, headers = await get(f"{it.serving.console_url}/", **followed)
        assert status == 200 and "default-src 'none'" in headers["content-security-policy"]


async def test_incomplete_and_silent_connections_are_closed_while_others_are_served(tmp_path) -> None:
    async def page(request: Request) -> Reply:
        return Reply(b"page", media_type="text/plain")

    everybody = Route("/metrics", page, None)
    authenticator = SecureFleet(tmp_path).tokens  # no credentials are required
    port = side_port("127.0.0.1:0", [everybody], authenticator, None, idle_s=0.5)  # type: ignore[arg-type]
    url = await port.start()
    host, _, number = url.removeprefix("http://").partition(":")
    try:
        async with asyncio.timeout(60):
            for sent in (b"", b"GET /metrics HTTP/1.1\r\nHost: local", b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"):
                reader, writer = await asyncio.open_connection(host, int(number))
                writer.write(sent)
                answer = await reader.read()
                assert answer.endswith(b"page") if sent.endswith(b"\n") else answer == b""
                assert (await get(f"{url}/metrics"))[:2] == (200, "page")
                writer.close()
    finally:
        await port.aclose()


async def test_failing_upstream_is_shown_as_skipped(tmp_path) -> None:
    async with (
        running_coordinator(tmp_path, ProgrammedProvider(failing("http_503")), **SIDES) as it,
        connected(tmp_path, max_retries=0) as client,
    ):
        before = await scraped(it.serving.metrics_url)
        for number in range(6):
            with pytest.raises(CoordinatorUnavailable) as caught:
                await client.complete(call(f"k{number}", f"q{number}"), 10.0)
        assert caught.value.reason == "UPSTREAM_OPEN"
        after = await scraped_after(it.serving.metrics_url, "Complete", 6)
    states = [value(seen, "upstream_breaker_state", upstream="default", state="open") for seen in (before, after)]
    assert states == [0, 1]
    assert value(after, "rpcs_total", method="Complete", code="UNAVAILABLE", reason="UPSTREAM_OPEN") == 1
