"""Every method of every service, found by reflection, refuses invalid requests with the right code, reason and details."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.json_format import ParseDict
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2, status_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from coordinator.calls.prices import NO_PRICE
from coordinator.ledger.stores.memory import MemoryLedgerStore
from edge.rpc.errors import DOMAIN, from_rpc_error
from tests.worlds.coordinator import TOOLS, Held, ProgrammedProvider, call, connected, running_coordinator

DEVICE, ADMIN = "edge.rpc.v1.DeviceService", "edge.rpc.v1.AdminService"
CREDENTIALS = "edge.rpc.v1.CredentialService"
CALL = {
    "callKey": "k9",
    "task": "math",
    "promptId": "p",
    "helpUnits": 1,
    "messages": [{"role": "ROLE_USER", "content": "hi"}],
    "maxOutputTokens": 5,
    "openaiJson": TOOLS,
}
OK = ""
# What a good request of each method holds, and the reason it is answered with in each situation ("" for an answer).
# A method that is missing here fails the first test: a new one is added with its refusal.
GOOD: dict[str, dict[str, Any]] = {
    "RegisterDevice": {"agentVersion": "1", "protocolVersion": 1, "tasks": ["math"]},
    "OpenStep": {"task": "math", "plannedPrompts": 2, "groupSize": 2},
    "Complete": CALL,
    "StreamComplete": {"call": CALL},
    "CloseStep": {"task": "math", "totalUnits": 4, "helpUnits": 1},
    "GetBudget": {"task": "math"},
    "GetCall": {"callKey": "nobody's"},
    "CancelCall": {"callKey": "nobody's"},
    "WatchBudget": {"task": "math"},
    "ListBudgets": {},
    "SetBudget": {"scope": "device", "calls": {"value": 5}},
    "ListTasks": {},
    "ListUpstreams": {},
    "ListDevices": {},
    "IssueToken": {"device": "d"},
    "RevokeDevice": {"device": "d"},
    "ListCalls": {},
    "ReadJournal": {},
    "VerifyLedger": {},
    "Drain": {},
    "SetDeviceDisabled": {"device": "nobody", "disabled": True},
}
SERVED = {
    **dict.fromkeys(GOOD, OK),
    "GetCall": "NOT_FOUND",
    "CancelCall": "NOT_FOUND",
}
# A request whose content cannot be: what is asked for does not exist, or breaks a rule.
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "RegisterDevice": ({"protocolVersion": 99}, "INVALID_REQUEST"),
    "OpenStep": ({"task": "no task", "plannedPrompts": 1, "groupSize": 1}, "INVALID_REQUEST"),
    "Complete": ({**CALL, "maxOutputTokens": 0}, "INVALID_REQUEST"),
    "StreamComplete": ({"call": {**CALL, "modelAlias": "nobody"}}, "NOT_FOUND"),
    "CloseStep": ({"task": "math", "totalUnits": 1, "helpUnits": 2}, "INVALID_REQUEST"),
    "GetBudget": ({"task": ""}, "INVALID_REQUEST"),
    "GetCall": ({"callKey": ""}, "INVALID_REQUEST"),
    "CancelCall": ({"callKey": "k" * 201}, "INVALID_REQUEST"),
    "ReadJournal": ({"after": 2**63}, "INVALID_REQUEST"),
    "WatchBudget": ({"task": "no task"}, "INVALID_REQUEST"),
    "ListBudgets": ({"pageToken": "nonsense"}, "INVALID_REQUEST"),
    "SetBudget": ({"scope": "galaxy", "calls": {"value": 5}}, "INVALID_REQUEST"),
    "ListTasks": ({"pageToken": "WyJhIl0="}, "INVALID_REQUEST"),
    "ListDevices": ({"pageToken": "\u00e9"}, "INVALID_REQUEST"),
    "IssueToken": ({"device": "d", "lifetime": "901s"}, "INVALID_REQUEST"),
    "RevokeDevice": ({"device": "no device"}, "INVALID_REQUEST"),
    "ListCalls": ({"state": 99}, "INVALID_REQUEST"),
    "Drain": ({"grace": "-1s"}, "INVALID_REQUEST"),
    "SetDeviceDisabled": ({"device": ""}, "INVALID_REQUEST"),
}
CANNOT_BE_BAD = {
    "ListUpstreams",
    "VerifyLedger",
}
DRAINING = {
    **dict.fromkeys(("RegisterDevice", "OpenStep", "Complete", "StreamComplete", "WatchBudget"), "DRAINING"),
    "CloseStep": "STEP_MISMATCH",
}
NEEDS_NO_LEDGER = {
    "ListUpstreams",
    "IssueToken",
    "RevokeDevice",
    "VerifyLedger",
    "Drain",
}


class Surface:
    """One service as reflection describes it, called with raw bytes or with JSON."""

    def __init__(self, channel: grpc.aio.Channel, service: Any) -> None:
        self._channel = channel
        self.service = service

    @property
    def methods(self) -> dict[str, Any]:
        return {method.name: method for method in self.service.methods}

    async def ask(self, name: str, content: dict[str, Any], device: str = "d1") -> tuple[list[Any], str, Any]:
        """(replies, reason or "", AioRpcError or None)."""
        method = self.methods[name]
        message = ParseDict(content, GetMessageClass(method.input_type)())
        return await self.send(name, message.SerializeToString(), device)

    async def send(self, name: str, data: bytes, device: str = "d1") -> tuple[list[Any], str, Any]:
        """The same with raw bytes."""
        method, replies = self.methods[name], []
        options = {"request_serializer": None, "response_deserializer": GetMessageClass(method.output_type).FromString}
        metadata = (("device-id", device),)
        path = f"/{self.service.full_name}/{name}"
        try:
            if not method.server_streaming:
                return [await self._channel.unary_unary(path, **options)(data, metadata=metadata, timeout=20.0)], OK, None
            rpc = self._channel.unary_stream(path, **options)(data, metadata=metadata, timeout=20.0)
            async for reply in rpc:
                replies.append(reply)
                if name == "WatchBudget":
                    rpc.cancel()
                    break
        except grpc.aio.AioRpcError as error:
            return replies, checked_reason(_status_of(error), error), error
        return replies, OK, None


def _status_of(error: grpc.aio.AioRpcError) -> status_pb2.Status:
    details = dict(tuple(error.trailing_metadata())).get("grpc-status-details-bin")
    assert details is not None, f"{error.code()} came without details: {error.details()}"
    status = status_pb2.Status.FromString(details)
    assert (status.code, status.message) == (error.code().value[0], error.details())
    return status


WITH_RETRY_DELAY = {"RATE_LIMITED", "OVERLOADED", "DRAINING", "UPSTREAM_OPEN", "LEDGER_UNAVAILABLE", "IN_PROGRESS"}
CODES = {
    "INVALID_REQUEST": grpc.StatusCode.INVALID_ARGUMENT,
    "NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "DRAINING": grpc.StatusCode.UNAVAILABLE,
    "OVERLOADED": grpc.StatusCode.UNAVAILABLE,
    "LEDGER_UNAVAILABLE": grpc.StatusCode.UNAVAILABLE,
    "STEP_MISMATCH": grpc.StatusCode.FAILED_PRECONDITION,
    "UNPRICED": grpc.StatusCode.FAILED_PRECONDITION,
    "UNIMPLEMENTED": grpc.StatusCode.UNIMPLEMENTED,
    "PERMISSION_DENIED": grpc.StatusCode.PERMISSION_DENIED,
    "BUDGET_EXHAUSTED": grpc.StatusCode.RESOURCE_EXHAUSTED,
}


def checked_reason(status: status_pb2.Status, error: Any = None) -> str:
    """The reason, after the details have been found whole: our domain, its code, RetryInfo and QuotaFailure where they belong."""
    info, retry, quota = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo(), error_details_pb2.QuotaFailure()
    assert status.details[0].Unpack(info) and info.domain == DOMAIN
    assert status.code == CODES[info.reason].value[0], info.reason
    assert status.message and "\n" not in status.message
    assert any(each.Unpack(retry) for each in status.details if each.Is(retry.DESCRIPTOR)) is (info.reason in WITH_RETRY_DELAY)
    named = any(each.Unpack(quota) for each in status.details if each.Is(quota.DESCRIPTOR))
    assert named is (info.reason == "BUDGET_EXHAUSTED") and all(violation.subject for violation in quota.violations)
    return str(info.reason)


async def reflected(channel: grpc.aio.Channel) -> list[Surface]:
    """The services of edge.rpc.v1 on a channel, built only from its reflection."""
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)

    async def ask(**request: Any) -> Any:
        requests = iter([reflection_pb2.ServerReflectionRequest(**request)])
        (reply,) = [reply async for reply in stub.ServerReflectionInfo(requests)]
        return reply

    names = [service.name for service in (await ask(list_services="")).list_services_response.service]
    pool, known = descriptor_pool.DescriptorPool(), set()

    async def load(reply: Any) -> None:
        for data in reply.file_descriptor_response.file_descriptor_proto:
            file = descriptor_pb2.FileDescriptorProto.FromString(data)
            for needed in file.dependency:
                if needed not in known:
                    await load(await ask(file_by_filename=needed))
            if file.name not in known:
                known.add(file.name)
                pool.Add(file)

    assert CREDENTIALS in names  # on every service; the tests of credentials have it
    ours = [name for name in names if name.startswith("edge.") and name != CREDENTIALS]
    for name in ours:
        await load(await ask(file_containing_symbol=name))
    assert "grpc.health.v1.Health" in names and len(ours) == 1
    return [Surface(channel, pool.FindServiceByName(name)) for name in ours]


@asynccontextmanager
async def surfaces(folder, provider=None, **config):
    """A running coordinator's services, by name, from both of its listeners."""
    async with (
        running_coordinator(folder, provider or ProgrammedProvider(), **config),
        grpc.aio.insecure_channel(f"unix:{folder}/c.sock") as devices,
        grpc.aio.insecure_channel(f"unix:{folder}/admin.sock") as admins,
    ):
        found = [*await reflected(devices), *await reflected(admins)]
        yield {surface.service.full_name: surface for surface in found}


