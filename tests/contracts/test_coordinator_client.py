"""The contract of CoordinatorClient, for the scripted client and for the gRPC client with a coordinator in this process."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from dataclasses import replace

import pytest

from edge.core.errors import BudgetExhausted, InvalidRequest, KeyReused, NotFound, StepMismatch
from edge.dagrpo.dual import dual_step
from edge.rpc.client import CallProgress, CancelledCall, CloudCall, StepUnits
from edge.testing.coordinator import ScriptedCoordinatorClient, ScriptedReply, ScriptedTerms
from tests.worlds.coordinator import CALLED, TOOLS, ProgrammedProvider, call, connected, running_coordinator

DUAL, LR, TAU = 0.5, 0.1, 0.25
TASK = {"controller": "paper", "target_rate": TAU, "dual_init": DUAL, "dual_lr": LR, "step_credit_kappa": 2.0}


def scripted_answer(asked: CloudCall) -> str | ScriptedReply:
    """The answer of the coordinator's provider in these tests."""
    return ScriptedReply("", "tool_calls", CALLED) if asked.openai_json else asked.messages[-1].content.upper()


@pytest.fixture(params=["scripted", "grpc"])
async def make_client(request, tmp_path):
    """Makes one client whose device may make `calls_limit` calls; everything is closed at the end."""
    opened = []

    async def make(calls_limit: int | None = None):
        if request.param == "scripted":
            terms = ScriptedTerms(TAU, DUAL, LR, 2.0, calls_limit)
            return ScriptedCoordinatorClient(scripted_answer, terms=terms)
        budgets = {"device": {"calls_limit": calls_limit}}
        opened.append(running_coordinator(tmp_path, ProgrammedProvider(), tasks={"*": TASK}, budgets=budgets))
        await opened[-1].__aenter__()
        opened.append(connected(tmp_path))
        return await opened[-1].__aenter__()

    yield make
    for context in reversed(opened):
        await context.__aexit__(None, None, None)


@pytest.fixture
async def client(make_client):
    return await make_client()


async def test_register_returns_the_terms_of_each_task(client) -> None:
    registration = await client.register("1.0", ["math", "code"])
    assert [(terms.task, terms.target_rate, terms.dual, terms.next_step) for terms in registration.tasks] == [
        ("math", TAU, DUAL, 0),
        ("code", TAU, DUAL, 0),
    ]


async def test_open_step_returns_dual_rate_and_credit_and_is_idempotent(client) -> None:
    first = await client.open_step("math", 0, planned_prompts=6, group_size=4, target_rate=0.5)
    assert (first.dual, first.target_rate, first.call_credit) == (DUAL, 0.5, 6)
    assert await client.open_step("math", 0, planned_prompts=6, group_size=4, target_rate=0.5) == first


async def test_close_step_moves_the_dual_exactly_once(client) -> None:
    await client.open_step("math", 0, 2, 4, TAU)
    closed = await client.close_step("math", 0, StepUnits(8, 6))
    assert (closed.dual_before, closed.assist_rate) == (DUAL, 0.75)
    assert closed.dual_after == dual_step(DUAL, 0.75, TAU, LR)
    assert await client.close_step("math", 0, StepUnits(8, 6)) == closed
    with pytest.raises(KeyReused):
        await client.close_step("math", 0, StepUnits(8, 5))
    assert (await client.open_step("math", 1, 2, 4, TAU)).dual == closed.dual_after


async def test_impossible_units_are_refused_and_uncalled_requests_count(client) -> None:
    with pytest.raises(InvalidRequest):
        await client.open_step("math", 0, 1, 8, 1.5)
    await client.open_step("math", 0, 1, 8, TAU)
    for units in (StepUnits(8, 9), StepUnits(8, 6, uncalled=7)):
        with pytest.raises(InvalidRequest):
            await client.close_step("math", 0, units)
    closed = await client.close_step("math", 0, StepUnits(8, 8, uncalled=8))
    assert (closed.assist_rate, closed.discrepancies) == (1.0, ())


async def test_step_number_with_a_gap_is_refused_with_the_expected_number(client) -> None:
    with pytest.raises(StepMismatch) as caught:
        await client.open_step("math", 3, 2, 4, TAU)
    assert caught.value.expected_step == 0


async def test_each_task_has_its_own_steps_and_dual(client) -> None:
    await client.open_step("math", 0, 2, 4, TAU)
    await client.close_step("math", 0, StepUnits(8, 8))
    assert (await client.open_step("code", 0, 2, 4, TAU)).dual == DUAL


async def test_same_key_returns_the_same_answer_with_one_charge(client) -> None:
    first = await client.complete(call(), 5.0)
    again = await client.complete(call(), 5.0)
    assert first.text == "WHAT IS 2+2?" and first.charged_uusd > 0 and not first.cached
    assert replace(again, budget=None) == replace(first, budget=None)
    assert json.loads(first.openai_json) == {"finish_reason": "stop"}
    assert (await client.get_budget("math")).calls == 1


async def test_the_same_key_with_other_content_is_refused(client) -> None:
    await client.complete(call(), 5.0)
    await client.complete(call("k2", openai_json=TOOLS), 5.0)
    for other in (call(prompt="something else"), call(openai_json=TOOLS), call("k2"), call("k2", openai_json='{"tools": []}')):
        with pytest.raises(KeyReused):
            await client.complete(other, 5.0)


