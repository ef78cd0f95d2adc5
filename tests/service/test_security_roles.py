"""Every method of every service with every role, at the guard and over the wire; and how a call's credentials identify its caller."""

from __future__ import annotations

import importlib
import pkgutil
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass

import edge.rpc.v1
from coordinator.config import AuthConfig
from coordinator.service.access import tasks_in
from coordinator.service.authentication import SERVICES_OF_ROLE, Authenticator, CallFacts, FailureLimiter, Identity, authorize
from coordinator.service.holders import Holder, holder_of
from coordinator.service.pki import Authority
from coordinator.service.tokens import ROLES, TokenAuthority, TokenStore
from edge.core.errors import PermissionDenied, RateLimited, Unauthenticated
from edge.rpc.errors import from_rpc_error
from edge.testing.clock import ManualClock
from tests.worlds.secure_fleet import SecureFleet

ALLOWED = {
    ("device", "DeviceService"),
    ("admin", "AdminService"),
    *((role, "CredentialService") for role in ROLES if role != "client"),
}
REMOTE, LOOPBACK, UNIX = "ipv4:10.1.2.3:4", "ipv4:127.0.0.1:4", "unix:"


def services() -> list[Any]:
    """The descriptors of all services of the protocol."""
    modules = [each.name for each in pkgutil.iter_modules(edge.rpc.v1.__path__) if each.name.endswith("_pb2")]
    files = [importlib.import_module(f"edge.rpc.v1.{name}").DESCRIPTOR for name in modules]
    return [service for file in files for service in file.services_by_name.values()]


METHODS = [(service, method) for service in services() for method in service.methods]


def test_unlisted_service_is_closed_to_every_role() -> None:
    for role in ROLES:
        with pytest.raises(PermissionDenied):
            authorize(Identity(role, "x"), "edge.rpc.v1.BrandNewService")
    assert set(SERVICES_OF_ROLE) == set(ROLES)


async def test_every_method_over_the_wire_accepts_only_its_roles(tmp_path) -> None:
    """For each method of the device listener, with each role's token and without one; `INVALID_ARGUMENT` and similar count as accepted."""
    fleet = SecureFleet(tmp_path)
    tokens: dict[str, str] = {role: fleet.tokens.issue(role, "lamp") for role in ROLES}
    async with AsyncExitStack() as stack:
        _, address = await stack.enter_async_context(fleet.running(client_cert=False))
        channel = await stack.enter_async_context(grpc.aio.secure_channel(address, fleet.tls().channel_credentials()))
        for service, method in METHODS:
            assert await outcome(channel, service, method, "") in ("UNAUTHENTICATED", "UNIMPLEMENTED"), method.full_name
            for role, token in tokens.items():
                reply = await outcome(channel, service, method, token)
                allowed = (role, service.name) in ALLOWED
                assert (reply != "PERMISSION_DENIED") if allowed else (reply in ("PERMISSION_DENIED", "UNIMPLEMENTED")), (
                    role,
                    method.full_name,
                )
                assert reply != "UNAUTHENTICATED"


async def outcome(channel: Any, service: Any, method: Any, token: str) -> str:
    """The status of an empty request."""
    kind = "unary_stream" if method.server_streaming else "unary_unary"
    request_type, reply_type = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    invoke = getattr(channel, kind)(f"/{service.full_name}/{method.name}", request_type.SerializeToString, reply_type.FromString)
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    try:
        call = invoke(request_type(), metadata=metadata, timeout=60)
        await (call.read() if method.server_streaming else call)
        code = grpc.StatusCode.OK
        if method.server_streaming:
            call.cancel()
    except grpc.RpcError as error:
        return from_rpc_error(error).reason if error.code() is grpc.StatusCode.PERMISSION_DENIED else error.code().name
    return code.name


def test_tasks_are_found_in_every_device_request_that_names_one() -> None:
    """A new request message with a field called task or tasks anywhere is held to the caller's tasks without further ado."""
    device = next(service for service in services() if service.name == "DeviceService")
    naming = {method.name for method in device.methods if _names_a_task(method.input_type)}
    assert {"RegisterDevice", "OpenStep", "Complete", "StreamComplete", "CloseStep", "GetBudget"} <= naming
    for method in device.methods:
        if method.name in naming:
            request = GetMessageClass(method.input_type)()
            _fill(request)
            assert tasks_in(request) == {"secret-task"}, method.name


class World:
    """An authenticator over a store in a folder, in manual time."""

    def __init__(self, folder: Any, **settings: Any) -> None:
        self.clock = ManualClock()
        self.tokens = TokenAuthority(TokenStore(folder), AuthConfig(), self.clock)
        self.auth = Authenticator(self.tokens, AuthConfig(), FailureLimiter(self.clock, 3), self.clock, **settings)

    def caller(self, peer: str, **facts: Any) -> Identity:
        return self.auth.authenticate(CallFacts(peer, **facts))


def bearer(token: str) -> str:
    return f"Bearer {token}"


