"""A blocking client of a running coordinator's AdminService.

That no coordinator runs on this machine is not an error but None. A configured address on another machine must answer, and nothing is sent
there unencrypted.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from coordinator.config import ServerConfig
from coordinator.ledger.journal import JournalEntry
from coordinator.ledger.verify import VerifyReport
from edge.core.clock import SystemClock
from edge.core.errors import ConfigError, CoordinatorUnavailable, UsageError
from edge.rpc.address import Address, parse_address
from edge.rpc.v1 import admin_pb2

if TYPE_CHECKING:
    from edge.rpc.credentials import ClientCredentials, TokenFile

CONNECT_TIMEOUT_S = 2.0
CALL_TIMEOUT_S = 60.0
VERIFY_TIMEOUT_S = 3600.0
POLL_S = 0.25
PAGE = 500


class AdminClient:
    """One connection to one coordinator, ready for use; `token` goes with each request where there is one."""

    def __init__(self, channel: Any, token: TokenFile | None = None) -> None:
        from edge.rpc.v1 import admin_pb2_grpc

        self._stub = admin_pb2_grpc.AdminServiceStub(channel)
        self._token = token

    def ask(self, method: str, request: Any, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """One request, one reply. Raises CoordinatorError."""
        with _typed_errors():
            return getattr(self._stub, method)(request, timeout=timeout_s, metadata=self._metadata)

    def journal(self, after: int) -> Generator[JournalEntry, None, None]:
        """The journal's entries above number `after`. Raises CoordinatorError."""
        request = admin_pb2.ReadJournalRequest(after=after)
        with _typed_errors():
            stream = self._stub.ReadJournal(request, metadata=self._metadata)
            try:
                for entry in stream:
                    yield JournalEntry(entry.seq, entry.at_ms, entry.kind, entry.body, entry.previous, entry.hash)
            finally:
                stream.cancel()

    def journal_entry_after(self, after: int) -> JournalEntry | None:
        """The first entry above number `after`; None where there is none. Raises CoordinatorError."""
        entries = self.journal(after)
        try:
            return next(entries, None)
        finally:
            entries.close()

    def verify(self) -> VerifyReport:
        """What the coordinator finds in its own ledger. Raises CoordinatorError."""
        reply = self.ask("VerifyLedger", admin_pb2.VerifyLedgerRequest(), VERIFY_TIMEOUT_S)
        found = {field.name: getattr(reply, field.name) for field in reply.DESCRIPTOR.fields if field.name != "ok"}
        return VerifyReport(**{**found, "differences": tuple(reply.differences)})

    def drain(self, grace_s: float | None) -> int:
        """Begin to stop the coordinator; running calls get `grace_s` seconds (None: as configured). Returns how many run or wait.

        Raises CoordinatorError.
        """
        request = admin_pb2.DrainRequest()
        if grace_s is not None:
            request.grace.FromNanoseconds(round(grace_s * 1e9))
        return int(self.ask("Drain", request).in_flight)

    def until_drained(self, every_s: float = POLL_S) -> Iterator[int]:
        """The calls under way, polled until the coordinator has stopped. Raises CoordinatorError."""
        pause = threading.Event()
        while (running := self._draining()) is not None:
            yield running
            pause.wait(every_s)

    def _draining(self) -> int | None:
        """The calls under way; None when it has stopped, or another one answers in its place already."""
        try:
            reply = self.ask("ListUpstreams", admin_pb2.ListUpstreamsRequest())
        except CoordinatorUnavailable:
            return None
        return int(reply.in_flight) if reply.draining else None

    def pages(self, method: str, request: Any) -> Iterator[Any]:
        """Every reply of a list that comes in pages. Raises CoordinatorError."""
        request.page_size = PAGE
        while True:
            reply = self.ask(method, request)
            yield reply
            if not reply.next_page_token:
                return
            request.page_token = reply.next_page_token

    @property
    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return () if self._token is None else (("authorization", f"Bearer {self._token.require_valid()}"),)


