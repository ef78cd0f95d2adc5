"""The broker: admission slot -> T1 reserve -> upstream -> T2 settle. Knows the life of a call; knows nothing of gRPC, SQL or λ.

- One call per prompt group: callers of the same group join the flight that runs; the ledger answers later ones from the stored result.
- An alias may have several upstreams: those whose breaker is open are passed over, and one that definitely did not execute the call is
  followed by one more, with a hold, an attempt and a billing key of its own. Nothing else is ever asked twice.
- The hold is durable before the first upstream byte, and every hold is resolved exactly once: committed, refunded (definitely not
  executed), failed or in doubt (charged). A ledger that cannot be written keeps the settlement waiting, never loses it silently.
- The same key gets the same answer or the same typed error.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial

from coordinator import failpoints
from coordinator.calls.admission import draining
from coordinator.calls.breaker import UpstreamOutcome
from coordinator.calls.flights import Flight, FlightProgress, GroupId, Job
from coordinator.calls.rates import RateLimiter
from coordinator.calls.upstreams import Quote, Upstream, UpstreamTable, may_go_elsewhere
from coordinator.config import RatesConfig, ServiceConfig, TaskConfig
from coordinator.control.steps import StepController
from coordinator.deadlines import Deadlines
from coordinator.ledger.accounts import (
    FLEET_CACHE,
    SERVING_STEP,
    BudgetTerms,
    BudgetView,
    CallEnded,
    CallRow,
    CallState,
    InProgress,
    Outdated,
    Replayed,
    Reserved,
    ReserveRequest,
    Resolution,
    Settlement,
)
from coordinator.ledger.budgets import BudgetBook, fits_again_in_s, snapshot
from coordinator.ledger.stores.store import LedgerStore
from coordinator.ledger.transitions import MOST_UNITS, STOPPED
from coordinator.providers.provider import ProviderError, ProviderRequest, ProviderResult
from edge.core.clock import Clock
from edge.core.errors import (
    BudgetExhausted,
    CallInProgress,
    CoordinatorError,
    CoordinatorUnavailable,
    InvalidRequest,
    KeyReused,
    OutcomeUnknown,
    PermissionDenied,
)
from edge.core.types import TokenUsage
from edge.rpc.client import (
    BudgetSnapshot,
    CallProgress,
    CancelledCall,
    CloudCall,
    CloudCompletion,
    digest,
    fingerprint,
    sampling_part,
)
from edge.rpc.openai_fields import completion_json, openai_fields

log = logging.getLogger(__name__)
MAX_KEY_CHARS = 200
MAX_TEMPERATURE = 4.0
POLL_S = 0.5
MAX_ATTEMPTS = 2
_PASSING_4XX = frozenset({"http_408", "http_409", "http_425", "http_429", "http_499"})


class Broker:
    """Brokers calls of all devices. Belongs to one event loop."""

    def __init__(
        self,
        store: LedgerStore,
        upstreams: UpstreamTable,
        controller: StepController,
        book: BudgetBook,
        clock: Clock,
        service: ServiceConfig | None = None,
        limiter: RateLimiter | None = None,
    ) -> None:
        self._store = store
        self._upstreams = upstreams
        self._controller = controller
        self._book = book
        self._clock = clock
        self._service = service or ServiceConfig()
        self._limiter = limiter or RateLimiter(RatesConfig(), clock)
        self._loop = asyncio.get_running_loop()
        self._deadlines = Deadlines(self._loop)
        self._flights: dict[GroupId, Flight] = {}
        self._admitting = True

    @property
    def in_flight(self) -> int:
        """Calls that run or wait for a slot."""
        return len(self._flights)

    @property
    def admitting(self) -> bool:
        """False from the beginning of a drain."""
        return self._admitting

    async def complete(
        self,
        device: str,
        call: CloudCall,
        deadline_s: float | None,
        progress: FlightProgress | None = None,
        *,
        user: str = "",
        fresh: bool = False,
    ) -> CloudCompletion:
        """Ask the cloud once for this call, or give its stored answer. Raises CoordinatorError.

        `progress` gets pieces only when this caller is the one who starts the call. `user`, `fresh`: see Job.
        """
        job = self._checked_job(device, call, deadline_s, user, fresh)
        # Another key of the group waits until the flight is over; then the ledger has the answer for it, or lets it try. In a loop: who
        # waited for the same flight may have begun the next one.
        while (running := self._flights.get(job.group)) is not None:
            if running.job.call.call_key == call.call_key and not running.dropped:
                _require_same_content(running.job.fingerprint, job.fingerprint, call.call_key)
                return await running.result()
            await running.ended()
        # Nothing is awaited from the last look at the flights to the launch, so that a group never has two.
        if not self._admitting:
            raise draining()
        self._limiter.take(device)  # who joins a flight starts nothing, and is not counted
        flight = self._flights[job.group] = Flight(job, progress, self._loop)
        flight.launch(self._fly, self._land)
        return await flight.result()

    async def get_call(
        self, device: str, call_key: str, content: str = "", tasks: frozenset[str] | None = None
    ) -> CloudCompletion:
        """The stored answer of a device's call, or the typed error that ended it.

        Raises NotFound, CallInProgress, KeyReused when the key belongs to other content than `content` (a `fingerprint`; "" for any), and
        PermissionDenied for a call of none of `tasks` (None: all).
        """
        _check_key("call_key", call_key)
        if len(content) > MAX_KEY_CHARS:
            raise InvalidRequest("fingerprint is none: a digest has 64 characters")
        row = await self._call_of(device, call_key, tasks)
        _require_same_content(row.fingerprint, content or row.fingerprint, call_key)
        if row.state is CallState.DISPATCHED:
            raise CallInProgress(f"call {call_key!r} is running", retry_after_s=POLL_S)
        return await self._replayed(row)

    async def cancel_call(self, device: str, call_key: str, tasks: frozenset[str] | None = None) -> CancelledCall:
        """Send away whoever waits for a device's call, and report what became of it.

        Raises NotFound, and PermissionDenied for a call of none of `tasks`.

        A call that waits for its slot is dropped. One that was sent runs on unattended: its true cost, which cutting it off would leave
        unknown and charge at the hold, is settled when it ends, and GetCall has the answer.
        """
        _check_key("call_key", call_key)
        for flight in tuple(self._flights.values()):
            job = flight.job
            if (job.device, job.call.call_key) == (device, call_key) and (tasks is None or job.call.task in tasks):
                return CancelledCall(call_key, CallProgress.DROPPED if flight.release() else CallProgress.RUNNING, 0)
        row = await self._call_of(device, call_key, tasks)
        return CancelledCall(call_key, progress_of(row.state), row.charged.uusd)

    async def _call_of(self, device: str, call_key: str, tasks: frozenset[str] | None) -> CallRow:
        """A device's call of one of these tasks (None: of any). Raises NotFound.

        Raises PermissionDenied for another task's: that is no answer to whether the call was made, and what it cost.
        """
        row = await self._store.get_call(device, call_key)
        if tasks is not None and row.task not in tasks:
            raise PermissionDenied(f"this credential may not see call {call_key!r}: its tasks are others")
        return row

    async def stream(
        self, device: str, call: CloudCall, deadline_s: float | None, *, user: str = "", fresh: bool = False
    ) -> AsyncGenerator[str | CloudCompletion, None]:
        """The same piece by piece: "" once the hold is durable, pieces of text, what they lack of the answer, the completion.
        Closing it early leaves the call as `complete` would."""
        progress = FlightProgress()
        answer = asyncio.ensure_future(self.complete(device, call, deadline_s, progress, user=user, fresh=fresh))
        answer.add_done_callback(lambda _: progress.over())
        sent = ""
        try:
            while (piece := await progress.pieces.get()) is not None:
                sent += piece
                yield piece
            completion = await answer
        finally:
            answer.cancel()
        if rest := completion.text.removeprefix(sent):
            yield rest
        yield completion

    async def budget(self, device: str, task: str) -> BudgetSnapshot:
        """The budget of a device for one task."""
        limits, view = await self.budgets(device, task)
        return await self._snapshot(device, task, limits, view)

    async def budgets(self, device: str, task: str, user: str = "") -> tuple[tuple[BudgetTerms, ...], BudgetView]:
        """The budgets that a call would have to fit into now, and what is used of each, in the same order."""
        while True:
            limits = self._book.terms(device, task, self._clock.now(), user)
            view = await self._store.get_budget(device, task, limits)
            if not self._book.take_limits(view.limits):
                return limits, view

    async def _snapshot(self, device: str, task: str, limits: Sequence[BudgetTerms], view: BudgetView) -> BudgetSnapshot:
        """What a device receives of these budgets."""
        terms = self._controller.terms_of(task)
        if view.task is None:
            first = {
                "dual_init": await self._controller.first_dual(device, task),
                "target_rate": terms.rate_at(0, self._clock.now()),
            }
            terms = terms.model_copy(update=first)
        return snapshot(view.task, terms, view.budgets, limits)

    async def drain(self, grace_s: float) -> None:
        """Start nothing new, wait for what runs, and after the grace stop it; every hold is resolved before this returns, as long as the
        ledger can be written."""
        self._admitting = False
        pending = [asyncio.create_task(flight.ended()) for flight in self._flights.values()]
        if not pending:
            return
        _, late = await asyncio.wait(pending, timeout=grace_s)
        if late:
            log.warning(
                "%d calls did not end within %.1f s; they are cut, and charged as in doubt where they were sent",
                len(late),
                grace_s,
            )
            for flight in tuple(self._flights.values()):
                flight.cancel()
            await asyncio.wait(late)

    def _checked_job(self, device: str, call: CloudCall, deadline_s: float | None, user: str, fresh: bool) -> Job:
        _check(call)
        asker = "" if self._controller.terms_of(call.task).answer_cache == "fleet" else device
        question = cache_key(asker, call.model_alias, call) if self._upstreams.has_choice(call.model_alias) else ""
        route = self._upstreams.choose(call, question, self._clock.now())
        patience_s = route[0].deadline_s + self._service.max_queue_wait_s if deadline_s is None else deadline_s
        return Job(device, call, route, fingerprint(call), self._loop.time() + patience_s, user, fresh)

    def _land(self, flight: Flight) -> None:
        del self._flights[flight.job.group]
        if flight.progress is not None:
            flight.progress.over()

    async def _fly(self, flight: Flight) -> CloudCompletion:
        """Ask the upstreams of the route in turn until one takes the call; at most MAX_ATTEMPTS of them get an attempt. Where none did, the
        call's stored end if an earlier run left one."""
        refusals: list[_NotTaken] = []
        for upstream in flight.job.route:
            try:
                return await self._ask_one(flight, upstream)
            except _NotTaken as refusal:
                refusals.append(refusal)
            except BudgetExhausted:
                if not any(refusal.attempted for refusal in refusals):
                    raise
                break  # the other upstream costs more than is left; the call stays as its first attempt left it
            if flight.is_cut or sum(refusal.attempted for refusal in refusals) == MAX_ATTEMPTS:
                break
        attempted = [refusal for refusal in refusals if refusal.attempted]
        if attempted:
            raise attempted[-1].error
        if (row := await self._stored_end(flight.job)) is not None:
            return await self._replayed(row)
        raise min(refusals, key=lambda refusal: refusal.error.retry_after_s or 0.0).error

    async def _stored_end(self, job: Job) -> CallRow | None:
        """How an earlier run of this key ended, if it did and cannot be run again."""
        try:
            row = await self._store.get_call(job.device, job.call.call_key)
        except CoordinatorError:
            return None
        ended = row.state not in (CallState.DISPATCHED, CallState.REFUNDED)
        return row if ended and row.fingerprint == job.fingerprint else None

    async def _ask_one(self, flight: Flight, upstream: Upstream) -> CloudCompletion:
        """One upstream: slot, breaker, T1, ask, T2. Raises _NotTaken when it certainly did not execute the call and another may."""
        job, breaker, time = flight.job, upstream.breaker, self._loop.time
        # The slot before the breaker: one call at a time may probe, and it must not stand in a queue meanwhile.
        try:
            await upstream.gate.enter(min(self._service.max_queue_wait_s, self._left_s(job)), job.device)
        except CoordinatorUnavailable as error:
            raise _NotTaken(error, attempted=False) from error
        try:
            passed = breaker.enter(time())
            if passed is None:
                wait_s = breaker.wait_s(time())
                message = f"upstream {upstream.alias} keeps failing and is left alone for {wait_s:.1f} s"
                raise _NotTaken(CoordinatorUnavailable(message, reason="UPSTREAM_OPEN", retry_after_s=wait_s), attempted=False)
            report = _Report()
            try:
                return await self._ask_in_slot(flight, upstream, report)
            finally:
                breaker.leave(passed, report.outcome, time(), report.retry_after_s)
        finally:
            upstream.gate.leave()

    def _left_s(self, job: Job) -> float:
        return max(0.0, job.end - self._loop.time())

    def _upstream_deadline_s(self, job: Job, upstream: Upstream) -> float:
        """What is left for the upstream, a little less than the caller has, so that the verdict still reaches it."""
        left_s = self._left_s(job)
        deadline_s = min(upstream.deadline_s, left_s - min(0.25, 0.1 * left_s))
        if deadline_s <= 0.0:
            raise CoordinatorUnavailable("the deadline is over; nothing was sent", reason="DEADLINE_EXCEEDED")
        return deadline_s

    async def _ask_in_slot(self, flight: Flight, upstream: Upstream, report: _Report) -> CloudCompletion:
        job = flight.job
        # Quoted after the wait: the price is that of the day the call is held, and may have been changed since the route was chosen.
        quote = self._upstreams.current(upstream).quote(job.call, self._clock.now())
        deadline_s = self._upstream_deadline_s(job, upstream)
        flight.can_be_dropped = False  # from here on there may be a hold, which has to be resolved whoever leaves
        with flight.uncut():
            outcome = await self._reserved(job, upstream, quote, deadline_s)
        match outcome:
            case Reserved():
                request = upstream.request(job.call, deadline_s, outcome.billing_key)
                return await self._ask_and_settle(flight, _Attempt(upstream, quote, outcome.attempt, request, report))
            case Replayed() | CallEnded():
                return await self._replayed(outcome.call)
            case InProgress():
                raise CallInProgress("the call is running", retry_after_s=POLL_S, metadata={"call_key": outcome.key})

    async def _reserved(
        self, job: Job, upstream: Upstream, quote: Quote, deadline_s: float
    ) -> Reserved | Replayed | InProgress | CallEnded:
        """T1, under the limits that hold now. A refusal is remembered for the step, whose report will count its demand."""
        try:
            failpoints.reach("before_reserve")
            while True:
                outcome = await self._store.reserve(self._reserve_request(job, upstream, quote, deadline_s))
                if not isinstance(outcome, Outdated):  # each answer of that kind has a newer version, so this ends
                    return outcome
                self._book.take_limits(outcome.limits)
        except BudgetExhausted as error:
            self._controller.note_refusal(job.device, job.call.task, job.call.step)
            error.retry_after_s = fits_again_in_s(error, self._clock.now())
            raise

    def _reserve_request(self, job: Job, upstream: Upstream, quote: Quote, deadline_s: float) -> ReserveRequest:
        call, now = job.call, self._clock.now()
        terms = self._controller.terms_of(call.task)
        return ReserveRequest(
            device=job.device,
            key=call.call_key,
            fingerprint=job.fingerprint,
            task=call.task,
            step=call.step,
            prompt_id=call.prompt_id,
            model=upstream.model,
            help_units=call.help_units,
            hold=quote.hold,
            budgets=self._book.terms(job.device, call.task, now, job.user),
            lease_until=now + deadline_s + self._service.lease_margin_s,
            now=now,
            cache_key=_answer_key(job, upstream.model, terms) if self._service.answer_cache else "",
            cache_since=0.0 if terms.answer_cache_ttl_s is None else now - terms.answer_cache_ttl_s,
            initial_dual=terms.dual_init,
            target_rate=terms.rate_at(0, now),
            shared_dual=self._controller.shared_dual_of(job.device, call.task),
            limits_version=self._book.version,
        )

    async def _ask_and_settle(self, flight: Flight, attempt: _Attempt) -> CloudCompletion:
        job, report = flight.job, attempt.report
        failpoints.reach("after_reserve")
        if flight.is_cut:  # while its hold was written: nothing was sent
            key, number, now = job.call.call_key, attempt.number, self._clock.now()
            await self._settled(flight, partial(self._store.refund, job.device, key, number, STOPPED, now))
            raise draining()
        try:
            if flight.progress is not None:
                flight.progress.started()
            # The provider keeps the deadline itself; a second later it has broken its promise.
            with self._deadlines.within(self._loop.time() + attempt.request.deadline_s + 1.0):
                result = await _ask(flight, attempt)
        except ProviderError as error:
            report.failed(attempt, error)
            log.warning("upstream %s gave no answer (%s): %s", attempt.upstream.alias, error.kind, error.with_hint)
            resolution = await self._settled(flight, partial(self._resolve_failure, job, attempt, error))
            failure = _failure(resolution.call, error)
            raise _NotTaken(failure, attempted=True) if may_go_elsewhere(error) else failure from error
        except TimeoutError as error:
            report.outcome = UpstreamOutcome.BAD
            resolution = await self._settled(flight, partial(self._doubt, job, attempt, "deadline"))
            raise _failure(resolution.call) from error
        except asyncio.CancelledError:  # only a stop cuts a call that was sent; who waits for it gets what it cost
            resolution = await self._settled(flight, partial(self._doubt, job, attempt, STOPPED))
            raise _failure(resolution.call) from None
        except BaseException:  # whatever it is, the hold is resolved before it goes on
            await self._settled(flight, partial(self._doubt, job, attempt, "internal error"))
            raise
        report.outcome = UpstreamOutcome.GOOD
        failpoints.reach("answered")
        settlement = self._settlement(job, attempt, result)
        resolution = await self._settled(flight, partial(self._store.settle, settlement))
        failpoints.reach("settled")
        return await self._replayed(resolution.call, settlement.budgets, resolution.view)

    def _settlement(self, job: Job, attempt: _Attempt, result: ProviderResult) -> Settlement:
        usage, now = result.usage, self._clock.now()
        return Settlement(
            device=job.device,
            key=job.call.call_key,
            attempt=attempt.number,
            charge=attempt.quote.charge(usage),
            input_tokens=usage.input_tokens if usage else 0,
            output_tokens=usage.output_tokens if usage else 0,
            text=result.text,
            finish=result.finish,
            upstream_id=result.upstream_id,
            beyond_text=result.beyond_text,
            now=now,
            budgets=self._book.terms(job.device, job.call.task, now, job.user),
        )

    def _resolve_failure(self, job: Job, attempt: _Attempt, error: ProviderError) -> Awaitable[Resolution]:
        """Money follows what is certain: not executed is refunded, executed is charged, perhaps executed is charged at the hold."""
        device, key, now = job.device, job.call.call_key, self._clock.now()
        if error.executed is False:
            return self._store.refund(device, key, attempt.number, error.kind, now)
        if error.executed is None:
            return self._store.doubt(device, key, attempt.number, error.kind, now)
        return self._store.fail(device, key, attempt.number, error.kind, attempt.quote.charge(error.usage), now)

    def _doubt(self, job: Job, attempt: _Attempt, reason: str) -> Awaitable[Resolution]:
        return self._store.doubt(job.device, job.call.call_key, attempt.number, reason, self._clock.now())

    async def _settled(self, flight: Flight, resolve: Callable[[], Awaitable[Resolution]]) -> Resolution:
        """Resolve a hold, again and again while the ledger cannot be written, until the lease is over; then the sweep charges it."""
        end, pause_s = self._loop.time() + self._service.lease_margin_s, 0.05
        with flight.uncut():
            while True:
                try:
                    return await resolve()
                except CoordinatorUnavailable:
                    if self._loop.time() + pause_s > end:
                        raise
                await asyncio.sleep(pause_s)
                pause_s = min(2.0, pause_s * 2.0)

    async def _replayed(
        self, row: CallRow, limits: Sequence[BudgetTerms] = (), view: BudgetView | None = None
    ) -> CloudCompletion:
        """The answer of a terminal call, with its budget: as `view` shows it, else as it is now. Raises the typed error the call
        ended with."""
        if row.state is not CallState.COMPLETED or row.result is None:
            raise _failure(row)
        budget: BudgetSnapshot | None = None
        with suppress(CoordinatorError):  # the answer is paid for; a budget that cannot be read must not cost it
            if view is None or self._book.take_limits(view.limits):
                budget = await self.budget(row.device, row.task)
            else:
                budget = await self._snapshot(row.device, row.task, limits, view)
        return CloudCompletion(
            call_key=row.key,
            text=row.result,
            usage=TokenUsage(row.input_tokens, row.output_tokens),
            charged_uusd=row.charged.uusd,
            cached=row.cached,
            model=row.model,
            budget=budget,
            openai_json=completion_json(row.finish, row.beyond_text),
        )


