"""The connection to the coordinator as the agent uses it: starts our own, registers, notices when it goes and comes, follows budgets.

Being offline is fine at any time. A credential that is refused, or an unknown task, is not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

from edge import __version__
from edge.core.clock import Clock
from edge.core.concurrency import closing
from edge.core.errors import (
    CoordinatorError,
    CoordinatorUnavailable,
    NotImplementedThere,
    PermissionDenied,
    Unpriced,
    Withheld,
    is_refused_alone,
)
from edge.core.events import EventSink
from edge.core.units import BUDGET_UNITS
from edge.rpc.client import (
    BudgetSnapshot,
    CancelledCall,
    CloudCall,
    CloudCompletion,
    CloudDelta,
    CoordinatorClient,
    Registration,
    StepClosed,
    StepOpened,
    StepUnits,
)
from edge.state.events import Notice, Offline, Online
from edge.state.folder import StateFolder
from edge.state.rows import StoredTerms

LOST_REASONS = frozenset({"UNREACHABLE", "CONNECTION_LOST", "DRAINING"})
"""The coordinator itself is away; with any other reason it has answered, and what it called failed."""


@dataclass(frozen=True, slots=True)
class KnownBudget:
    """A task's budget as the coordinator reported it, and when (seconds since the epoch)."""

    budget: BudgetSnapshot
    as_of: float


_PER_MTOK = "(micro-USD per million tokens, 0 where nothing is charged)"
OWN_PRICE_KEYS = f"set coordinator.embedded.price_in_uusd_per_mtok and coordinator.embedded.price_out_uusd_per_mtok {_PER_MTOK}"
OPERATORS_PRICE_KEYS = (
    f"who runs the coordinator sets price_in_uusd_per_mtok and price_out_uusd_per_mtok of its upstream {_PER_MTOK}"
)


