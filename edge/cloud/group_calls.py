"""One cloud call for each prompt group: which failures are waited out, and what a failure means for the group."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from edge.core.concurrency import closing
from edge.core.errors import BudgetExhausted, CallInProgress, CoordinatorError, OutcomeUnknown, RateLimited, Withheld
from edge.core.formatting import dollars
from edge.rpc.client import CallReply, CloudCall, CloudCompletion, CoordinatorClient

_WHOSE = {
    "device_task": " of this task",
    "fleet": " of all devices",
    "fleet_task": " of this task on all devices",
    "step": " of this step",
}
_SETTINGS = {"calls": "budget.calls_limit", "tokens": "budget.tokens_limit", "uusd": "budget.spend_limit_uusd"}
_MOST_DIGITS = 19


def what_is_used_up(error: BudgetExhausted) -> str:
    """`62 of 60 calls`; where the coordinator tells no numbers, its own words."""
    told = error.metadata
    numbers = [_number(told, name) for name in ("used", "limit", "needed", "kept")]
    if None in numbers[:2]:
        return told.get("told") or str(error)
    used, limit, needed, kept = (number or 0 for number in numbers)
    unit, whose = told.get("unit", "calls").partition(",")[0], _WHOSE.get(told.get("scope", ""), "")
    aside = f", {_amount(kept, unit)} kept for other devices" if kept else ""
    short = f"; this call may need {_amount(needed, unit)}" if used + kept < limit else ""
    return f"{_share(used, limit, unit)}{whose}{aside}{short}"


def for_who_demanded_the_cloud(error: BudgetExhausted, *, own_coordinator: bool) -> BudgetExhausted:
    """The same error in one line that says what can be done; a coordinator of one's own is held to the agent's configuration."""
    what = what_is_used_up(error)
    setting = _SETTINGS.get(error.metadata.get("unit", "").partition(",")[0], "the budget's limit")
    more = f"raise {setting}" if own_coordinator else "ask who runs the coordinator for more"
    metadata = {**error.metadata, "told": what}
    return BudgetExhausted(f"the budget is used up ({what})", hint=f"{more}, or ask without --cloud", metadata=metadata)


def _share(used: int, limit: int, unit: str) -> str:
    return f"{dollars(used)} of {dollars(limit)}" if unit == "uusd" else f"{used} of {limit} {unit}"


def _amount(amount: int, unit: str) -> str:
    return dollars(amount) if unit == "uusd" else str(amount)


def _number(told: Mapping[str, str], name: str) -> int | None:
    text = told.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else None


_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class CloudOutcome:
    """`completion` when answered; else `refused` tells a budget's refusal from a failure, `reason` is one line.

    `unsent`: it was decided on this device, and the coordinator was not asked. `lost_uusd`: what the ledger charged for a call that has
    no answer to give, in micro-USD, where its reply says so.
    """

    completion: CloudCompletion | None
    refused: bool = False
    reason: str = ""
    unsent: bool = False
    lost_uusd: int | None = None


class GroupCalls:
    """Asks the cloud, or says why not."""

    def __init__(
        self,
        client: CoordinatorClient,
        deadline_s: float,
        switched_off: Callable[[], str] = lambda: "",
        complete: Callable[[CloudCall, float], Awaitable[CloudCompletion]] | None = None,
    ) -> None:
        """`switched_off` tells why nothing may be asked now ("" when it may). `complete` asks once, by default each call by itself."""
        self._client = client
        self._deadline_s = deadline_s
        self._complete = complete or client.complete
        self.switched_off = switched_off

    @asynccontextmanager
    async def together(self, calls: int) -> AsyncIterator[GroupCalls]:
        """A desk whose calls share one batch, where more than one may come."""
        if calls < 2 or self.switched_off():
            yield self
            return
        batch = SharedBatch(self._client, self._deadline_s, self.switched_off)
        try:
            yield GroupCalls(self._client, self._deadline_s, self.switched_off, batch.complete)
        finally:
            await batch.aclose()

    async def ask(self, call: CloudCall) -> CloudOutcome:
        """Ask once; the same call key never pays twice. Never raises CoordinatorError."""
        if off := self.switched_off():
            return CloudOutcome(None, reason=off, unsent=True)
        try:
            async with asyncio.timeout(self._deadline_s + 5.0):
                return CloudOutcome(await self._waiting_out(call))
        except BudgetExhausted as error:
            return CloudOutcome(None, refused=True, reason=refusal_text(error))
        except Withheld as error:
            return CloudOutcome(None, reason=str(error), unsent=True)
        except OutcomeUnknown as error:
            return CloudOutcome(None, reason=str(error), lost_uusd=_charged(error))
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
                return await self._complete(call, self._deadline_s)
            except RateLimited as error:
                await asyncio.sleep(error.retry_after_s or _POLL_S)
            except CallInProgress as error:
                recovering = True
                await asyncio.sleep(error.retry_after_s or _POLL_S)


def _charged(error: OutcomeUnknown) -> int | None:
    """Micro-USD that the reply to a call without an answer tells; None where it does not say."""
    told = error.metadata.get("charged_uusd", "")
    return int(told) if told.isascii() and told.isdigit() else None


class SharedBatch:
    """One batch of the client, opened by its first call. Everybody who asks waits for the reply to the own call."""

    def __init__(self, client: CoordinatorClient, deadline_s: float, switched_off: Callable[[], str] = lambda: "") -> None:
        """`switched_off` is asked once more as each call leaves; what may not is answered Withheld."""
        self._client = client
        self._deadline_s = deadline_s
        self._switched_off = switched_off
        self._calls: asyncio.Queue[CloudCall] = asyncio.Queue()
        self._waiting: dict[str, list[asyncio.Future[CallReply]]] = defaultdict(list)
        self._replies: asyncio.Task[None] | None = None

    async def complete(self, call: CloudCall, deadline_s: float) -> CloudCompletion:
        """Ask once, within the deadline of the batch. Raises CoordinatorError like CoordinatorClient.complete."""
        reply = asyncio.get_running_loop().create_future()
        self._waiting[call.call_key].append(reply)
        self._calls.put_nowait(call)
        if self._replies is None:
            self._replies = asyncio.create_task(self._hand_out(), name="cloud-batch")
        await asyncio.wait([reply, self._replies], return_when=asyncio.FIRST_COMPLETED)
        if not reply.done():
            self._replies.result()
            raise AssertionError("a batch without an end has ended")
        outcome: CloudCompletion | CoordinatorError = reply.result().outcome
        if isinstance(outcome, CoordinatorError):
            raise outcome
        return outcome

    async def aclose(self) -> None:
        """End the batch; a failure of its own was raised to those who waited."""
        if self._replies is not None:
            self._replies.cancel()
            await asyncio.gather(self._replies, return_exceptions=True)

    async def _hand_out(self) -> None:
        async with closing(self._client.complete_batch(self._as_they_come(), self._deadline_s)) as replies:
            async for reply in replies:
                self._waiting[reply.call_key].pop(0).set_result(reply)

    async def _as_they_come(self) -> AsyncIterator[CloudCall]:
        while True:
            call = await self._calls.get()
            if off := self._switched_off():
                self._waiting[call.call_key].pop(0).set_result(CallReply(call.call_key, Withheld(off)))
            else:
                yield call


def refusal_text(error: BudgetExhausted) -> str:
    """A refusal for people, e.g. `budget used up: 12 of 12 calls; answering and learning go on without the cloud`."""
    what = "the rest of the step goes" if error.metadata.get("scope") == "step" else "answering and learning go"
    return f"budget used up: {what_is_used_up(error)}; {what} on without the cloud"