@dataclass(slots=True)
class _Report:
    """What is reported to the breaker of a call that it let pass."""

    outcome: UpstreamOutcome = UpstreamOutcome.NEUTRAL
    retry_after_s: float | None = None

    def failed(self, attempt: _Attempt, error: ProviderError) -> None:
        """It ended with this error."""
        self.outcome = attempt.upstream.verdict(error, attempt.request.deadline_s)
        self.retry_after_s = error.retry_after_s


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One attempt of a call at one upstream, at the price it was quoted."""

    upstream: Upstream
    quote: Quote
    number: int
    request: ProviderRequest
    report: _Report


class _NotTaken(Exception):
    """An upstream certainly did not execute a call, and another one may be asked. `attempted`: it got an attempt, which is refunded."""

    def __init__(self, error: CoordinatorError, *, attempted: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.attempted = attempted


async def _ask(flight: Flight, attempt: _Attempt) -> ProviderResult:
    provider = attempt.upstream.provider
    if flight.progress is None:
        return await provider.complete(attempt.request)
    async with aclosing(provider.stream(attempt.request)) as pieces:
        async for delta in pieces:
            flight.progress.piece(delta.text)
            if delta.result is not None:
                return delta.result
    raise ProviderError("the stream ended without a result", kind="garbage", executed=True)


def progress_of(state: CallState) -> CallProgress:
    """A call's state as its device receives it."""
    return CallProgress.RUNNING if state is CallState.DISPATCHED else CallProgress(str(state))


