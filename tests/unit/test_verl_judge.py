"""Responses sampled by verl, judged one by one by several workers with one coordinator. Needs no verl."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from edge.cloud.group_calls import GroupCalls
from edge.core.errors import CoordinatorUnavailable
from edge.evaluation.judging import RolloutSettings
from edge.learning.rollout import ScoredResponse
from edge.routing.policy import SelfOffload
from edge.rpc.client import CloudCall
from edge.testing.clock import ManualClock
from edge.testing.coordinator import ScriptedCoordinatorClient, ScriptedTerms
from edge.verifiers.by_kind import VerifierByKind
from tests.worlds.agent import BROKEN_HELP, HELP, item, local_answer, number_in
from tools.integrations.scoring import Scorer
from tools.integrations.verl.outcomes import OUTSIDE_TRAINING, score_one

SETTINGS = RolloutSettings("run", 0, 1, 1.0, 64, "full", "compact", 64)


def right(call: CloudCall) -> str:
    return f"<answer>\\boxed{{{number_in(call.messages[-1].content) + 1}}}</answer>"


def worker(client: ScriptedCoordinatorClient) -> Scorer:
    return Scorer(GroupCalls(client, 5.0), VerifierByKind(), SelfOffload(), ManualClock(), SETTINGS)


async def opened(terms: ScriptedTerms | None = None, delay_s: float = 0.0) -> ScriptedCoordinatorClient:
    client = ScriptedCoordinatorClient(right, terms=terms, delay_s=delay_s)
    await client.open_step("math", 0, 4, 4, 0.3)
    return client


async def judged(
    judge: Scorer, text: str, number: int = 7, *, cut: bool = False, step: int = 0, ask: bool = True
) -> ScoredResponse:
    return await score_one(judge, item(number), text, cut=cut, task="math", task_step=step, ask_cloud=ask)


async def test_local_answers_are_rewarded_as_in_the_paper():
    judge = worker(await opened())
    found = [await judged(judge, text) for text in (local_answer(8), local_answer(9), "8", BROKEN_HELP)]
    assert [(one.reward, one.cost) for one in found] == [(1.0, 0), (0.0, 0), (-0.1, 0), (-0.1, 0)]


async def test_a_response_cut_at_the_limit_of_tokens_violates_the_format_and_asks_for_nothing():
    client = await opened()
    found = await judged(worker(client), HELP, cut=True)
    assert (found.reward, found.cost, found.asked) == (-0.1, 0, False)
    assert client.calls == []


async def test_a_group_spread_over_several_workers_makes_one_call_that_is_paid_once():
    client = await opened(delay_s=0.01)
    workers = [worker(client) for _ in range(3)]
    found = await asyncio.gather(*(judged(workers[number % 3], HELP) for number in range(8)))
    assert {(one.reward, one.cost, one.asked) for one in found} == {(1.0, 1, True)}
    ((prompt_id, units),) = [(call.prompt_id, call.help_units) for call in client.calls]
    assert (prompt_id.startswith("0:math-7:"), units) == (True, 1)


async def test_questions_of_two_sources_with_the_same_id_have_a_call_each():
    client = await opened()
    one, other = item(7), replace(item(8), id=item(7).id)
    for asked in (one, other, one):
        found = await score_one(worker(client), asked, HELP, cut=False, task="math", task_step=0)
        assert (found.reward, found.asked) == (1.0, True)
    assert len({call.call_key for call in client.calls}) == len(client.calls) == 2


async def test_failed_call_masks_the_response():
    client = await opened()
    client.fail_next("complete", CoordinatorUnavailable("the upstream is down"))
    found = await judged(worker(client), HELP)
    assert (found.masked, found.asked, found.cost) == (True, True, 0)


async def test_call_refused_by_the_hard_cap_costs_and_earns_nothing():
    client = await opened(ScriptedTerms(calls_limit=0))
    found = await judged(worker(client), HELP)
    assert (found.reward, found.cost, found.outcome.value, found.masked) == (0.0, 1, "refused", False)


async def test_while_the_step_is_offline_requests_are_masked_and_nothing_is_asked():
    client = await opened()
    found = await judged(worker(client), HELP, ask=False)
    assert found.masked
    assert found.asked
    assert client.calls == []


async def test_validation_asks_outside_of_steps_and_pays_for_a_question_once():
    client = await opened()
    for _ in range(2):
        assert (await judged(worker(client), HELP, step=OUTSIDE_TRAINING)).reward == 1.0
    assert [call.step for call in client.calls] == [-1]
