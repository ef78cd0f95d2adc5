"""The ledger's operations as transactions of a store. Knows which transition an operation is; knows nothing of where rows are kept."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TypeVar

from coordinator.accounts import (
    Amount,
    AttemptRow,
    BudgetRow,
    BudgetTerms,
    BudgetView,
    CallRow,
    CloseStepRequest,
    DeviceRow,
    OpenStepRequest,
    PriceMember,
    PriceRow,
    ReserveOutcome,
    ReserveRequest,
    Resolution,
    SetLimits,
    Settlement,
    StepRow,
    TaskRow,
)
from coordinator.journal import JournalEntry
from coordinator.ledger import Ledger, milliseconds
from coordinator.stores.changes import ChangeFeed, DeviceTask
from coordinator.stores.reach import (
    NOTHING,
    SET_LIMITS,
    Kind,
    Reach,
    attempt_reach,
    budgets_reach,
    close_step_reach,
    devices_reach,
    open_step_reach,
    reserve_reach,
    sweep_reach,
)

T = TypeVar("T")


class TransactingStore:
    """Base of the stores: implements LedgerStore over `transact`, which a store provides, and `feed`, which it publishes to."""

    feed: ChangeFeed

    async def transact(self, work: Callable[[Ledger], T], reach: Reach = NOTHING) -> T:
        """Run `work` as one durable transaction; roll it back when it raises. `reach`: the rows it can touch, for who must fetch them."""
        raise NotImplementedError

    def changes(self) -> AsyncIterator[DeviceTask]:
        """(device, task) pairs whose budget has a new version; see LedgerStore."""
        return self.feed.changes()

    async def reserve(self, request: ReserveRequest) -> ReserveOutcome:
        """T1; see LedgerStore."""
        return await self.transact(lambda ledger: ledger.reserve(request), reserve_reach(request))

    async def settle(self, settlement: Settlement) -> Resolution:
        """T2; see LedgerStore."""
        attempt = attempt_reach(settlement.device, settlement.key, settlement.attempt)
        budgets = budgets_reach(settlement.budgets)
        return await self.transact(lambda ledger: ledger.settle(settlement), attempt | budgets | SET_LIMITS)

    async def refund(self, device: str, key: str, attempt: int, reason: str, now: float) -> Resolution:
        """T2; see LedgerStore."""
        return await self.transact(
            lambda ledger: ledger.refund(device, key, attempt, reason, now), attempt_reach(device, key, attempt)
        )

    async def fail(self, device: str, key: str, attempt: int, reason: str, charge: Amount | None, now: float) -> Resolution:
        """T2; see LedgerStore."""
        return await self.transact(
            lambda ledger: ledger.fail(device, key, attempt, reason, charge, now), attempt_reach(device, key, attempt)
        )

    async def doubt(self, device: str, key: str, attempt: int, reason: str, now: float) -> Resolution:
        """T2; see LedgerStore."""
        return await self.transact(
            lambda ledger: ledger.doubt(device, key, attempt, reason, now), attempt_reach(device, key, attempt)
        )

    async def sweep(self, now: float) -> tuple[AttemptRow, ...]:
        """T3; see LedgerStore."""
        return await self.transact(lambda ledger: ledger.sweep(now), sweep_reach(milliseconds(now)))

    async def open_step(self, request: OpenStepRequest) -> StepRow:
        """T4; see LedgerStore."""
        return await self.transact(lambda ledger: ledger.open_step(request), open_step_reach(request))

    async def close_step(self, request: CloseStepRequest) -> StepRow:
        """T4; see LedgerStore."""
        return await self.transact(lambda ledger: ledger.close_step(request), close_step_reach(request))

    async def get_call(self, device: str, key: str) -> CallRow:
        """A device's own call. Raises NotFound."""
        return await self.transact(lambda ledger: ledger.get_call(device, key), frozenset({(Kind.CALL, device, key)}))

    async def get_task(self, device: str, task: str) -> TaskRow | None:
        """A task, or None."""
        return await self.transact(lambda ledger: ledger.get_task(device, task), frozenset({(Kind.TASK, device, task)}))

    async def list_tasks(self) -> tuple[TaskRow, ...]:
        """All tasks."""
        return await self.transact(lambda ledger: ledger.list_tasks(), frozenset({(Kind.ALL_TASKS,)}))

    async def get_price(self, key: str) -> PriceRow | None:
        """A shared λ, or None."""
        return await self.transact(lambda ledger: ledger.tables.price(key), frozenset({(Kind.PRICE, key)}))

    async def list_prices(self) -> tuple[PriceRow, ...]:
        """All shared λ."""
        return await self.transact(lambda ledger: tuple(ledger.tables.all_prices()), frozenset({(Kind.ALL_PRICES,)}))

    async def leave_idle_prices(self, seen_before: float, now: float) -> tuple[PriceMember, ...]:
        """Idle members leave their rounds; see LedgerStore."""
        reach = frozenset({(Kind.IDLE_PRICE_MEMBERS, milliseconds(seen_before))})
        return await self.transact(lambda ledger: ledger.leave_idle_prices(seen_before, now), reach)

    async def register_device(self, device: str, agent_version: str, tasks: Sequence[str], now: float) -> DeviceRow:
        """Note a registration."""
        return await self.transact(
            lambda ledger: ledger.register_device(device, agent_version, tasks, now), devices_reach([device])
        )

    async def saw_devices(self, seen: Mapping[str, float]) -> None:
        """Note when devices were last seen."""
        await self.transact(lambda ledger: ledger.saw_devices(seen), devices_reach(seen))

    async def set_device_disabled(self, device: str, disabled: bool, now: float) -> DeviceRow:
        """Refuse a device, or let it in again."""
        return await self.transact(lambda ledger: ledger.set_device_disabled(device, disabled, now), devices_reach([device]))

    async def list_devices(self) -> tuple[DeviceRow, ...]:
        """All devices."""
        return await self.transact(lambda ledger: tuple(ledger.tables.all_devices()), frozenset({(Kind.ALL_DEVICES,)}))

    async def list_budgets(self) -> tuple[BudgetRow, ...]:
        """All budgets."""
        return await self.transact(lambda ledger: tuple(ledger.tables.all_budgets()), frozenset({(Kind.ALL_BUDGETS,)}))

    async def list_budgets_after(self, key: str, limit: int, *, with_steps: bool = False) -> tuple[BudgetRow, ...]:
        """A page of budgets."""
        return await self.transact(
            lambda ledger: tuple(ledger.tables.budgets_after(key, limit, with_steps=with_steps)),
            frozenset({(Kind.BUDGETS_AFTER, key, limit, with_steps)}),
        )

    async def list_calls_after(self, after_device: str, after_key: str, limit: int, *, device: str = "") -> tuple[CallRow, ...]:
        """A page of calls."""
        return await self.transact(
            lambda ledger: tuple(ledger.tables.calls_after(after_device, after_key, limit, only_device=device)),
            frozenset({(Kind.CALLS_AFTER, after_device, after_key, limit, device)}),
        )

    async def get_budget(self, device: str, task: str, budgets: Sequence[BudgetTerms]) -> BudgetView:
        """A task and these budgets."""
        return await self.transact(
            lambda ledger: ledger.get_budget(device, task, budgets),
            frozenset({(Kind.TASK, device, task)}) | budgets_reach(budgets) | SET_LIMITS,
        )

    async def list_set_limits(self) -> tuple[SetLimits, ...]:
        """What was set at run time over the configured limits."""
        return await self.transact(lambda ledger: tuple(ledger.tables.set_limits()), SET_LIMITS)

    async def set_limits(self, scope: str, changes: Mapping[str, int | str | None], now: float) -> tuple[SetLimits, ...]:
        """Set limits of a scope; see LedgerStore."""
        return await self.transact(lambda ledger: ledger.set_limits(scope, changes, now), SET_LIMITS)

    async def purge_results(self, before: float, now: float) -> int:
        """Forget old answer texts; returns how many."""
        return await self.transact(
            lambda ledger: ledger.purge_results(before, now), frozenset({(Kind.OLD_RESULTS, milliseconds(before))})
        )

    async def read_journal(self, after: int, limit: int) -> tuple[JournalEntry, ...]:
        """Journal entries after a sequence number."""
        return await self.transact(
            lambda ledger: tuple(ledger.tables.journal_after(after, limit)), frozenset({(Kind.JOURNAL, after, limit)})
        )
