"""Bugs to be planted, one for each invariant. Exploring must find every one by its invariant.

Each replaces public methods of a role, of the coordinator (store, ledger, disk, broker) or of the agent (state folder, step reporter,
budgets), so that what lies between these may change.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from msgspec.structs import replace

from coordinator.calls import broker
from coordinator.calls.broker import Broker
from coordinator.config import TaskConfig
from coordinator.control.steps import StepController
from coordinator.endpoint import api, replies
from coordinator.endpoint.api import ChatApi
from coordinator.endpoint.requests import Asked, read_request
from coordinator.ledger.accounts import Amount, BudgetRow, BudgetTerms, CloseStepRequest, Reserved, ReserveOutcome, ReserveRequest
from coordinator.ledger.budgets import BudgetBook
from coordinator.ledger.stores.buffered import BufferedTables, CommitBatch
from coordinator.ledger.stores.group_commit import Done, GroupCommitStore
from coordinator.ledger.stores.store import LedgerStore
from coordinator.ledger.transitions import Ledger
from coordinator.service import device_api
from coordinator.service.authentication import Identity
from edge.agent import Agent
from edge.budget import dial
from edge.budget.daily import DailyBudget
from edge.budget.dial import HelpDial
from edge.cloud.group_calls import CloudOutcome
from edge.cloud.unconfirmed import AnswerCalls
from edge.core.errors import CoordinatorError, CoordinatorUnavailable, EdgeError, UsageError
from edge.learning import step_reporter
from edge.learning.step_reporter import ClosedStep, OpenStep, StepReporter
from edge.rpc.client import CloudCall, StepUnits
from edge.state.folder import StateFolder
from edge.state.rows import Commit, StoredTerms
from tools.simulate.virtual.disk import Disk


@dataclass(frozen=True)
class Bug:
    """One bug, and how it is planted."""

    name: str
    invariant: str
    """What must notice it."""
    seed: int
    """Of a world that meets it, tried first."""
    replaced: list[tuple[Any, str, Callable[..., Any]]]
    """The owner and name of each public method that is replaced, and by what."""

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


async def _outcome_at_once(store: GroupCommitStore, work: Callable[[Ledger], Any]) -> Any:
    """The outcome of an operation as soon as it has run, while its commit is still to come."""
    ran: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def noted(ledger: Ledger) -> Any:
        outcome = work(ledger)
        if not ran.done():  # an operation runs again when the commit of others fails
            ran.set_result(outcome)
        return outcome

    committing = asyncio.ensure_future(_transact(store, noted))
    committing.add_done_callback(lambda task: task.cancelled() or task.exception())
    await asyncio.wait([ran, committing], return_when=asyncio.FIRST_COMPLETED)
    return ran.result() if ran.done() else await committing


_transact, _reserve = GroupCommitStore.transact, LedgerStore.reserve


def _stored_reserve(store: LedgerStore, request: ReserveRequest) -> Coroutine[Any, Any, ReserveOutcome]:
    """As `LedgerStore.reserve` is without a bug."""
    return store.perform(_reserve, request)


@bug("I3", "the upstream is asked before the hold is durable", GroupCommitStore, "reserve")
async def _ask_early(self: GroupCommitStore, request: ReserveRequest) -> Any:
    return await _outcome_at_once(self, lambda ledger: ledger.reserve(request))


@bug("I4", "a time-out is refunded", LedgerStore, "doubt")
def _refund_time_out(self: LedgerStore, device: str, key: str, number: int, reason: str, now: float) -> Any:
    return self.refund(device, key, number, reason, now)


_get_call = Broker.get_call


@bug("I5", "the content of a key is not compared", broker, "fingerprint", seed=1)
def _any_content(call: CloudCall) -> str:
    return "any content"


@also(Broker, "get_call")
def _call_of_any_content(self: Broker, device: str, call_key: str, content: str = "", tasks: frozenset[str] | None = None) -> Any:
    return _get_call(self, device, call_key, "", tasks)


_close_step = Ledger.close_step


@bug("I6", "a report that is sent again moves the dual again", Ledger, "close_step")
def _close_again(self: Ledger, request: CloseStepRequest) -> Any:
    row = self.tables.steps.get(request.device, request.task, request.step)
    if row is not None:
        self.tables.steps.put(replace(row, closed=False))
    return _close_step(self, request)


_reserve_in_ledger = Ledger.reserve


@bug("I7", "a call needs no open step", Ledger, "reserve", seed=82)
def _reserve_in_closed_step(self: Ledger, request: ReserveRequest) -> Any:
    row = self.tables.steps.get(request.device, request.task, request.step)
    if row is None:
        return _reserve_in_ledger(self, request)
    self.tables.steps.put(replace(row, closed=False))
    outcome = _reserve_in_ledger(self, request)
    self.tables.steps.put(row)
    return outcome


@bug("I8", "a hold's lease is over before its call is sent", LedgerStore, "reserve")
def _short_lease(self: LedgerStore, request: ReserveRequest) -> Any:
    return _stored_reserve(self, replace(request, lease_until=request.lease_until - 60.0))


@bug("I9", "an answer is released before its commit", GroupCommitStore, "transact", seed=3)
async def _wait_for_nothing(self: GroupCommitStore, work: Callable[[Ledger], Any]) -> Any:
    return await _outcome_at_once(self, work)


_terms_of = StepController.terms_of


@bug("I10", "an answer out of the cache goes to another device", StepController, "terms_of", seed=12)
def _answers_of_all(self: StepController, task: str) -> TaskConfig:
    terms = _terms_of(self, task)
    return terms if terms.answer_cache == "off" else terms.model_copy(update={"answer_cache": "fleet"})


@bug("I11", "a watcher is never woken", device_api, "versions")
async def _sleeping_versions(notifier: Any, device: str, task: str, read: Any, heartbeat_s: float) -> Any:
    yield await read()
    with notifier.watching(device, task):
        while not notifier.stopped:
            await asyncio.sleep(heartbeat_s)
            yield None


@bug("I12", "a ledger that cannot be written is taken for written", LedgerStore, "reserve", seed=12)
async def _reserved_anyway(self: LedgerStore, request: ReserveRequest) -> Any:
    try:
        return await _stored_reserve(self, request)
    except CoordinatorUnavailable as error:
        if error.reason != "LEDGER_UNAVAILABLE":
            raise
        return Reserved(1, f"{request.device}|{request.key}|1")


_sync = Disk.sync


@bug("I13", "a batch that was not written is taken for written", Disk, "sync", seed=8)
def _notice_no_failure(self: Disk, batch: CommitBatch, done: Done) -> None:
    _sync(self, batch, lambda error: done(None))


@bug("I14", "a commit's callback is lost now and then", Disk, "sync")
def _lose_callback(self: Disk, batch: CommitBatch, done: Done) -> None:
    loses = len(self.tables.journal) % 7 == 6
    _sync(self, batch, lambda error: None if loses and error is None else done(error))


_chat_stream, _error_reply, _cache_key = ChatApi.stream, replies.error_reply, broker.cache_key
_terms_of_book, _usage = BudgetBook.terms, ChatApi.usage


@bug("I1", "a person's own budget is not held", BudgetBook, "terms", seed=4)
def _terms_of_nobody(self: BudgetBook, device: str, task: str, now: float, user: str = "") -> tuple[BudgetTerms, ...]:
    return _terms_of_book(self, device, task, now)


@bug("I3", "a chat that is sent again needs no hold", LedgerStore, "reserve", seed=4)
async def _reserve_only_at_first(self: LedgerStore, request: ReserveRequest) -> Any:
    chat = request.prompt_id == request.key
    if chat and await _is_known(self, request.device, request.key):
        return Reserved(9, f"{request.device}|{request.key}|9")
    return await _stored_reserve(self, request)


async def _is_known(store: LedgerStore, device: str, key: str) -> bool:
    try:
        await store.get_call(device, key)
    except CoordinatorError:
        return False
    return True


@bug("I5", "the Idempotency-Key of a chat is not read", api, "read_request", seed=11)
def _read_without_key(body: bytes, **headers: Any) -> Asked:
    return read_request(body, **{**headers, "key": ""})


@bug("I5", "a chat that wants a new answer is given a stored one", api, "read_request", seed=30)
def _never_fresh(body: bytes, **headers: Any) -> Asked:
    return dataclasses.replace(read_request(body, **headers), fresh=False)


@bug("I9", "a chat that is refused in its stream ends without a word, and was charged", ChatApi, "stream", seed=13)
async def _end_without_a_word(self: ChatApi, asked: Asked, device: str, user: str = "") -> Any:
    begun = False
    try:
        async for event in _chat_stream(self, asked, device, user):
            begun = True
            yield event
    except CoordinatorError:
        if not begun:
            raise


@bug("I9", "a chat over budget may be sent again at once", replies, "error_reply")
def _always_again(error: CoordinatorError, now: float) -> replies.ErrorReply:
    return dataclasses.replace(_error_reply(error, now), headers={"x-should-retry": "true"})


@bug("I9", "a person is not shown their own budget", ChatApi, "usage")
async def _usage_of_nobody(self: ChatApi, identity: Identity, task: str, user: str = "") -> dict[str, Any]:
    return await _usage(self, identity, task)


@bug("I10", "the key of a person is not kept apart from another's", api, "read_request", seed=30)
def _read_without_user(body: bytes, **headers: Any) -> Asked:
    return read_request(body, **{**headers, "user": ""})


@bug("I10", "a stored answer is given to another person of the device", broker, "cache_key", seed=4)
def _cache_of_the_device(asker: str, model: str, call: CloudCall) -> str:
    return _cache_key(asker.partition("/")[0], model, call)


@bug("I10", "a chat needs no right to its task", Identity, "require_tasks", seed=5)
def _any_task(self: Identity, tasks: Any) -> None:
    return None


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


_deliver = StepReporter.deliver


@bug("A4", "a waiting report is delivered twice", StepReporter, "deliver", seed=2)
async def _deliver_twice(self: StepReporter, task: str | None = None) -> dict[str, CoordinatorError]:
    waiting = [report for _, report in self.state.waiting_reports()]
    refusals = await _deliver(self, task)
    for report in waiting:
        terms = self.state.terms(report.task)
        if terms is not None and report.task not in refusals:
            step, rate = terms.next_step, report.target_rate
            await self.client.open_step(report.task, step, report.planned_prompts, report.group_size, rate)
            closed = await self.client.close_step(report.task, step, report.units)
            self.state.note_terms(StoredTerms(report.task, rate, closed.dual_after, step + 1))
    return refusals


@bug("A5", "reports that wait are never delivered", StepReporter, "deliver", seed=2)
async def _deliver_never(self: StepReporter, task: str | None = None) -> dict[str, Any]:
    return {}


@bug("A8", "a report that is refused blocks other tasks", step_reporter, "is_refused_alone", seed=204)
def _refuses_all(error: EdgeError) -> bool:
    return False


_close = StepReporter.close


@bug("A8", "a cut step that is refused keeps the agent from starting", StepReporter, "close", seed=294)
async def _close_or_break(self: StepReporter, step: OpenStep, units: StepUnits) -> ClosedStep:
    closed = await _close(self, step, units)
    if closed.waiting_report is not None and closed.waiting_report.refused:
        raise RuntimeError(closed.waiting_report.refused)
    return closed


_ended = DailyBudget.ended


@bug("A6", "learning's daily budget forgets what it paid", DailyBudget, "ended")
async def _forget_paid(self: DailyBudget, call: CloudCall, outcome: CloudOutcome | None) -> None:
    await _ended(self, call, outcome and CloudOutcome(None, unsent=True))


_stored_dials = dial.stored_dials


@bug("A7", "the dial forgets what it counted when the agent starts again", dial, "stored_dials")
def _count_anew(state: StateFolder, configured: float | None) -> list[HelpDial]:
    return [HelpDial(each.target_rate, each.task, own=each.own, set_at=each.set_at) for each in _stored_dials(state, configured)]


@bug("A8", "an agent does not hear that it is to stop", Agent, "request_stop", seed=11)
def _do_not_stop(self: Agent) -> None:
    return None


_commit_step = StateFolder.commit_step


@bug("A9", "a step leaves out an item that it never used", StateFolder, "commit_step")
def _skip_item(self: StateFolder, commit: Commit) -> None:
    _commit_step(self, dataclasses.replace(commit, cursor=commit.cursor + 1))


@bug("A10", "the agent keeps the λ that it had before a step", StateFolder, "commit_step")
def _keep_dual(self: StateFolder, commit: Commit) -> None:
    known = self.terms(commit.terms.task)
    terms = commit.terms if known is None else dataclasses.replace(commit.terms, dual=known.dual)
    _commit_step(self, dataclasses.replace(commit, terms=terms))