def credentials_of(config: ServerConfig) -> ClientCredentials:
    """What administrators show. Raises ConfigError for files that cannot be used, UsageError for an address beyond this machine without
    TLS.
    """
    from edge.rpc.credentials import ClientCredentials, ClientTls, TokenFile

    admin, tls = config.admin, None
    if admin.tls is not None:
        cert, key = (Path(name).expanduser() if name else None for name in (admin.tls.cert, admin.tls.key))
        tls = ClientTls(Path(admin.tls.ca).expanduser(), cert, key, admin.tls.server_name)
    elif admin.address is not None and not parse_address(admin.address).is_local:
        raise UsageError(
            f"refusing to administer {admin.address} unencrypted", hint="set admin.tls.ca, with admin.tls.cert and admin.tls.key"
        )
    return ClientCredentials(tls, TokenFile(Path(admin.token_file).expanduser(), SystemClock()) if admin.token_file else None)


@contextmanager
def running_coordinator(config: ServerConfig) -> Iterator[AdminClient | None]:
    """A connection to the first administrators' address that somebody answers at; None when nobody does. Raises CoordinatorUnavailable when
    nobody answers at `admin.address`, or when TLS is why nobody does, and what `credentials_of` raises.
    """
    credentials, elsewhere = credentials_of(config), config.admin.address
    for address in _addresses(config):
        if elsewhere is None and address.path and not Path(address.path).is_socket():
            continue
        with _channel(address, credentials) as channel:
            if channel is not None:
                yield AdminClient(channel, credentials.token)
                return
    if elsewhere is not None:
        hint = "is it the address of its administrators (admin_listen), and is `edge-coordinator serve` running there?"
        raise CoordinatorUnavailable(f"no coordinator answers at {elsewhere}", hint=hint)
    yield None


@contextmanager
def required_coordinator(config: ServerConfig) -> Iterator[AdminClient]:
    """The same for what only a running coordinator knows. Raises CoordinatorUnavailable, ConfigError."""
    addresses = _addresses(config)
    if not addresses:
        raise ConfigError(
            "administrators have nowhere to connect: `admin_listen` is empty, or the state folder's path is too long for a socket",
            hint="set admin_listen, e.g. to [unix:/run/edge-coordinator/admin.sock]",
        )
    with running_coordinator(config) as client:
        if client is None:
            raise CoordinatorUnavailable(
                f"no coordinator answers at {' or '.join(map(str, addresses))}",
                hint="is `edge-coordinator serve` running, with the same --state or --config?",
            )
        yield client


def _addresses(config: ServerConfig) -> list[Address]:
    """Where administrators connect: `admin.address`, or the listeners of this machine, sockets first."""
    if config.admin.address is not None:
        return [parse_address(config.admin.address)]
    return sorted(map(parse_address, config.admin_addresses), key=lambda each: not each.path)


@contextmanager
def _channel(address: Address, credentials: ClientCredentials) -> Iterator[Any]:
    """A working connection, or None. Raises CoordinatorUnavailable when TLS is the reason that there is none."""
    import grpc

    from edge.rpc.handshake import ADMINISTRATOR
    from edge.rpc.health import require_handshake

    options: list[tuple[str, Any]] = [("grpc.enable_http_proxy", 0)] if address.is_local else []
    if credentials.tls is None or address.path:
        opened = grpc.insecure_channel(str(address), options=options)
    else:
        options += credentials.tls.channel_options()
        opened = grpc.secure_channel(str(address), credentials.tls.channel_credentials(), options=options)
    with opened as channel:
        if _connects(channel):
            yield channel
        else:
            asyncio.run(require_handshake(str(address), CONNECT_TIMEOUT_S, credentials, ADMINISTRATOR))
            yield None


def _connects(channel: Any) -> bool:
    """Whether the first try to connect succeeds in time."""
    from grpc import ChannelConnectivity

    states: SimpleQueue[ChannelConnectivity] = SimpleQueue()
    channel.subscribe(states.put, try_to_connect=True)
    try:
        while (state := states.get(timeout=CONNECT_TIMEOUT_S)) is not ChannelConnectivity.READY:
            if state in (ChannelConnectivity.TRANSIENT_FAILURE, ChannelConnectivity.SHUTDOWN):
                return False
    except Empty:
        return False
    finally:
        channel.unsubscribe(states.put)
    return True


@contextmanager
def _typed_errors() -> Iterator[None]:
    import grpc

    from edge.rpc.errors import from_rpc_error

    try:
        yield
    except grpc.RpcError as error:
        raise from_rpc_error(error) from error
