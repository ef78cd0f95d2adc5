"""One cloud call for each prompt group: which failures are waited out, and what a failure means for the group."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from edge.core.errors import BudgetExhausted, CallInProgress, CoordinatorError, OutcomeUnknown, RateLimited, Withheld
from edge.core.units import BY_LEDGER_NAME, CALLS, Unit
from edge.rpc.client import CloudCall, CloudCompletion, CoordinatorClient

_WHOSE = {
    "device_task": " of this task",
    "fleet": " of all devices",
    "fleet_task": " of this task on all devices",
    "step": " of this step",
}
_MOST_DIGITS = 19


def what_is_used_up(error: BudgetExhausted) -> str:
    """`62 of 60 calls`; where the coordinator reports no numbers, its own words."""
    metadata = error.metadata
    texts = [metadata.get(name, "") for name in ("used", "limit", "needed", "kept")]
    numbers = [int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else None for text in texts]
    if None in numbers[:2]:
        return metadata.get("told") or str(error)
    used, limit, needed, kept = (number or 0 for number in numbers)
    unit, whose = _unit_of(error) or CALLS, _WHOSE.get(metadata.get("scope", ""), "")
    amount = unit.number
    share = f"{amount(used)} of {unit.amount(limit)}"
    aside = f", {amount(kept)} kept for other devices" if kept else ""
    short = f"; this call may need {amount(needed)}" if used + kept < limit else ""
    return f"{share}{whose}{aside}{short}"


def _unit_of(error: BudgetExhausted) -> Unit | None:
    """The unit that was refused, the first of several."""
    return BY_LEDGER_NAME.get(error.metadata.get("unit", "").partition(",")[0])


def for_who_demanded_the_cloud(error: BudgetExhausted, *, own_coordinator: bool) -> BudgetExhausted:
    """The same error in one line that states what can be done; one's own coordinator follows the agent's configuration."""
    what = what_is_used_up(error)
    unit = _unit_of(error)
    more = (
        f"raise it with `edge-agent budget limit{f' {unit.option}' if unit else ''}`"
        if own_coordinator
        else "ask who runs the coordinator for more"
    )
    metadata = {**error.metadata, "told": what}
    hint = f"{more}, or ask without demanding the cloud"
    return BudgetExhausted(f"the budget is used up ({what})", hint=hint, retry_after_s=error.retry_after_s, metadata=metadata)


_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class CloudOutcome:
    """What became of a group's call."""

    completion: CloudCompletion | None
    """None: it was not answered."""
    refused: bool = False
    """A budget refused; that is not a failure."""
    reason: str = ""
    """One line."""
    unsent: bool = False
    """Decided on this device: the coordinator was not asked."""
    lost_uusd: int | None = None
    """What the ledger charged for a call that has no answer to give, in micro-USD, where its reply states it."""


class CallLimit(Protocol):
    """What else must allow a call, and counts it: learning's daily budget."""

    async def admit(self, call: CloudCall) -> None:
        """Count a call, durably, before it is sent. Raises BudgetExhausted, and sqlite3.Error where it cannot be written."""
        ...

    async def ended(self, call: CloudCall, outcome: CloudOutcome | None) -> None:
        """Note what became of an admitted call (None: it was cut off)."""
        ...


class GroupCalls:
    """Asks the cloud, or reports why not. Any number of calls at once, each one a Complete of its own."""

    def __init__(
        self,
        client: CoordinatorClient,
        deadline_s: float,
        switched_off: Callable[[], str] = lambda: "",
        limit: CallLimit | None = None,
    ) -> None:
        """`switched_off` returns why nothing may be asked now ("" when it may). `limit`: what learning may spend in a day.

        To learning a refusal of `limit` is a failure: the responses that asked are left out. It binds learning alone, so it must not teach
        the model to ask less of what serving may still ask.
        """
        self._client = client
        self._deadline_s = deadline_s
        self._limit = limit
        self.switched_off = switched_off

    async def ask(self, call: CloudCall) -> CloudOutcome:
        """Ask once; the same call key never pays twice. Never raises CoordinatorError."""
        if off := self.switched_off():
            return CloudOutcome(None, reason=off, unsent=True)
        if self._limit is None:
            return await self._asked(call)
        try:
            await self._limit.admit(call)
        except BudgetExhausted as error:
            return CloudOutcome(None, reason=f"{error}; learning goes on without the cloud", unsent=True)
        except sqlite3.Error as error:
            return CloudOutcome(None, reason=f"the call cannot be written down ({error})", unsent=True)
        outcome = None
        try:
            outcome = await self._asked(call)
        finally:
            await self._limit.ended(call, outcome)
        return outcome

    async def _asked(self, call: CloudCall) -> CloudOutcome:
        try:
            async with asyncio.timeout(self._deadline_s + 5.0):
                return CloudOutcome(await self._waiting_out(call))
        except BudgetExhausted as error:
            return CloudOutcome(None, refused=True, reason=refusal_text(error))
        except Withheld as error:
            return CloudOutcome(None, reason=str(error), unsent=True)
        except OutcomeUnknown as error:
            charged = error.metadata.get("charged_uusd", "")
            return CloudOutcome(
                None, reason=str(error), lost_uusd=int(charged) if charged.isascii() and charged.isdigit() else None
            )
        except CoordinatorError as error:
            return CloudOutcome(None, reason=str(error))
        except TimeoutError:
            return CloudOutcome(None, reason=f"no answer within {self._deadline_s:g} s")

    async def _waiting_out(self, call: CloudCall) -> CloudCompletion:
        """Wait out rate limits and a call that runs elsewhere; the caller's time-out bounds it."""
        recovering = False
        while True:
            try:
                if recovering:
                    return await self._client.get_call(call.call_key)
                if off := self.switched_off():
                    raise Withheld(off)
                return await self._client.complete(call, self._deadline_s)
            except RateLimited as error:
                await asyncio.sleep(error.retry_after_s or _POLL_S)
            except CallInProgress as error:
                recovering = True
                await asyncio.sleep(error.retry_after_s or _POLL_S)


def refusal_text(error: BudgetExhausted) -> str:
    """A refusal for people, e.g. `budget used up: 12 of 12 calls; answering and learning go on without the cloud`."""
    what = "the rest of the step goes" if error.metadata.get("scope") == "step" else "answering and learning go"
    return f"budget used up: {what_is_used_up(error)}; {what} on without the cloud"
