"""The life of a call over real gRPC with a scripted upstream: one call per group, faults, draining, lost replies."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from coordinator.calls.admission import Gate
from coordinator.ledger.accounts import CallState, step_budget_key
from coordinator.ledger.budgets import fits_again_in_s
from coordinator.ledger.stores.memory import MemoryLedgerStore
from coordinator.ledger.transitions import STOPPED
from coordinator.providers.provider import ProviderResult
from coordinator.service.server import SERVICE
from edge.cloud.group_calls import for_who_demanded_the_cloud
from edge.core.errors import (
    BudgetExhausted,
    CallCancelled,
    ConfigError,
    CoordinatorError,
    CoordinatorUnavailable,
    InvalidRequest,
    KeyReused,
    NotFound,
    OutcomeUnknown,
    UsageError,
)
from edge.core.types import TokenUsage
from edge.rpc.client import CallProgress, StepUnits
from edge.rpc.grpc_client import GrpcCoordinatorClient
from edge.serve.errors import problem_of
from edge.testing.clock import ManualClock
from tests.until import until
from tests.worlds.coordinator import Held, ProgrammedProvider, answer, call, connected, failing, fleet_use, running_coordinator
from tests.worlds.loopback import proxied

HOLD_UUSD = 10 + 4 * len("what is 2+2?") + 2 * 20
CHARGE_UUSD = 10 + 2 * 5
FAST = {"max_retries": 0}


async def test_call_is_charged_what_it_used_and_no_hold_stays(tmp_path) -> None:
    store, provider = MemoryLedgerStore(), ProgrammedProvider()
    async with running_coordinator(tmp_path, provider, store=store), connected(tmp_path) as client:
        completion = await client.complete(call(), 5.0)
        assert (completion.charged_uusd, completion.usage, completion.model) == (CHARGE_UUSD, TokenUsage(10, 5), "m")
        assert completion.budget is not None and completion.budget.spend_uusd == CHARGE_UUSD
        assert await fleet_use(store) == ((1, CHARGE_UUSD), (0, 0))


@pytest.mark.parametrize("reported", [None, TokenUsage(0, 0), TokenUsage(0, 5)])
async def test_an_answer_without_a_usage_that_can_be_is_charged_at_the_hold(tmp_path, reported: TokenUsage | None) -> None:
    async def answer(request):
        return ProviderResult("x", reported, "u", "stop")

    async with running_coordinator(tmp_path, ProgrammedProvider(answer)), connected(tmp_path) as client:
        assert (await client.complete(call(), 5.0)).charged_uusd == HOLD_UUSD


async def test_the_same_key_joins_the_running_call(tmp_path) -> None:
    held = Held()
    provider = ProgrammedProvider(held)
    async with running_coordinator(tmp_path, provider), connected(tmp_path, **FAST) as one, connected(tmp_path, **FAST) as two:
        asking = [asyncio.create_task(client.complete(call(), 10.0)) for client in (one, two, one, two)]
        await held.reached.wait()
        with pytest.raises(KeyReused):
            await one.complete(call(prompt="other"), 5.0)
        held.release.set()
        answers = await asyncio.gather(*asking)
    assert len(provider.requests) == 1 and len({(each.text, each.charged_uusd) for each in answers}) == 1


async def test_a_hundred_concurrent_callers_of_one_group_make_one_upstream_call(tmp_path) -> None:
    store, provider = MemoryLedgerStore(), ProgrammedProvider()
    async with running_coordinator(tmp_path, provider, store=store), connected(tmp_path, **FAST) as client:
        await client.open_step("math", 0, 8, 8, 1.0)
        calls = [call(f"k{number}", step=0, prompt_id="g") for number in range(100)]
        answers = await asyncio.gather(*(client.complete(each, 20.0) for each in calls))
        assert await fleet_use(store) == ((1, CHARGE_UUSD), (0, 0))
    assert len(provider.requests) == 1 and sum(each.charged_uusd for each in answers) == CHARGE_UUSD


async def test_concurrent_calls_never_exceed_a_limit(tmp_path) -> None:
    store, provider = MemoryLedgerStore(), ProgrammedProvider()
    limit = 7 * HOLD_UUSD
    budgets = {"fleet": {"spend_limit_uusd": limit}}
    async with running_coordinator(tmp_path, provider, store=store, budgets=budgets), connected(tmp_path) as client:
        calls = [call(f"k{number}", f"what is {number:>2}?", temperature=number / 100) for number in range(60)]
        answers = await asyncio.gather(*(client.complete(each, 20.0) for each in calls), return_exceptions=True)
        committed, reserved = await fleet_use(store)
    refused = [each for each in answers if isinstance(each, BudgetExhausted)]
    assert committed[1] <= limit and reserved == (0, 0)
    assert len(refused) + committed[0] == 60 and refused and len(provider.requests) == committed[0]
    assert {each.metadata["budget"] for each in refused} == {"fleet"}


async def test_step_with_only_refused_calls_is_no_discrepancy_and_the_refusal_names_the_budget(tmp_path) -> None:
    budgets = {"device": {"calls_limit": 0}}
    async with running_coordinator(tmp_path, ProgrammedProvider(), budgets=budgets), connected(tmp_path) as client:
        await client.open_step("math", 0, 16, 8, 0.5)
        with pytest.raises(BudgetExhausted) as caught:
            await client.complete(call("k1", step=0), 5.0)
        assert caught.value.metadata["told"] == "device calls 0 of 0"
        assert (await client.close_step("math", 0, StepUnits(128, 5))).discrepancies == ()
        await client.open_step("math", 1, 16, 8, 0.5)
        assert len((await client.close_step("math", 1, StepUnits(128, 5))).discrepancies) == 1


async def test_disconnecting_client_does_not_stop_settlement(tmp_path) -> None:
    held, store = Held(), MemoryLedgerStore()
    async with running_coordinator(tmp_path, ProgrammedProvider(held), store=store), connected(tmp_path) as client:
        asking = asyncio.create_task(client.complete(call(), 10.0))
        await held.reached.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        held.release.set()
        recovered = await client.complete(call(), 5.0)
        assert recovered.text == "WHAT IS 2+2?" and await fleet_use(store) == ((1, CHARGE_UUSD), (0, 0))


@pytest.mark.parametrize("leaves", [False, True], ids=["cancelled", "left"])
async def test_a_queued_call_that_is_cancelled_or_left_is_dropped_without_charge(tmp_path, leaves: bool) -> None:
    held, store = Held(), MemoryLedgerStore()
    provider, gate = ProgrammedProvider(held), Gate("default", 1, 10)
    async with running_coordinator(tmp_path, provider, store=store, alias_settings={"gate": gate}), connected(tmp_path) as client:
        first = asyncio.create_task(client.complete(call("k1", "one"), 20.0))
        await held.reached.wait()
        second = asyncio.create_task(client.complete(call("k2", "two"), 20.0))
        await until(lambda: gate.waiting)
        if leaves:
            second.cancel()
        else:
            cancelled = await client.cancel_call("k2")
            assert (cancelled.progress, cancelled.charged_uusd) == (CallProgress.DROPPED, 0)
        with pytest.raises(asyncio.CancelledError if leaves else CallCancelled):
            await second
        await until(lambda: not gate.waiting)
        held.release.set()
        await first
        with pytest.raises(NotFound):
            await client.get_call("k2")
        assert await fleet_use(store) == ((1, CHARGE_UUSD), (0, 0))
    assert len(provider.requests) == 1


async def test_call_not_taken_by_the_upstream_costs_nothing_and_its_key_is_reusable(tmp_path, caplog) -> None:
    store, provider = MemoryLedgerStore(), ProgrammedProvider(failing())
    async with running_coordinator(tmp_path, provider, store=store), connected(tmp_path, **FAST) as client:
        with pytest.raises(CoordinatorUnavailable) as caught:
            await client.complete(call(), 5.0)
        assert caught.value.reason == "UPSTREAM_FAILED" and await fleet_use(store) == ((0, 0), (0, 0))
        assert any("refused" in line and "scripted" in line for line in caplog.messages)  # what failed, not its word alone
        provider.behaviour = answer
        assert (await client.complete(call(), 5.0)).charged_uusd == CHARGE_UUSD
    assert [request.idempotency_key for request in provider.requests] == ["local|k1|1", "local|k1|2"]


@pytest.mark.parametrize(("executed", "state"), [(None, CallState.IN_DOUBT), (True, CallState.FAILED)])
async def test_possibly_executed_call_is_charged_at_the_hold_and_its_key_is_spent(tmp_path, executed, state) -> None:
    store, provider = MemoryLedgerStore(), ProgrammedProvider(failing("http_500", executed))
    async with running_coordinator(tmp_path, provider, store=store), connected(tmp_path) as client:
        errors = []
        for ask in (lambda: client.complete(call(), 5.0), lambda: client.complete(call(), 5.0), lambda: client.get_call("k1")):
            with pytest.raises(OutcomeUnknown) as caught:
                await ask()
            errors.append((str(caught.value), caught.value.metadata))
        assert errors[0] == errors[1] == errors[2]
        assert errors[0][1] == {"charged_uusd": str(HOLD_UUSD), "state": str(state), "cause": "http_500"}
        assert await fleet_use(store) == ((1, HOLD_UUSD), (0, 0)) and len(provider.requests) == 1
        provider.behaviour = answer
        assert (await client.complete(call("k2"), 5.0)).text == "WHAT IS 2+2?"


async def test_hanging_upstream_is_cut_and_charged_in_doubt(tmp_path) -> None:
    store, held = MemoryLedgerStore(), Held()
    settings = {"deadline_s": 0.05}
    async with (
        running_coordinator(tmp_path, ProgrammedProvider(held), store=store, alias_settings=settings),
        connected(tmp_path) as client,
    ):
        with pytest.raises(OutcomeUnknown):
            await client.complete(call(), 10.0)
        assert await fleet_use(store) == ((1, HOLD_UUSD), (0, 0))


async def test_provider_bug_is_charged_in_doubt_and_reveals_nothing(tmp_path) -> None:
    async def broken(request):
        raise ZeroDivisionError("secret detail")

    store = MemoryLedgerStore()
    async with running_coordinator(tmp_path, ProgrammedProvider(broken), store=store), connected(tmp_path) as client:
        with pytest.raises(CoordinatorError) as caught:
            await client.complete(call(), 5.0)
        assert caught.value.reason == "INTERNAL" and "secret" not in str(caught.value)
        assert await fleet_use(store) == ((1, HOLD_UUSD), (0, 0))


async def test_nothing_is_sent_upstream_while_the_ledger_cannot_be_written(tmp_path) -> None:
    store, provider = MemoryLedgerStore(), ProgrammedProvider()
    async with running_coordinator(tmp_path, provider, store=store), connected(tmp_path, **FAST) as client:
        store.break_down()
        with pytest.raises(CoordinatorUnavailable) as caught:
            await client.complete(call(), 5.0)
        assert caught.value.reason == "LEDGER_UNAVAILABLE" and provider.requests == []
        store.heal()
        assert (await client.complete(call(), 5.0)).text == "WHAT IS 2+2?"


async def test_settlement_waits_until_the_ledger_recovers(tmp_path) -> None:
    held, store = Held(), MemoryLedgerStore()
    async with running_coordinator(tmp_path, ProgrammedProvider(held), store=store), connected(tmp_path) as client:
        asking = asyncio.create_task(client.complete(call(), 10.0))
        await held.reached.wait()
        store.break_down()
        held.release.set()
        await asyncio.sleep(0.1)
        store.heal()
        assert (await asking).charged_uusd == CHARGE_UUSD
        assert await fleet_use(store) == ((1, CHARGE_UUSD), (0, 0))


async def test_unknown_tasks_are_refused_where_tasks_are_named(tmp_path) -> None:
    tasks = {"math": {"target_rate": 0.2, "target_rate_from_device": False}}
    async with running_coordinator(tmp_path, ProgrammedProvider(), tasks=tasks), connected(tmp_path) as client:
        with pytest.raises(NotFound, match="no task is called"):
            await client.register("1", ["code"])
        assert (await client.open_step("math", 0, 4, 4, 0.9)).target_rate == 0.2


async def test_a_task_label_that_could_be_taken_for_a_part_of_a_key_is_refused(tmp_path) -> None:
    async with running_coordinator(tmp_path, ProgrammedProvider()), connected(tmp_path) as client:
        for label in ("", "a b", "../etc", "a|b", "a@b", "a]"):
            with pytest.raises(InvalidRequest):
                await client.get_budget(label)


async def whole(client: GrpcCoordinatorClient) -> str:
    return (await client.complete(call(), 10.0)).text


async def streamed(client: GrpcCoordinatorClient) -> str:
    deltas = [delta async for delta in client.stream_complete(call(), 10.0)]
    assert deltas[-1].completion is not None
    return "".join(delta.text for delta in deltas)


@pytest.mark.parametrize("ask", [whole, streamed])
async def test_a_lost_reply_is_recovered_and_charged_once(tmp_path, ask) -> None:
    """A proxy cuts the connection after the request went through; the client finds the answer by its key."""
    held, store = Held(), MemoryLedgerStore()
    provider = ProgrammedProvider(held)
    async with running_coordinator(tmp_path, provider, store=store), proxied(tmp_path / "c.sock") as proxy:
        client = GrpcCoordinatorClient(proxy.address)
        asking = asyncio.create_task(ask(client))
        await held.reached.wait()
        proxy.cut()
        proxy.heal()
        held.release.set()
        assert await asking == "WHAT IS 2+2?"
        await client.aclose()
        assert len(provider.requests) == 1 and await fleet_use(store) == ((1, CHARGE_UUSD), (0, 0))


async def test_calls_beyond_the_drain_grace_are_charged_in_doubt(tmp_path) -> None:
    held, store = Held(), MemoryLedgerStore()
    async with (
        running_coordinator(tmp_path, ProgrammedProvider(held), store=store) as coordinator,
        connected(tmp_path, max_retries=0, connect_timeout_s=1.0) as client,
    ):
        running = asyncio.create_task(client.complete(call("k1"), 10.0))
        await held.reached.wait()
        await coordinator.drain(0.01)
        with pytest.raises(OutcomeUnknown) as caught:
            await running
    row = await store.get_call("local", "k1")
    assert row.state is CallState.IN_DOUBT and await fleet_use(store) == ((1, HOLD_UUSD), (0, 0))
    assert (
        caught.value.metadata == {"charged_uusd": str(HOLD_UUSD), "state": "in_doubt", "cause": STOPPED} and row.reason == STOPPED
    )


async def test_health_watchers_hear_of_a_drain_before_its_last_call_ends_and_the_socket_goes(tmp_path) -> None:
    held = Held()
    async with (
        running_coordinator(tmp_path, ProgrammedProvider(held)) as coordinator,
        connected(tmp_path, **FAST) as client,
        grpc.aio.insecure_channel(f"unix:{tmp_path}/c.sock") as channel,
    ):
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        running = asyncio.create_task(client.complete(call("k1"), 10.0))
        await held.reached.wait()
        draining = asyncio.create_task(coordinator.drain(10.0))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        held.release.set()
        assert (await running).charged_uusd == CHARGE_UUSD
        await draining
        watch.cancel()
    assert not (tmp_path / "c.sock").exists()


async def test_health_is_reported_for_existing_services_only(tmp_path) -> None:
    async with (
        running_coordinator(tmp_path, ProgrammedProvider()),
        grpc.aio.insecure_channel(f"unix:{tmp_path}/c.sock") as channel,
    ):
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", SERVICE):
            reply = await health.Check(health_pb2.HealthCheckRequest(service=service))
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health.Check(health_pb2.HealthCheckRequest(service="nobody"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_tcp_on_loopback_works_and_reports_its_port(tmp_path) -> None:
    provider = ProgrammedProvider()
    async with running_coordinator(tmp_path, provider, listen=("127.0.0.1:0", f"unix:{tmp_path}/c.sock")) as coordinator:
        address = coordinator.serving.addresses[0]
        assert not address.endswith(":0")
        client = GrpcCoordinatorClient(address)
        assert (await client.complete(call(), 5.0)).text == "WHAT IS 2+2?"
        await client.aclose()


@pytest.mark.parametrize("address", ["nonsense", "host:", "host:99999", ":1", "unix:", "unix:" + "x" * 200])
def test_a_malformed_address_is_wrong_usage(address) -> None:
    with pytest.raises(UsageError):
        GrpcCoordinatorClient(address)


async def test_an_address_in_use_is_a_config_error(tmp_path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="cannot listen"):
            async with running_coordinator(tmp_path, ProgrammedProvider(), listen=(f"127.0.0.1:{taken.getsockname()[1]}",)):
                pass


async def test_socket_of_a_running_coordinator_is_not_taken_over(tmp_path) -> None:
    async with running_coordinator(tmp_path, ProgrammedProvider()), connected(tmp_path) as client:
        with pytest.raises(ConfigError, match="another process"):
            async with running_coordinator(tmp_path, ProgrammedProvider()):
                pass
        assert (await client.get_budget("math")).calls == 0


async def test_stale_socket_is_replaced_and_only_its_owner_may_connect(tmp_path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "c.sock"))
    async with running_coordinator(tmp_path, ProgrammedProvider()), connected(tmp_path) as client:
        assert (await client.get_budget("math")).calls == 0
        assert (tmp_path / "c.sock").stat().st_mode & 0o777 == 0o600


async def test_regular_file_at_the_socket_path_is_kept(tmp_path) -> None:
    (tmp_path / "c.sock").write_text("precious")
    with pytest.raises(ConfigError, match="no socket"):
        async with running_coordinator(tmp_path, ProgrammedProvider()):
            pass
    assert (tmp_path / "c.sock").read_text() == "precious"


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [
        ({"calls_limit": 1, "window": "hour"}, 46 * 60 + 40),
        ({"calls_limit": 1, "window": "day"}, 46 * 60 + 40 + 3600),
        ({"calls_limit": 1, "window": "week"}, 46 * 60 + 40 + 3600 + 5 * 86400),
        ({"calls_limit": 1, "window": "month"}, 46 * 60 + 40 + 3600 + 16 * 86400),
        ({"calls_limit": 1, "window": "total"}, None),
        ({"spend_limit_uusd": HOLD_UUSD + 1, "window": "day"}, 46 * 60 + 40 + 3600),
        ({"spend_limit_uusd": HOLD_UUSD - 1, "window": "day"}, None),
    ],
)
@pytest.mark.parametrize("scope", ["device_task", "device", "fleet_task", "fleet"])
async def test_refusal_by_a_budget_says_when_its_window_ends(tmp_path, scope: str, limit: dict, seconds: int | None) -> None:
    clock = ManualClock(1_700_000_000.0)  # Tuesday 2023-11-14, 22:13:20
    config = {"budgets": {scope: limit}, "clock": clock}
    async with running_coordinator(tmp_path, ProgrammedProvider(), **config) as _, connected(tmp_path, **FAST) as client:
        with suppress(BudgetExhausted):
            await client.complete(call("k0"), 5.0)
        with pytest.raises(BudgetExhausted) as refused:
            await client.complete(call("k1", "what is 2+3?"), 5.0)
    assert refused.value.retry_after_s == seconds
    headers = problem_of(for_who_demanded_the_cloud(refused.value, own_coordinator=True)).headers
    assert headers == {"x-should-retry": "false"} | ({} if seconds is None else {"retry-after": str(seconds)})


async def test_refusal_by_a_steps_credit_names_no_time_whatever_the_steps_number(tmp_path) -> None:
    tasks = {"math": {"step_credit_kappa": 1.0}}
    async with running_coordinator(tmp_path, ProgrammedProvider(), tasks=tasks) as _, connected(tmp_path, **FAST) as client:
        await client.open_step("math", 0, 4, 8, 0.25)
        await client.complete(call("k0", step=0, prompt_id="p0"), 5.0)
        with pytest.raises(BudgetExhausted) as refused:
            await client.complete(call("k1", "what is 2+3?", step=0, prompt_id="p1"), 5.0)
    assert (refused.value.metadata["scope"], refused.value.retry_after_s) == ("step", None)
    for number in (0, 123456, 1234567, 123456789, 123456789012):
        refusal = BudgetExhausted("gone", metadata={"budget": step_budget_key("d", "math", number)})
        assert fits_again_in_s(refusal, 0.0) is None
