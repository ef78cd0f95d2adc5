"""The message of an exhausted budget: the use, the limit, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coordinator.config import TaskConfig
from coordinator.ledger.accounts import Amount, AmountLimits, BudgetRow, BudgetTerms
from coordinator.ledger.budgets import snapshot
from edge.answering.ask_cloud import why_not
from edge.cloud.group_calls import for_who_demanded_the_cloud, refusal_text
from edge.core.errors import BudgetExhausted
from edge.core.types import Message
from edge.state.answer_record import AnswerRequest
from tests.worlds.agent import World, always_asks

JARGON = "budget device[device:local] has no room for this call: it needs 1 call, none is left"
NUMBERS = {
    "budget": "device[device:local]",
    "scope": "device",
    "unit": "calls",
    "used": "62",
    "limit": "60",
    "needed": "1",
    "kept": "0",
}


def refusal(**numbers: str) -> BudgetExhausted:
    return BudgetExhausted(JARGON, metadata={**NUMBERS, "told": "device calls 62 of 60", **numbers})


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({}, "62 of 60 calls"),
        ({"scope": "fleet_task"}, "of this task on all devices"),
        ({"used": "10", "kept": "50"}, "10 of 60 calls, 50 kept for other devices"),
        ({"unit": "uusd,calls", "used": "1500", "limit": "2000", "needed": "900"}, "0.0015 USD of 0.002 USD"),
        ({"unit": "tokens", "used": "299", "limit": "300", "needed": "40"}, "this call may need 40"),
        ({"used": "many"}, "device calls 62 of 60"),  # the coordinator's own words
        ({"limit": "9" * 5000}, "device calls 62 of 60"),
    ],
)
@pytest.mark.parametrize("own", [True, False])
def test_refusal_names_the_exhausted_limit_and_advises_a_cloud_only_caller(
    numbers: dict[str, str], message: str, own: bool
) -> None:
    demanded = for_who_demanded_the_cloud(refusal(**numbers), own_coordinator=own)
    assert message in refusal_text(refusal(**numbers)) and message in str(demanded)
    assert why_not(demanded) == why_not(refusal(**numbers))
    option = "--spend" if "uusd" in numbers.get("unit", "calls") else "--" + numbers.get("unit", "calls")
    assert (f"edge-agent budget limit {option}" if own else "who runs the coordinator") in demanded.hint
    assert demanded.metadata["budget"] == "device[device:local]"


@pytest.mark.parametrize("mode", ["auto", "cloud-only"])
async def test_no_ledger_key_reaches_the_caller(tmp_path: Path, mode: Any) -> None:
    world = World(tmp_path / "state", script=always_asks)
    async with world.agent() as agent:
        world.client.fail_next("stream_complete", refusal())
        request = AnswerRequest([Message("user", "What is 3 + 1?")], mode=mode)
        if mode == "cloud-only":
            with pytest.raises(BudgetExhausted, match=r"^the budget is used up \(62 of 60 calls\)$") as refused:
                await agent.answerer.answer(request)
            text = f"{refused.value}; {refused.value.hint}"
        else:
            text = (await agent.answerer.answer(request)).reason
        assert "62 of 60 calls" in text
        assert "device[" not in text + agent.access.quotas.now("chat").line
        assert agent.access.quotas.now("chat").state == "used_up"
        agent.access.quotas.limits_changed()
        assert agent.access.quotas.now("chat").state != "used_up"


def test_limit_lowered_below_its_use_is_reported_as_configured() -> None:
    rows = [BudgetRow("device[device:d]", AmountLimits(calls=60), AmountLimits(calls=62), Amount(62, 9, 9), Amount())]
    shown = snapshot(None, TaskConfig(), rows, [BudgetTerms("device[device:d]", AmountLimits(calls=60))])
    assert (shown.calls, shown.calls_limit) == (62, 60)


def test_of_several_budgets_the_one_with_the_least_left_is_reported_for_each_unit() -> None:
    roomy, tight = AmountLimits(calls=60, tokens=40), AmountLimits(calls=20, tokens=900)
    rows = [BudgetRow("device[device:d]", roomy, roomy, Amount(3, 9, 9)), BudgetRow("fleet", tight, tight, Amount(18, 9, 9))]
    shown = snapshot(None, TaskConfig(), rows, [BudgetTerms(row.key, row.limits) for row in rows])
    assert (shown.calls, shown.calls_limit, shown.tokens, shown.tokens_limit) == (18, 20, 9, 40)
