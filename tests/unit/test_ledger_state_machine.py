"""Random histories: the memory store, a durable store and a small model must agree, and no limit is ever exceeded."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from coordinator.ledger.accounts import Amount, AmountLimits, BudgetTerms, Reserved, budget_key, step_budget_key
from coordinator.ledger.stores.memory import MemoryLedgerStore
from coordinator.ledger.stores.postgres import PostgresLedgerStore
from coordinator.ledger.stores.postgres import open_read_only as open_postgres_read_only
from coordinator.ledger.stores.sqlite import SqliteLedgerStore, open_read_only
from coordinator.ledger.stores.store import LedgerStore
from coordinator.ledger.verify import LedgerRows, verify
from edge.core.errors import CoordinatorError
from edge.dagrpo.dual import DualState, ProportionalIntegral, proportional_integral_step
from tests.worlds.ledger_requests import NOW, close_request, open_request, reserve_request, settlement
from tests.worlds.postgres_server import PostgresServer

KEYS = st.sampled_from(["a", "b", "c", "d"])
DEVICES = st.sampled_from(["d1", "d2"])
AMOUNTS = st.builds(Amount, st.just(1), st.integers(0, 40), st.integers(0, 40))
LIMITS = st.builds(AmountLimits, *[st.none() | st.integers(0, most) for most in (6, 120, 120)])
RULES = {"d1": ProportionalIntegral(0.02), "d2": ProportionalIntegral(0.02, proportional=0.5, window=2, ceiling=0.6)}
Operation = Callable[[LedgerStore], Awaitable[Any]]


@dataclass
class ModelAttempt:
    """The model's view of an attempt: its maker, its hold or cost, and its budgets."""

    device: str
    budgets: set[str]
    hold: Amount
    lease_until: float
    charge: Amount | None = None


class SqliteFile:
    """A ledger file that is opened again and again."""

    def __init__(self, folder: Path) -> None:
        self.path = Path(tempfile.mkdtemp(dir=folder)) / "ledger.sqlite3"

    async def open(self, now: float) -> LedgerStore:
        return await SqliteLedgerStore.open(self.path, now)

    def rows(self) -> AbstractContextManager[LedgerRows]:
        return open_read_only(self.path)