def all_methods(found: dict[str, Surface]) -> list[tuple[Surface, str]]:
    pairs = [(surface, name) for surface in found.values() for name in surface.methods]
    return sorted(pairs, key=lambda pair: pair[1] == "Drain")  # last: it ends the coordinator


async def test_every_method_is_covered_here(tmp_path) -> None:
    async with surfaces(tmp_path) as found:
        assert set(found) == {DEVICE, ADMIN}
        names = [name for _, name in all_methods(found)]
        assert sorted(names) == sorted(GOOD) and set(BAD) | CANNOT_BE_BAD == set(names)
        streaming = {name for surface, name in all_methods(found) if surface.methods[name].server_streaming}
        assert streaming == {"StreamComplete", "WatchBudget", "ReadJournal"}


async def test_valid_requests_are_answered(tmp_path) -> None:
    async with surfaces(tmp_path) as found:
        replies = {name: (await surface.ask(name, GOOD[name]))[1] for surface, name in all_methods(found)}
    assert replies == SERVED


async def test_invalid_content_is_refused(tmp_path) -> None:
    async with surfaces(tmp_path) as found:
        replies = {name: (await surface.ask(name, BAD[name][0]))[1] for surface, name in all_methods(found) if name in BAD}
    assert replies == {name: reason for name, (_, reason) in BAD.items()}


