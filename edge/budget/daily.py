"""What learning may spend at the cloud in a day.

A call is counted on disk under its key before it is sent, so that a step that is made again counts nothing twice, and what a crash has cut
off stays counted. Days are local ones. The price of a call is not known before its answer: an open call, under way or cut off, counts as
the maximum cost of the last days. Where no price is known, one call is made at a time. The end of a failed call is asked for by its key,
immediately and before each later call. So a day's spend can exceed its limit in two ways: the first call costs more than the whole limit,
or calls under way cost more than earlier ones. The ledger's own limits hold in any case. A call that costs more than a whole day's limit
stops the others for some days only, because prices change.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from edge.cloud.group_calls import CloudOutcome
from edge.cloud.unconfirmed import NEVER_ARRIVED, EndOf, UnconfirmedCalls
from edge.core.clock import Clock, day_began, local_day
from edge.core.errors import BudgetExhausted, CoordinatorUnavailable
from edge.core.formatting import money
from edge.rpc.client import CloudCall, CloudCompletion, question_chars
from edge.state.folder import StateFolder


@dataclass(frozen=True, slots=True)
class DailyLimits:
    """Of learning alone (None: no limit)."""

    calls: int | None = None
    spend_uusd: int | None = None
    tokens: int | None = None

    def within(self, other: DailyLimits) -> DailyLimits:
        """The smaller of both, unit by unit."""
        pairs = ((self.calls, other.calls), (self.spend_uusd, other.spend_uusd), (self.tokens, other.tokens))
        return DailyLimits(*(min((one for one in pair if one is not None), default=None) for pair in pairs))


NO_LIMITS = DailyLimits()
PRICE_DAYS = 7
"""The number of days, today included, from which the maximum cost of a call is taken."""


@dataclass(frozen=True, slots=True)
class DaysUse:
    """What learning asked for and paid on `day` (YYYY-MM-DD); `open_calls` are under way or were cut off."""

    day: str
    calls: int
    tokens: int
    spend_uusd: int
    open_calls: int


async def _nobody(key: str) -> Mapping[str, Any]:
    raise CoordinatorUnavailable("nobody can be asked for a call's end")


class DailyBudget(UnconfirmedCalls):
    """Learning's calls in the state folder's database, and its budget of a day."""

    def __init__(
        self,
        state: StateFolder,
        clock: Clock,
        limits: DailyLimits,
        notice: Callable[[str], None] = lambda text: None,
        end_of: EndOf = _nobody,
        share: Callable[[], DailyLimits] = lambda: NO_LIMITS,
    ) -> None:
        """`notice` is given one line on each day whose budget is used up; without `end_of` a call that failed stays open. `share`: what a
        period's budget leaves to learning today, in addition to `limits`."""
        super().__init__(clock, end_of)
        self._notice = notice
        self._noticed_on = ""
        self._state = state
        self._limits = limits
        self._share = share
        self._paid = asyncio.Condition()

    @property
    def limits(self) -> DailyLimits:
        """What holds now."""
        return self._limits.within(self._share())

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
        """Count a call, durably, before it is sent. Raises BudgetExhausted when the day's budget is used up; nothing is counted then."""
        await self.settle()
        async with self._paid:
            await self._paid.wait_for(self._price_is_known)
            if not self._is_counted(call):
                if reason := self._used_up():
                    self._notice_once_a_day(reason)
                    raise BudgetExhausted(reason, metadata={"told": reason, "budget": "learning per day"})
                at = self._clock.now()
                with self._state.database as database:
                    values = (call.call_key, local_day(at), at, call.task, question_chars(call.messages))
                    database.execute("INSERT INTO learning_spend VALUES (?, ?, ?, ?, 0, 0, 0, ?)", values)
            self.sent(call.call_key)

    async def ended(self, call: CloudCall, outcome: CloudOutcome | None) -> None:
        """Note what a call cost (None: it was cut off). One that the ledger refused, or that was never sent, was not made; of one that
        failed the coordinator is asked."""
        try:
            with suppress(sqlite3.Error):  # it stays open, and is asked for again
                if outcome is not None and outcome.completion is not None:
                    self._write_paid(call.call_key, *_paid(outcome.completion))
                elif outcome is not None and (outcome.refused or outcome.unsent):
                    self._forget(call.call_key)
                elif outcome is not None:
                    await self.settle_own(call.call_key)
        finally:
            async with self._paid:
                self.returned(call.call_key)
                self._paid.notify_all()

    def unsettled(self) -> list[str]:
        """See UnconfirmedCalls. Those before today too, so that their price becomes known."""
        rows = self._state.rows("SELECT call_key FROM learning_spend WHERE settled = 0 ORDER BY at, call_key")
        return [str(key) for (key,) in rows]

    def write_end(self, key: str, end: Mapping[str, Any]) -> bool:
        """See UnconfirmedCalls. A call that never arrived is not counted."""
        if end["call_state"] == NEVER_ARRIVED:
            self._forget(key)
        else:
            self._write_paid(key, end.get("cloud_tokens", 0), end["charged_uusd"])
        return True

    def _notice_once_a_day(self, reason: str) -> None:
        day = local_day(self._clock.now())
        if day != self._noticed_on:
            self._noticed_on = day
            self._notice(f"{reason}; learning goes on without the cloud")

    def _forget(self, key: str) -> None:
        with self._state.database as database:
            database.execute("DELETE FROM learning_spend WHERE call_key = ? AND settled = 0", (key,))

    def _write_paid(self, key: str, tokens: int, spend_uusd: int) -> None:
        with self._state.database as database:
            database.execute(
                "UPDATE learning_spend SET tokens = max(tokens, ?), spend_uusd = max(spend_uusd, ?), settled = 1 WHERE call_key = ?",
                (tokens, spend_uusd, key),
            )

    def _price_is_known(self) -> bool:
        """One call at a time until one has shown what it costs in each unit that is limited."""
        if not self._under_way:
            return True
        limited: dict[Literal["spend_uusd", "tokens"], int | None] = {
            "spend_uusd": self.limits.spend_uusd,
            "tokens": self.limits.tokens,
        }
        return all(limit is None or self._maximum_cost(unit) > 0 for unit, limit in limited.items())

    def _is_counted(self, call: CloudCall) -> bool:
        row = self._state.database.execute("SELECT 1 FROM learning_spend WHERE call_key = ?", (call.call_key,)).fetchone()
        return row is not None

    def _used_up(self) -> str:
        today, limits = self.today(), self.limits
        if limits.calls is not None and today.calls >= limits.calls:
            return f"learning, today's calls {today.calls} of {limits.calls}"
        spend = self._amount_used_up("spend_uusd", today.spend_uusd, limits.spend_uusd, today.open_calls)
        return spend or self._amount_used_up("tokens", today.tokens, limits.tokens, today.open_calls)

    def _amount_used_up(self, unit: Literal["spend_uusd", "tokens"], used: int, limit: int | None, open_calls: int) -> str:
        if limit is None:
            return ""
        cost, name = self._maximum_cost(unit), unit.removesuffix("_uusd")
        if open_calls and not cost:
            return f"learning, what {open_calls} of today's calls cost is not known yet"
        if used + (open_calls + 1) * cost <= limit and used < limit:
            return ""
        amount = money if unit == "spend_uusd" else str
        left = "" if used >= limit else f", and a call may cost {amount(cost)}"
        return f"learning, today's {name} {amount(used)} of {amount(limit)}{left}"

    def _maximum_cost(self, unit: Literal["spend_uusd", "tokens"]) -> int:
        """What a call may cost, by those of the last days; one whose time lies ahead, of a clock that was set back, is among them."""
        since = day_began(self._clock.now(), PRICE_DAYS - 1)
        query = f"SELECT coalesce(max({unit}), 0) FROM learning_spend WHERE at >= ?"  # noqa: S608 - of two names
        return int(self._state.database.execute(query, (since,)).fetchone()[0])


def _paid(completion: CloudCompletion) -> tuple[int, int]:
    """Tokens and micro-USD; an answer from the cache was paid for before."""
    if completion.cached:
        return 0, 0
    return completion.usage.input_tokens + completion.usage.output_tokens, completion.charged_uusd