def test_local_callers_without_a_credential_are_devices_and_remote_ones_are_rejected(tmp_path) -> None:
    world = World(tmp_path)
    assert world.caller(UNIX).device == "local"
    assert world.caller(LOOPBACK, claimed_device="lamp") == Identity("device", "lamp")
    with pytest.raises(PermissionDenied):
        world.caller(REMOTE, claimed_device="lamp")
    with pytest.raises(Unauthenticated):
        world.caller(LOOPBACK, encrypted=True)


def test_only_the_unix_socket_allows_admin_without_a_credential(tmp_path) -> None:
    world = World(tmp_path, local_role="admin")
    assert world.caller(UNIX).role == "admin"
    for peer in (LOOPBACK, REMOTE):
        with pytest.raises(Unauthenticated):
            world.caller(peer)
    assert world.caller(LOOPBACK, authorization=bearer(world.tokens.issue("admin", "eve"))).role == "admin"


def test_valid_token_over_remote_plaintext_is_refused(tmp_path) -> None:
    for world in (World(tmp_path / "a"), World(tmp_path / "b", allow_remote=True)):
        token = world.tokens.issue("device", "lamp")
        with pytest.raises(Unauthenticated, match="sent unencrypted"):
            world.caller(REMOTE, authorization=bearer(token))
        assert world.caller(REMOTE, encrypted=True, authorization=bearer(token)).device == "lamp"


def test_a_bad_credential_is_never_replaced_by_trust_in_the_connection(tmp_path) -> None:
    world = World(tmp_path)
    for shown in (bearer("nonsense"), "Basic bGFtcDpwYXNz", "Bearer"):
        with pytest.raises(Unauthenticated):
            world.caller(UNIX, authorization=shown, claimed_device="lamp")
    with pytest.raises(Unauthenticated, match="cannot be read"):
        world.caller(LOOPBACK, encrypted=True, certificate_pem=b"nonsense")


def test_certificate_expires_on_time_even_on_an_open_connection(tmp_path) -> None:
    world = World(tmp_path)
    authority = Authority(tmp_path / "pki")
    authority.create(world.clock.now())
    pem = authority.issue_client(Holder("device", "lamp", 0), world.clock.now(), days=1).certificate.read_bytes()
    assert world.caller(REMOTE, encrypted=True, certificate_pem=pem) == Identity("device", "lamp", None, "certificate")
    world.clock.advance(86400.0)
    with pytest.raises(Unauthenticated, match="certificate has expired"):
        world.caller(REMOTE, encrypted=True, certificate_pem=pem)


@pytest.mark.parametrize(
    "uris",
    [
        (),
        ("edge://device/lamp",),
        ("edge://root/lamp?epoch=0",),
        ("edge://device/../lamp?epoch=0",),
        ("edge://device/lamp?epoch=0&epoch=1",),
        ("edge://device/lamp?epoch=-1",),
        ("https://device/lamp?epoch=0",),
        ("edge://device/lamp?epoch=0", "edge://device/oven?epoch=0"),
        ("edge://device/-lamp?epoch=0",),
    ],
)
def test_certificate_that_names_not_exactly_one_holder_is_nobody(uris: tuple[str, ...]) -> None:
    assert holder_of(uris) is None


def test_certificate_without_a_holder_is_rejected(tmp_path) -> None:
    world = World(tmp_path)
    authority = Authority(tmp_path)
    authority.create(world.clock.now())
    pem = authority.issue_server(["localhost"], world.clock.now()).certificate.read_bytes()
    with pytest.raises(Unauthenticated, match="names no device"):
        world.caller(REMOTE, encrypted=True, certificate_pem=pem)


def test_failures_of_one_peer_do_not_slow_down_another_and_expire(tmp_path) -> None:
    world = World(tmp_path)
    good = bearer(world.tokens.issue("device", "lamp"))
    for number in range(3):
        with pytest.raises(Unauthenticated):
            world.caller(f"ipv4:10.0.0.1:{number}", encrypted=True, authorization=bearer(f"x{number}"))
    with pytest.raises(RateLimited) as caught:
        world.caller("ipv4:10.0.0.1:9", encrypted=True, authorization=good)
    assert world.caller("ipv4:10.0.0.2:9", encrypted=True, authorization=good).device == "lamp"
    world.clock.advance(caught.value.retry_after_s)
    fresh = bearer(world.tokens.issue("device", "oven"))
    assert world.caller("ipv4:10.0.0.1:9", encrypted=True, authorization=fresh).device == "oven"


def _names_a_task(descriptor: Any) -> bool:
    return any(
        field.name in ("task", "tasks") or (field.message_type is not None and _names_a_task(field.message_type))
        for field in descriptor.fields
    )


def _fill(message: Any) -> None:
    for field in message.DESCRIPTOR.fields:
        if field.name == "task":
            message.task = "secret-task"
        elif field.name == "tasks":
            message.tasks.append("secret-task")
        elif field.message_type is not None and _names_a_task(field.message_type):
            inner = getattr(message, field.name)
            _fill(inner.add() if field.is_repeated else inner)
