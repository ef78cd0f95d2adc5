"""The gRPC listeners around the handlers: addresses, health and draining.

Devices and administrators have a listener each. Plaintext is served on loopback and Unix sockets only, unless the configuration allows
otherwise for devices; with TLS every TCP listener speaks it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from coordinator.calls.admission import Turnstile
from coordinator.config import ServiceConfig
from coordinator.service.access import ListenerAccess
from coordinator.service.admin_api import AdminApi
from coordinator.service.authentication import Identity
from coordinator.service.device_api import DeviceApi, DeviceCaller
from coordinator.service.instruments import MeasuredRpcs
from coordinator.service.methods import Boundary, UnknownMethods, abort, bind
from coordinator.service.security import ListenerSecurity
from coordinator.service.tls import require_encrypted
from edge.core.errors import ConfigError, CoordinatorError
from edge.rpc.address import Address, parse_address
from edge.rpc.v1 import admin_pb2, credential_pb2, device_pb2

DEVICE_SERVICE: ServiceDescriptor = device_pb2.DESCRIPTOR.services_by_name["DeviceService"]
ADMIN_SERVICE: ServiceDescriptor = admin_pb2.DESCRIPTOR.services_by_name["AdminService"]
SERVICE = DEVICE_SERVICE.full_name
LASTING = frozenset({"WatchBudget", "ReadJournal"})
"""Streams that stay open by their nature."""
CREDENTIAL_SERVICE: ServiceDescriptor = credential_pb2.DESCRIPTOR.services_by_name["CredentialService"]
MAX_METADATA_BYTES = 16 << 10
MAX_ADMIN_REQUESTS = 64
MAX_STREAMS_OF_A_CONNECTION = 4096


class Listener:
    """One gRPC server with one service, its health and reflection, on its addresses."""

    def __init__(
        self,
        service: ServiceDescriptor,
        api: object,
        boundary: Boundary[Any],
        config: ServiceConfig,
        security: ListenerSecurity,
        *,
        allow_remote: bool,
    ) -> None:
        places = Turnstile("requests run", MAX_ADMIN_REQUESTS)
        renewing: Boundary[Identity] = replace(boundary, caller_of=the_identity, requests=places)
        self._name = service.full_name
        self._handlers = (
            bind(service, api, boundary, LASTING),
            bind(CREDENTIAL_SERVICE, security.credentials, renewing, LASTING),
        )
        self._config = config
        self._security = security
        self._allow_remote = allow_remote
        self._health = Health(security.access)
        self._server: Any = None
        self._sockets = ExitStack()

    async def start(self, addresses: Sequence[Address]) -> tuple[str, ...]:
        """Bind and serve; returns the addresses with the ports that were really taken. Raises ConfigError."""
        names = (self._name, CREDENTIAL_SERVICE.full_name, health.SERVICE_NAME, reflection.SERVICE_NAME)
        self._server = server = grpc.aio.server(options=_server_options(self._config))
        server.add_generic_rpc_handlers(self._handlers)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(Reflection(self._security.access, names), server)
        server.add_generic_rpc_handlers((UnknownMethods(),))
        try:
            bound = tuple(self._bind(address) for address in addresses)
        except ConfigError:
            self._sockets.close()
            raise
        await server.start()
        await self._health.set(self._name, health_pb2.HealthCheckResponse.SERVING)
        return bound

    async def not_serving(self) -> None:
        """Answer health checks and watches with NOT_SERVING."""
        await self._health.enter_graceful_shutdown()

    async def set_health(self, service: str, serving: bool) -> None:
        """Answer health checks that name another listener's service, so that one address answers for both."""
        status = health_pb2.HealthCheckResponse
        await self._health.set(service, status.SERVING if serving else status.NOT_SERVING)

    async def stop(self, grace_s: float = 1.0) -> None:
        """Stop listening; what still runs after the grace is cut."""
        if self._server is not None:
            await self._server.stop(grace=grace_s)
        self._sockets.close()

    def _bind(self, address: Address) -> str:
        certificates = None if address.path else self._security.certificates
        require_encrypted(address, certificates is not None or self._allow_remote)
        if address.path:
            _make_room(Path(address.path))
        else:
            _require_free(address)
        try:
            with _private_files():
                if certificates is None:
                    port = self._server.add_insecure_port(str(address))
                else:
                    port = self._server.add_secure_port(str(address), certificates.credentials())
        except RuntimeError as error:
            raise ConfigError(f"cannot listen on {address}: is another process using it?") from error
        if not address.path:
            return str(Address(host=address.host, port=port))
        path = Path(address.path)
        path.chmod(0o600)  # only this user may connect
        self._sockets.callback(lambda: path.unlink(missing_ok=True))
        return str(address)


@dataclass(frozen=True, slots=True)
class AdminSide:
    """What the administrators' listener needs: its handlers, its security, and where it listens."""

    api: AdminApi
    security: ListenerSecurity
    listen: tuple[str, ...]


