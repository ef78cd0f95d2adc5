"""The connection to the coordinator: starting our own, registering, and the budgets it reports.

Being offline is fine at any time. A credential that is refused, or an unknown task, is not.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from typing import Protocol

from edge import __version__
from edge.cloud.client import BudgetWatch, KnownBudget, WatchedClient, why_away
from edge.core.clock import Clock
from edge.core.errors import CoordinatorError, CoordinatorUnavailable, PermissionDenied
from edge.core.events import EventSink
from edge.rpc.client import BudgetSnapshot, CloudCompletion, CoordinatorClient, TaskTerms
from edge.state.events import Notice
from edge.state.folder import StateFolder
from edge.state.rows import Terms


class CoordinatorProcess(Protocol):
    """A coordinator that the agent starts for itself."""

    async def start(self) -> None:
        """Start it and wait until it serves. Raises CoordinatorUnavailable."""
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
    ) -> None:
        """`process`: the coordinator that is started here, None where there is an address to go to. `jitter`: of pauses between tries."""
        self.client = WatchedClient(client, sink, clock)
        self.watch = BudgetWatch(client, jitter, self.client.reached)
        self.begun = False
        self._process = process
        self._learned = learned
        self._state = state
        self._sink = sink
        self._clock = clock
        self._refusal: PermissionDenied | None = None

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
            await self._register()
        except CoordinatorUnavailable as error:
            self.client.lost(why_away(error))

    def require_all_tasks(self) -> None:
        """Raises PermissionDenied, before the first step, where a phase may not be learned."""
        if self._refusal is not None:
            hint = f"{self._refusal.hint}; set phases, or --tasks, to what it may work on".removeprefix("; ")
            raise PermissionDenied(str(self._refusal), hint=hint)

    async def follow_budgets(self, serving_task: str) -> None:
        """Follow the budget of the task at hand; ask once where people's questions use another one."""
        await self.watch.follow(self._learned.present_task)
        if self.client.online and serving_task != self.watch.task:
            with suppress(CoordinatorError):
                await self.client.get_budget(serving_task)

    async def budget(self, task: str | None = None) -> BudgetSnapshot:
        """The budget of a task (None: the one at hand) at the coordinator. Raises CoordinatorError."""
        return await self.client.get_budget(task or self._learned.present_task)

    def followed_budget(self) -> BudgetSnapshot | None:
        """The followed budget of the task at hand; None while it cannot be followed."""
        return self.watch.newest(self.watch.task)

    def follows(self, task: str) -> bool:
        """Whether the coordinator reports this task's budget by itself."""
        return self.watch.newest(task) is not None

    def known_budget(self, task: str) -> KnownBudget | None:
        """The budget of a task that the coordinator reported last, by itself or with an answer."""
        reported, followed = self.client.budget_of(task), self.watch.newest(task)
        if followed is None or (reported is not None and reported.budget.version > followed.version):
            return reported
        return KnownBudget(followed, self._clock.now())

    def why_away(self) -> str:
        """Why the coordinator is not reached, or ""."""
        return "" if self.client.online else self.client.offline_reason or "the coordinator is away"

    async def call(self, call_key: str) -> CloudCompletion:
        """The coordinator's entry of a call. Raises CoordinatorError."""
        return await self.client.get_call(call_key)

    async def _register(self) -> None:
        for terms in await self._terms_of(self._learned.tasks):
            if self._state.terms(terms.task) is None:
                self._state.note_terms(Terms(terms.task, terms.target_rate, terms.dual, terms.next_step))

    async def _terms_of(self, tasks: Sequence[str]) -> list[TaskTerms]:
        """What the coordinator holds tasks to. One that this device may not work on is answered here, and not learned."""
        try:
            return list((await self.client.register(__version__, tasks)).tasks)
        except PermissionDenied as error:
            if error.reason != PermissionDenied.reason:
                raise
            if len(tasks) > 1:
                return [terms for task in tasks for terms in await self._terms_of([task])]
            self._refusal = error
            self._sink.emit(Notice(f"{error}; its questions are answered here", self._clock.now()))
            return []