class WatchedClient:
    """`CoordinatorClient` that passes everything on, emits Offline and Online when that changes, and keeps the budgets that are reported.

    A cloud LLM without a price is noticed once, with `price_keys`: what is to be set. `charged` is called after each paid answer.
    """

    def __init__(
        self,
        client: CoordinatorClient,
        sink: EventSink,
        clock: Clock,
        price_keys: str = OPERATORS_PRICE_KEYS,
        charged: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self._sink = sink
        self._clock = clock
        self._price_keys = price_keys
        self._charged = charged
        self._unpriced_noticed = False
        self.online = True
        self.offline_reason = ""
        self.reported: dict[str, KnownBudget] = {}
        """The last reported budget of each task, the newest one last."""

    async def register(self, agent_version: str, tasks: Sequence[str]) -> Registration:
        """Announce this device."""
        with self._watching():
            return await self._client.register(agent_version, tasks)

    async def open_step(self, task: str, step: int, planned_prompts: int, group_size: int, target_rate: float) -> StepOpened:
        """Open a learning step."""
        with self._watching():
            return await self._client.open_step(task, step, planned_prompts, group_size, target_rate)

    async def complete(self, call: CloudCall, deadline_s: float) -> CloudCompletion:
        """Ask the cloud once."""
        with self._watching():
            return self._noted(await self._client.complete(call, deadline_s), call.task)

    async def stream_complete(self, call: CloudCall, deadline_s: float) -> AsyncIterator[CloudDelta]:
        """Ask the cloud once and stream its answer."""
        with self._watching():
            async with closing(self._client.stream_complete(call, deadline_s)) as deltas:
                async for delta in deltas:
                    if delta.completion is not None:
                        self._noted(delta.completion, call.task)
                    yield delta

    async def cancel_call(self, call_key: str) -> CancelledCall:
        """Stop waiting for a call."""
        with self._watching():
            return await self._client.cancel_call(call_key)

    async def get_call(self, call_key: str) -> CloudCompletion:
        """The stored result of an earlier call."""
        with self._watching():
            return self._noted(await self._client.get_call(call_key))

    async def close_step(self, task: str, step: int, units: StepUnits) -> StepClosed:
        """Report a step and move λ."""
        with self._watching():
            return await self._client.close_step(task, step, units)

    async def get_budget(self, task: str) -> BudgetSnapshot:
        """The current budget of this device for one task."""
        with self._watching():
            budget = await self._client.get_budget(task)
            self.note_budget(task, budget)
            return budget

    async def watch_budget(self, task: str) -> AsyncIterator[BudgetSnapshot]:
        """The budget, then each new version."""
        with self._watching():
            async with closing(self._client.watch_budget(task)) as budgets:
                async for budget in budgets:
                    self.note_budget(task, budget)
                    yield budget

    def note_budget(self, task: str, budget: BudgetSnapshot) -> None:
        """Keep what the coordinator has just reported: it is there, and this is a task's budget now."""
        self.reached()
        self.reported.pop(task, None)
        self.reported[task] = KnownBudget(budget, self._clock.now())

    async def aclose(self) -> None:
        """Close the connection."""
        await self._client.aclose()

    @contextmanager
    def _watching(self) -> Iterator[None]:
        try:
            yield
        except CoordinatorUnavailable as error:
            if error.reason in LOST_REASONS:
                self.lost(error.with_hint)
            elif error.reason != "DEADLINE_EXCEEDED":
                self.reached()
            raise
        except Withheld:  # nobody was asked, so nothing is known of the coordinator
            raise
        except CoordinatorError as error:
            self.reached()
            if isinstance(error, Unpriced) and not self._unpriced_noticed:
                self._unpriced_noticed = True
                self._sink.emit(Notice(f"the cloud is not asked: {error}; {self._price_keys}", self._clock.now()))
            raise
        self.reached()

    def reached(self) -> None:
        """Note that the coordinator is there."""
        if not self.online:
            self.online, self.offline_reason = True, ""
            self._sink.emit(Online(at=self._clock.now()))

    def lost(self, reason: str) -> None:
        """Note that the coordinator is away, for this reason in one line."""
        if self.online:
            self.online, self.offline_reason = False, reason
            self._sink.emit(Offline(reason=reason, at=self._clock.now()))

    def _noted(self, completion: CloudCompletion, task: str = "") -> CloudCompletion:
        if completion.charged_uusd and not completion.cached:
            self._charged()
        if task and completion.budget is not None:
            known = self.reported.get(task)
            if known is None or known.budget.version <= completion.budget.version:  # else the reply was overtaken
                self.note_budget(task, completion.budget)
        return completion


_LIMIT_TRIES, _LIMIT_PAUSE_S = 100, 0.05


def _reports(budget: BudgetSnapshot, limits: Mapping[str, Any]) -> bool:
    """Whether a budget has these limits and their period."""
    return all(
        getattr(budget, unit.limit) == limits[unit.limit]
        and (limits[unit.limit] is None or getattr(budget, unit.period) == limits["window"])
        for unit in BUDGET_UNITS
    )


FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0


class BudgetWatch:
    """Keeps the newest budget of `task`, the one that is followed. Belongs to one event loop."""

    def __init__(
        self,
        client: CoordinatorClient,
        rng: random.Random,
        reported: Callable[[str, BudgetSnapshot], None] = lambda task, budget: None,
    ) -> None:
        """`rng` jitters the pauses between tries. `reported` is called with the task and each of its budgets."""
        self._client = client
        self._reported = reported
        self._rng = rng
        self.task = ""
        self._newest: BudgetSnapshot | None = None
        self._following: asyncio.Task[None] | None = None

    def newest(self, task: str) -> BudgetSnapshot | None:
        """The last budget of the stream; None for another task than the followed one, and once the client gave a broken one up."""
        return self._newest if task == self.task else None

    async def follow(self, task: str) -> None:
        """Follow this task from now on, and no other."""
        if task == self.task and self._following is not None:
            return
        await self.aclose()
        self.task = task
        self._following = asyncio.create_task(self._follow(task), name="budget-watch")

    async def aclose(self) -> None:
        """Stop following. Safe to call twice."""
        following, self._following, self._newest = self._following, None, None
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _follow(self, task: str) -> None:
        """Again and again, more slowly each time in a row; a coordinator that knows no WatchBudget is left alone."""
        failures = 0
        while True:
            try:
                async with closing(self._client.watch_budget(task)) as budgets:
                    async for budget in budgets:
                        failures, self._newest = 0, budget
                        self._reported(task, budget)
            except NotImplementedThere:
                return
            except CoordinatorError:
                pass
            finally:
                self._newest = None
            pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures, 16))
            await asyncio.sleep(pause_s * (0.5 + 0.5 * self._rng.random()))
            failures += 1


class CoordinatorProcess(Protocol):
    """A coordinator that the agent starts for itself."""

    async def start(self) -> None:
        """Start it and wait until it serves. Raises CoordinatorUnavailable."""
        ...

    async def hold_to(self, limits: Mapping[str, Any]) -> None:
        """Hold this device to other limits from now on, as the coordinator's configuration has those of a scope."""
        ...

    async def take_up(self) -> None:
        """Have one that was starting when the limits were set take them up, where it serves by now."""
        ...

    async def aclose(self) -> None:
        """Stop it."""
        ...


class LearnedTasks(Protocol):
    """The labels of what is learned."""

    @property
    def tasks(self) -> list[str]:
        """All of them."""
        ...

    @property
    def present_task(self) -> str:
        """The one that is learned now, or was last."""
        ...