def cache_key(device: str, model: str, call: CloudCall) -> str:
    """A digest of (device, model, prompt, sampling): what an answer may be given again for. Without a device it is the same for all."""
    turns = [[message.role, message.content] for message in call.messages]
    return digest([device, model, turns, call.max_output_tokens, *sampling_part(call)])


def _answer_key(job: Job, model: str, terms: TaskConfig) -> str:
    """The cache key under the terms of the call's task; "" where its answer is neither given again nor taken from another call. Who asks
    for a temperature above 0 wants another answer each time; who asks for none wants any."""
    call = job.call
    varied = call.temperature is not None and call.temperature > 0.0
    if job.fresh or terms.answer_cache == "off" or varied:
        return ""
    if terms.answer_cache == "fleet":
        return FLEET_CACHE + cache_key("", model, call)
    asker = f"{job.device}/{job.user}" if job.user else job.device
    return digest([call.task, cache_key(asker, model, call)])  # a token may be limited to some of its device's tasks


def _failure(row: CallRow, cause: ProviderError | None = None) -> CoordinatorError:
    """The typed error of a call that has no answer to give; the same for every caller of its key. Who waited for it has the upstream's own
    words, too, which are stored nowhere."""
    metadata = {"charged_uusd": str(row.charged.uusd), "state": str(row.state), "cause": row.reason}
    if row.state is CallState.REFUNDED:
        words, retry_after_s = (cause.words, cause.retry_after_s) if cause is not None else ("", None)
        message = f"the cloud LLM did not take the call ({row.reason}{words and f': {words}'}); nothing was charged"
        reason = "UPSTREAM_REJECTED" if _is_rejection(row.reason) else "UPSTREAM_FAILED"
        return CoordinatorUnavailable(message, reason=reason, retry_after_s=retry_after_s, metadata=metadata)
    what = "its answer is no longer stored" if row.state is CallState.COMPLETED else f"it ended without an answer ({row.reason})"
    message = f"the call was charged {row.charged.uusd} micro-USD and {what}"
    return OutcomeUnknown(message, metadata=metadata)


