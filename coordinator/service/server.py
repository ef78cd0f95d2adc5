"""The gRPC listeners around the handlers: addresses, health and draining.

Devices and administrators have a listener each. Plaintext is served on loopback and Unix sockets only, unless the configuration allows
otherwise for devices; with TLS every TCP listener speaks it. `access` authenticates around every
handler.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from coordinator.calls.admission import Turnstile
from coordinator.config import ServiceConfig
from coordinator.service.access import identity_of_call
from coordinator.service.admin_api import AdminApi, Administrator
from coordinator.service.device_api import Caller, DeviceApi
from coordinator.service.handlers import Handlers, Wrapping
from coordinator.service.methods import Boundary, UnknownMethods, bind
from coordinator.service.security import ListenerSecurity
from coordinator.service.tls import ServerCertificates
from edge.core.errors import ConfigError
from edge.rpc.address import Address, parse_address
from edge.rpc.v1 import admin_pb2, credential_pb2, credential_pb2_grpc, device_pb2

DEVICE_SERVICE: ServiceDescriptor = device_pb2.DESCRIPTOR.services_by_name["DeviceService"]
ADMIN_SERVICE: ServiceDescriptor = admin_pb2.DESCRIPTOR.services_by_name["AdminService"]
SERVICE = DEVICE_SERVICE.full_name
LASTING = frozenset({"CompleteBatch", "WatchBudget", "ReadJournal"})
CREDENTIALS = credential_pb2.DESCRIPTOR.services_by_name["CredentialService"].full_name
MAX_METADATA_BYTES = 16 << 10
MAX_ADMIN_REQUESTS = 64


class Listener:
    """One gRPC server with one service, its health and reflection, on its addresses."""

    def __init__(
        self,
        name: str,
        handlers: grpc.GenericRpcHandler,
        service: ServiceConfig,
        security: ListenerSecurity,
        *,
        allow_remote: bool,
        wrappings: Sequence[Wrapping] = (),
    ) -> None:
        self._wrappings = (*wrappings, security.authentication)
        self._name = name
        self._handlers = handlers
        self._service = service
        self._security = security
        self._allow_remote = allow_remote
        self._health = health.aio.HealthServicer()
        self._server: Any = None
        self._sockets = ExitStack()

    async def start(self, addresses: Sequence[Address]) -> tuple[str, ...]:
        """Bind and serve; returns the addresses with the ports that were really taken. Raises ConfigError."""
        handlers = Handlers(self._wrappings)
        handlers.add_generic_rpc_handlers((self._handlers,))
        credential_pb2_grpc.add_CredentialServiceServicer_to_server(self._security.credential_servicer, handlers)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, handlers)
        names = (self._name, CREDENTIALS, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(reflection.aio.ReflectionServicer(names), handlers)
        handlers.add_generic_rpc_handlers((UnknownMethods(),))
        self._server = grpc.aio.server(options=_server_options(self._service))
        self._server.add_generic_rpc_handlers((handlers,))
        try:
            bound = tuple(self._bind(address) for address in addresses)
        except ConfigError:
            self._sockets.close()
            raise
        await self._server.start()
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
        if certificates is None and not (address.is_local or self._allow_remote):
            raise ConfigError(
                f"refusing to listen unencrypted on {address}",
                hint="set tls (`edge-coordinator pki init` makes certificates), or listen on loopback or a Unix socket",
            )
        if address.path:
            _make_room(Path(address.path))
        else:
            _require_free(address)
        try:
            with _private_files():
                port = self._listen(str(address), certificates)
        except RuntimeError as error:
            raise ConfigError(f"cannot listen on {address}: is another process using it?") from error
        if not address.path:
            return str(Address(host=address.host, port=port))
        self._own_socket(Path(address.path))
        return str(address)

    def _listen(self, address: str, certificates: ServerCertificates | None) -> int:
        bound: int = (
            self._server.add_insecure_port(address)
            if certificates is None
            else self._server.add_secure_port(address, certificates.credentials())
        )
        return bound

    def _own_socket(self, path: Path) -> None:
        """Only this user may connect; the file goes away with the server."""
        path.chmod(0o600)
        self._sockets.callback(lambda: path.unlink(missing_ok=True))


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
        wrappings: Sequence[Wrapping] = (),
    ) -> None:
        self._api = api
        self._addresses = tuple(parse_address(text) for text in listen)
        self._admin_addresses = tuple(parse_address(text) for text in admin.listen) if admin else ()
        streams = Turnstile("streams are open", service.max_open_streams)
        boundary = Boundary(_device, api.requests, streams, service.max_message_bytes)
        handlers = bind(DEVICE_SERVICE, api, boundary, LASTING)
        self._devices = Listener(SERVICE, handlers, service, security, allow_remote=service.allow_insecure, wrappings=wrappings)
        self._admins = _admin_listener(admin, service, wrappings) if admin else None

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


def _device(context: Any, method: str) -> Caller:
    identity = identity_of_call()
    return Caller(identity.device, context.time_remaining(), identity.tasks)


def _administrator(context: Any, method: str) -> Administrator:
    return Administrator(identity_of_call().device)


def _admin_listener(admin: AdminSide, service: ServiceConfig, wrappings: Sequence[Wrapping]) -> Listener:
    requests, streams = Turnstile("requests run", MAX_ADMIN_REQUESTS), Turnstile("streams are open", MAX_ADMIN_REQUESTS)
    boundary = Boundary(_administrator, requests, streams, service.max_message_bytes)
    handlers = bind(ADMIN_SERVICE, admin.api, boundary, LASTING)
    return Listener(ADMIN_SERVICE.full_name, handlers, service, admin.security, allow_remote=False, wrappings=wrappings)


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
        ("grpc.max_concurrent_streams", service.max_streams_per_connection),
        ("grpc.max_connection_age_ms", round(1000 * service.connection_age_s)),
        ("grpc.max_connection_age_grace_ms", round(1000 * service.connection_grace_s)),
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
    ]