# Numbers and texts beyond what a ledger keeps, for each field that carries one.
TOO_LARGE: list[tuple[str, dict[str, Any]]] = [
    *[("Complete", {**CALL, "step": step}) for step in (2**53, 2**63 - 1, 2**63, 2**64 - 1)],
    ("Complete", {**CALL, "maxOutputTokens": 2**32 - 1}),
    ("Complete", {**CALL, "promptId": "p" * 201}),
    ("Complete", {**CALL, "callKey": "k" * 201}),
    ("Complete", {**CALL, "modelAlias": "m" * 201}),
    ("Complete", {**CALL, "task": "t" * 65}),
    ("StreamComplete", {"call": {**CALL, "step": 2**63}}),
    ("OpenStep", {"task": "math", "step": 2**63, "plannedPrompts": 1, "groupSize": 1}),
    ("CloseStep", {"task": "math", "step": 2**63, "totalUnits": 1}),
    ("CloseStep", {"task": "math", "totalUnits": 2**64 - 1, "helpUnits": 2**64 - 1, "uncalledUnits": 2**64 - 1}),
    ("GetCall", {"callKey": "k" * 201}),
    ("GetCall", {"callKey": "k\0"}),
    ("GetCall", {"callKey": "k", "fingerprint": "f" * 201}),
    ("CancelCall", {"callKey": "k\0"}),
    ("RegisterDevice", {"agentVersion": "A" * 101, "protocolVersion": 1}),
    ("RegisterDevice", {"agentVersion": "1\0", "protocolVersion": 1}),
    ("RegisterDevice", {"protocolVersion": 1, "tasks": ["t" * 65]}),
    ("GetBudget", {"task": "t" * 65}),
    ("WatchBudget", {"task": "t" * 65}),
    ("ReadJournal", {"after": 2**64 - 1}),
    ("SetBudget", {"scope": "device", "calls": {"value": 2**64 - 1}}),
    ("IssueToken", {"device": "d", "lifetime": "315576000000s"}),
    ("IssueToken", {"device": "d", "tasks": ["t" * 65]}),
    ("Drain", {"grace": "315576000000s"}),
]