async def test_prompt_group_is_billed_once_regardless_of_who_asks_first(client) -> None:
    await client.open_step("math", 0, 4, 4, 0.5)
    calls = [call(f"k{i}", step=0, prompt_id="group") for i in range(6)]
    answers = await asyncio.gather(*(client.complete(each, 5.0) for each in calls))
    assert {each.text for each in answers} == {"WHAT IS 2+2?"}
    assert sum(not each.cached for each in answers) == 1 and sum(each.charged_uusd > 0 for each in answers) == 1
    assert [each.call_key for each in answers] == [each.call_key for each in calls]
    assert (await client.get_budget("math")).calls == 1


async def test_a_call_for_a_step_that_is_not_open_is_refused(client) -> None:
    with pytest.raises(StepMismatch):
        await client.complete(call(step=0), 5.0)


async def test_the_step_credit_bounds_the_calls_of_a_step(client) -> None:
    opened = await client.open_step("math", 0, planned_prompts=4, group_size=4, target_rate=TAU)
    assert opened.call_credit == 2
    for number in range(2):
        await client.complete(call(f"k{number}", f"q{number}", step=0, prompt_id=f"p{number}"), 5.0)
    with pytest.raises(BudgetExhausted) as caught:
        await client.complete(call("k2", "q2", step=0, prompt_id="p2"), 5.0)
    assert caught.value.metadata["budget"].startswith("step")


async def test_exhausted_budget_is_refused_by_name_and_stored_answers_stay_available(make_client) -> None:
    client = await make_client(calls_limit=1)
    await client.complete(call(), 5.0)
    with pytest.raises(BudgetExhausted) as caught:
        await client.complete(call("k2", "another"), 5.0)
    assert caught.value.metadata["budget"].startswith("device") and "calls" in caught.value.metadata["unit"]
    assert (await client.complete(call(), 5.0)).text == "WHAT IS 2+2?"


async def test_get_call_returns_a_stored_answer_and_starts_no_work(client) -> None:
    with pytest.raises(NotFound):
        await client.get_call("k1")
    asked = await client.complete(call(), 5.0)
    assert replace(await client.get_call("k1"), budget=None) == replace(asked, budget=None)
    assert (await client.get_budget("math")).calls == 1


async def test_tool_calls_are_returned_whole_streamed_and_replayed(client) -> None:
    called = {"finish_reason": "tool_calls", **json.loads(CALLED)}
    whole = await client.complete(call(openai_json=TOOLS), 5.0)
    assert (whole.text, json.loads(whole.openai_json)) == ("", called) and whole.charged_uusd > 0
    assert replace(await client.get_call("k1"), budget=None) == replace(whole, budget=None)
    deltas = [delta async for delta in client.stream_complete(call("k2", "other", openai_json=TOOLS), 5.0)]
    assert json.loads(deltas[-1].completion.openai_json) == called


async def test_invalid_openai_fields_are_refused_without_charge(client) -> None:
    with pytest.raises(InvalidRequest, match="unknown field 'web_search_options'"):
        await client.complete(call(openai_json='{"web_search_options": {}}'), 5.0)
    assert (await client.get_budget("math")).calls == 0


async def test_cancelling_an_answered_call_changes_nothing(client) -> None:
    with pytest.raises(NotFound):
        await client.cancel_call("k1")
    answered = await client.complete(call(), 5.0)
    cancelled = await client.cancel_call("k1")
    assert cancelled == CancelledCall("k1", CallProgress.COMPLETED, answered.charged_uusd)
    assert (await client.get_budget("math")).calls == 1


async def test_watch_sends_the_budget_and_then_each_change(make_client) -> None:
    client = await make_client(calls_limit=3)
    async with aclosing(client.watch_budget("math")) as budgets:
        assert (await anext(budgets)).calls == 0
        await client.complete(call(), 5.0)
        async with asyncio.timeout(60.0):
            while (seen := await anext(budgets)).calls == 0 or seen.spend_uusd != (await client.get_budget("math")).spend_uusd:
                pass
        assert (seen.calls, seen.calls_limit) == (1, 3)


async def test_stream_ends_with_the_whole_completion_and_can_be_replayed(client) -> None:
    deltas = [delta async for delta in client.stream_complete(call(), 5.0)]
    again = [delta async for delta in client.stream_complete(call(), 5.0)]
    assert "".join(delta.text for delta in deltas) == "".join(delta.text for delta in again) == "WHAT IS 2+2?"
    assert deltas[-1].completion is not None and deltas[-1].completion.text == "WHAT IS 2+2?"
    assert all(delta.completion is None for delta in deltas[:-1])


@pytest.mark.parametrize("change", [{"max_output_tokens": 0}, {"messages": ()}, {"call_key": ""}, {"prompt_id": ""}])
async def test_a_malformed_call_is_refused(make_client, change) -> None:
    client = await make_client()
    with pytest.raises(InvalidRequest):
        await client.complete(call(**change), 5.0)


async def test_budget_reports_use_and_limit(make_client) -> None:
    client = await make_client(calls_limit=3)
    before = await client.get_budget("math")
    await client.complete(call(), 5.0)
    after = await client.get_budget("math")
    assert (before.calls, before.calls_limit, before.spend_uusd) == (0, 3, 0)
    assert (after.calls, after.calls_limit) == (1, 3) and after.spend_uusd > 0 and after.version > before.version
    assert (after.dual, after.target_rate) == (DUAL, TAU)
    await client.aclose()  # once more after this one does no harm
