"""Random histories of devices that share: the stores and a model of a few lines must agree, no floor is ever violated, and each step moves
a shared λ exactly once, in the order of the reports."""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule, run_state_machine_as_test

from coordinator.ledger.accounts import Amount, AmountLimits, BudgetRow, BudgetTerms, Reserved, share_key, share_prefix
from edge.core.errors import BudgetExhausted, PermissionDenied
from edge.dagrpo.dual import dual_step, shared_lr
from tests.unit.test_ledger_state_machine import PostgresDatabase, SqliteFile, TwoStores, histories
from tests.worlds.ledger_requests import close_request, open_request, reserve_request, settlement
from tests.worlds.postgres_server import PostgresServer

DEVICES = st.sampled_from(["d1", "d2", "d3"])
HOLDS = st.builds(Amount, st.just(1), st.integers(0, 20), st.just(0))
LIMITS = st.builds(AmountLimits, st.integers(2, 12), st.none() | st.integers(20, 120), st.none())
FLOORS = st.sampled_from([0, 300_000, 1_000_000])
SHARED_DUAL = "fleet[task:qa]"


class FleetHistories(TwoStores):
    """Three devices on one budget with floors and one λ."""

    def __init__(self, place: SqliteFile | PostgresDatabase) -> None:
        super().__init__(place)
        self.terms = BudgetTerms("fleet", AmountLimits(6, 100))
        self.calls = 0
        self.open_calls: dict[str, tuple[str, Amount]] = {}
        self.disabled: set[str] = set()
        self.dual: float | None = None
        self.moves = 0
        self.next_step = {"d1": 0, "d2": 0, "d3": 0}
        self.open_steps: dict[str, float] = {}
        self.round: dict[str, tuple[int, float]] = {}

    @initialize(limits=LIMITS, floor_ppm=FLOORS)
    def begin(self, limits: AmountLimits, floor_ppm: int) -> None:
        self.terms = BudgetTerms("fleet", limits, floor_ppm)

    @rule(device=DEVICES, hold=HOLDS)
    def reserve(self, device: str, hold: Amount) -> None:
        self.calls += 1
        key = f"k{self.calls}"
        request = reserve_request(key, device=device, hold=hold, budgets=[self.terms], now=self.now)
        before = {row.key: row for row in self.both(lambda store: store.list_budgets_after("", 1_000, with_steps=True))}
        outcome = self.both(lambda store: store.reserve(request))
        if device in self.disabled:
            assert outcome[0] is PermissionDenied
        elif isinstance(outcome, Reserved):
            self.open_calls[key] = (device, hold)
        else:
            assert outcome[0] is BudgetExhausted
            assert not self.is_guaranteed(before, device, hold)

    def is_guaranteed(self, rows: dict[str, BudgetRow], device: str, hold: Amount) -> bool:
        """Whether a hold lies within the device's floor in every limited unit, under terms already in effect."""
        fleet, share = rows.get("fleet"), rows.get(share_key("fleet", device))
        if fleet is None or share is None or (fleet.limits, fleet.floor_ppm) != (self.terms.limits, self.terms.floor_ppm):
            return False
        wanted = zip((fleet.limits.calls, fleet.limits.tokens), share.used.plus(hold).units, fleet.floor.units, strict=False)
        return all(limit is None or want <= floor for limit, want, floor in wanted)

    @precondition(lambda self: self.open_calls)
    @rule(data=st.data(), how=st.sampled_from(["settle", "refund", "doubt"]), charge=HOLDS)
    def resolve(self, data: st.DataObject, how: str, charge: Amount) -> None:
        key = data.draw(st.sampled_from(sorted(self.open_calls)))
        device, _ = self.open_calls.pop(key)
        if how == "settle":
            self.both(lambda store: store.settle(settlement(key, device=device, charge=charge, now=self.now)))
        elif how == "refund":
            self.both(lambda store: store.refund(device, key, 1, "refused", self.now))
        else:
            self.both(lambda store: store.doubt(device, key, 1, "cut", self.now))

    @rule(limits=LIMITS, floor_ppm=FLOORS)
    def change_terms(self, limits: AmountLimits, floor_ppm: int) -> None:
        self.terms = BudgetTerms("fleet", limits, floor_ppm)

    @rule(device=DEVICES, disabled=st.sampled_from([False, False, True]))
    def disable(self, device: str, disabled: bool) -> None:
        self.both(lambda store: store.register_device(device, "1.0", ("qa",), self.now))
        self.both(lambda store: store.set_device_disabled(device, disabled, self.now))
        (self.disabled.add if disabled else self.disabled.discard)(device)
        devices = {row.device for row in self.both(lambda store: store.list_devices()) if row.disabled}
        assert devices == self.disabled

    @rule(device=DEVICES, planned=st.integers(1, 6))
    def open_step(self, device: str, planned: int) -> None:
        request = open_request(
            self.next_step[device], device=device, task="qa", shared_dual=SHARED_DUAL, planned_prompts=planned, now=self.now
        )
        outcome = self.both(lambda store: store.open_step(request))
        if device in self.disabled:
            assert outcome[0] is PermissionDenied
        elif device in self.open_steps:
            assert outcome.dual == self.open_steps[device]
        else:
            self.dual = 0.5 if self.dual is None else self.dual
            assert outcome.dual == self.dual
            self.open_steps[device] = outcome.dual
            self.round[device] = (planned * 8, self.now)

    @precondition(lambda self: self.open_steps)
    @rule(data=st.data(), units=st.integers(1, 64), quarters=st.integers(0, 4))
    def close_step(self, data: st.DataObject, units: int, quarters: int) -> None:
        device = data.draw(st.sampled_from(sorted(self.open_steps)))
        asked = units * quarters // 4
        request = close_request(self.next_step[device], asked, units, device=device, task="qa", now=self.now)
        closed = self.both(lambda store: store.close_step(request))
        self.round[device] = (units, self.now)
        weight = sum(mine for mine, _ in self.round.values())
        assert self.dual is not None
        assert (closed.dual, closed.dual_before, closed.round_units) == (self.open_steps.pop(device), self.dual, weight)
        self.dual = dual_step(self.dual, asked / units, 0.3, shared_lr(0.02, units, weight))
        self.moves += 1
        self.next_step[device] += 1
        assert closed.dual_after == self.dual
        assert self.both(lambda store: store.close_step(request)) == closed

    @rule(seconds=st.integers(1, 20), age=st.integers(5, 30))
    def leave_idle(self, seconds: int, age: int) -> None:
        self.now += seconds
        left = self.both(lambda store: store.leave_idle_duals(self.now - age, self.now))
        idle = {device for device, (_, seen) in self.round.items() if seen < self.now - age}
        assert {member.device for member in left} == idle
        for device in idle:
            del self.round[device]

    @rule()
    def restart(self) -> None:
        self.reopen()
        self.open_calls.clear()

    @invariant()
    def a_shared_dual_moved_once_by_each_step(self) -> None:
        weight = sum(mine for mine, _ in self.round.values())
        duals = [(row.key, row.dual, row.updates, row.units) for row in self.both(lambda store: store.list_shared_duals())]
        assert duals == ([] if self.dual is None else [(SHARED_DUAL, self.dual, self.moves, weight)])

    @invariant()
    def what_is_set_aside_is_what_the_floors_lack_and_it_fits(self) -> None:
        rows = self.both(lambda store: store.list_budgets_after("", 1_000, with_steps=True))
        for row in rows:
            shares = [share.used for share in rows if share.key.startswith(share_prefix(row.key))]
            assert row.members == len(shares)
            lacking = [used.short_of(row.floor).units for used in shares]
            assert row.set_aside.units == tuple(map(sum, zip(*lacking, strict=True))) or not shares
            assert row.limits.units_exceeded(row.used.plus(row.set_aside)) == ()


def test_memory_and_sqlite_agree_on_random_histories_of_a_fleet(tmp_path: Path) -> None:
    run_state_machine_as_test(lambda: FleetHistories(SqliteFile(tmp_path)), settings=histories(25, steps=40))


def test_memory_and_postgres_agree_on_random_histories_of_a_fleet(postgres_server: PostgresServer) -> None:
    run_state_machine_as_test(lambda: FleetHistories(PostgresDatabase(postgres_server)), settings=histories(8, steps=40))