class CoordinatorServer:
    """Listens for devices and administrators, answers health checks, and drains."""

    def __init__(
        self,
        api: DeviceApi,
        listen: Sequence[str],
        service: ServiceConfig,
        security: ListenerSecurity,
        admin: AdminSide | None = None,
        rpcs: MeasuredRpcs | None = None,
        places: Turnstile | None = None,
    ) -> None:
        """`places`: of requests that run, shared with another listener."""
        self._api = api
        self._addresses = tuple(parse_address(text) for text in listen)
        self._admin_addresses = tuple(parse_address(text) for text in admin.listen) if admin else ()
        measure: dict[str, Any] = {} if rpcs is None else {"measure": rpcs.measure}
        requests = places or Turnstile("requests run", service.max_rpcs)
        streams = Turnstile("streams are open", service.max_open_streams)
        boundary = Boundary(security.access, device_caller, requests, streams, service.max_message_bytes, **measure)
        remote = service.allow_insecure
        self._devices = Listener(DEVICE_SERVICE, api, boundary, service, security, allow_remote=remote)
        self._admins: Listener | None = None
        if admin is not None:
            room = (Turnstile("requests run", MAX_ADMIN_REQUESTS), Turnstile("streams are open", MAX_ADMIN_REQUESTS))
            desk = Boundary(admin.security.access, the_identity, *room, service.max_message_bytes, **measure)
            self._admins = Listener(ADMIN_SERVICE, admin.api, desk, service, admin.security, allow_remote=False)

    async def start(self) -> tuple[str, ...]:
        """Bind and serve; returns the devices' addresses with the ports that were really taken. Raises ConfigError."""
        bound = await self._devices.start(self._addresses)
        try:
            self.admin_addresses = await self._admins.start(self._admin_addresses) if self._admins else ()
            if self._admins is not None:
                await self._admins.set_health(SERVICE, True)
        except BaseException:
            await self._devices.stop(0.0)
            raise
        return bound

    async def drain(self, settle: Callable[[float], Awaitable[None]], grace_s: float) -> None:
        """NOT_SERVING -> stop admitting -> settle what runs -> stop listening. Administrators are served until the end."""
        await self._devices.not_serving()
        if self._admins is not None:
            await self._admins.set_health(SERVICE, False)
        self._api.stop_admitting()
        await settle(grace_s)
        await self._devices.stop()
        if self._admins is not None:
            await self._admins.not_serving()
            await self._admins.stop()


def device_caller(identity: Identity, context: Any) -> DeviceCaller:
    """Who calls, for a device's handlers."""
    return DeviceCaller(identity.device, context.time_remaining(), identity.tasks)


def the_identity(identity: Identity, context: Any) -> Identity:
    """Who calls, for other handlers."""
    return identity


class Health(health.aio.HealthServicer):  # type: ignore[misc]
    """Answers everybody; a connection that asked nothing else has served, too."""

    def __init__(self, access: ListenerAccess) -> None:
        super().__init__()
        self._access = access

    async def Check(self, request: Any, context: Any) -> Any:
        """See health.proto."""
        self._access.facts(context)
        return await super().Check(request, context)

    async def Watch(self, request: Any, context: Any) -> None:
        """See health.proto."""
        self._access.facts(context)
        await super().Watch(request, context)


class Reflection(reflection.aio.ReflectionServicer):  # type: ignore[misc]
    """Answers whoever is let in."""

    def __init__(self, access: ListenerAccess, services: Sequence[str]) -> None:
        super().__init__(services)
        self._access = access

    async def ServerReflectionInfo(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:
        """See reflection.proto."""
        try:
            self._access.admit(reflection.SERVICE_NAME, context)
        except CoordinatorError as error:
            await abort(context, error)
        async for reply in super().ServerReflectionInfo(request_iterator, context):
            yield reply


@contextmanager
def _private_files() -> Iterator[None]:
    """A socket made meanwhile is its owner's alone from the first moment on."""
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)


def _make_room(path: Path) -> None:
    """The socket's folder, and no left-over socket in the way. Raises ConfigError when something else is there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(f"cannot make the folder of socket {path}: {error.strerror}") from error
    if not os.access(path.parent, os.W_OK):
        raise ConfigError(f"cannot write into the folder of socket {path}")
    if path.exists() and not path.is_socket():
        raise ConfigError(f"cannot listen on unix:{path}: a file that is no socket is there")
    if _is_answered(path):
        raise ConfigError(
            f"cannot listen on unix:{path}: another process is using it",
            hint="a second coordinator needs a state folder of its own (--state), or at least a socket of its own in admin_listen",
        )
    with suppress(FileNotFoundError):
        path.unlink()


def _require_free(address: Address) -> None:
    """Raises ConfigError with the system's reason where none of a port's addresses can be taken; gRPC prints it only to stderr."""
    refused: OSError | None = None
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, where in found:
            try:
                with socket.socket(family, kind, protocol) as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(where)
                    probe.listen(1)
                return
            except OSError as error:
                refused = error
    except OSError as error:
        refused = error
    reason = refused.strerror if refused is not None else "it has no address"
    raise ConfigError(f"cannot listen on {address}: {reason}", hint="choose another port or address, or stop what uses it")


def _is_answered(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(0.5)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def _server_options(service: ServiceConfig) -> list[tuple[str, int]]:
    # gRPC's own size limit lies above ours, so that a message a little too large is refused with a reason instead of a bare code.
    return [
        ("grpc.max_receive_message_length", 2 * service.max_message_bytes),
        ("grpc.max_send_message_length", service.max_message_bytes),
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.max_concurrent_streams", MAX_STREAMS_OF_A_CONNECTION),
        ("grpc.max_connection_age_ms", round(1000 * service.connection_age_s)),
        ("grpc.max_connection_age_grace_ms", round(1000 * service.connection_grace_s)),
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
    ]