class PostgresDatabase:
    """A ledger database that is joined again and again."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.dsn = ""

    async def open(self, now: float) -> LedgerStore:
        self.dsn = self.dsn or await self.server.clean_ledger()
        return await PostgresLedgerStore.open(self.dsn, now)

    def rows(self) -> AbstractContextManager[LedgerRows]:
        return open_postgres_read_only(self.dsn)


class TwoStores(RuleBasedStateMachine):
    """Applies each operation to both stores and compares the results; at the end both journals must be equal and verify."""

    def __init__(self, place: SqliteFile | PostgresDatabase) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.place = place
        self.now = NOW
        self.memory = MemoryLedgerStore(NOW)
        self.durable = self.loop.run_until_complete(place.open(NOW))

    def both(self, operation: Operation) -> Any:
        """Run on both stores; they must give equal answers or equal refusals."""
        ours, theirs = (self.loop.run_until_complete(_outcome(operation(store))) for store in (self.memory, self.durable))
        assert ours == theirs
        return ours

    def reopen(self) -> None:
        """Restart both."""
        self.loop.run_until_complete(self.durable.aclose())
        self.durable = self.loop.run_until_complete(self.place.open(self.now))
        self.memory.reopen(self.now)

    def teardown(self) -> None:
        self.loop.run_until_complete(self.durable.aclose())
        with self.place.rows() as rows:
            report = verify(rows)
            assert list(rows.journal_after(0)) == list(self.memory.tables.journal_after(0))
        assert report.ok, report.differences
        assert verify(self.memory.tables) == report
        self.loop.close()


class LedgerHistories(TwoStores):
    """Calls, limits and steps of two devices, each for itself."""

    def __init__(self, place: SqliteFile | PostgresDatabase) -> None:
        super().__init__(place)
        self.limits = AmountLimits(5, 100, 100)
        self.attempts: dict[tuple[str, str, int], ModelAttempt] = {}
        self.duals = {"d1": DualState(0.5), "d2": DualState(0.5)}
        self.next_step = {"d1": 0, "d2": 0}

    @initialize(limits=LIMITS)
    def begin(self, limits: AmountLimits) -> None:
        self.limits = limits

    @rule(
        device=DEVICES,
        key=KEYS,
        group=st.sampled_from("xy"),
        other=st.booleans(),
        step=st.integers(-1, 2),
        hold=AMOUNTS,
        cache=st.sampled_from(["", "c1"]),
        lease_s=st.integers(1, 20),
    )
    def reserve(self, device: str, key: str, group: str, other: bool, step: int, hold: Amount, cache: str, lease_s: int) -> None:
        fleet = BudgetTerms(budget_key("fleet"), self.limits)
        own = BudgetTerms(budget_key("device", device), AmountLimits(calls=3))
        request = reserve_request(
            key,
            device=device,
            step=step,
            prompt_id=group,
            hold=hold,
            cache_key=cache and f"{device}{cache}",
            fingerprint=f"{group}{other}",
            budgets=(fleet, own),
            lease_until=self.now + lease_s,
            now=self.now,
        )
        outcome = self.both(lambda store: store.reserve(request))
        if isinstance(outcome, Reserved):
            budgets = {fleet.key, own.key} | ({step_budget_key(device, "math", step)} if step >= 0 else set())
            assert (device, key, outcome.attempt) not in self.attempts
            self.attempts[device, key, outcome.attempt] = ModelAttempt(device, budgets, hold, self.now + lease_s)

    @precondition(lambda self: self.attempts)
    @rule(data=st.data(), how=st.sampled_from(["settle", "refund", "fail", "doubt"]), charge=AMOUNTS)
    def resolve(self, data: st.DataObject, how: str, charge: Amount) -> None:
        device, key, number = data.draw(st.sampled_from(sorted(self.attempts)))
        attempt = self.attempts[device, key, number]
        answered = settlement(key, number, device=device, charge=charge, now=self.now)
        operations: dict[str, tuple[Operation, Amount]] = {
            "settle": (lambda store: store.settle(answered), charge.capped(attempt.hold)),
            "refund": (lambda store: store.refund(device, key, number, "refused", self.now), Amount()),
            "fail": (lambda store: store.fail(device, key, number, "garbage", charge, self.now), charge.capped(attempt.hold)),
            "doubt": (lambda store: store.doubt(device, key, number, "cut", self.now), attempt.hold),
        }
        operation, expected = operations[how]
        outcome = self.both(operation)
        assert outcome.applied == (attempt.charge is None)
        if attempt.charge is None:
            attempt.charge = expected

    @rule(seconds=st.integers(1, 15))
    def sweep(self, seconds: int) -> None:
        self.now += seconds
        self.both(lambda store: store.sweep(self.now))
        self.in_doubt_where(lambda attempt: attempt.lease_until <= self.now)

    @rule()
    def restart(self) -> None:
        self.reopen()
        self.in_doubt_where(lambda attempt: True)

    @rule(limits=LIMITS)
    def change_limits(self, limits: AmountLimits) -> None:
        self.limits = limits

    @rule(device=DEVICES, step=st.integers(0, 2), planned=st.integers(1, 6), factor=st.none() | st.sampled_from([0.0, 2.0]))
    def open_step(self, device: str, step: int, planned: int, factor: float | None) -> None:
        terms = {"dual_proportional": RULES[device].proportional, "dual_window": RULES[device].window}
        terms["dual_ceiling"] = RULES[device].ceiling
        request = open_request(step, device=device, planned_prompts=planned, credit_factor=factor, now=self.now, **terms)
        outcome = self.both(lambda store: store.open_step(request))
        if not isinstance(outcome, tuple):
            assert (outcome.step, outcome.dual) == (self.next_step[device], self.duals[device].dual)

    @rule(device=DEVICES, step=st.integers(0, 2), units=st.integers(0, 8))
    def close_step(self, device: str, step: int, units: int) -> None:
        request = close_request(step, units, 8, device=device, now=self.now)
        outcome = self.both(lambda store: store.close_step(request))
        if not isinstance(outcome, tuple) and step == self.next_step[device]:
            self.duals[device] = proportional_integral_step(self.duals[device], units / 8, 0.3, RULES[device])
            self.next_step[device] += 1
            assert outcome.dual_after == self.duals[device].dual

    @rule(age=st.integers(0, 20))
    def purge(self, age: int) -> None:
        self.both(lambda store: store.purge_results(self.now - age, self.now))

    def in_doubt_where(self, lost: Callable[[ModelAttempt], bool]) -> None:
        for attempt in self.attempts.values():
            if attempt.charge is None and lost(attempt):
                attempt.charge = attempt.hold

    @invariant()
    def no_limit_is_passed_and_balances_follow_from_the_attempts(self) -> None:
        for row in self.both(lambda store: store.list_budgets_after("", 1_000, with_steps=True)):
            assert row.limits.units_exceeded(row.used) == ()
            mine = [attempt for attempt in self.attempts.values() if row.key in attempt.budgets]
            assert row.committed == _total(attempt.charge for attempt in mine if attempt.charge is not None)
            assert row.reserved == _total(attempt.hold for attempt in mine if attempt.charge is None)

    @invariant()
    def what_a_task_was_charged_follows_from_its_attempts(self) -> None:
        for task in self.both(lambda store: store.list_tasks()):
            mine = (attempt for attempt in self.attempts.values() if attempt.device == task.device)
            assert task.charged == _total(attempt.charge for attempt in mine if attempt.charge is not None)


async def _outcome(doing: Awaitable[Any]) -> Any:
    """A value, or a refusal as (type, text, metadata) so that two of them can be compared."""
    try:
        return await doing
    except CoordinatorError as error:
        return type(error), str(error), error.metadata


def _total(amounts: Any) -> Amount:
    total = Amount()
    for amount in amounts:
        total = total.plus(amount)
    return total


def histories(examples: int, steps: int = 30) -> settings:
    """`examples` random histories of `steps` steps, the same ones every time."""
    every = list(HealthCheck)
    return settings(
        max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=every, derandomize=True
    )


def test_memory_and_sqlite_agree_on_random_histories(tmp_path: Path) -> None:
    run_state_machine_as_test(lambda: LedgerHistories(SqliteFile(tmp_path)), settings=histories(25))


def test_memory_and_postgres_agree_on_random_histories(postgres_server: PostgresServer) -> None:
    run_state_machine_as_test(lambda: LedgerHistories(PostgresDatabase(postgres_server)), settings=histories(8))