async def test_numbers_and_texts_beyond_the_ledgers_range_are_refused_before_it(tmp_path) -> None:
    store = MemoryLedgerStore()
    async with surfaces(tmp_path, store=store) as found:
        owner = {name: surface for surface in found.values() for name in surface.methods}
        for name, content in TOO_LARGE:
            assert (await owner[name].ask(name, content))[1] == "INVALID_REQUEST", (name, str(content)[:200])
        assert [entry.kind for entry in await store.read_journal(0, 10)] == ["epoch"]


@pytest.mark.parametrize("data", [b"\xff\xff\xff", b"\x0a\xff\xff\xff\xff\x0f"], ids=["garbage", "a length beyond the end"])
async def test_bytes_that_are_no_message_are_an_invalid_request(tmp_path, data) -> None:
    async with surfaces(tmp_path) as found:
        replies = {name: (await surface.send(name, data))[1] for surface, name in all_methods(found)}
    assert set(replies.values()) == {"INVALID_REQUEST"}, replies


async def test_oversized_message_is_an_invalid_request_with_the_reason(tmp_path) -> None:
    async with surfaces(tmp_path, service={"max_message_bytes": 16384}) as found:
        for surface, name in all_methods(found):
            unknown_field = b"\xfa\x3f\xc0\xbb\x01" + b"x" * 24000  # well formed
            _, reason, error = await surface.send(name, unknown_field)
            assert reason == "INVALID_REQUEST", name
            assert "16384" in error.details()


async def test_a_malformed_device_id_is_refused_by_every_device_method(tmp_path) -> None:
    async with surfaces(tmp_path) as found:
        surface = found[DEVICE]
        replies = {name: (await surface.ask(name, GOOD[name], device="../d"))[1] for name in surface.methods}
    assert set(replies.values()) == {"INVALID_REQUEST"}, replies


async def test_calls_of_another_device_are_not_found(tmp_path) -> None:
    async with surfaces(tmp_path) as found:
        surface = found[DEVICE]
        assert (await surface.ask("Complete", CALL, device="d1"))[1] == OK
        for name in ("GetCall", "CancelCall"):
            assert (await surface.ask(name, {"callKey": "k9"}, device="d2"))[1] == "NOT_FOUND"
            assert (await surface.ask(name, {"callKey": "k9"}, device="d1"))[1] == OK