class CoordinatorLink:
    """The coordinator as this agent knows it. `begin` is called when it is first needed, which may be never."""

    def __init__(
        self,
        client: CoordinatorClient,
        process: CoordinatorProcess | None,
        learned: LearnedTasks,
        state: StateFolder,
        sink: EventSink,
        clock: Clock,
        jitter: random.Random,
        charged: Callable[[], None] = lambda: None,
    ) -> None:
        """`process`: the coordinator that is started here, None where there is an address to go to. `jitter`: of pauses between tries.
        `charged`: see WatchedClient."""
        price_keys = OPERATORS_PRICE_KEYS if process is None else OWN_PRICE_KEYS
        self.client = WatchedClient(client, sink, clock, price_keys, charged)
        self.watch = BudgetWatch(client, jitter, self.client.note_budget)
        self.serving_watch = BudgetWatch(client, jitter, self.client.note_budget)
        self.begun = False
        self._process = process
        self._learned = learned
        self._state = state
        self._sink = sink
        self._clock = clock
        self._refused: dict[str, CoordinatorError] = {}

    @property
    def embedded(self) -> bool:
        """The coordinator is one of our own."""
        return self._process is not None

    async def begin(self, closing: AsyncExitStack) -> None:
        """Start the embedded one, which `closing` stops, and register. A task that this device may not work on is for serving."""
        self.begun = True
        try:
            if self._process is not None:
                closing.push_async_callback(self._process.aclose)
                await self._process.start()
            await self._register(self._learned.tasks)
        except CoordinatorUnavailable as error:
            self.client.lost(error.with_hint)

    async def hold_to(self, limits: Mapping[str, Any]) -> None:
        """Have the embedded coordinator hold this device to other limits; when this returns, it does, or will from its next start.

        Raises CoordinatorUnavailable where it runs and does not report them: they are kept and hold from its next start.
        """
        assert self._process is not None
        await self._process.hold_to(limits)
        if not self.begun:
            return
        for _ in range(_LIMIT_TRIES):
            await self._process.take_up()
            with suppress(CoordinatorUnavailable):
                if _reports(await self.budget(), limits):
                    return
            await asyncio.sleep(_LIMIT_PAUSE_S)
        raise CoordinatorUnavailable(
            "the limit is kept, but the coordinator does not report it yet; it holds from its next start at the latest",
            hint="edge-agent budget show lists what holds; edge-coordinator budget set on its ledger wins over it",
        )

    async def require_tasks(self, tasks: Iterable[str]) -> None:
        """Raises PermissionDenied or NotFound, before the first step, where one of these was refused and still is."""
        for task in [task for task in tasks if task in self._refused]:
            with suppress(CoordinatorUnavailable):
                await self._register([task])
            if refusal := self._refused.get(task):
                hint = f"{refusal.hint}; set phases, or --tasks, to what it may work on".removeprefix("; ")
                raise type(refusal)(str(refusal), hint=hint)

    async def follow_budgets(self, serving_task: str) -> None:
        """Follow the budgets of the task at hand and of people's questions. Where these may not ask, the error states what to do."""
        await self.watch.follow(self._learned.present_task)
        if not self.client.online or serving_task == self.watch.task:
            return
        try:
            await self.client.get_budget(serving_task)
        except PermissionDenied as error:
            text = f"questions under the label {serving_task} may not ask the cloud: {error}; set serve.task to a label that may"
            self._sink.emit(Notice(text, self._clock.now()))
            return
        except CoordinatorError:
            pass
        await self.serving_watch.follow(serving_task)

    async def budget(self, task: str | None = None) -> BudgetSnapshot:
        """The budget of a task (None: the one at hand) at the coordinator. Raises CoordinatorError."""
        return await self.client.get_budget(task or self._learned.present_task)

    def follows(self, task: str) -> bool:
        """Whether the coordinator reports this task's budget by itself."""
        return any(watch.newest(task) is not None for watch in (self.watch, self.serving_watch))

    def why_away(self) -> str:
        """Why the coordinator is not reached, or ""."""
        return "" if self.client.online else self.client.offline_reason or "the coordinator is away"

    async def call(self, call_key: str) -> CloudCompletion:
        """The coordinator's entry of a call. Raises CoordinatorError."""
        return await self.client.get_call(call_key)

    async def _register(self, tasks: Sequence[str]) -> None:
        """Take up what the coordinator holds tasks to. One that this device may not work on is answered here, and not learned."""
        try:
            registration = await self.client.register(__version__, tasks)
        except CoordinatorError as error:
            if not is_refused_alone(error):
                raise
            if len(tasks) > 1:
                for task in tasks:
                    await self._register([task])
                return
            self._refused[tasks[0]] = error
            self._sink.emit(Notice(f"{error}; its questions are answered here", self._clock.now()))
            return
        for task in tasks:
            self._refused.pop(task, None)
        for terms in registration.tasks:
            if self._state.terms(terms.task) is None:
                self._state.note_terms(StoredTerms(terms.task, terms.target_rate, terms.dual, terms.next_step))
