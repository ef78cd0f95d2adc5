"""Asking a running coordinator's AdminService from a command. Knows the channel and the pages; knows nothing of what is printed.

It blocks, as commands may. Raises CoordinatorError as the wire tells it. That nobody runs on this machine is not an error but None; an
address on another one, which somebody configured, must answer. Nothing is sent there unencrypted.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.app import admin_listen_of
from coordinator.config import AdminConfig, BudgetsConfig, CoordinatorConfig
from coordinator.ledger.accounts import Amount, BudgetRow, Limits, PriceRow, TaskRow
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
LOOK_EVERY_S = 0.25
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
        told = {field.name: getattr(reply, field.name) for field in reply.DESCRIPTOR.fields if field.name != "ok"}
        return VerifyReport(**{**told, "differences": tuple(reply.differences)})

    def drain(self, grace_s: float | None) -> int:
        """Begin to stop the coordinator; running calls get so many seconds (None: as configured). Returns how many run or wait.

        Raises CoordinatorError.
        """
        request = admin_pb2.DrainRequest()
        if grace_s is not None:
            request.grace.FromNanoseconds(round(grace_s * 1e9))
        return int(self.ask("Drain", request).in_flight)

    def until_drained(self, every_s: float = LOOK_EVERY_S) -> Iterator[int]:
        """The calls under way, looked at again and again until the coordinator has stopped. Raises CoordinatorError."""
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


@dataclass(frozen=True, slots=True)
class AdminAccess:
    """Where administrators connect, and what they show there; `elsewhere`: at an address of its own, which must answer."""

    addresses: tuple[str, ...]
    credentials: ClientCredentials
    elsewhere: bool


def access_of(config: CoordinatorConfig) -> AdminAccess:
    """As the configuration says. Raises ConfigError for files that cannot be used, UsageError for an address."""
    credentials, elsewhere = _credentials_of(config.admin), config.admin.address
    if elsewhere is None:
        sockets_first = sorted(admin_listen_of(config), key=lambda each: not parse_address(each).path)
        return AdminAccess(tuple(sockets_first), credentials, False)
    if credentials.tls is None and not parse_address(elsewhere).is_local:
        raise UsageError(
            f"refusing to administer {elsewhere} unencrypted", hint="set admin.tls.ca, with admin.tls.cert and admin.tls.key"
        )
    return AdminAccess((elsewhere,), credentials, True)


@contextmanager
def running_coordinator(access: AdminAccess) -> Iterator[AdminClient | None]:
    """A connection to the first address that somebody answers at; None when nobody does. Raises CoordinatorUnavailable when somebody ought
    to, or when TLS is why nobody does.
    """
    for address in map(parse_address, access.addresses):
        if not access.elsewhere and not _may_answer(address):
            continue
        with _channel(address, access.credentials) as channel:
            if channel is not None:
                yield AdminClient(channel, access.credentials.token)
                return
    if access.elsewhere:
        hint = "is it the address of its administrators (admin_listen), and is `edge-coordinator serve` running there?"
        raise CoordinatorUnavailable(f"no coordinator answers at {access.addresses[0]}", hint=hint)
    yield None


@contextmanager
def required_coordinator(access: AdminAccess) -> Iterator[AdminClient]:
    """The same for what only a running coordinator knows. Raises CoordinatorUnavailable, ConfigError."""
    if not access.addresses:
        raise ConfigError(
            "administrators have nowhere to connect: `admin_listen` is empty, or the state folder's path is too long for a socket",
            hint="set admin_listen, e.g. to [unix:/run/edge-coordinator/admin.sock]",
        )
    with running_coordinator(access) as client:
        if client is None:
            raise CoordinatorUnavailable(
                f"no coordinator answers at {' or '.join(access.addresses)}",
                hint="is `edge-coordinator serve` running, with the same --state or --config?",
            )
        yield client


@dataclass(frozen=True, slots=True)
class Spending:
    """The limits that hold, all budgets, all tasks, each λ that several tasks or devices share, and by scope the settings among the limits
    that were set at run time."""

    limits: BudgetsConfig
    budgets: Sequence[BudgetRow]
    tasks: Sequence[TaskRow]
    prices: Sequence[PriceRow]
    settings_set: Mapping[str, Sequence[str]]


def spending_of(client: AdminClient) -> Spending:
    """What holds and was spent, as a running coordinator tells it."""
    replies = list(client.pages("ListBudgets", admin_pb2.ListBudgetsRequest(include_steps=True)))
    rows = [_budget_row(record) for reply in replies for record in reply.budgets]
    pages = list(client.pages("ListTasks", admin_pb2.ListTasksRequest()))
    tasks = [_task_row(record) for reply in pages for record in reply.tasks]
    prices = [PriceRow(record.key, record.dual, record.updates) for page in pages for record in page.shared_prices]
    limits = BudgetsConfig.model_validate({scope.scope: scope_settings(scope) for scope in replies[0].scopes})
    return Spending(limits, rows, tasks, prices, {scope.scope: tuple(scope.set) for scope in replies[0].scopes if scope.set})


def limit_change(value: int | str | None) -> admin_pb2.LimitChange:
    """A limit to set; None for no limit, AS_CONFIGURED for the configuration's."""
    if isinstance(value, str):
        return admin_pb2.LimitChange(configured=True)
    return admin_pb2.LimitChange(unlimited=True) if value is None else admin_pb2.LimitChange(value=value)


