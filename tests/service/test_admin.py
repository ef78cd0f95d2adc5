"""The AdminService over real gRPC, and the commands that use it."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack

import grpc
import pytest

from coordinator.cli import main
from coordinator.config import AuthConfig
from coordinator.ledger.journal import GENESIS, entry_hash
from coordinator.ledger.stores.memory import MemoryLedgerStore
from coordinator.ledger.stores.sqlite import SqliteLedgerStore
from coordinator.ledger.verify import verify
from coordinator.service.tokens import TokenAuthority, TokenStore
from edge.core.clock import SystemClock
from edge.core.errors import BudgetExhausted, ConfigError
from edge.rpc.errors import from_rpc_error
from edge.rpc.health import is_serving
from edge.rpc.v1 import admin_pb2, admin_pb2_grpc, call_pb2
from tests.worlds.coordinator import Held, ProgrammedProvider, administrator, call, connected, running_coordinator


@pytest.fixture(params=["memory", "sqlite"])
async def store(request, tmp_path):
    if request.param == "memory":
        return MemoryLedgerStore()
    return await SqliteLedgerStore.open(tmp_path / "ledger.sqlite3", 0.0)


async def paged(method, request, field: str, size: int):
    """All records of a list read in pages of `size`, and how many pages there were."""
    records, pages = [], 0
    request.page_size = size
    while True:
        reply = await method(request)
        page = list(getattr(reply, field))
        assert len(page) <= size
        records, pages = [*records, *page], pages + 1
        if not reply.next_page_token:
            return records, pages
        request.page_token = reply.next_page_token


async def test_calls_of_all_devices_are_paged_without_repeats_or_texts(tmp_path, store) -> None:
    async with running_coordinator(tmp_path, ProgrammedProvider(), store=store), administrator(tmp_path) as admin:
        for device in ("b", "a"):
            async with connected(tmp_path, device) as client:
                for number in range(5):
                    await client.complete(call(f"k{number}", f"secret {number}"), 5.0)
        listed, pages = await paged(admin.ListCalls, admin_pb2.ListCallsRequest(), "calls", 3)
        mine, _ = await paged(admin.ListCalls, admin_pb2.ListCallsRequest(device="b"), "calls", 2)
        running, _ = await paged(admin.ListCalls, admin_pb2.ListCallsRequest(state=call_pb2.CALL_STATE_RUNNING), "calls", 4)
    everything = [(device, f"k{number}") for device in ("a", "b") for number in range(5)]
    assert [(each.device, each.call_key) for each in listed] == everything and pages == 4
    assert [each.call_key for each in mine] == [f"k{number}" for number in range(5)] and not running
    assert {(each.state, each.charged.uusd, each.HasField("step")) for each in listed} == {
        (call_pb2.CALL_STATE_COMPLETED, 20, False)
    }
    assert b"secret" not in b"".join(each.SerializeToString() for each in listed).lower()


async def test_pages_are_limited_by_bytes_and_return_everything_once(tmp_path, store, monkeypatch) -> None:
    monkeypatch.setattr("coordinator.service.admin_api.MAX_PAGE_BYTES", 200)
    shared = {"tasks": {"*": {"dual_scope": "global"}}}
    await store.register_device("old", "A" * 5_000_000, (), 0.0)
    async with running_coordinator(tmp_path, ProgrammedProvider(), store=store, **shared), administrator(tmp_path) as admin:
        for device in ("a", "b", "c", "d", "e", "f", "g"):
            async with connected(tmp_path, device) as client:
                await client.register("9.1", ["math"])
                await client.open_step("math", 0, 4, 4, 0.25)
                await client.complete(call("k", step=0), 5.0)
        devices, of_devices = await paged(admin.ListDevices, admin_pb2.ListDevicesRequest(), "devices", 100)
        calls, of_calls = await paged(admin.ListCalls, admin_pb2.ListCallsRequest(), "calls", 100)
        budgets, of_budgets = await paged(admin.ListBudgets, admin_pb2.ListBudgetsRequest(), "budgets", 100)
        tasks, of_tasks = await paged(admin.ListTasks, admin_pb2.ListTasksRequest(), "tasks", 100)
        shared, _ = await paged(admin.ListTasks, admin_pb2.ListTasksRequest(), "shared_duals", 100)
        with_steps, _ = await paged(admin.ListBudgets, admin_pb2.ListBudgetsRequest(include_steps=True), "budgets", 100)
    assert [row.device for row in devices] == ["a", "b", "c", "d", "e", "f", "g", "old"]
    assert [row.device for row in calls] == [row.device for row in tasks] == ["a", "b", "c", "d", "e", "f", "g"]
    assert len(shared) == len({row.key for row in shared}) == 7
    assert [row.key for row in budgets] == sorted({row.key for row in budgets}) and len(budgets) == 16 == len(with_steps) - 7
    assert {(row.dual, row.target_rate) for row in tasks} == {(0.5, 0.25)}
    assert min(of_devices, of_calls, of_budgets, of_tasks) > 1
    assert all(len(row.agent_version) <= 100 for row in devices)


async def test_new_limit_applies_immediately_and_after_a_restart(tmp_path) -> None:
    store, one_call = MemoryLedgerStore(), admin_pb2.LimitChange(value=1)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running_coordinator(tmp_path, ProgrammedProvider(), store=store))
        async with administrator(tmp_path) as admin, connected(tmp_path) as client:
            reply = await admin.SetBudget(admin_pb2.SetBudgetRequest(scope="device", calls=one_call))
            assert (reply.scope.scope, reply.scope.limits.calls, reply.scope.limits.HasField("tokens")) == ("device", 1, False)
            await client.complete(call("k1", "one"), 5.0)
            with pytest.raises(BudgetExhausted):
                await client.complete(call("k2", "two"), 5.0)
    (row,) = await store.list_set_limits()
    assert (row.scope, row.changes, row.version) == ("device", (("calls_limit", 1),), 1)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running_coordinator(tmp_path, ProgrammedProvider(), store=store))
        async with administrator(tmp_path) as admin, connected(tmp_path) as client:
            with pytest.raises(BudgetExhausted):
                await client.complete(call("k3", "three"), 5.0)
            await admin.SetBudget(admin_pb2.SetBudgetRequest(scope="device", calls=admin_pb2.LimitChange(unlimited=True)))
            assert (await client.complete(call("k3", "three"), 5.0)).text == "THREE"
    assert verify(store.tables).ok


@pytest.mark.parametrize(
    "change",
    [
        {"scope": "device"},
        {"scope": "", "calls": {"value": 1}},
        {"scope": "device", "calls": {}},
        {"scope": "device", "calls": {"unlimited": False}},
        {"scope": "device", "calls": {"configured": False}},
        {"scope": "device", "calls": {"value": 2**63}},
        {"scope": "device", "window": "year"},
    ],
    ids=str,
)
async def test_invalid_limit_is_refused_and_changes_nothing(tmp_path, change) -> None:
    async with running_coordinator(tmp_path, ProgrammedProvider()), administrator(tmp_path) as admin:
        before = await admin.ListBudgets(admin_pb2.ListBudgetsRequest())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await admin.SetBudget(admin_pb2.SetBudgetRequest(**change))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert await admin.ListBudgets(admin_pb2.ListBudgetsRequest()) == before
        assert not any(scope.set for scope in before.scopes)


async def test_journal_is_read_and_followed_with_an_intact_chain(tmp_path, store) -> None:
    async with running_coordinator(tmp_path, ProgrammedProvider(), store=store), administrator(tmp_path) as admin:
        async with connected(tmp_path) as client:
            await client.complete(call("k1", "one"), 5.0)
            whole = [entry async for entry in admin.ReadJournal(admin_pb2.ReadJournalRequest())]
            following = admin.ReadJournal(admin_pb2.ReadJournalRequest(after=whole[-1].seq, follow=True))
            await client.complete(call("k2", "two"), 5.0)
            fresh = [await following.read() for _ in range(2)]
        following.cancel()
    entries, previous = [*whole, *fresh], GENESIS
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    for entry in entries:
        assert entry.hash == entry_hash(entry.seq, entry.at_ms, entry.kind, entry.body, entry.previous)
        assert entry.previous == previous
        previous = entry.hash
    assert [entry.kind for entry in fresh] == ["reserve", "completed"]


async def test_ledger_is_verified_while_in_use_and_damage_is_reported(tmp_path, store) -> None:
    async with running_coordinator(tmp_path, ProgrammedProvider(), store=store), administrator(tmp_path) as admin:
        async with connected(tmp_path) as client:
            await client.complete(call(), 5.0)
        good = await admin.VerifyLedger(admin_pb2.VerifyLedgerRequest())
        row = next(row for row in await store.list_budgets_after("", 1_000, with_steps=True) if row.key == "fleet")

        def damage(ledger) -> None:
            ledger.tables.budgets.put(type(row)(row.key, row.asked, row.limits))

        await store.transact(damage)
        bad = await admin.VerifyLedger(admin_pb2.VerifyLedgerRequest())
    assert (good.ok, good.calls, good.attempts, list(good.differences)) == (True, 1, 1, [])
    assert not bad.ok and bad.difference_count >= 1 and "fleet" in bad.differences[0]


async def test_drain_settles_running_calls_notifies_a_follower_and_stops_listening(tmp_path) -> None:
    held, store = Held(), MemoryLedgerStore()
    async with running_coordinator(tmp_path, ProgrammedProvider(held), store=store) as coordinator:
        async with administrator(tmp_path) as admin, connected(tmp_path) as client:
            running = asyncio.create_task(client.complete(call(), 10.0))
            await held.reached.wait()
            following = admin.ReadJournal(admin_pb2.ReadJournalRequest(follow=True))
            assert (await admin.Drain(admin_pb2.DrainRequest())).in_flight == 1
            assert (await admin.Drain(admin_pb2.DrainRequest())).in_flight == 1
            held.release.set()
            assert (await running).text == "WHAT IS 2+2?"
            kinds = []
            try:
                async for entry in following:
                    kinds.append(entry.kind)
            except grpc.aio.AioRpcError as error:
                ended = from_rpc_error(error).reason
        await coordinator.drain(0.0)
        assert not await is_serving(f"unix:{tmp_path}/c.sock", 0.2)
    assert kinds[-1] == "completed" and ended == "DRAINING"


@pytest.mark.parametrize("address", ["0.0.0.0:0", "192.0.2.1:0"])
async def test_administration_is_never_served_unencrypted_to_other_machines(tmp_path, address) -> None:
    settings = {"admin_listen": (address,), "service": {"allow_insecure": True}}
    with pytest.raises(ConfigError, match="refusing to listen unencrypted"):
        async with running_coordinator(tmp_path, ProgrammedProvider(), **settings):
            pass
    assert not await is_serving(f"unix:{tmp_path}/c.sock", 0.2)


async def test_admin_works_on_loopback_and_can_be_disabled(tmp_path) -> None:
    async with running_coordinator(tmp_path, ProgrammedProvider(), admin_listen=("127.0.0.1:0",)) as coordinator:
        address, _ = coordinator.serving.admin_addresses
        token = TokenAuthority(TokenStore(tmp_path), AuthConfig(), SystemClock()).issue("admin", "operator")
        async with grpc.aio.insecure_channel(address) as channel:
            stub, request = admin_pb2_grpc.AdminServiceStub(channel), admin_pb2.ListDevicesRequest()
            assert not (await stub.ListDevices(request, metadata=(("authorization", f"Bearer {token}"),))).devices
            with pytest.raises(grpc.RpcError) as refused:
                await stub.ListDevices(request)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    async with running_coordinator(tmp_path, ProgrammedProvider(), admin_listen=()) as coordinator:
        assert coordinator.serving.admin_addresses == () and not (tmp_path / "admin.sock").exists()


async def test_admin_socket_is_private_and_removed_with_the_coordinator(tmp_path) -> None:
    async with running_coordinator(tmp_path, ProgrammedProvider()):
        assert (tmp_path / "admin.sock").stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "admin.sock").exists()


async def test_commands_ask_a_running_coordinator_or_read_the_file(tmp_path, capsys) -> None:
    async def run(*arguments: str) -> tuple[int, str, str]:
        code = await asyncio.to_thread(main, [*arguments, "--state", str(tmp_path)])
        return (code, *capsys.readouterr())

    async def shown(*arguments: str):
        code, stdout, stderr = await run(*arguments, "--json")
        assert code == 0, stderr
        return json.loads(stdout)

    store = await SqliteLedgerStore.open(tmp_path / "ledger.sqlite3", 0.0)
    async with running_coordinator(tmp_path, ProgrammedProvider(), store=store), connected(tmp_path, "laptop") as client:
        await client.register("9.1", ["math"])
        await client.complete(call("k1"), 10.0)
        lamp, seen, default, doing = [await shown(name) for name in ("devices", "calls", "upstreams", "status")]
        assert (lamp["device"], lamp["tasks"]) == ("laptop", ["math"])
        assert (seen["call_key"], seen["state"], seen["charged"]["uusd"], seen["cached"]) == ("k1", "completed", 20, False)
        assert (default["alias"], default["breaker"], default["price"]["out_uusd_per_mtok"]) == ("default", "closed", 2_000_000)
        assert (doing["serving"], doing["open_calls"], doing["devices_today"], doing["spent_today"]["uusd"]) == (True, 0, 1, 20)
        assert await run("calls", "--in-state", "running") == (0, "", "no calls to show\n")
        assert (await run("calls", "--in-state", "odd"))[0] == 2
        for name in ("devices", "calls", "upstreams", "status"):
            code, stdout, stderr = await run(name)
            assert code == 0 and stdout, stderr
        assert doing["ledger_writable"]
        store.writability.failed("its disk is full")
        assert "the ledger cannot be written" in (await run("status"))[1]

        assert await run("budget", "set", "device", "--calls", "1") == (0, "device: 1 call (total)\n", "")
        with pytest.raises(BudgetExhausted):
            await client.complete(call("k2", "another"), 5.0)
        online = await shown("budget", "show")
        await run("budget", "set", "device", "--calls", "7")
        assert "used by device[device:laptop]: calls 1 of 7," in (await run("budget", "show"))[1]
        await run("budget", "set", "device", "--calls", "1")
    offline = await shown("budget", "show")
    assert online == offline and online["limits"]["device"]["calls_limit"] == 1
    code, stdout, stderr = await run("devices")
    assert (code, stdout) == (1, "") and stderr.startswith("error: no coordinator answers at unix:") and stderr.count("\n") == 1
    assert main(["devices", "--state", "/" + "x" * 120]) == 1 and "nowhere to connect" in capsys.readouterr().err