def _is_rejection(kind: str) -> bool:
    """Whether asking the upstream the same again is pointless: it refused the request itself, not this moment."""
    return kind in ("bad_request", "too_long", "not_recorded") or (kind.startswith("http_4") and kind not in _PASSING_4XX)


def _require_same_content(known: str, asked: str, key: str) -> None:
    if known != asked:
        raise KeyReused(f"call key {key!r} was used with other content")


def _check(call: CloudCall) -> None:
    for name, text in (("call_key", call.call_key), ("prompt_id", call.prompt_id), ("model_alias", call.model_alias)):
        _check_key(name, text)
    if not (SERVING_STEP <= call.step < MOST_UNITS and 0 <= call.help_units <= MOST_UNITS):
        raise InvalidRequest(
            f"step and help_units cannot be negative; step is below {MOST_UNITS}, help_units at most {MOST_UNITS}"
        )
    if not call.messages:
        raise InvalidRequest("a call needs at least one message")
    if not 1 <= call.max_output_tokens <= MOST_UNITS:
        raise InvalidRequest("a call needs max_output_tokens of at least 1: without it no cap can hold")
    temperature = 0.0 if call.temperature is None else call.temperature
    if not (math.isfinite(temperature) and 0.0 <= temperature <= MAX_TEMPERATURE):
        raise InvalidRequest(f"temperature must lie in [0, {MAX_TEMPERATURE:g}]")
    openai_fields(call.openai_json)


def _check_key(name: str, text: str) -> None:
    if not (0 < len(text) <= MAX_KEY_CHARS and text.isprintable()):
        raise InvalidRequest(f"{name} must be 1 to {MAX_KEY_CHARS} printable characters")
