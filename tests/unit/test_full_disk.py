"""A disk that takes nothing more: answers go on from this device and say that they are not recorded, and no money is spent uncounted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edge.agent import Agent
from edge.cloud.group_calls import CloudOutcome
from edge.cloud.unconfirmed import ARRIVES_WITHIN_S
from edge.core.errors import BudgetExhausted, NotFound, StateError, Withheld
from edge.core.types import Message
from edge.rpc.client import CloudCall
from edge.state.answer_record import AnswerRequest
from edge.state.events import Notice
from tests.unit.agent_world import HELP, World, local_answer


def asks_unless_suppressed(messages, sampling, seed):  # type: ignore[no-untyped-def]
    return local_answer(3) if sampling.suppress_help else HELP


def fill(agent: Agent, full: bool = True) -> None:
    """Nothing can be written from now on, or again."""
    agent.components.state.database.execute(f"PRAGMA query_only = {int(full)}")


def question(**options: object) -> AnswerRequest:
    return AnswerRequest((Message("user", "What is 4 + 1?"),), **options)  # type: ignore[arg-type]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "state", script=asks_unless_suppressed)


async def test_the_answer_comes_from_this_device_and_no_call_leaves_that_cannot_be_written_down(world: World) -> None:
    async with world.agent() as agent:
        fill(agent)
        record = await agent.answerer.answer(question())
        with pytest.raises(NotFound):
            agent.records.why(record.id)
        local = await agent.answerer.answer(question(mode="local-only"))
        with pytest.raises(Withheld, match="cannot be written down"):
            await agent.answerer.answer(question(mode="cloud-only"))
        fill(agent, False)
        again = await agent.answerer.answer(question())
    assert (record.source, record.final, record.call_key) == ("local-fallback", "3", "")
    assert "the call cannot be written down" in record.reason
    assert "not recorded, the state folder cannot be written" in record.reason
    assert "not recorded" in local.reason
    assert (again.source, [call.call_key for call in world.client.calls]) == ("cloud", [again.call_key])
    assert any(record.id in notice.text for notice in world.events(Notice))


async def test_a_disk_that_fills_while_the_cloud_answers_leaves_its_call_to_be_settled(world: World) -> None:
    async with world.agent() as agent:
        world.client._answer = lambda call: fill(agent) or "\\boxed{5}"  # type: ignore[func-returns-value]
        record = await agent.answerer.answer(question())
        assert await agent.access.unconfirmed.settle() == 0
        fill(agent, False)
        assert await agent.access.unconfirmed.settle() == 1
        kept = agent.records.why(record.id)
    assert (record.source, record.final) == ("cloud", "5") and "not recorded" in record.reason
    assert (kept.charged_uusd, kept.call_state) == (100, "completed")


async def test_a_refusal_stays_a_refusal(world: World) -> None:
    async with world.agent() as agent:

        def refuse(call: CloudCall) -> str:
            fill(agent)
            raise BudgetExhausted("the device's calls are used up")

        world.client._answer = refuse
        record = await agent.answerer.answer(question())
    assert record.source == "local-fallback" and "the budget is used up" in record.reason


async def test_a_pause_holds_while_the_agent_lives_and_a_resumption_needs_the_disk(world: World) -> None:
    async with world.agent() as agent:
        fill(agent)
        agent.budgets.pause_cloud(True)
        record = await agent.answerer.answer(question())
        with pytest.raises(StateError, match="cannot be written"):
            agent.budgets.pause_cloud(False)
        assert agent.budgets.switch.paused
        fill(agent, False)
        agent.budgets.pause_cloud(False)
        assert not agent.budgets.switch.reason
    assert world.client.calls == [] and "the cloud is paused" in record.reason
    assert any("only until this agent stops" in notice.text for notice in world.events(Notice))


async def test_learning_makes_no_call_that_its_daily_budget_cannot_count(world: World) -> None:
    async with world.agent() as agent:
        fill(agent)
        session = agent.learning.session
        outcome: CloudOutcome = await session.cloud.ask(CloudCall("k" * 32, "math", 0, "0:x", 1, (Message("user", "?"),), 8))
        assert agent.learning.daily_budget.today().calls == 0
    assert outcome.unsent and "cannot be written down" in outcome.reason
    assert world.client.calls == []


async def test_a_call_that_never_arrived_is_not_taken_for_settled_before_that_is_written(world: World) -> None:
    async with world.agent() as agent:
        record = await agent.answerer.answer(question(mode="local-only"))
        agent.access.unconfirmed.begin(replace(record, id="other", call_key="k"))
        with agent.access.unconfirmed.waited_for(lambda: "k"):
            fill(agent)
        await agent.access.unconfirmed.settle()
        world.clock.advance(ARRIVES_WITHIN_S)
        assert (await agent.access.unconfirmed.settle(), agent.access.unconfirmed.waiting()) == (0, ["k"])
        fill(agent, False)
        await agent.access.unconfirmed.settle()
        world.clock.advance(ARRIVES_WITHIN_S)
        assert (await agent.access.unconfirmed.settle(), agent.access.unconfirmed.waiting()) == (1, [])
