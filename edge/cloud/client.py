"""The coordinator client that the agent uses: notices when the coordinator goes away and comes back, and follows budgets."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from edge.core.clock import Clock
from edge.core.concurrency import closing
from edge.core.errors import CoordinatorError, CoordinatorUnavailable, NotImplementedThere, Withheld
from edge.core.events import EventSink
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
)
from edge.state.events import Offline, Online

LOST_REASONS = frozenset({"UNREACHABLE", "CONNECTION_LOST", "DRAINING"})
"""The coordinator itself is away; with any other reason it has answered, and what is behind it failed."""


def why_away(error: CoordinatorUnavailable) -> str:
    """One line: what is wrong, and what to do where that is known."""
    return f"{error}; {error.hint}" if error.hint else str(error)


@dataclass(frozen=True, slots=True)
class KnownBudget:
    """A task's budget as the coordinator reported it, and when (seconds since the epoch)."""

    budget: BudgetSnapshot
    as_of: float


class WatchedClient:
    """`CoordinatorClient` that passes everything on, emits Offline and Online when that changes, and keeps the newest budget."""

    def __init__(self, client: CoordinatorClient, sink: EventSink, clock: Clock) -> None:
        self._client = client
        self._sink = sink
        self._clock = clock
        self.online = True
        self.offline_reason = ""
        self.newest_budget: BudgetSnapshot | None = None
        self._budgets: dict[str, KnownBudget] = {}

    def budget_of(self, task: str) -> KnownBudget | None:
        """The last reported budget of a task, None before that."""
        return self._budgets.get(task)

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

    async def close_step(
        self, task: str, step: int, total_units: int, help_units: int, uncalled_units: int = 0, own_rate: float | None = None
    ) -> StepClosed:
        """Report a step and move λ."""
        with self._watching():
            return await self._client.close_step(task, step, total_units, help_units, uncalled_units, own_rate)

    async def get_budget(self, task: str) -> BudgetSnapshot:
        """The current budget of this device for one task."""
        with self._watching():
            self.newest_budget = await self._client.get_budget(task)
            self._budgets[task] = KnownBudget(self.newest_budget, self._clock.now())
            return self.newest_budget

    async def watch_budget(self, task: str) -> AsyncIterator[BudgetSnapshot]:
        """The budget, then each new version."""
        with self._watching():
            async with closing(self._client.watch_budget(task)) as budgets:
                async for budget in budgets:
                    self.newest_budget = budget
                    yield budget

    async def aclose(self) -> None:
        """Close the connection."""
        await self._client.aclose()

    @contextmanager
    def _watching(self) -> Iterator[None]:
        try:
            yield
        except CoordinatorUnavailable as error:
            if error.reason in LOST_REASONS:
                self.lost(why_away(error))
            elif error.reason != "DEADLINE_EXCEEDED":
                self.reached()
            raise
        except Withheld:  # nobody was asked, so nothing is known of the coordinator
            raise
        except CoordinatorError:
            self.reached()
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
        self.newest_budget = completion.budget or self.newest_budget
        if task and completion.budget is not None:
            self._budgets[task] = KnownBudget(completion.budget, self._clock.now())
        return completion


FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0


class BudgetWatch:
    """Keeps the newest budget of `task`, the one that is followed. Belongs to one event loop."""

    def __init__(self, client: CoordinatorClient, rng: random.Random, reached: Callable[[], None] = lambda: None) -> None:
        """`rng` jitters the pauses between tries. `reached` is called with each budget: the coordinator is there."""
        self._client = client
        self._reached = reached
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
                        self._reached()
            except NotImplementedThere:
                return
            except CoordinatorError:
                pass
            finally:
                self._newest = None
            await asyncio.sleep(self._pause_s(failures))
            failures += 1

    def _pause_s(self, failures: int) -> float:
        return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures, 16)) * (0.5 + 0.5 * self._rng.random())
