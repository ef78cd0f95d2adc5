"""The role of a ledger store: it runs the ledger's operations durably, each as one transaction.

Contract (tests/contracts/test_ledger_store.py):
- Each operation happens wholly or not at all, and is durable before its caller gets its outcome. Nothing is awaited inside.
- committed + reserved + set_aside <= limit in every unit of every budget after every operation.
- A cancelled caller does not undo an operation that was already queued; calling again with the same key reports what happened.
- A store that cannot write raises CoordinatorUnavailable with reason LEDGER_UNAVAILABLE, changes nothing, and works again once it can.
- Opening a store starts a new epoch: attempts of process runs that are gone are swept at once (`recover`). Where several processes share
  a store, those of the living ones are left alone; a process that dies is noticed when its own lease is over, and then swept too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from coordinator.ledger.accounts import Resolution
from coordinator.ledger.stores.buffered import BufferedTables
from coordinator.ledger.stores.changes import ChangeFeed, DeviceTask
from coordinator.ledger.stores.trouble import Writability
from coordinator.ledger.transitions import Ledger

T = TypeVar("T")
P = ParamSpec("P")


class NoAnswer(Exception):
    """The rows that an operation asked for cannot be had; it did not run."""


@dataclass(slots=True, eq=False)
class PendingOperation:
    """An operation of a batch."""

    work: Callable[[Ledger], Any]
    future: asyncio.Future[Any] | None = None
    """Gets the outcome when that is durable."""
    value: Any = None
    """What it returned, once it has run."""
    error: Exception | None = None

    def run(self, ledger: Ledger, tables: BufferedTables) -> None:
        """Run it; its refusal undoes only itself. Raises NoAnswer."""
        self.value = self.error = None
        try:
            self.value = self.work(ledger)
        except Exception as error:  # the refusal belongs to whoever awaits it
            tables.roll_back()
            if isinstance(error, NoAnswer):
                raise
            self.error = error
        else:
            tables.keep()

    def fail(self, error: Exception) -> None:
        """It did not happen."""
        self.value, self.error = None, error

    def release(self) -> None:
        """Give the caller its outcome, unless it left."""
        if self.future is None or self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.value)


class LedgerOperation(Generic[P, T]):
    """A transition of `Ledger` as a method of every store. What it does, takes and raises is said there, once."""

    def __init__(self, transition: Callable[Concatenate[Ledger, P], T]) -> None:
        self.name = transition.__name__
        self.__doc__ = transition.__doc__

    @overload
    def __get__(self, store: None, owner: type[LedgerStore]) -> LedgerOperation[P, T]: ...

    @overload
    def __get__(self, store: LedgerStore, owner: type[LedgerStore]) -> Callable[P, Coroutine[Any, Any, T]]: ...

    def __get__(
        self, store: LedgerStore | None, owner: type[LedgerStore]
    ) -> LedgerOperation[P, T] | Callable[P, Coroutine[Any, Any, T]]:
        return self if store is None else partial(store.perform, self)


class LedgerStore:
    """Balances, calls, steps and the journal. A store provides `transact`, `feed`, `writability` and `aclose`."""

    feed: ChangeFeed
    writability: Writability
    recovered: tuple[Resolution, ...] = ()
    """What was charged when it was opened: calls that process runs before it left open."""

    async def transact(self, work: Callable[[Ledger], T]) -> T:
        """Run `work` as one durable transaction; it leaves nothing behind when it raises."""
        raise NotImplementedError

    def perform(self, operation: LedgerOperation[P, T], *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        """Run one operation."""
        return self.transact(methodcaller(operation.name, *args, **kwargs))

    def changes(self) -> AsyncIterator[DeviceTask]:
        """(device, task) pairs whose budget has a new version, by whichever process; ("", "") after a gap: any may have changed,
        as after `set_limits`; (device, "") for a device that was disabled or enabled; ("", task) and ("", "") also when a
        limited budget of all devices for a task, or for all tasks, was used.

        Starts with the first `__anext__`; ends when the store is closed. A pair that changes again meanwhile is reported once; one
        may be reported that did not change.
        """
        return self.feed.changes()

    async def aclose(self) -> None:
        """Finish what is queued and close. Safe to call twice."""
        raise NotImplementedError

    reserve = LedgerOperation(Ledger.reserve)
    settle = LedgerOperation(Ledger.settle)
    refund = LedgerOperation(Ledger.refund)
    fail = LedgerOperation(Ledger.fail)
    doubt = LedgerOperation(Ledger.doubt)
    sweep = LedgerOperation(Ledger.sweep)
    open_step = LedgerOperation(Ledger.open_step)
    close_step = LedgerOperation(Ledger.close_step)
    get_call = LedgerOperation(Ledger.get_call)
    get_task = LedgerOperation(Ledger.get_task)
    get_shared_dual = LedgerOperation(Ledger.get_shared_dual)
    get_budget = LedgerOperation(Ledger.get_budget)
    list_tasks = LedgerOperation(Ledger.list_tasks)
    list_shared_duals = LedgerOperation(Ledger.list_shared_duals)
    list_devices = LedgerOperation(Ledger.list_devices)
    list_budgets_after = LedgerOperation(Ledger.list_budgets_after)
    list_calls_after = LedgerOperation(Ledger.list_calls_after)
    list_set_limits = LedgerOperation(Ledger.list_set_limits)
    set_limits = LedgerOperation(Ledger.set_limits)
    register_device = LedgerOperation(Ledger.register_device)
    saw_devices = LedgerOperation(Ledger.saw_devices)
    set_device_disabled = LedgerOperation(Ledger.set_device_disabled)
    leave_idle_duals = LedgerOperation(Ledger.leave_idle_duals)
    purge_results = LedgerOperation(Ledger.purge_results)
    read_journal = LedgerOperation(Ledger.read_journal)
    last_entry = LedgerOperation(Ledger.last_entry)
