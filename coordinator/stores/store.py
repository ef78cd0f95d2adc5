"""The role of a ledger store: runs the ledger's transactions durably. Knows nothing of SQL, gRPC or providers.

Contract (tests/contracts/test_ledger_store.py):
- Each method is one transaction: it happens wholly or not at all, and it is durable before the method returns. Nothing is awaited inside.
- committed + reserved + set_aside <= limit in every unit of every budget after every transaction.
- A cancelled caller does not undo a transaction that was already queued; calling again with the same key tells what happened.
- A store that cannot write raises CoordinatorUnavailable with reason LEDGER_UNAVAILABLE, changes nothing, and works again once it can.
- Opening a store starts a new epoch: attempts of process runs that are gone are swept at once (`recover`). Where several processes share
  a store, those of the living ones are left alone; a process that dies is noticed when its own lease is over, and then swept too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

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
from coordinator.stores.changes import DeviceTask


class LedgerStore(Protocol):
    """Balances, calls, steps and the journal."""

    async def reserve(self, request: ReserveRequest) -> ReserveOutcome:
        """T1: hold the most a call can cost, or say what became of its key.

        Raises KeyReused, BudgetExhausted (metadata `budget`, `unit`, `scope`), StepMismatch (the step is not open), InvalidRequest,
        PermissionDenied (the device is disabled).
        """
        ...

    async def settle(self, settlement: Settlement) -> Resolution:
        """T2: commit what an answered attempt cost and store the answer; at most once. Raises NotFound."""
        ...

    async def refund(self, device: str, key: str, attempt: int, reason: str, now: float) -> Resolution:
        """T2: give a hold back; only for an attempt that was definitely not executed. Raises NotFound."""
        ...

    async def fail(self, device: str, key: str, attempt: int, reason: str, charge: Amount | None, now: float) -> Resolution:
        """T2: an attempt that was executed but gave no usable answer; charged at `charge` or, when None, at the hold."""
        ...

    async def doubt(self, device: str, key: str, attempt: int, reason: str, now: float) -> Resolution:
        """T2: an attempt that may have been executed (cut, time-out): IN_DOUBT, charged at the hold."""
        ...

    async def sweep(self, now: float) -> tuple[AttemptRow, ...]:
        """T3: attempts whose lease is over, or whose process is gone, become IN_DOUBT, charged at the hold. Returns them."""
        ...

    async def open_step(self, request: OpenStepRequest) -> StepRow:
        """T4: open a step, or return it as it was opened. Raises StepMismatch unless it is the next or the open one."""
        ...

    async def close_step(self, request: CloseStepRequest) -> StepRow:
        """T4: move λ, exactly once; the same numbers again return the first answer, other numbers raise KeyReused.

        Raises StepMismatch unless it is the open step, InvalidRequest when the numbers cannot be.
        """
        ...

    async def get_call(self, device: str, key: str) -> CallRow:
        """A device's own call. Raises NotFound."""
        ...

    async def get_task(self, device: str, task: str) -> TaskRow | None:
        """λ, τ and next step of a task; None before its first step or call."""
        ...

    async def list_tasks(self) -> tuple[TaskRow, ...]:
        """The tasks of all devices, sorted by device and task."""
        ...

    async def get_price(self, key: str) -> PriceRow | None:
        """A λ shared by tasks or devices (`price_key`); None before its first step."""
        ...

    async def list_prices(self) -> tuple[PriceRow, ...]:
        """All shared λ, sorted by key."""
        ...

    async def leave_idle_prices(self, seen_before: float, now: float) -> tuple[PriceMember, ...]:
        """Members of fleets' prices last seen before this time leave their rounds. Returns them."""
        ...

    async def register_device(self, device: str, agent_version: str, tasks: Sequence[str], now: float) -> DeviceRow:
        """Note a registration; the first time seen stays. Raises PermissionDenied for a disabled device."""
        ...

    async def saw_devices(self, seen: Mapping[str, float]) -> None:
        """Note when registered devices were last seen (seconds since the epoch); unknown ones are left out."""
        ...

    async def set_device_disabled(self, device: str, disabled: bool, now: float) -> DeviceRow:
        """Refuse holds and steps of a device from now on, also of one that never registered, or let it in again.

        Raises InvalidRequest without an id, NotFound for one to be let in that nobody knows.
        """
        ...

    async def list_devices(self) -> tuple[DeviceRow, ...]:
        """All devices, sorted by id."""
        ...

    async def list_budgets(self) -> tuple[BudgetRow, ...]:
        """All budgets, sorted by key."""
        ...

    async def list_budgets_after(self, key: str, limit: int, *, with_steps: bool = False) -> tuple[BudgetRow, ...]:
        """A page of budgets: at most `limit` above this key, sorted by it; the call credits of steps only when asked for."""
        ...

    async def list_calls_after(self, after_device: str, after_key: str, limit: int, *, device: str = "") -> tuple[CallRow, ...]:
        """A page of calls: at most `limit` above (after_device, after_key), sorted by both; of one device, or of all ("")."""
        ...

    async def get_budget(self, device: str, task: str, budgets: Sequence[BudgetTerms]) -> BudgetView:
        """A task and these budgets in this order; one not used yet is shown empty. Changes nothing."""
        ...

    async def list_set_limits(self) -> tuple[SetLimits, ...]:
        """What was set at run time over the configured limits, sorted by scope."""
        ...

    async def set_limits(self, scope: str, changes: Mapping[str, int | str | None], now: float) -> tuple[SetLimits, ...]:
        """Set limits of a scope over the configured ones, for every process that shares the store; AS_CONFIGURED takes one back.

        Holds taken from now on follow them: one that follows others is answered Outdated. Returns what was set, of all scopes.
        """
        ...

    async def purge_results(self, before: float, now: float) -> int:
        """Forget the answer texts of calls last changed before this time; returns how many. Charges and digests stay."""
        ...

    async def read_journal(self, after: int, limit: int) -> tuple[JournalEntry, ...]:
        """Up to `limit` entries with a sequence number above `after` (0: from the start)."""
        ...

    def changes(self) -> AsyncIterator[DeviceTask]:
        """(device, task) pairs whose budget has a new version, by whichever process; ("", "") after a gap: any may have changed,
        as after `set_limits`; (device, "") for a device that was disabled or enabled; ("", task) and ("", "") also when a
        limited budget of all devices for a task, or for all tasks, was used.

        Starts with the first `__anext__`; ends when the store is closed. A pair that changes again before it was told is told once; one
        may be told that did not change.
        """
        ...

    async def aclose(self) -> None:
        """Finish what is queued and close. Safe to call twice."""
        ...