def scope_settings(scope: admin_pb2.ScopeLimits) -> dict[str, Any]:
    """A scope's limits as configuration."""
    limits = limits_of(scope.limits)
    return {
        "window": scope.window,
        "calls_limit": limits.calls,
        "tokens_limit": limits.tokens,
        "spend_limit_uusd": limits.uusd,
    }


def limits_of(wire: admin_pb2.UnitLimits) -> Limits:
    """Limits from the wire."""
    return Limits(*(getattr(wire, unit) if wire.HasField(unit) else None for unit in ("calls", "tokens", "uusd")))


def _amount(wire: admin_pb2.AmountUsed) -> Amount:
    return Amount(wire.calls, wire.tokens, wire.uusd)


def _budget_row(record: admin_pb2.BudgetRecord) -> BudgetRow:
    limits = limits_of(record.limits)
    return BudgetRow(record.key, limits, limits, _amount(record.committed), _amount(record.reserved))


def _task_row(record: admin_pb2.TaskRecord) -> TaskRow:
    charged = _amount(record.charged)
    return TaskRow(record.device, record.task, record.dual, record.target_rate, record.next_step, record.version, charged)


def _may_answer(address: Address) -> bool:
    """Whether it is worth a try: a Unix socket has to be there."""
    return not address.path or Path(address.path).is_socket()


def _credentials_of(admin: AdminConfig) -> ClientCredentials:
    from edge.rpc.credentials import ClientCredentials, ClientTls, TokenFile

    tls = None
    if admin.tls is not None:
        cert, key = (Path(name).expanduser() if name else None for name in (admin.tls.cert, admin.tls.key))
        tls = ClientTls(Path(admin.tls.ca).expanduser(), cert, key, admin.tls.server_name)
    token = TokenFile(Path(admin.token_file).expanduser(), SystemClock()) if admin.token_file else None
    return ClientCredentials(tls, token)


@contextmanager
def _channel(address: Address, credentials: ClientCredentials) -> Iterator[Any]:
    """A connection that stands, or None. Raises CoordinatorUnavailable when TLS is the reason that there is none."""
    with _opened(address, credentials) as channel:
        if _stands(channel):
            yield channel
        else:
            _say_why(address, credentials)
            yield None


def _stands(channel: Any) -> bool:
    """Whether the first try to connect succeeds in time."""
    from queue import Empty, SimpleQueue

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


def _opened(address: Address, credentials: ClientCredentials) -> Any:
    import grpc

    options: list[tuple[str, Any]] = [("grpc.enable_http_proxy", 0)] if address.is_local else []
    if credentials.tls is None or address.path:
        return grpc.insecure_channel(str(address), options=options)
    options = [*options, *credentials.tls.channel_options()]
    return grpc.secure_channel(str(address), credentials.tls.channel_credentials(), options=options)


def _say_why(address: Address, credentials: ClientCredentials) -> None:
    import asyncio

    from edge.rpc.handshake import ADMINISTRATOR
    from edge.rpc.health import require_handshake

    asyncio.run(require_handshake(str(address), CONNECT_TIMEOUT_S, credentials, ADMINISTRATOR))


@contextmanager
def _typed_errors() -> Iterator[None]:
    import grpc

    from edge.rpc.errors import from_rpc_error

    try:
        yield
    except grpc.RpcError as error:
        raise from_rpc_error(error) from error
