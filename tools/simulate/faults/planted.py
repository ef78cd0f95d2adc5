"""Bugs to be planted: each one replaces a piece of the coordinator, or of the agent, while it stands. Knows pieces, and what notices that
they are wrong; knows nothing of how seeds are played. Exploring must find every one.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from coordinator.calls import broker
from coordinator.calls.broker import Broker
from coordinator.ledger import transitions as ledger
from coordinator.ledger.accounts import FLEET_CACHE, Amount, BudgetRow, CallState, Reserved, Resolution
from coordinator.ledger.stores.buffered import BufferedTables
from coordinator.ledger.stores.group_commit import GroupCommitStore
from coordinator.ledger.transitions import Ledger
from coordinator.providers.provider import ProviderError
from edge.budget.daily import DailyBudget
from edge.budget.dial import Dials
from edge.cloud import unconfirmed
from edge.cloud.unconfirmed import AnswerCalls
from edge.core.errors import CoordinatorUnavailable, NotFound, UsageError
from edge.dagrpo.dual import DualState, ProportionalIntegral, dual_step, proportional_integral_step
from edge.learning.step_reporter import ClosedStep, StepReporter
from edge.state.folder import StateFolder
from edge.state.rows import Commit, Report
from tools.simulate.faults import checker
from tools.simulate.faults.fold import Fold, Rules

_INHERITED = object()


class Patch:
    """Replaced attributes, which `undo` puts back."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def replace(self, owner: Any, name: str, value: object) -> None:
        """Put `value` in the place of an attribute that `owner` has."""
        getattr(owner, name)
        self._before.append((owner, name, vars(owner).get(name, _INHERITED)))
        setattr(owner, name, value)

    def replace_at(self, path: str, value: object) -> None:
        """The same, with the owner's dotted path and the name in one."""
        owner, _, name = path.rpartition(".")
        self.replace(_found(owner), name, value)

    def undo(self) -> None:
        """All as it was before."""
        while self._before:
            owner, name, before = self._before.pop()
            if before is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


def _found(path: str) -> Any:
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        return getattr(importlib.import_module(module), name)


Plant = Callable[[Patch], None]


@dataclass(frozen=True)
class Mutation:
    """A bug: what it is called, how it is planted, the invariants of which at least one must notice it, the seed to try first, and the kind
    of world that meets it."""

    name: str
    plant: Plant
    noticed_by: frozenset[str]
    seed: int
    kind: str

    def __str__(self) -> str:
        return self.name


MUTATIONS: list[Mutation] = []


def mutation(name: str, *noticed_by: str, seed: int = 0, kind: str = "coordinator") -> Callable[[Plant], None]:
    """Name a bug."""

    def note(plant: Plant) -> None:
        MUTATIONS.append(Mutation(name, plant, frozenset(noticed_by), seed, kind))

    return note


def find_mutation(name: str) -> Mutation:
    """The bug of this name, or the only one whose name contains it. Raises UsageError."""
    found = [each for each in MUTATIONS if each.name == name] or [each for each in MUTATIONS if name in each.name]
    if len(found) != 1:
        names = "\n  ".join(sorted(each.name for each in found or MUTATIONS))
        raise UsageError(
            f"{name!r} is {'no bug' if not found else 'more than one bug'} that can be planted", hint=f"one of\n  {names}"
        )
    return found[0]


@contextmanager
def planted(name: str) -> Iterator[None]:
    """With the bug of this name; "": with none."""
    patch = Patch()
    if name:
        find_mutation(name).plant(patch)
    try:
        yield
    finally:
        patch.undo()


@mutation("an attempt is settled again when it is settled already", "I3", seed=8)
def _guard_removed(patch: Patch) -> None:
    real = Ledger._attempt_and_call

    def unguarded(self: Ledger, device: str, key: str, number: int) -> Any:
        attempt, call = real(self, device, key, number)
        return replace(attempt, state=CallState.DISPATCHED), call

    def without_hold(self: BufferedTables, key: str, hold: Amount, charge: Amount, to_aside: Amount) -> None:
        row = _budget(self, key)
        reserved = row.reserved.minus(hold.capped(row.reserved))
        self.put_budget(replace(row, reserved=reserved, committed=row.committed.plus(charge)))

    patch.replace(Ledger, "_attempt_and_call", unguarded)
    patch.replace(BufferedTables, "resolve", without_hold)


