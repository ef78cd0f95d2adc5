"""Bugs to be planted, one for each invariant: each replaces a piece of the coordinator, or of the agent. Exploring must
find every one by its invariant.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from msgspec.structs import replace

from coordinator.calls import broker
from coordinator.calls.broker import Broker
from coordinator.ledger import transitions as ledger
from coordinator.ledger.accounts import FLEET_CACHE, Amount, BudgetRow, Reserved
from coordinator.ledger.stores.buffered import BufferedTables
from coordinator.ledger.stores.group_commit import GroupCommitStore
from coordinator.ledger.transitions import Ledger
from coordinator.providers.provider import ProviderError
from coordinator.service import device_api
from edge.agent import Agent
from edge.budget.daily import DailyBudget
from edge.budget.dial import Dials
from edge.cloud.unconfirmed import AnswerCalls
from edge.core.errors import CoordinatorUnavailable, EdgeError, PermissionDenied, UsageError
from edge.learning import step_reporter
from edge.learning.step_reporter import ClosedStep, OpenStep, StepReporter
from edge.rpc.client import StepUnits
from edge.state.folder import StateFolder
from edge.state.rows import Commit, Report, StoredTerms


@dataclass(frozen=True)
class Bug:
    """What it is called, the invariant that must notice it, the seed to try first, and what replaces which attributes."""

    name: str
    invariant: str
    seed: int
    replaced: list[tuple[Any, str, Callable[..., Any]]]

    @property
    def kind(self) -> str:
        """The kind of world that meets it."""
        return "agents" if self.invariant.startswith("A") else "coordinator"

    def __str__(self) -> str:
        return self.name


BUGS: list[Bug] = []
F = Callable[..., Any]


def bug(invariant: str, name: str, owner: Any, attribute: str, seed: int = 0) -> Callable[[F], F]:
    """The function below replaces this attribute."""
    BUGS.append(Bug(name, invariant, seed, []))
    return also(owner, attribute)


def also(owner: Any, attribute: str) -> Callable[[F], F]:
    """The function below is another part of the bug above it."""
    getattr(owner, attribute)  # a piece that has another name by now is noticed at once
    replaced = BUGS[-1].replaced

    def note(function: F) -> F:
        replaced.append((owner, attribute, function))
        return function

    return note


def find_bug(name: str) -> Bug:
    """The bug of this name, or the only one whose name contains it. Raises UsageError."""
    found = [each for each in BUGS if each.name == name] or [each for each in BUGS if name in each.name]
    if len(found) != 1:
        names = "; ".join(sorted(each.name for each in found or BUGS))
        raise UsageError(
            f"{name!r} is {'no bug' if not found else 'more than one bug'} that can be planted", hint=f"there is: {names}"
        )
    return found[0]


@contextmanager
def planted(name: str) -> Iterator[None]:
    """With the bug of this name; "": with none."""
    with ExitStack() as standing:
        for owner, attribute, function in find_bug(name).replaced if name else ():
            standing.enter_context(mock.patch.object(owner, attribute, function))
        yield


def _budget(tables: BufferedTables, key: str) -> BudgetRow:
    row = tables.budgets.get(key)
    assert row is not None
    return row


@bug("I1", "a hold is taken without looking at the limit", BufferedTables, "hold")
def _hold_without_limit(self: BufferedTables, key: str, amount: Amount, from_aside: Amount) -> bool:
    row = _budget(self, key)
    self.budgets.put(replace(row, reserved=row.reserved.plus(amount)))
    return True


@bug("I2", "a charge is counted twice in the balance", BufferedTables, "resolve")
def _count_twice(self: BufferedTables, key: str, hold: Amount, charge: Amount, to_aside: Amount) -> None:
    row = _budget(self, key)
    self.budgets.put(replace(row, reserved=row.reserved.minus(hold), committed=row.committed.plus(charge).plus(charge)))


_reserved, _ask = Broker._reserved, broker._ask


@bug("I3", "the upstream is asked before the hold is durable", Broker, "_reserved")
async def _ask_early(self: Broker, job: Any, upstream: Any, quote: Any, deadline_s: float) -> Any:
    key = f"{job.device}|{job.call.call_key}|1"
    asked = _asked_early()
    if key not in asked:
        asked[key] = asyncio.create_task(upstream.provider.complete(upstream.request(job.call, deadline_s, key)))
        asked[key].add_done_callback(lambda task: task.cancelled() or task.exception())
    await asyncio.sleep(0.1)
    return await _reserved(self, job, upstream, quote, deadline_s)


@also(broker, "_ask")
async def _asked_before(flight: Any, attempt: Any) -> Any:
    task = _asked_early().get(attempt.request.idempotency_key)
    return await _ask(flight, attempt) if task is None else await task


def _asked_early() -> dict[str, asyncio.Task[Any]]:
    """What was asked early in this world, by its key."""
    asked: dict[str, asyncio.Task[Any]] = vars(asyncio.get_running_loop()).setdefault("asked_early", {})
    return asked


_resolve_failure = Broker._resolve_failure


@bug("I4", "a time-out is refunded", Broker, "_resolve_failure")
def _refund_time_out(self: Broker, job: Any, attempt: Any, error: ProviderError) -> Any:
    if error.executed is None:
        return self._store.refund(job.device, job.call.call_key, attempt.number, error.kind, self._clock.now())
    return _resolve_failure(self, job, attempt, error)


@bug("I5", "the content of a key is not compared", ledger, "_check_same_content", seed=26)
@also(broker, "_require_same_content")
def _any_content(*_: Any) -> None:
    return None


@bug("I6", "a report that is sent again moves the dual again", Ledger, "close_step")
def _close_again(self: Ledger, request: Any) -> Any:
    row = self.tables.steps.get(request.device, request.task, request.step)
    if row is None:
        raise ledger._mismatch(request.task, request.step, self._next_step(request.device, request.task))
    return self._close_open_step(row, request)


@bug("I7", "a call needs no open step", Ledger, "_require_open_step", seed=82)
def _any_step(self: Ledger, request: Any) -> None:
    return None


_reserve_request = Broker._reserve_request


@bug("I8", "a hold's lease is over before its call is sent", Broker, "_reserve_request")
def _short_lease(self: Broker, *about: Any) -> Any:
    request = _reserve_request(self, *about)
    return replace(request, lease_until=request.lease_until - 60.0)


_has_to_wait = GroupCommitStore._has_to_wait


@bug("I9", "an answer is released before its commit", GroupCommitStore, "_has_to_wait", seed=3)
def _wait_for_nothing(self: GroupCommitStore, waiter: Any) -> bool:
    _has_to_wait(self, waiter)  # rows are written as ever
    return False


@bug("I10", "an answer out of the cache goes to another device", broker, "_answer_key", seed=12)
def _key_of_all(device: Any, model: Any, call: Any, terms: Any) -> str:
    return FLEET_CACHE + broker.cache_key("", model, call)


@bug("I11", "a watcher is never woken", device_api, "versions")
async def _sleeping_versions(notifier: Any, device: str, task: str, read: Any, heartbeat_s: float) -> Any:
    yield await read()
    with notifier.watching(device, task):
        while not notifier.stopped:
            await asyncio.sleep(heartbeat_s)
            yield None


@bug("I12", "a ledger that cannot be written is taken for written", Broker, "_reserved", seed=12)
async def _reserved_anyway(self: Broker, job: Any, *rest: Any) -> Any:
    try:
        return await _reserved(self, job, *rest)
    except CoordinatorUnavailable as error:
        if error.reason != "LEDGER_UNAVAILABLE":
            raise
        return Reserved(1, f"{job.device}|{job.call.call_key}|1")


_failed = GroupCommitStore._failed


@bug("I13", "a batch survives the failure of the one before it", GroupCommitStore, "_failed", seed=8)
def _survive_failure(self: GroupCommitStore, waiters: list[Any], error: Exception) -> None:
    gathering, tables, ledger = self._gathering, self._tables, self._ledger
    self._gathering = []
    _failed(self, waiters, error)
    self._gathering, self._tables, self._ledger = gathering, tables, ledger


_synced = GroupCommitStore._synced


@bug("I14", "a commit's callback is lost now and then", GroupCommitStore, "_synced")
def _lose_callback(self: GroupCommitStore, error: Exception | None) -> None:
    if self.commits % 7 == 6 and error is None:
        self.commits += 1
        return
    _synced(self, error)


_put_request = StateFolder.put_request


@bug("A1", "an answer is kept otherwise than it was given", StateFolder, "put_request")
def _keep_otherwise(self: StateFolder, request_id: str, created_at: float, record: dict[str, Any], *others: Any) -> None:
    _put_request(self, request_id, created_at, {**record, "text": record["text"][:-1]}, *others)


@bug("A2", "a call for a person is not noted before it is sent", AnswerCalls, "begin", seed=2)
def _note_nothing(self: AnswerCalls, record: Any) -> None:
    return None


_write_end = AnswerCalls.write_end


@bug("A3", "what a lost reply has cost is not written down", AnswerCalls, "write_end", seed=2)
def _write_no_cost(self: AnswerCalls, key: str, end: Mapping[str, Any]) -> bool:
    return _write_end(self, key, {**end, "charged_uusd": 0})


_deliver_one = StepReporter._deliver_one


@bug("A4", "a waiting report is delivered twice", StepReporter, "_deliver_one", seed=2)
async def _deliver_twice(self: StepReporter, report: Report) -> Any:
    terms = await _deliver_one(self, report)
    return terms if terms is None else await _deliver_one(self, dataclasses.replace(report, task_step=terms.next_step))


@bug("A5", "reports that wait are never delivered", StepReporter, "deliver", seed=2)
async def _deliver_never(self: StepReporter, task: str | None = None) -> dict[str, Any]:
    return {}


@bug("A8", "a report that is refused blocks other tasks", step_reporter, "is_refused_alone", seed=204)
def _refuses_all(error: EdgeError) -> bool:
    return False


_close = StepReporter.close


@bug("A8", "a cut step that is refused keeps the agent from starting", StepReporter, "close", seed=294)
async def _close_or_fail(self: StepReporter, step: OpenStep, units: StepUnits) -> ClosedStep:
    closed = await _close(self, step, units)
    if closed.waiting_report is not None and closed.waiting_report.refused:
        raise PermissionDenied(closed.waiting_report.refused)
    return closed


@also(Agent, "_resume")
async def _resume_or_fail(self: Agent) -> None:
    if not await self.learning.session.finish_cut_step():
        await self.adapter.serve_newest()


@bug("A6", "learning's daily budget forgets what it paid", DailyBudget, "_write_paid")
def _forget_paid(self: DailyBudget, key: str, tokens: Any, spend_uusd: Any) -> Any:
    return self._forget(key)


@bug("A7", "the dial forgets what it counted when the agent starts again", Dials, "save")
def _save_once(self: Dials, dial: Any) -> Any:
    return self._state.database.execute("INSERT OR IGNORE INTO dials VALUES (?, ?)", (dial.task, dial.to_json()))


@bug("A8", "an agent does not hear that it is to stop", Agent, "request_stop", seed=11)
def _do_not_stop(self: Agent) -> None:
    return None


_commit_step = StateFolder.commit_step


@bug("A9", "a step leaves out an item that it never used", StateFolder, "commit_step")
def _skip_item(self: StateFolder, commit: Commit) -> None:
    _commit_step(self, dataclasses.replace(commit, cursor=commit.cursor + 1))


_put_terms = StateFolder._put_terms


@bug("A10", "the agent keeps the λ that it had before a step", StateFolder, "_put_terms")
def _keep_dual(self: StateFolder, terms: StoredTerms) -> None:
    known = self.terms(terms.task)
    _put_terms(self, terms if known is None else dataclasses.replace(terms, dual=known.dual))
