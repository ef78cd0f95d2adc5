"""A ledger store in memory: for tests, the simulator, and keyless trials. Knows rows and how to undo; forgets all at exit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import islice
from typing import Any, TypeVar

from coordinator.ledger.accounts import (
    SERVING_STEP,
    STEP_PREFIX,
    Amount,
    AttemptRow,
    BudgetRow,
    CallRow,
    CallState,
    DeviceRow,
    PriceMember,
    PriceRow,
    SetLimits,
    StepRow,
    TaskRow,
)
from coordinator.ledger.journal import GENESIS, JournalEntry
from coordinator.ledger.stores.changes import EVERYTHING, ChangeFeed, moves_others, shuts_or_lets_in, told_to_others
from coordinator.ledger.stores.store import LedgerStore
from coordinator.ledger.transitions import Ledger
from edge.core.errors import CoordinatorUnavailable

T = TypeVar("T")
CallId = tuple[str, str]


class MemoryTables:
    """Rows in dictionaries, with an undo list so that a failed transaction leaves nothing behind."""

    def __init__(self) -> None:
        self.calls: dict[CallId, CallRow] = {}
        self.attempts: dict[tuple[str, str, int], AttemptRow] = {}
        self.budgets: dict[str, BudgetRow] = {}
        self.steps: dict[tuple[str, str, int], StepRow] = {}
        self.tasks: dict[tuple[str, str], TaskRow] = {}
        self.prices: dict[str, PriceRow] = {}
        self.price_members: dict[tuple[str, str], PriceMember] = {}
        self.devices: dict[str, DeviceRow] = {}
        self.limits: dict[str, SetLimits] = {}
        self.journal: list[JournalEntry] = []
        self._by_cache_key: dict[str, dict[CallId, None]] = defaultdict(dict)
        self._by_step: dict[tuple[str, str, int], dict[CallId, None]] = defaultdict(dict)
        self._open: dict[tuple[str, str, int], None] = {}
        self._undo: list[Callable[[], None]] = []
        self.changed: set[tuple[str, str]] = set()

    def keep(self) -> None:
        """End a transaction: its changes stay."""
        self._undo.clear()

    def roll_back(self) -> None:
        """End a transaction: its changes go."""
        while self._undo:
            self._undo.pop()()

    def call(self, device: str, key: str) -> CallRow | None:
        """A call by its key."""
        return self.calls.get((device, key))

    def group_call(self, device: str, task: str, step: int, prompt_id: str) -> CallRow | None:
        """A prompt group's running or answered call."""
        for row in MemoryTables.step_calls(self, device, task, step):
            answered = row.state is CallState.COMPLETED and row.result is not None and not row.source_key
            if row.prompt_id == prompt_id and (answered or row.state is CallState.DISPATCHED):
                return row
        return None

    def cached_call(self, cache_key: str) -> CallRow | None:
        """The latest answered call under a cache key."""
        rows = (self.calls[call_id] for call_id in self._by_cache_key.get(cache_key, ()))
        answered = [row for row in rows if row.state is CallState.COMPLETED and row.result is not None and not row.source_key]
        return max(answered, key=lambda row: (row.updated_ms, row.device, row.key), default=None)

    def step_calls(self, device: str, task: str, step: int) -> Sequence[CallRow]:
        """All calls of a step."""
        return [self.calls[call_id] for call_id in self._by_step.get((device, task, step), ())]

    def put_call(self, row: CallRow) -> None:
        """Write a call."""
        call_id = (row.device, row.key)
        self._set(self.calls, call_id, row)
        if row.cache_key:
            self._set(self._by_cache_key[row.cache_key], call_id, None)
        if row.step != SERVING_STEP:
            self._set(self._by_step[row.device, row.task, row.step], call_id, None)

    def attempt(self, device: str, key: str, number: int) -> AttemptRow | None:
        """One attempt."""
        return self.attempts.get((device, key, number))

    def put_attempt(self, row: AttemptRow) -> None:
        """Write an attempt."""
        attempt_id = (row.device, row.key, row.number)
        self._set(self.attempts, attempt_id, row)
        if row.state is CallState.DISPATCHED:
            self._set(self._open, attempt_id, None)
        else:
            self._remove(self._open, attempt_id)

    def expired_attempts(self, lease_until_ms: int) -> Sequence[AttemptRow]:
        """Open attempts whose lease ended."""
        return self._open_attempts(lambda row: row.lease_ms <= lease_until_ms)

    def orphaned_attempts(self, epoch: int) -> Sequence[AttemptRow]:
        """Open attempts of earlier process runs."""
        return self._open_attempts(lambda row: row.epoch != epoch)

    def _open_attempts(self, wanted: Callable[[AttemptRow], bool]) -> Sequence[AttemptRow]:
        rows = (self.attempts[attempt_id] for attempt_id in self._open)
        return sorted(filter(wanted, rows), key=lambda row: (row.lease_ms, row.device, row.key))

    def budget(self, key: str) -> BudgetRow | None:
        """A budget."""
        return self.budgets.get(key)

    def budgets_under(self, prefix: str) -> Sequence[BudgetRow]:
        """Budgets whose key begins with this."""
        return [self.budgets[key] for key in sorted(self.budgets) if key.startswith(prefix)]

    def put_budget(self, row: BudgetRow) -> None:
        """Write a budget."""
        self.changed.update(told_to_others(row))
        self._set(self.budgets, row.key, row)

    def hold(self, key: str, amount: Amount, from_aside: Amount) -> bool:
        """Reserve if it fits."""
        row = self.budgets[key]
        held = row.held(amount, from_aside)
        if not held.within_limits:
            return False
        self.put_budget(held)
        return True

    def resolve(self, key: str, hold: Amount, charge: Amount, to_aside: Amount) -> None:
        """Turn a hold into a charge."""
        self.put_budget(self.budgets[key].resolved(hold, charge, to_aside))

    def step(self, device: str, task: str, step: int) -> StepRow | None:
        """A step."""
        return self.steps.get((device, task, step))

    def put_step(self, row: StepRow) -> None:
        """Write a step."""
        self._set(self.steps, (row.device, row.task, row.step), row)

    def task(self, device: str, task: str) -> TaskRow | None:
        """A task."""
        return self.tasks.get((device, task))

    def put_task(self, row: TaskRow) -> None:
        """Write a task."""
        self.changed.add((row.device, row.task))
        self._set(self.tasks, (row.device, row.task), row)

    def price(self, key: str) -> PriceRow | None:
        """A shared λ."""
        return self.prices.get(key)

    def put_price(self, row: PriceRow) -> None:
        """Write a shared λ."""
        if moves_others(self.prices.get(row.key), row):
            self.changed.add(EVERYTHING)
        self._set(self.prices, row.key, row)

    def price_member(self, price: str, device: str) -> PriceMember | None:
        """A device's part in a fleet's price."""
        return self.price_members.get((price, device))

    def put_price_member(self, row: PriceMember) -> None:
        """Write a device's part in a fleet's price."""
        self._set(self.price_members, (row.price, row.device), row)

    def idle_price_members(self, seen_ms: int) -> Sequence[PriceMember]:
        """Members last seen before this time."""
        return [row for row in _sorted_rows(self.price_members) if row.units > 0 and row.seen_ms < seen_ms]

    def device(self, device: str) -> DeviceRow | None:
        """A registered device."""
        return self.devices.get(device)

    def put_device(self, row: DeviceRow) -> None:
        """Write a device."""
        if shuts_or_lets_in(self.devices.get(row.device), row):
            self.changed.add((row.device, ""))
        self._set(self.devices, row.device, row)

    def set_limits(self) -> Sequence[SetLimits]:
        """What was set at run time."""
        return _sorted_rows(self.limits)

    def put_set_limits(self, row: SetLimits) -> None:
        """Write what was set for a scope."""
        self.changed.add(EVERYTHING)
        self._set(self.limits, row.scope, row)

    def results_before(self, updated_ms: int) -> Sequence[CallRow]:
        """Answered calls last changed before this time."""
        rows = (row for row in self.calls.values() if row.result is not None and row.updated_ms < updated_ms)
        return sorted(rows, key=lambda row: (row.device, row.key))

    def all_budgets(self) -> Iterable[BudgetRow]:
        """All budgets."""
        return _sorted_rows(self.budgets)

    def all_calls(self) -> Iterable[CallRow]:
        """All calls."""
        return _sorted_rows(self.calls)

    def budgets_after(self, key: str, limit: int, *, with_steps: bool) -> Sequence[BudgetRow]:
        """A page of budgets."""
        return budget_page(self.all_budgets(), key, limit, with_steps)

    def calls_after(self, device: str, key: str, limit: int, *, only_device: str) -> Sequence[CallRow]:
        """A page of calls."""
        return call_page(self.all_calls(), device, key, limit, only_device)

    def all_attempts(self) -> Iterable[AttemptRow]:
        """All attempts."""
        return _sorted_rows(self.attempts)

    def all_steps(self) -> Iterable[StepRow]:
        """All steps."""
        return _sorted_rows(self.steps)

    def all_tasks(self) -> Iterable[TaskRow]:
        """All tasks."""
        return _sorted_rows(self.tasks)

    def all_prices(self) -> Iterable[PriceRow]:
        """All shared λ."""
        return _sorted_rows(self.prices)

    def all_price_members(self) -> Iterable[PriceMember]:
        """All members of fleets' prices."""
        return _sorted_rows(self.price_members)

    def all_devices(self) -> Iterable[DeviceRow]:
        """All devices."""
        return _sorted_rows(self.devices)

    def journal_after(self, seq: int, limit: int | None = None) -> Iterable[JournalEntry]:
        """Entries after this one."""
        return self.journal[seq:] if limit is None else self.journal[seq : seq + limit]

    def journal_head(self) -> tuple[int, str]:
        """The last entry's number and hash."""
        return (self.journal[-1].seq, self.journal[-1].hash) if self.journal else (0, GENESIS)

    def append_journal(self, entry: JournalEntry) -> None:
        """Append an entry."""
        self.journal.append(entry)
        self._undo.append(self.journal.pop)  # type: ignore[arg-type]

    def _set(self, rows: dict[Any, Any], key: Hashable, value: Any) -> None:
        if key in rows:
            self._undo.append(lambda old=rows[key]: rows.__setitem__(key, old))  # type: ignore[misc]
        else:
            self._undo.append(lambda: rows.__delitem__(key))
        rows[key] = value

    def _remove(self, rows: dict[Any, Any], key: Hashable) -> None:
        if key in rows:
            self._undo.append(lambda old=rows[key]: rows.__setitem__(key, old))  # type: ignore[misc]
            del rows[key]


