"""Asking a running coordinator's AdminService from a command. Knows the channel and the pages; knows nothing of what is printed.

It blocks, as commands may. Raises CoordinatorError as the wire tells it; that nobody runs there is not an error but None.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.accounts import Amount, BudgetRow, Limits, PriceRow, TaskRow
from coordinator.config import BudgetsConfig
from edge.core.errors import ConfigError, CoordinatorUnavailable
from edge.rpc.address import Address, parse_address
from edge.rpc.v1 import admin_pb2

CONNECT_TIMEOUT_S = 2.0
CALL_TIMEOUT_S = 60.0
PAGE = 500


class AdminClient:
    """One connection to one coordinator, ready for use."""

    def __init__(self, channel: Any) -> None:
        from edge.rpc.v1 import admin_pb2_grpc

        self._stub = admin_pb2_grpc.AdminServiceStub(channel)

    def ask(self, method: str, request: Any) -> Any:
        """One request, one reply. Raises CoordinatorError."""
        import grpc

        from edge.rpc.errors import from_rpc_error

        try:
            return getattr(self._stub, method)(request, timeout=CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error

    def pages(self, method: str, request: Any) -> Iterator[Any]:
        """Every reply of a list that comes in pages. Raises CoordinatorError."""
        request.page_size = PAGE
        while True:
            reply = self.ask(method, request)
            yield reply
            if not reply.next_page_token:
                return
            request.page_token = reply.next_page_token


@contextmanager
def running_coordinator(addresses: Sequence[str]) -> Iterator[AdminClient | None]:
    """A connection to the first address that somebody answers at; None when nobody does."""
    for address in map(parse_address, addresses):
        if not _may_answer(address):
            continue
        with _channel(address) as channel:
            if channel is not None:
                yield AdminClient(channel)
                return
    yield None


@contextmanager
def required_coordinator(addresses: Sequence[str]) -> Iterator[AdminClient]:
    """The same for what only a running coordinator knows. Raises CoordinatorUnavailable, ConfigError."""
    if not addresses:
        raise ConfigError(
            "administrators have nowhere to connect: `admin_listen` is empty, or the state folder's path is too long for a socket",
            hint="set admin_listen, e.g. to [unix:/run/edge-coordinator/admin.sock]",
        )
    with running_coordinator(addresses) as client:
        if client is None:
            raise CoordinatorUnavailable(
                f"no coordinator answers at {' or '.join(addresses)}",
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
    prices = [PriceRow(record.key, record.dual, record.updates) for record in pages[0].shared_prices]
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


@contextmanager
def _channel(address: Address) -> Iterator[Any]:
    import grpc

    with grpc.insecure_channel(str(address), options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=CONNECT_TIMEOUT_S)
        except grpc.FutureTimeoutError:
            yield None
        else:
            yield channel
