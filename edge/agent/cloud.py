"""Asking the cloud for one prompt group. Knows which failures can be waited out; knows nothing of rewards or λ.

A bad call is data, not a crash: the outcome says answered, refused (a budget is gone) or failed (anything else).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from edge.core.errors import BudgetExhausted, CallInProgress, CoordinatorError, RateLimited
from edge.rpc.client import CloudCall, CloudCompletion, CoordinatorClient

_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class CloudOutcome:
    """`completion` when answered; else `refused` tells a budget's refusal from a failure, `reason` is one line."""

    completion: CloudCompletion | None
    refused: bool = False
    reason: str = ""


class CloudDesk:
    """Asks the cloud, or says why not."""

    def __init__(self, client: CoordinatorClient, deadline_s: float, switched_off: str = "") -> None:
        """`switched_off`: why nothing may be asked ("" when it may)."""
        self._client = client
        self._deadline_s = deadline_s
        self.switched_off = switched_off

    async def ask(self, call: CloudCall) -> CloudOutcome:
        """Ask once; the same call key never pays twice. Never raises CoordinatorError."""
        if self.switched_off:
            return CloudOutcome(None, reason=self.switched_off)
        try:
            async with asyncio.timeout(self._deadline_s + 5.0):
                return CloudOutcome(await self._waiting_out(call))
        except BudgetExhausted as error:
            return CloudOutcome(None, refused=True, reason=refusal_text(error))
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
                return await self._client.complete(call, self._deadline_s)
            except RateLimited as error:
                await asyncio.sleep(error.retry_after_s or _POLL_S)
            except CallInProgress as error:
                recovering = True
                await asyncio.sleep(error.retry_after_s or _POLL_S)


def refusal_text(error: BudgetExhausted) -> str:
    """A refusal for people, e.g. `budget used up: device calls 12 of 12; answering and learning go on without the cloud`."""
    budget = error.metadata.get("told") or error.metadata.get("budget") or str(error)
    what = "the rest of the step goes" if error.metadata.get("scope") == "step" else "answering and learning go"
    return f"budget used up: {budget}; {what} on without the cloud"