def budget_page(sorted_rows: Iterable[BudgetRow], key: str, limit: int, with_steps: bool) -> list[BudgetRow]:
    """See Tables.budgets_after."""
    rows = (row for row in sorted_rows if row.key > key and (with_steps or not row.key.startswith(STEP_PREFIX)))
    return list(islice(rows, limit))


def call_page(sorted_rows: Iterable[CallRow], device: str, key: str, limit: int, only_device: str) -> list[CallRow]:
    """See Tables.calls_after."""
    rows = (row for row in sorted_rows if (row.device, row.key) > (device, key) and only_device in ("", row.device))
    return list(islice(rows, limit))


def _sorted_rows(rows: dict[Any, T]) -> list[T]:
    return [rows[key] for key in sorted(rows)]


class MemoryLedgerStore(LedgerStore):
    """LedgerStore over MemoryTables. `reopen` plays a restart; `break_down` and `heal` a disk that cannot be written."""

    def __init__(self, now: float = 0.0) -> None:
        self.tables = MemoryTables()
        self.feed = ChangeFeed()
        self._epoch = 0
        self._broken = False
        self.reopen(now)

    def reopen(self, now: float) -> None:
        """Start a new epoch and sweep what the last one left."""
        self._epoch += 1
        self._ledger = Ledger(self.tables, self._epoch)
        self._run(lambda ledger: ledger.recover(now))

    def break_down(self) -> None:
        """From now on every transaction fails with LEDGER_UNAVAILABLE."""
        self._broken = True

    def heal(self) -> None:
        """Transactions work again."""
        self._broken = False

    async def transact(self, work: Callable[[Ledger], T]) -> T:
        """Run one transaction."""
        if self._broken:
            raise CoordinatorUnavailable("the ledger cannot be written", reason="LEDGER_UNAVAILABLE", retry_after_s=1.0)
        return self._run(work)

    def _run(self, work: Callable[[Ledger], T]) -> T:
        try:
            result = work(self._ledger)
        except BaseException:
            self.tables.roll_back()
            raise
        self.tables.keep()
        self.feed.publish(self.tables.changed)
        self.tables.changed.clear()
        return result

    async def aclose(self) -> None:
        """End the iterations over `changes`."""
        self.feed.close()