@mutation("a time-out is refunded", "I4")
def _refund_on_timeout(patch: Patch) -> None:
    real = Broker._resolve_failure

    def refund(self: Broker, job: Any, attempt: Any, error: ProviderError) -> Any:
        if error.executed is None:
            return self._store.refund(job.device, job.call.call_key, attempt.number, error.kind, self._clock.now())
        return real(self, job, attempt, error)

    patch.replace(Broker, "_resolve_failure", refund)


@mutation("the upstream is asked before the hold is durable", "I3", "I12")
def _dispatch_before_reserve(patch: Patch) -> None:
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

    patch.replace(Broker, "_reserved", early)
    patch.replace(broker, "_ask", answered)


@mutation("a charge is counted twice in the balance", "I2")
def _double_count(patch: Patch) -> None:
    def resolve(self: BufferedTables, key: str, hold: Amount, charge: Amount, to_aside: Amount) -> None:
        row = _budget(self, key)
        committed = row.committed.plus(charge).plus(charge)
        self.put_budget(replace(row, reserved=row.reserved.minus(hold), committed=committed))

    patch.replace(BufferedTables, "resolve", resolve)


@mutation("a charge is doubled in the journal too", "I4")
def _double_charge(patch: Patch) -> None:
    real = Ledger._resolve

    def doubled(self: Ledger, attempt: Any, call: Any, state: Any, charge: Amount, *rest: Any) -> Resolution:
        return real(self, attempt, call, state, charge.plus(charge), *rest)

    patch.replace(Ledger, "_resolve", doubled)


@mutation("a report that is sent again moves the dual again", "I6")
def _dual_on_retry(patch: Patch) -> None:
    patch.replace(Ledger, "close_step", lambda self, request: self._close_open_step(_open_row(self, request), request))


def _open_row(self: Ledger, request: Any) -> Any:
    row = self.tables.step(request.device, request.task, request.step)
    if row is None:
        raise ledger._mismatch(request.task, request.step, self._next_step(request.device, request.task))
    return row


@mutation("a hold is taken without looking at the limit", "I1")
def _no_limit(patch: Patch) -> None:
    def hold(self: BufferedTables, key: str, amount: Amount, from_aside: Amount) -> bool:
        row = _budget(self, key)
        self.put_budget(replace(row, reserved=row.reserved.plus(amount)))
        return True

    patch.replace(BufferedTables, "hold", hold)


@mutation("a lease is never swept", "I8", "I11", seed=12)
def _no_sweep(patch: Patch) -> None:
    patch.replace(Ledger, "sweep", lambda self, now: ())


@mutation("what an earlier process left is not swept", "I8", "I11", seed=10)
def _no_recovery(patch: Patch) -> None:
    patch.replace(Ledger, "_doubt_all", lambda self, attempts, reason, now: ())


@mutation("the content behind a key is not compared", "I5", seed=7)
def _no_fingerprint(patch: Patch) -> None:
    patch.replace(ledger, "_check_same_content", lambda known, request: None)
    patch.replace(broker, "_require_same_content", lambda known, asked, key: None)


@mutation("an answer out of the cache goes to another device", "I10", seed=12)
def _cache_crosses(patch: Patch) -> None:
    patch.replace(broker, "_answer_key", lambda device, model, call, terms: FLEET_CACHE + broker.cache_key("", model, call))


@mutation("a device may look up another device's call", "I10")
def _lookup_crosses(patch: Patch) -> None:
    def get_call(self: Ledger, device: str, key: str) -> Any:
        rows = [row for row in self.tables.all_calls() if row.key == key]
        if not rows:
            raise NotFound("no such call")
        return next((row for row in rows if row.device == device), rows[0])

    patch.replace(Ledger, "get_call", get_call)


