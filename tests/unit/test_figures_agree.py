"""Every view of the cloud's cost agrees with the others and with the ledger, for every outcome of a call."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from edge.budget.whatif import past_answers, present, what_if
from edge.core.errors import BudgetExhausted, NotFound, OutcomeUnknown, Withheld
from edge.core.types import BeyondText, Message
from edge.learning.activity import activity_report
from edge.rpc.client import CallProgress, CancelledCall, CloudCall, CloudCompletion, CloudDelta
from edge.state.answer_record import AnswerRequest
from edge.state.usage import used_today
from edge.testing.coordinator import ScriptedCoordinatorClient, ScriptedTerms
from tests.worlds.agent import HELP, World, cloud_answer, local_answer

CHARGED_UUSD = 70


class MixedClient(ScriptedCoordinatorClient):
    """Questions about 100 are answered from the cache, those about 200 charged without an answer, those about 300 refused, those about 400
    withheld."""

    def __init__(self) -> None:
        super().__init__(cloud_answer, terms=ScriptedTerms())
        self.charged_without_answer: dict[str, int] = {}

    async def stream_complete(self, call: CloudCall, deadline_s: float) -> AsyncIterator[CloudDelta]:
        words = call.messages[-1].content
        if "300" in words:
            raise BudgetExhausted("the device's calls are used up")
        if "400" in words:
            raise Withheld("a never-send rule")
        if "200" in words:
            self.charged_without_answer[call.call_key] = CHARGED_UUSD
            raise OutcomeUnknown("cut after dispatch")
        async for delta in super().stream_complete(call, deadline_s):
            cached = delta.completion if delta.completion and "100" in words else None
            if cached is not None:
                self.calls.pop()
                yield replace(delta, completion=replace(cached, cached=True))
            else:
                yield delta

    async def get_call(self, call_key: str) -> CloudCompletion:
        if call_key in self.charged_without_answer:
            raise OutcomeUnknown("cut after dispatch")
        return await super().get_call(call_key)

    async def cancel_call(self, call_key: str) -> CancelledCall:
        if call_key in self.charged_without_answer:
            return CancelledCall(call_key, CallProgress.IN_DOUBT, CHARGED_UUSD)
        raise NotFound(call_key)

    @property
    def ledger(self) -> tuple[int, int]:
        """Calls and micro-USD."""
        charged = len(self.calls) * self._terms.price_uusd_per_call + sum(self.charged_without_answer.values())
        return len(self.calls) + len(self.charged_without_answer), charged


def asked(number: int) -> AnswerRequest:
    return AnswerRequest((Message("user", f"What is {number} + 1?"),))


async def test_report_usage_whatif_and_the_ledger_agree(tmp_path: Path) -> None:
    def script(messages, sampling, seed):
        return local_answer(1) if sampling.suppress_help or " 9" in messages[-1].content else HELP

    world = World(tmp_path, script=script)
    world.client = client = MixedClient()
    async with world.agent() as agent:
        answerer = agent.answerer
        for number in [*range(1, 6), 100, 200, 300, 400, *range(90, 100)]:
            await answerer.answer(asked(number))
        agent.access.pause_cloud(True)
        for number in range(1, 4):
            await answerer.answer(asked(number))
        agent.access.pause_cloud(False)
        while agent.access.unconfirmed.waiting():
            await agent.access.unconfirmed.settle()
        heard = past_answers(agent.components.state)
        replay = what_if(heard, [0.1])
        await answerer.answer(
            replace(asked(7), beyond=BeyondText('{"tools": [{"type": "function", "function": {"name": "f"}}]}', ("tools",)))
        )
        database = agent.components.state.database
        used, report = used_today(database, world.clock.now()).today, activity_report(database, 0.0, world.clock.now())
    assert (used.calls, used.spend_uusd) == client.ledger == (7, 670)
    assert report["cloud"]["serving"] == {"calls": 7, "tokens": used.tokens, "spend_uusd": 670}
    assert sum(stretch["serving_uusd"] for stretch in report["spend"]["stretches"]) == 670
    assert (replay.present.calls, replay.present.spend_uusd) == (6, 570.0), (
        "without the call of a tool, in which the model had no part"
    )
    assert present(heard) == replay.present
    [rate] = report["rates"]
    assert (rate["answers"], rate["asked"]) == (19, 9), (
        "without those while the cloud was paused, and those that only it could follow"
    )
