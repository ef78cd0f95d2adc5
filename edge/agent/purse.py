"""What learning may spend at the cloud in a day. Knows calendar days, calls and money; knows nothing of prompts or of serving.

Counted on disk before a call leaves, under its call key, so that a step that is made again counts nothing twice, and what a crash has cut
off stays counted. Days are local ones. The price of a call is not known before its answer: one that is under way, or was cut, counts
as much as the dearest one so far, and while none was paid yet only one is let out at a time. So the day's spend can pass its limit by a
first call that is dearer than all of it, or by what the calls under way are dearer than those before; the ledger's own limits stand behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from edge.agent.cloud import CloudDesk, CloudOutcome
from edge.agent.state import StateFolder
from edge.core.clock import Clock
from edge.core.errors import BudgetExhausted
from edge.rpc.client import CloudCall, CloudCompletion


@dataclass(frozen=True, slots=True)
class DailyLimits:
    """Of learning alone (None: no limit)."""

    calls: int | None = None
    spend_uusd: int | None = None


NO_LIMITS = DailyLimits()


@dataclass(frozen=True, slots=True)
class DaysUse:
    """What learning asked for and paid on `day` (YYYY-MM-DD); `open_calls` are under way or were cut off."""

    day: str
    calls: int
    tokens: int
    spend_uusd: int
    open_calls: int


class LearningPurse:
    """The day's budget of learning, in the state folder's database."""

    def __init__(
        self, state: StateFolder, clock: Clock, limits: DailyLimits, tell: Callable[[str], None] = lambda text: None
    ) -> None:
        """`tell` is given one line on each day whose budget is used up."""
        self._tell = tell
        self._told_on = ""
        self._state = state
        self._clock = clock
        self.limits = limits
        self._paid = asyncio.Condition()
        self._under_way: set[str] = set()

    def today(self) -> DaysUse:
        """What was used since the last midnight."""
        day = local_day(self._clock.now())
        row = self._state.database.execute(
            "SELECT count(*), coalesce(sum(tokens), 0), coalesce(sum(spend_uusd), 0), coalesce(sum(1 - settled), 0)"
            " FROM learning_spend WHERE day = ?",
            (day,),
        ).fetchone()
        return DaysUse(day, *row)

    async def admit(self, call: CloudCall) -> None:
        """Count a call, durably, before it leaves. Raises BudgetExhausted when the day's budget is used up; nothing is counted then."""
        async with self._paid:
            await self._paid.wait_for(self._price_is_known)
            if self._is_counted(call):
                return
            if reason := self._used_up():
                self._tell_once_a_day(reason)
                raise BudgetExhausted(reason, metadata={"told": reason, "budget": "learning per day"})
            at = self._clock.now()
            with self._state.database as database:
                values = (call.call_key, local_day(at), at, call.task)
                database.execute("INSERT INTO learning_spend VALUES (?, ?, ?, ?, 0, 0, 0)", values)
            self._under_way.add(call.call_key)

    async def ended(self, call: CloudCall, outcome: CloudOutcome) -> None:
        """Note what a call cost. One that the ledger refused was not made; one that failed may have been, and stays counted."""
        async with self._paid:
            self._under_way.discard(call.call_key)
            if outcome.completion is not None:
                self._settle(call, outcome.completion)
            elif outcome.refused:
                self._forget(call)
            self._paid.notify_all()

    def _tell_once_a_day(self, reason: str) -> None:
        day = local_day(self._clock.now())
        if day != self._told_on:
            self._told_on = day
            self._tell(f"{reason}; learning goes on without the cloud")

    def _forget(self, call: CloudCall) -> None:
        with self._state.database as database:
            database.execute("DELETE FROM learning_spend WHERE call_key = ? AND settled = 0", (call.call_key,))

    def _settle(self, call: CloudCall, completion: CloudCompletion) -> None:
        tokens, spend = completion.usage.input_tokens + completion.usage.output_tokens, completion.charged_uusd
        with self._state.database as database:
            database.execute(
                "UPDATE learning_spend SET tokens = ?, spend_uusd = ?, settled = 1 WHERE call_key = ? AND settled = 0",
                (0 if completion.cached else tokens, 0 if completion.cached else spend, call.call_key),
            )

    def _price_is_known(self) -> bool:
        """One call at a time until one was paid, where money is limited."""
        return self.limits.spend_uusd is None or not self._under_way or self._dearest() > 0

    def _is_counted(self, call: CloudCall) -> bool:
        row = self._state.database.execute("SELECT 1 FROM learning_spend WHERE call_key = ?", (call.call_key,)).fetchone()
        return row is not None

    def _used_up(self) -> str:
        today, limits = self.today(), self.limits
        if limits.calls is not None and today.calls >= limits.calls:
            return f"learning, today's calls {today.calls} of {limits.calls}"
        if limits.spend_uusd is not None:
            most = self._dearest()
            if today.spend_uusd + (today.open_calls + 1) * most > limits.spend_uusd or today.spend_uusd >= limits.spend_uusd:
                return f"learning, today's spend {today.spend_uusd} of {limits.spend_uusd} micro-USD"
        return ""

    def _dearest(self) -> int:
        return int(self._state.database.execute("SELECT coalesce(max(spend_uusd), 0) FROM learning_spend").fetchone()[0])


class PurseDesk(CloudDesk):
    """A desk whose calls are learning's: each is counted in the purse before it leaves, and refused when the day's budget is gone.

    To learning such a refusal is a failure: the responses that asked are left out. The day's budget binds learning alone, so what it
    refuses must not teach the model to ask less of what serving may still ask.
    """

    def __init__(self, desk: CloudDesk, purse: LearningPurse) -> None:
        self._desk = desk
        self._purse = purse
        self.switched_off = desk.switched_off

    @asynccontextmanager
    async def together(self, calls: int) -> AsyncIterator[CloudDesk]:
        """The desk that is shared, behind the same purse."""
        async with self._desk.together(calls) as desk:
            yield PurseDesk(desk, self._purse)

    async def ask(self, call: CloudCall) -> CloudOutcome:
        """Ask once where the day's budget allows it. Never raises CoordinatorError."""
        if self.switched_off():
            return await self._desk.ask(call)
        try:
            await self._purse.admit(call)
        except BudgetExhausted as error:
            return CloudOutcome(None, reason=f"{error}; learning goes on without the cloud", unsent=True)
        outcome = CloudOutcome(None)
        try:
            outcome = await self._desk.ask(call)
        finally:
            await self._purse.ended(call, outcome)
        return outcome


def local_day(at: float) -> str:
    """The calendar day of a time, where this machine is."""
    return datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d")