async def test_methods_that_need_the_ledger_fail_closed_while_it_cannot_be_written(tmp_path) -> None:
    store, provider = MemoryLedgerStore(), ProgrammedProvider()
    async with surfaces(tmp_path, provider, store=store) as found:
        store.break_down()
        replies = {name: (await surface.ask(name, GOOD[name]))[1] for surface, name in all_methods(found)}
        store.heal()
    expected = {name: SERVED[name] if name in NEEDS_NO_LEDGER else "LEDGER_UNAVAILABLE" for name in GOOD}
    assert replies == expected and not provider.requests


async def test_draining_coordinator_refuses_new_calls_and_answers_the_rest(tmp_path) -> None:
    held = Held()
    async with surfaces(tmp_path, ProgrammedProvider(held)) as found, connected(tmp_path, max_retries=0) as client:
        running = asyncio.create_task(client.complete(call("running"), 20.0))
        await held.reached.wait()
        assert (await found[ADMIN].ask("Drain", {"grace": "20s"}))[0][0].in_flight == 1
        replies = {name: (await surface.ask(name, GOOD[name]))[1] for surface, name in all_methods(found)}
        assert (await found[ADMIN].ask("ListUpstreams", {}))[0][0].draining
        held.release.set()
        assert (await running).text
    assert replies == {**SERVED, **DRAINING}


async def test_too_many_requests_at_once_are_overloaded(tmp_path) -> None:
    held = Held()
    async with surfaces(tmp_path, ProgrammedProvider(held), service={"max_rpcs": 1, "max_open_streams": 1}) as found:
        surface = found[DEVICE]
        running = asyncio.create_task(surface.ask("Complete", CALL, "d0"))
        await held.reached.wait()
        replies = {name: (await surface.ask(name, GOOD[name]))[1] for name in surface.methods}
        held.release.set()
        await running
    assert replies == {**dict.fromkeys(replies, "OVERLOADED"), "WatchBudget": OK}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({"budgets": {"device": {"calls_limit": 0}}}, "BUDGET_EXHAUSTED"), ({"alias_settings": {"price": NO_PRICE}}, "UNPRICED")],
)
async def test_forbidden_call_is_refused_by_every_method(tmp_path, settings, reason) -> None:
    async with surfaces(tmp_path, **settings) as found:
        replies = {name: (await found[DEVICE].ask(name, GOOD[name]))[1] for name in ("Complete", "StreamComplete")}
    assert set(replies.values()) == {reason}, replies


@pytest.mark.parametrize("path", ["/edge.rpc.v1.DeviceService/Nonsense", "/x"])
@pytest.mark.parametrize("listener", ["c.sock", "admin.sock"])
async def test_unknown_rpc_is_unimplemented_with_details(tmp_path, path, listener) -> None:
    async with (
        running_coordinator(tmp_path, ProgrammedProvider()),
        grpc.aio.insecure_channel(f"unix:{tmp_path}/{listener}") as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(path, request_serializer=None, response_deserializer=None)(b"")
    assert checked_reason(_status_of(caught.value)) == "UNIMPLEMENTED"


async def test_admin_service_is_not_served_to_devices_nor_device_service_to_administrators(tmp_path) -> None:
    async with running_coordinator(tmp_path, ProgrammedProvider()):
        for listener, path in (("c.sock", f"/{ADMIN}/ListDevices"), ("admin.sock", f"/{DEVICE}/GetBudget")):
            async with grpc.aio.insecure_channel(f"unix:{tmp_path}/{listener}") as channel:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await channel.unary_unary(path, request_serializer=None, response_deserializer=None)(b"")
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
            right = "`admin_listen`" if listener == "c.sock" else "`listen`"
            assert f"connect to an address of {right}" in from_rpc_error(caught.value).hint
