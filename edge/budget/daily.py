"""What learning may spend at the cloud in a day. Knows calendar days, calls and money; knows nothing of prompts or of serving.

Counted on disk before a call leaves, under its call key, so that a step that is made again counts nothing twice, and what a crash has cut
off stays counted. Days are local ones. The price of a call is not known before its answer: one that is under way, or was cut, counts
as much as the dearest one of the last days, and while none was paid in these only one is let out at a time. One that failed may have been
charged: its end is asked for by its key, at once and before each later call, until it is known; where no price is known no other call
leaves meanwhile. So the day's spend can pass its limit by a first call that is dearer than all of it, or by what the calls under way are
dearer than those before; the ledger's own limits stand behind. A call dearer than a whole day's limit lets no other out until it is some
days old: prices change, and one long answer must not end learning's help for good.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from edge.cloud.group_calls import CloudOutcome, GroupCalls
from edge.cloud.unconfirmed import NEVER_ARRIVED, Arrivals
from edge.core.clock import Clock, day_began, local_day
from edge.core.errors import BudgetExhausted, CallInProgress, CoordinatorError
from edge.rpc.client import CloudCall, CloudCompletion
from edge.state.folder import StateFolder


@dataclass(frozen=True, slots=True)
class DailyLimits:
    """Of learning alone (None: no limit)."""

    calls: int | None = None
    spend_uusd: int | None = None


NO_LIMITS = DailyLimits()
PRICE_DAYS = 7
"""So many days, with today, tell what a call may cost."""
EndOf = Callable[[str], Awaitable[Mapping[str, Any]]]
"""What became of a call, by its key: `call_state`, `charged_uusd` and `cloud_tokens`; raises CoordinatorError while nobody knows."""


@dataclass(frozen=True, slots=True)
class DaysUse:
    """What learning asked for and paid on `day` (YYYY-MM-DD); `open_calls` are under way or were cut off."""

    day: str
    calls: int
    tokens: int
    spend_uusd: int
    open_calls: int


class DailyBudget:
    """The day's budget of learning, in the state folder's database."""

    def __init__(
        self,
        state: StateFolder,
        clock: Clock,
        limits: DailyLimits,
        tell: Callable[[str], None] = lambda text: None,
        end_of: EndOf | None = None,
    ) -> None:
        """`tell` is given one line on each day whose budget is used up; without `end_of` a call that failed stays open."""
        self._tell = tell
        self._end_of = end_of
        self._told_on = ""
        self._state = state
        self._clock = clock
        self.limits = limits
        self._paid = asyncio.Condition()
        self._under_way: set[str] = set()
        self._arrivals = Arrivals(clock)

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
        await self._settle_left_over()
        async with self._paid:
            await self._paid.wait_for(self._price_is_known)
            self._arrivals.sent(call.call_key)
            if self._is_counted(call):
                self._under_way.add(call.call_key)
                return
            if reason := self._used_up():
                self._tell_once_a_day(reason)
                raise BudgetExhausted(reason, metadata={"told": reason, "budget": "learning per day"})
            at = self._clock.now()
            with self._state.database as database:
                values = (call.call_key, local_day(at), at, call.task)
                database.execute("INSERT INTO learning_spend VALUES (?, ?, ?, ?, 0, 0, 0)", values)
            self._under_way.add(call.call_key)

    async def ended(self, call: CloudCall, outcome: CloudOutcome | None) -> None:
        """Note what a call cost (None: it was cut off). One that the ledger refused, or that never left, was not made; of one that failed
        the ledger is asked."""
        try:
            with suppress(sqlite3.Error):  # it stays open, and is asked for again
                if outcome is not None and outcome.completion is not None:
                    self._settle(call.call_key, *_paid(outcome.completion))
                elif outcome is not None and (outcome.refused or outcome.unsent):
                    self._forget(call.call_key)
                elif outcome is not None:
                    await self._settle_by_asking(call.call_key, waited_for=True)
        finally:
            async with self._paid:
                self._under_way.discard(call.call_key)
                self._paid.notify_all()

    async def _settle_left_over(self) -> None:
        """Ask for the end of the calls that nobody waits for; those before today too, so that their price becomes known."""
        rows = self._state.rows("SELECT call_key FROM learning_spend WHERE settled = 0 ORDER BY at, call_key")
        for key in [str(key) for (key,) in rows if key not in self._under_way]:
            if not await self._settle_by_asking(key):
                return

    async def _settle_by_asking(self, key: str, *, waited_for: bool = False) -> bool:
        """False where nobody could be asked, so that the others need not be asked for either. A call that was made again while its old
        end was asked for is left to whoever waits for it."""
        if self._end_of is None:
            return False
        try:
            end = await self._end_of(key)
        except CallInProgress:
            return True
        except CoordinatorError:
            return False
        if key in self._under_way and not waited_for:
            return True
        if end["call_state"] == NEVER_ARRIVED:
            if self._arrivals.is_lost(key):
                self._forget(key)
        else:
            self._settle(key, end.get("cloud_tokens", 0), end["charged_uusd"])
        return True

    def _tell_once_a_day(self, reason: str) -> None:
        day = local_day(self._clock.now())
        if day != self._told_on:
            self._told_on = day
            self._tell(f"{reason}; learning goes on without the cloud")

    def _forget(self, key: str) -> None:
        with self._state.database as database:
            database.execute("DELETE FROM learning_spend WHERE call_key = ? AND settled = 0", (key,))

    def _settle(self, key: str, tokens: int, spend_uusd: int) -> None:
        with self._state.database as database:
            database.execute(
                "UPDATE learning_spend SET tokens = max(tokens, ?), spend_uusd = max(spend_uusd, ?), settled = 1 WHERE call_key = ?",
                (tokens, spend_uusd, key),
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
            if today.open_calls and not most:
                return f"learning, what {today.open_calls} of today's calls cost is not known yet"
            if today.spend_uusd + (today.open_calls + 1) * most > limits.spend_uusd or today.spend_uusd >= limits.spend_uusd:
                left = "" if today.spend_uusd >= limits.spend_uusd else f", and a call may cost {most}"
                return f"learning, today's spend {today.spend_uusd} of {limits.spend_uusd} micro-USD{left}"
        return ""

    def _dearest(self) -> int:
        """What a call may cost, by those of the last days; one whose time lies ahead, of a clock that was set back, is among them."""
        since = day_began(self._clock.now(), PRICE_DAYS - 1)
        query = "SELECT coalesce(max(spend_uusd), 0) FROM learning_spend WHERE at >= ?"
        return int(self._state.database.execute(query, (since,)).fetchone()[0])


class LimitedGroupCalls(GroupCalls):
    """A desk whose calls are learning's: each is counted in the purse before it leaves, and refused when the day's budget is gone.

    To learning such a refusal is a failure: the responses that asked are left out. The day's budget binds learning alone, so what it
    refuses must not teach the model to ask less of what serving may still ask.
    """

    def __init__(self, desk: GroupCalls, purse: DailyBudget) -> None:
        self._desk = desk
        self._purse = purse
        self.switched_off = desk.switched_off

    @asynccontextmanager
    async def together(self, calls: int) -> AsyncIterator[GroupCalls]:
        """The desk that is shared, behind the same purse."""
        async with self._desk.together(calls) as desk:
            yield LimitedGroupCalls(desk, self._purse)

    async def ask(self, call: CloudCall) -> CloudOutcome:
        """Ask once where the day's budget allows it. Never raises CoordinatorError."""
        if self.switched_off():
            return await self._desk.ask(call)
        try:
            await self._purse.admit(call)
        except BudgetExhausted as error:
            return CloudOutcome(None, reason=f"{error}; learning goes on without the cloud", unsent=True)
        except sqlite3.Error as error:
            return CloudOutcome(None, reason=f"the call cannot be written down ({error})", unsent=True)
        outcome = None
        try:
            outcome = await self._desk.ask(call)
        finally:
            await self._purse.ended(call, outcome)
        return outcome


def _paid(completion: CloudCompletion) -> tuple[int, int]:
    """Tokens and micro-USD; an answer from the cache was paid for before."""
    if completion.cached:
        return 0, 0
    return completion.usage.input_tokens + completion.usage.output_tokens, completion.charged_uusd
