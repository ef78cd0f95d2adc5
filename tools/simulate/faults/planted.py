"""Bugs to be planted, one for each invariant: each replaces a piece of the coordinator, or of the agent, while it stands. Exploring must
find every one by its invariant.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from coordinator.calls import broker
from coordinator.calls.broker import Broker
from coordinator.ledger import transitions as ledger
from coordinator.ledger.accounts import FLEET_CACHE, Amount, BudgetRow, Reserved
from coordinator.ledger.stores.buffered import BufferedTables
from coordinator.ledger.stores.group_commit import GroupCommitStore
from coordinator.ledger.transitions import Ledger
from coordinator.providers.provider import ProviderError
from edge.agent import Agent
from edge.budget.daily import DailyBudget
from edge.budget.dial import Dials
from edge.cloud.unconfirmed import AnswerCalls
from edge.core.errors import CoordinatorUnavailable, UsageError
from edge.learning.step_reporter import StepReporter
from edge.state.folder import StateFolder
from edge.state.rows import Commit, Report, Terms

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
class Bug:
    """What it is called, how it is planted, the invariant that must notice it, and the seed to try first."""

    name: str
    plant: Plant
    invariant: str
    seed: int

    @property
    def kind(self) -> str:
        """The kind of world that meets it."""
        return "agents" if self.invariant.startswith("A") else "coordinator"

    def __str__(self) -> str:
        return self.name


BUGS: list[Bug] = []


def bug(invariant: str, name: str, seed: int = 0) -> Callable[[Plant], None]:
    """Name a bug."""

    def note(plant: Plant) -> None:
        BUGS.append(Bug(name, plant, invariant, seed))

    return note


def find_bug(name: str) -> Bug:
    """The bug of this name, or the only one whose name contains it. Raises UsageError."""
    found = [each for each in BUGS if each.name == name] or [each for each in BUGS if name in each.name]
    if len(found) != 1:
        names = "\n  ".join(sorted(each.name for each in found or BUGS))
        raise UsageError(
            f"{name!r} is {'no bug' if not found else 'more than one bug'} that can be planted", hint=f"one of\n  {names}"
        )
    return found[0]


@contextmanager
def planted(name: str) -> Iterator[None]:
    """With the bug of this name; "": with none."""
    patch = Patch()
    if name:
        find_bug(name).plant(patch)
    try:
        yield
    finally:
        patch.undo()


@bug("I1", "a hold is taken without looking at the limit")
def _no_limit(patch: Patch) -> None:
    def hold(self: BufferedTables, key: str, amount: Amount, from_aside: Amount) -> bool:
        row = _budget(self, key)
        self.budgets.put(replace(row, reserved=row.reserved.plus(amount)))
        return True

    patch.replace(BufferedTables, "hold", hold)


def _budget(tables: BufferedTables, key: str) -> BudgetRow:
    row = tables.budgets.get(key)
    assert row is not None
    return row


@bug("I2", "a charge is counted twice in the balance")
def _double_count(patch: Patch) -> None:
    def resolve(self: BufferedTables, key: str, hold: Amount, charge: Amount, to_aside: Amount) -> None:
        row = _budget(self, key)
        committed = row.committed.plus(charge).plus(charge)
        self.budgets.put(replace(row, reserved=row.reserved.minus(hold), committed=committed))

    patch.replace(BufferedTables, "resolve", resolve)


@bug("I3", "the upstream is asked before the hold is durable")
def _dispatch_before_reserve(patch: Patch) -> None:
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


@bug("I4", "a time-out is refunded")
def _refund_on_timeout(patch: Patch) -> None:
    real = Broker._resolve_failure

    def refund(self: Broker, job: Any, attempt: Any, error: ProviderError) -> Any:
        if error.executed is None:
            return self._store.refund(job.device, job.call.call_key, attempt.number, error.kind, self._clock.now())
        return real(self, job, attempt, error)

    patch.replace(Broker, "_resolve_failure", refund)


@bug("I5", "the content behind a key is not compared", seed=26)
def _no_fingerprint(patch: Patch) -> None:
    patch.replace(ledger, "_check_same_content", lambda known, request: None)
    patch.replace(broker, "_require_same_content", lambda known, asked, key: None)


@bug("I6", "a report that is sent again moves the dual again")
def _dual_on_retry(patch: Patch) -> None:
    patch.replace(Ledger, "close_step", lambda self, request: self._close_open_step(_open_row(self, request), request))


def _open_row(self: Ledger, request: Any) -> Any:
    row = self.tables.steps.get(request.device, request.task, request.step)
    if row is None:
        raise ledger._mismatch(request.task, request.step, self._next_step(request.device, request.task))
    return row


@bug("I7", "a call needs no open step", seed=368)
def _no_open_step(patch: Patch) -> None:
    patch.replace(Ledger, "_require_open_step", lambda self, request: None)


@bug("I8", "a hold's lease is over before its call is sent")
def _lease_over(patch: Patch) -> None:
    real = Broker._reserve_request

    def reserve_request(self: Broker, *about: Any) -> Any:
        request = real(self, *about)
        return replace(request, lease_until=request.lease_until - 60.0)

    patch.replace(Broker, "_reserve_request", reserve_request)


@bug("I9", "an answer is released before its commit", seed=3)
def _told_too_early(patch: Patch) -> None:
    real = GroupCommitStore._has_to_wait

    def has_to_wait(self: GroupCommitStore, waiter: Any) -> bool:
        real(self, waiter)  # rows are written as ever, and nobody waits for it
        return False

    patch.replace(GroupCommitStore, "_has_to_wait", has_to_wait)


@bug("I10", "an answer out of the cache goes to another device", seed=12)
def _cache_crosses(patch: Patch) -> None:
    patch.replace(broker, "_answer_key", lambda device, model, call, terms: FLEET_CACHE + broker.cache_key("", model, call))


@bug("I11", "a watcher is never woken")
def _never_woken(patch: Patch) -> None:
    async def sleep(changed: Any, seconds: float) -> bool:
        await asyncio.sleep(seconds)
        return False

    async def versions(notifier: Any, device: str, task: str, read: Any, heartbeat_s: float) -> Any:
        yield await read()
        with notifier.watching(device, task):
            while not notifier.stopped:
                await sleep(None, heartbeat_s)
                yield None

    patch.replace_at("coordinator.service.device_api.versions", versions)


@bug("I12", "a ledger that cannot be written is taken for written", seed=12)
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


@bug("I13", "a batch survives the failure of the one before it", seed=8)
def _survives_failure(patch: Patch) -> None:
    real = GroupCommitStore._failed

    def failed(self: GroupCommitStore, waiters: list[Any], error: Exception) -> None:
        gathering, tables, ledger = self._gathering, self._tables, self._ledger
        self._gathering = []
        real(self, waiters, error)
        self._gathering, self._tables, self._ledger = gathering, tables, ledger

    patch.replace(GroupCommitStore, "_failed", failed)


@bug("I14", "a commit's callback is lost now and then")
def _callback_lost(patch: Patch) -> None:
    real = GroupCommitStore._synced

    def synced(self: GroupCommitStore, error: Exception | None) -> None:
        if self.commits % 7 == 6 and error is None:
            self.commits += 1
            return
        real(self, error)

    patch.replace(GroupCommitStore, "_synced", synced)


@bug("A1", "an answer is kept otherwise than it was given")
def _kept_otherwise(patch: Patch) -> None:
    real = StateFolder.put_request

    def put(self: StateFolder, request_id: str, created_at: float, record: dict[str, Any], *beside: Any) -> None:
        real(self, request_id, created_at, {**record, "text": record["text"][:-1]}, *beside)

    patch.replace(StateFolder, "put_request", put)


@bug("A2", "a call for a person is not noted before it is sent", seed=2)
def _not_noted(patch: Patch) -> None:
    patch.replace(AnswerCalls, "begin", lambda self, record: None)


@bug("A3", "what a lost reply has cost is not written down", seed=2)
def _cost_not_written(patch: Patch) -> None:
    real = AnswerCalls.write_end

    def write_end(self: AnswerCalls, key: str, end: Mapping[str, Any]) -> bool:
        return real(self, key, {**end, "charged_uusd": 0})

    patch.replace(AnswerCalls, "write_end", write_end)


@bug("A4", "a report out of the outbox is delivered twice", seed=2)
def _delivered_twice(patch: Patch) -> None:
    real = StepReporter._deliver_one

    async def twice(self: StepReporter, report: Report) -> Any:
        terms = await real(self, report)
        return terms if terms is None else await real(self, dataclasses.replace(report, task_step=terms.next_step))

    patch.replace(StepReporter, "_deliver_one", twice)


@bug("A5", "what waits in the outbox is never delivered", seed=2)
def _never_delivered(patch: Patch) -> None:
    async def deliver(self: StepReporter) -> None:
        return None

    patch.replace(StepReporter, "deliver", deliver)


@bug("A6", "learning's daily budget forgets what it paid")
def _daily_budget_forgets(patch: Patch) -> None:
    patch.replace(DailyBudget, "_write_paid", lambda self, key, tokens, spend_uusd: self._forget(key))


@bug("A7", "the dial forgets what it counted when the agent starts again")
def _dial_forgets(patch: Patch) -> None:
    patch.replace(Dials, "save", lambda self, dial: self._state.database.execute(_KEEP_NO_DIAL, (dial.task, dial.to_json())))


_KEEP_NO_DIAL = "INSERT OR IGNORE INTO dials VALUES (?, ?)"


@bug("A8", "an agent does not hear that it is to stop", seed=11)
def _never_stops(patch: Patch) -> None:
    patch.replace(Agent, "request_stop", lambda self: None)


@bug("A9", "a step leaves out an item that it never used")
def _cursor_runs_ahead(patch: Patch) -> None:
    real = StateFolder.commit_step

    def commit(self: StateFolder, commit: Commit) -> None:
        real(self, dataclasses.replace(commit, cursor=commit.cursor + 1))

    patch.replace(StateFolder, "commit_step", commit)


@bug("A10", "the agent keeps the λ that it had before a step")
def _old_dual_kept(patch: Patch) -> None:
    real = StateFolder._put_terms

    def put(self: StateFolder, terms: Terms) -> None:
        known = self.terms(terms.task)
        real(self, terms if known is None else dataclasses.replace(terms, dual=known.dual))

    patch.replace(StateFolder, "_put_terms", put)