@mutation("callers of different devices share a flight", "I10", seed=7)
def _flight_crosses(patch: Patch) -> None:
    from coordinator.calls.flights import Job

    patch.replace(Job, "group", property(lambda job: (job.call.task, job.call.step, job.call.prompt_id)))


@mutation("a prompt group is billed for every key", "I4", seed=19)
def _no_group(patch: Patch) -> None:
    patch.replace(Ledger, "_answer_from_group", lambda self, request, known: None)


@mutation("a step's credit does not count", "I1")
def _no_credit(patch: Patch) -> None:
    patch.replace(ledger, "SERVING_STEP", -2)
    real = Ledger._hold_all

    def hold_all(self: Ledger, request: Any) -> Any:
        return real(self, replace(request, step=-2))

    patch.replace(Ledger, "_hold_all", hold_all)
    patch.replace(Ledger, "_require_open_step", lambda self, request: None)


@mutation("an answer is released before its commit", "I9", "I3", seed=6)
def _told_too_early(patch: Patch) -> None:
    patch.replace(GroupCommitStore, "_has_to_wait", _without_waiting(GroupCommitStore._has_to_wait))


def _without_waiting(real: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Rows are written as ever, and nobody waits for it."""

    def has_to_wait(self: Any, waiter: Any) -> bool:
        real(self, waiter)
        return False

    return has_to_wait


@mutation("what an operation saw is told before it is durable, unless it wrote itself", "I9", "I5", "I10", seed=10)
def _read_too_early(patch: Patch) -> None:
    run, has_to_wait = GroupCommitStore._run, GroupCommitStore._has_to_wait
    wrote: dict[int, bool] = {}

    def noted(self: GroupCommitStore, waiter: Any) -> None:
        before = None if self._tables is None else self._tables.journal_head()
        run(self, waiter)
        wrote[id(waiter)] = self._tables is not None and self._tables.journal_head() != before

    def only_writers(self: GroupCommitStore, waiter: Any) -> bool:
        return wrote.pop(id(waiter), False) and has_to_wait(self, waiter)

    patch.replace(GroupCommitStore, "_run", noted)
    patch.replace(GroupCommitStore, "_has_to_wait", only_writers)


@mutation("a batch survives the failure of the one before it", "I13")
def _survives_failure(patch: Patch) -> None:
    real = GroupCommitStore._failed

    def failed(self: GroupCommitStore, waiters: list[Any], error: Exception) -> None:
        gathering, tables, ledger = self._gathering, self._tables, self._ledger
        self._gathering = []
        real(self, waiters, error)
        self._gathering, self._tables, self._ledger = gathering, tables, ledger

    patch.replace(GroupCommitStore, "_failed", failed)


@mutation("a commit's callback is lost now and then", "I11", "I8", "I14")
def _callback_lost(patch: Patch) -> None:
    real = GroupCommitStore._synced

    def synced(self: GroupCommitStore, error: Exception | None) -> None:
        if self.commits % 7 == 6 and error is None:
            self.commits += 1
            return
        real(self, error)

    patch.replace(GroupCommitStore, "_synced", synced)


@mutation("doubt costs nothing", "I4")
def _free_doubt(patch: Patch) -> None:
    real = Ledger._end

    def end(self: Ledger, device: str, key: str, number: int, state: Any, charge: Any, reason: str, now: float) -> Any:
        free = Amount() if state is CallState.IN_DOUBT else charge
        return real(self, device, key, number, state, free, reason, now)

    patch.replace(Ledger, "_end", end)


@mutation("a call in doubt may be tried again with its key", "I3", "I4", "I5", seed=13)
def _doubt_is_tried_again(patch: Patch) -> None:
    real = Ledger.reserve

    def reserve(self: Ledger, request: Any) -> Any:
        known = self.tables.call(request.device, request.key)
        if known is not None and known.state is CallState.IN_DOUBT:
            self.tables.put_call(replace(known, state=CallState.REFUNDED))
        return real(self, request)

    patch.replace(Ledger, "reserve", reserve)


@mutation("what is kept for others may be taken", "I1", seed=64)
def _floor_ignored(patch: Patch) -> None:
    def hold(self: BufferedTables, key: str, amount: Amount, from_aside: Amount) -> bool:
        row = _budget(self, key)
        held = replace(row, reserved=row.reserved.plus(amount), set_aside=row.set_aside.minus(from_aside))
        if held.limits.units_exceeded(held.used):
            return False
        self.put_budget(held)
        return True

    patch.replace(BufferedTables, "hold", hold)


@mutation("what is kept for a device is kept from it too", "I1", seed=347)
def _floor_withheld(patch: Patch) -> None:
    real = BufferedTables.hold
    patch.replace(
        BufferedTables, "hold", lambda self, key, amount, aside: real(self, key, amount, Amount()) and _take(self, key, aside)
    )


def _take(tables: BufferedTables, key: str, aside: Amount) -> bool:
    row = _budget(tables, key)
    tables.put_budget(replace(row, set_aside=row.set_aside.minus(aside)))
    return True


def _budget(tables: BufferedTables, key: str) -> BudgetRow:
    row = tables.budget(key)
    assert row is not None
    return row


@mutation("a late joiner leaves the floors as they were", "I1", seed=212)
def _floors_stay(patch: Patch) -> None:
    patch.replace(ledger, "highest_floor", lambda target, used, free: target)


@mutation("a report that is sent again moves the shared λ again", "I6")
def _shared_dual_on_retry(patch: Patch) -> None:
    real = Ledger.close_step

    def close_step(self: Ledger, request: Any) -> Any:
        row = self.tables.step(request.device, request.task, request.step)
        price = self.tables.price(row.price) if row is not None and row.closed and row.price else None
        if row is not None and price is not None:
            dual = dual_step(price.dual, row.assist_rate, row.target_rate, row.dual_lr)
            self.tables.put_price(replace(price, dual=dual))
        return real(self, request)

    patch.replace(Ledger, "close_step", close_step)


@mutation("a report moves a fleet's λ with its whole weight", "I6")
def _whole_weight(patch: Patch) -> None:
    patch.replace(ledger, "shared_lr", lambda lr, units, round_units: lr)


@mutation("a report forgets what λ holds of the reports before it", "I6")
def _proportional_part_added_again(patch: Patch) -> None:
    def step(state: DualState, assist_rate: float, target_rate: float, rule: ProportionalIntegral) -> DualState:
        return proportional_integral_step(DualState(state.dual), assist_rate, target_rate, rule)

    patch.replace(ledger, "proportional_integral_step", step)


@mutation("a device that left a round still counts in it", "I6")
def _leaves_its_weight(patch: Patch) -> None:
    real = Ledger.leave_idle_prices

    def leave(self: Ledger, seen_before: float, now: float) -> Any:
        before = {row.key: row.units for row in self.tables.all_prices()}
        left = real(self, seen_before, now)
        for key in {member.price for member in left}:
            price = self.tables.price(key)
            assert price is not None
            self.tables.put_price(replace(price, units=before[key]))
        return left

    patch.replace(Ledger, "leave_idle_prices", leave)


@mutation("a shared λ begins with its first step, whoever was held to it before", "I6", seed=114)
def _price_begins_late(patch: Patch) -> None:
    real = Ledger._begin_price

    def begin(self: Ledger, task: Any) -> bool:
        begins = real(self, task)
        if begins:
            self.tables._prices.take_back((task.price,))  # type: ignore[attr-defined]
        return begins

    patch.replace(Ledger, "_begin_price", begin)
    patch.replace_at("tools.simulate.faults.duals.Duals.meet", _meet_without_beginning)


def _meet_without_beginning(self: Any, task: Any, dual: float, price: str) -> bool:
    self.own[task], self.held_to[task] = dual, price
    return price != "" and price not in self.shared


@mutation("a watcher is shown an older version now and then", "I9")
def _version_goes_back(patch: Patch) -> None:
    real = Broker.budget
    first: dict[tuple[str, str], Any] = {}

    async def budget(self: Broker, device: str, task: str) -> Any:
        newest = await real(self, device, task)
        oldest = first.setdefault((device, task), newest)
        return oldest if newest.version % 3 == 0 else newest

    patch.replace(Broker, "budget", budget)


@mutation("a watcher is never woken", "I11")
def _never_woken(patch: Patch) -> None:
    import asyncio

    async def sleep(rung: Any, seconds: float) -> bool:
        await asyncio.sleep(seconds)
        return False

    async def versions(bell: Any, device: str, task: str, read: Any, heartbeat_s: float) -> Any:
        yield await read()
        with bell.listening(device, task):
            while not bell.stopped:
                await sleep(None, heartbeat_s)
                yield None

    patch.replace_at("coordinator.service.device_api.versions", versions)


@mutation("changed limits forget what was spent", "I1", "I2", seed=16)
def _limits_forget(patch: Patch) -> None:
    real = Ledger._apply_terms

    def apply(self: Ledger, terms: Any, device: str, now: float) -> Any:
        row = self.tables.budget(terms.key)
        if row is not None and row.asked != terms.limits:
            self.tables.put_budget(replace(row, committed=Amount()))
        return real(self, terms, device, now)

    patch.replace(Ledger, "_apply_terms", apply)


@mutation("tasks that were read again are not taken", "I6", seed=63)
def _reload_ignored(patch: Patch) -> None:
    patch.replace_at("coordinator.control.steps.StepController.replace_tasks", lambda self, tasks: None)


@mutation("limits of an administrator are not kept", "I9")
def _set_limits_lost(patch: Patch) -> None:
    patch.replace(Ledger, "set_limits", lambda self, scope, changes, now: tuple(self.tables.set_limits()))


@mutation("a hold follows the limits that its process was told last", "I1", seed=188)
def _outdated_limits(patch: Patch) -> None:
    patch.replace(Ledger, "_outdated", lambda self, request: None)


@mutation("what was set at run time is read again as configured", "I1", seed=19)
def _limits_not_laid_over(patch: Patch) -> None:
    patch.replace_at("coordinator.ledger.budgets.overlaid", lambda configured, rows: configured)


@mutation("a disabled device is refused nothing", "I10", seed=12)
def _disabled_let_in(patch: Patch) -> None:
    patch.replace(Ledger, "_require_enabled", lambda self, device: None)
    patch.replace_at("coordinator.control.devices.Fleet.admit", lambda self, device: None)


@mutation("what a disabled device has open is left open", "I8", "I11", seed=526)
def _disabled_not_settled(patch: Patch) -> None:
    real = Ledger._attempt_and_call

    def enabled_only(self: Ledger, device: str, key: str, number: int) -> Any:
        self._require_enabled(device)
        return real(self, device, key, number)

    patch.replace(Ledger, "_attempt_and_call", enabled_only)


@mutation("a ledger that cannot be written is taken for written", "I12", seed=12)
def _fails_open(patch: Patch) -> None:
    real = Broker._reserved

    async def reserved(self: Broker, job: Any, *rest: Any) -> Any:
        try:
            return await real(self, job, *rest)
        except CoordinatorUnavailable as error:
            if error.reason != "LEDGER_UNAVAILABLE":
                raise
            return Reserved(1, f"{job.device}|{job.call.call_key}|1")

    patch.replace(Broker, "_reserved", reserved)


@mutation("calls are let through without looking at the rate", "I1", seed=17)
def _no_rate(patch: Patch) -> None:
    patch.replace_at("coordinator.calls.rates.RateLimiter.take", lambda self, device: None)


@mutation("the schedule of a target rate is not looked at", "I6")
def _no_schedule(patch: Patch) -> None:
    patch.replace_at("coordinator.config.TaskConfig.scheduled_rate", lambda self, step, now: None)


@mutation("a call meets a task at the target rate that the schedule replaces", "I6", seed=17)
def _first_contact_without_schedule(patch: Patch) -> None:
    real = Broker._reserve_request

    def unscheduled(self: Broker, job: Any, *rest: Any) -> Any:
        terms = self._controller.terms_of(job.call.task)
        return replace(real(self, job, *rest), target_rate=terms.target_rate)

    patch.replace(Broker, "_reserve_request", unscheduled)


@mutation("a budget goes on in the next window", "I1")
def _no_windows(patch: Patch) -> None:
    patch.replace_at("coordinator.ledger.budgets.window_label", lambda window, now: "" if window == "total" else "2023-11")


# the agent ---------------------------------------------------------------------------------------------------------------------


@mutation("learning's daily budget forgets what it paid", "A6", kind="agents")
def _daily_budget_forgets(patch: Patch) -> None:
    patch.replace(DailyBudget, "_write_paid", lambda self, key, tokens, spend_uusd: self._forget(key))


@mutation("learning's daily budget does not check the day's limit", "A6", kind="agents")
def _daily_budget_without_limit(patch: Patch) -> None:
    patch.replace(DailyBudget, "_used_up", lambda self: "")


@mutation("a report out of the outbox is delivered twice", "A4", kind="agents")
def _delivered_twice(patch: Patch) -> None:
    real = StepReporter._deliver_one

    async def twice(self: StepReporter, report: Report) -> Any:
        terms = await real(self, report)
        return terms if terms is None else await real(self, dataclasses.replace(report, task_step=terms.next_step))

    patch.replace(StepReporter, "_deliver_one", twice)


@mutation("a report that could not be delivered is not kept", "A4", kind="agents")
def _report_lost(patch: Patch) -> None:
    real = StepReporter.close

    async def close(self: StepReporter, step: Any, units: Any) -> ClosedStep:
        return dataclasses.replace(await real(self, step, units), unreported=None)

    patch.replace(StepReporter, "close", close)


@mutation("a step made offline takes the number of a report that waits", "A4", seed=900139, kind="agents")
def _number_taken_twice(patch: Patch) -> None:
    patch.replace(StepReporter, "_after_waiting", lambda self, known: known)


@mutation("people go on pausing when their time is over", "A8", seed=900173, kind="agents")
def _pauses_without_end(patch: Patch) -> None:
    patch.replace_at("tools.simulate.faults.agent_device.AgentLife._time_left", lambda self: math.inf)


@mutation("a refused call is weighed by the holds of others", "I1", seed=8059085)
def _weighed_by_others(patch: Patch) -> None:
    real = checker._hold_of_refused

    def hold(fold: Fold, rules: Rules, price: Any) -> Any:
        return real(fold, dataclasses.replace(rules, call_tokens=None), price)

    patch.replace(checker, "_hold_of_refused", hold)


@mutation("a call for a person is not noted before it is sent", "A2", kind="agents")
def _not_noted(patch: Patch) -> None:
    patch.replace(AnswerCalls, "begin", lambda self, record: None)


@mutation("a call that is not known yet is taken for one that never arrived", "A2", "A6", kind="agents", seed=84)
def _never_arrived_at_once(patch: Patch) -> None:
    patch.replace(unconfirmed, "ARRIVES_WITHIN_S", 0.0)


@mutation("what a lost reply has cost is not written down", "A3", kind="agents")
def _cost_not_written(patch: Patch) -> None:
    real = AnswerCalls.write_end

    def write_end(self: AnswerCalls, key: str, end: Mapping[str, Any]) -> bool:
        return real(self, key, {**end, "charged_uusd": 0})

    patch.replace(AnswerCalls, "write_end", write_end)


@mutation("the dial forgets what it counted when the agent starts again", "A7", kind="agents")
def _dial_forgets(patch: Patch) -> None:
    patch.replace(Dials, "save", lambda self, dial: self._state.database.execute(_KEEP_NO_DIAL, (dial.task, dial.to_json())))


_KEEP_NO_DIAL = "INSERT OR IGNORE INTO dials VALUES (?, ?)"


@mutation("a step leaves out an item that it never used", "A9", kind="agents")
def _cursor_runs_ahead(patch: Patch) -> None:
    real = StateFolder.commit_step

    def commit(self: StateFolder, commit: Commit) -> None:
        real(self, dataclasses.replace(commit, cursor=commit.cursor + 1))

    patch.replace(StateFolder, "commit_step", commit)
