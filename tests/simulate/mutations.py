"""Bugs to be planted: each one replaces a piece of the coordinator for as long as its block lasts. The suite must catch every one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from coordinator import broker, ledger
from coordinator.accounts import FLEET_CACHE, Amount, Resolution
from coordinator.broker import Broker
from coordinator.ledger import Ledger
from coordinator.providers.provider import ProviderError
from tools.simulate.disk import Disk, DiskTables


@dataclass(frozen=True)
class Mutation:
    """A bug: what it is called, how it is planted, and the invariants of which at least one must notice it."""

    name: str
    plant: Callable[[pytest.MonkeyPatch], None]
    noticed_by: frozenset[str]

    def __str__(self) -> str:
        return self.name


MUTATIONS: list[Mutation] = []


def mutation(name: str, *noticed_by: str) -> Callable[[Callable[[pytest.MonkeyPatch], None]], None]:
    def note(plant: Callable[[pytest.MonkeyPatch], None]) -> None:
        MUTATIONS.append(Mutation(name, plant, frozenset(noticed_by)))

    return note


@mutation("an attempt is settled again when it is settled already", "I3")
def _guard_removed(patch: pytest.MonkeyPatch) -> None:
    real = Ledger._attempt_and_call

    def unguarded(self: Ledger, device: str, key: str, number: int) -> Any:
        attempt, call = real(self, device, key, number)
        return replace(attempt, state=ledger.CallState.DISPATCHED), call

    def without_hold(self: DiskTables, key: str, hold: Amount, charge: Amount, to_aside: Amount) -> None:
        row = self.budgets[key]
        reserved = row.reserved.minus(hold.capped(row.reserved))
        self._set(self.budgets, key, replace(row, reserved=reserved, committed=row.committed.plus(charge)))

    patch.setattr(Ledger, "_attempt_and_call", unguarded)
    patch.setattr(DiskTables, "resolve", without_hold)


@mutation("a time-out is refunded", "I4")
def _refund_on_timeout(patch: pytest.MonkeyPatch) -> None:
    real = Broker._resolve_failure

    def refund(self: Broker, job: Any, attempt: Any, error: ProviderError) -> Any:
        if error.executed is None:
            return self._store.refund(job.device, job.call.call_key, attempt.number, error.kind, self._clock.now())
        return real(self, job, attempt, error)

    patch.setattr(Broker, "_resolve_failure", refund)


@mutation("the upstream is asked before the hold is durable", "I3", "I12")
def _dispatch_before_reserve(patch: pytest.MonkeyPatch) -> None:
    import asyncio

    reserve, ask = Broker._reserved, broker._ask
    asked: dict[str, Any] = {}

    async def early(self: Broker, job: Any, upstream: Any, quote: Any, deadline_s: float) -> Any:
        key = f"{job.device}|{job.call.call_key}|1"
        request = upstream.request(job.call, deadline_s, key)
        asked.setdefault(key, asyncio.create_task(upstream.provider.complete(request)))
        asked[key].add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.sleep(0.1)
        return await reserve(self, job, upstream, quote, deadline_s)

    async def answered(flight: Any, attempt: Any) -> Any:
        if (task := asked.get(attempt.request.idempotency_key)) is not None:
            return await task
        return await ask(flight, attempt)

    patch.setattr(Broker, "_reserved", early)
    patch.setattr(broker, "_ask", answered)


@mutation("a charge is counted twice in the balance", "I2")
def _double_count(patch: pytest.MonkeyPatch) -> None:
    def resolve(self: DiskTables, key: str, hold: Amount, charge: Amount, to_aside: Amount) -> None:
        row = self.budgets[key]
        committed = row.committed.plus(charge).plus(charge)
        self._set(self.budgets, key, replace(row, reserved=row.reserved.minus(hold), committed=committed))

    patch.setattr(DiskTables, "resolve", resolve)


@mutation("a charge is doubled in the journal too", "I4")
def _double_charge(patch: pytest.MonkeyPatch) -> None:
    real = Ledger._resolve

    def doubled(self: Ledger, attempt: Any, call: Any, state: Any, charge: Amount, *rest: Any) -> Resolution:
        return real(self, attempt, call, state, charge.plus(charge), *rest)

    patch.setattr(Ledger, "_resolve", doubled)


@mutation("a report that is sent again moves the dual again", "I6")
def _dual_on_retry(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ledger, "close_step", lambda self, request: self._close_open_step(_open_row(self, request), request))


def _open_row(self: Ledger, request: Any) -> Any:
    row = self.tables.step(request.device, request.task, request.step)
    if row is None:
        raise ledger._mismatch(request.task, request.step, self._next_step(request.device, request.task))
    return row


@mutation("a hold is taken without looking at the limit", "I1")
def _no_limit(patch: pytest.MonkeyPatch) -> None:
    def hold(self: DiskTables, key: str, amount: Amount, from_aside: Amount) -> bool:
        row = self.budgets[key]
        self._set(self.budgets, key, replace(row, reserved=row.reserved.plus(amount)))
        return True

    patch.setattr(DiskTables, "hold", hold)


@mutation("a lease is never swept", "I8", "I11")
def _no_sweep(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ledger, "sweep", lambda self, now: ())


@mutation("what an earlier process left is not swept", "I8", "I11")
def _no_recovery(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ledger, "_doubt_all", lambda self, attempts, reason, now: ())


@mutation("the content behind a key is not compared", "I5")
def _no_fingerprint(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ledger, "_check_same_content", lambda known, request: None)
    patch.setattr(broker, "_require_same_content", lambda known, asked, key: None)


@mutation("an answer out of the cache goes to another device", "I10")
def _cache_crosses(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(broker, "_answer_key", lambda device, model, call, terms: FLEET_CACHE + broker.cache_key("", model, call))


@mutation("a device may look up another device's call", "I10")
def _lookup_crosses(patch: pytest.MonkeyPatch) -> None:
    def get_call(self: Ledger, device: str, key: str) -> Any:
        rows = [row for row in self.tables.all_calls() if row.key == key]
        if not rows:
            raise ledger.NotFound("no such call")
        return next((row for row in rows if row.device == device), rows[0])

    patch.setattr(Ledger, "get_call", get_call)


@mutation("callers of different devices share a flight", "I10")
def _flight_crosses(patch: pytest.MonkeyPatch) -> None:
    from coordinator.flight import Job

    patch.setattr(Job, "group", property(lambda job: (job.call.task, job.call.step, job.call.prompt_id)))


@mutation("a prompt group is billed for every key", "I4")
def _no_group(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ledger, "_answer_from_group", lambda self, request, known: None)


@mutation("a step's credit does not count", "I1")
def _no_credit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ledger, "SERVING_STEP", -2)
    real = Ledger._hold_all

    def hold_all(self: Ledger, request: Any) -> Any:
        return real(self, replace(request, step=-2))

    patch.setattr(Ledger, "_hold_all", hold_all)
    patch.setattr(Ledger, "_require_open_step", lambda self, request: None)


@mutation("callers are told before the disk has it", "I9", "I3")
def _told_too_early(patch: pytest.MonkeyPatch) -> None:
    import asyncio

    real = Disk.sync

    async def lazy(self: Disk) -> None:
        asyncio.get_running_loop().create_task(_eventually(real, self))

    patch.setattr(Disk, "sync", lazy)


async def _eventually(sync: Any, disk: Disk) -> None:
    from tools.simulate.disk import DiskError

    with contextlib.suppress(DiskError):
        await sync(disk)


@mutation("doubt costs nothing", "I4")
def _free_doubt(patch: pytest.MonkeyPatch) -> None:
    real = Ledger._end

    def end(self: Ledger, device: str, key: str, number: int, state: Any, charge: Any, reason: str, now: float) -> Any:
        free = Amount() if state is ledger.CallState.IN_DOUBT else charge
        return real(self, device, key, number, state, free, reason, now)

    patch.setattr(Ledger, "_end", end)


@mutation("a call in doubt may be tried again with its key", "I3", "I4", "I5")
def _doubt_is_tried_again(patch: pytest.MonkeyPatch) -> None:
    real = Ledger.reserve

    def reserve(self: Ledger, request: Any) -> Any:
        known = self.tables.call(request.device, request.key)
        if known is not None and known.state is ledger.CallState.IN_DOUBT:
            self.tables.put_call(replace(known, state=ledger.CallState.REFUNDED))
        return real(self, request)

    patch.setattr(Ledger, "reserve", reserve)
