"""A simulated administrator: asks the AdminService while calls are in flight, and writes down the replies."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Coroutine
from typing import Any

import grpc

from edge.rpc.errors import from_rpc_error
from edge.rpc.v1 import admin_pb2, admin_pb2_grpc
from tools.simulate.faults.log import DeviceLog
from tools.simulate.faults.terms import LIMIT_FIELDS, SCOPES, WINDOWS
from tools.simulate.virtual.network import SimulatedChannel

ADMINISTRATOR = "admin"
"""Its name in the log."""
TIMEOUT_S = 5.0
READS = ("list_budgets", "list_tasks", "list_calls", "read_journal", "verify_ledger")
ACTS = (*("set_budget",) * 3, *("shut_out",) * 2, *READS)
UNIT_FIELDS = ("calls", "tokens", "uusd")
SETTINGS = dict(zip(UNIT_FIELDS, LIMIT_FIELDS, strict=True))


class SimulatedAdministrator:
    """Works until it is stopped."""

    def __init__(self, channel: SimulatedChannel, log: DeviceLog, rng: random.Random, devices: tuple[str, ...]) -> None:
        self._stub: Any = admin_pb2_grpc.AdminServiceStub(channel)  # type: ignore[no-untyped-call]
        self._log = log
        self._rng = rng
        self._devices = devices

    async def work(self, times: int) -> None:
        """Ask one thing after the other."""
        for _ in range(times):
            await asyncio.sleep(self._rng.uniform(0.1, 1.2))
            await getattr(self, self._rng.choice(ACTS))()
        if self._rng.random() < 0.3:
            await self._ask("drain", "", self._stub.Drain(admin_pb2.DrainRequest(), timeout=TIMEOUT_S))

    async def last_questions(self) -> None:
        """After all faults: the limits that hold, and whether the ledger verifies."""
        await self.list_budgets("final_limits")
        await self.verify_ledger()
        await self.read_journal()
        await self.list_tasks()

    async def set_budget(self) -> None:
        """Raise or lower what a scope may spend, also below what it has spent."""
        scope, unit = self._rng.choice(SCOPES), self._rng.choice(UNIT_FIELDS)
        asked: tuple[Any, ...] = (SETTINGS[unit], self._rng.randint(0, {"calls": 12, "tokens": 700, "uusd": 900}[unit]))
        request = admin_pb2.SetBudgetRequest(scope=scope)
        match self._rng.random():
            case chance if chance < 0.7:
                getattr(request, unit).value = asked[1]
            case chance if chance < 0.8:
                getattr(request, unit).unlimited = True
                asked = (SETTINGS[unit], None)
            case chance if chance < 0.9:
                getattr(request, unit).configured = True
                asked = (SETTINGS[unit],)
            case _:
                request.window = self._rng.choice(sorted(WINDOWS))
                asked = ("window", request.window)
        await self._ask("set_budget", scope, self._stub.SetBudget(request, timeout=TIMEOUT_S), asked)

    async def shut_out(self) -> None:
        """Disable a device, and let it in again after a while."""
        if not self._devices:
            return
        device = self._rng.choice(self._devices)
        await self._disable(device, True)
        await asyncio.sleep(self._rng.uniform(0.1, 2.0))
        await self._disable(device, False)

    async def let_all_in(self) -> None:
        """Enable every device; there are no faults any more."""
        for device in self._devices:
            await self._disable(device, False)

    async def _disable(self, device: str, disabled: bool) -> None:
        what, request = "disable" if disabled else "enable", admin_pb2.SetDeviceDisabledRequest(device=device, disabled=disabled)
        await self._ask(what, device, self._stub.SetDeviceDisabled(request, timeout=TIMEOUT_S))

    async def list_calls(self) -> None:
        """Some calls; no other reply has them as precisely."""
        request = admin_pb2.ListCallsRequest(page_size=5)
        await self._ask("list_calls", "", self._stub.ListCalls(request, timeout=TIMEOUT_S))

    async def list_budgets(self, what: str = "list_budgets") -> None:
        """Every budget, page by page, and the limits of the scopes."""

        async def pages() -> tuple[Any, ...]:
            token, rows = "", []
            while True:
                request = admin_pb2.ListBudgetsRequest(page_size=3, page_token=token)
                reply = await self._stub.ListBudgets(request, timeout=TIMEOUT_S)
                rows += [(row.key, _units(row.committed), _units(row.reserved), _limits(row.limits)) for row in reply.budgets]
                token = reply.next_page_token
                if not token:
                    return tuple(rows), tuple((scope.scope, _limits(scope.limits)) for scope in reply.scopes)

        await self._read(what, pages())

    async def list_tasks(self) -> None:
        """λ and version of every task."""

        async def tasks() -> tuple[Any, ...]:
            reply = await self._stub.ListTasks(admin_pb2.ListTasksRequest(page_size=1000), timeout=TIMEOUT_S)
            return tuple((row.device, row.task, row.version, row.dual.hex()) for row in reply.tasks)

        await self._read("list_tasks", tasks())

    async def read_journal(self) -> None:
        """The journal as it is."""

        async def entries() -> tuple[Any, ...]:
            async with asyncio.timeout(TIMEOUT_S):
                return tuple([(entry.seq, entry.hash) async for entry in self._stub.ReadJournal(admin_pb2.ReadJournalRequest())])

        await self._read("read_journal", entries())

    async def verify_ledger(self) -> None:
        """Have every balance and every λ proved."""

        async def proved() -> tuple[Any, ...]:
            reply = await self._stub.VerifyLedger(admin_pb2.VerifyLedgerRequest(), timeout=TIMEOUT_S)
            return (reply.ok, *reply.differences)

        await self._read("verify_ledger", proved())

    async def _read(self, what: str, reading: Coroutine[Any, Any, tuple[Any, ...]]) -> None:
        """Note what was read, or why it was refused."""
        try:
            self._log.note(what, "", "ok", await reading)
        except grpc.RpcError as error:
            self._log.note(what, "", from_rpc_error(error).reason)
        except TimeoutError:
            self._log.note(what, "", "DEADLINE_EXCEEDED")

    async def _ask(self, what: str, key: str, asking: Awaitable[Any], asked: tuple[Any, ...] = ()) -> None:
        """Note what is asked for, and whether it was done."""
        self._log.note(what, key, "asked", asked)
        try:
            await asking
        except grpc.RpcError as error:
            self._log.note(what, key, from_rpc_error(error).reason, asked)
        else:
            self._log.note(what, key, "ok", asked)


def _units(amount: admin_pb2.AmountUsed) -> tuple[int, int, int]:
    return amount.calls, amount.tokens, amount.uusd


def _limits(limits: admin_pb2.UnitLimits) -> tuple[int | None, ...]:
    return tuple(getattr(limits, unit) if limits.HasField(unit) else None for unit in UNIT_FIELDS)
