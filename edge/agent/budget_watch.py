"""Following the budget of one task while the agent runs. Knows WatchBudget and when to try again; decides nothing and tells nobody.

It fails open: while no stream stands there is no snapshot, and who wants one asks the coordinator. Whether the coordinator is away is for
the calls that need it to find out, so that this changes nothing about an agent that works offline; that it is back, a budget tells.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from edge.agent.streams import closing
from edge.core.errors import CoordinatorError, NotImplementedThere
from edge.rpc.client import BudgetSnapshot, CoordinatorClient

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0


class BudgetWatch:
    """Keeps the newest budget of `task`, the one that is followed. Belongs to one event loop."""

    def __init__(self, client: CoordinatorClient, rng: random.Random, heard: Callable[[], None] = lambda: None) -> None:
        """`rng` jitters the pauses between tries. `heard` is told of each budget: the coordinator is there."""
        self._client = client
        self._heard = heard
        self._rng = rng
        self.task = ""
        self._newest: BudgetSnapshot | None = None
        self._following: asyncio.Task[None] | None = None

    def newest(self, task: str) -> BudgetSnapshot | None:
        """The budget as its stream told it last; None for another task than the followed one, and once the client gave a broken one up."""
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
                        self._heard()
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
