"""Calls whose reply was lost: their cost is looked up exactly once, and a request that may still arrive is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from edge.agent import Agent
from edge.cloud.unconfirmed import ARRIVES_WITHIN_S
from edge.core.errors import CallInProgress, CoordinatorUnavailable, OutcomeUnknown
from edge.rpc.client import CallProgress, CancelledCall, CloudCall, CloudDelta
from edge.state.answer_record import AnswerRequest
from tests.until import until
from tests.worlds.agent import QUESTION, World, always_asks, recorded


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "state", script=always_asks)


async def settled(agent: Agent) -> None:
    """Wait until the agent has found out by itself."""
    await until(lambda: not agent.status().unsettled_calls)


async def test_answer_whose_reply_was_lost_gets_its_cost_exactly_once(world: World) -> None:
    async with world.agent() as agent:
        world.client.fail_next("get_call", CoordinatorUnavailable("nobody there", reason="UNREACHABLE"))
        world.client.lose_next_reply()
        record = await agent.answerer.answer(AnswerRequest(QUESTION))
        assert (record.source, record.call_state, record.charged_uusd, record.final) == ("local-fallback", "unsettled", 0, "3")
        await settled(agent)
        found = recorded(agent, record.id)
        assert (found.call_state, found.charged_uusd, found.cloud_model, found.text) == (
            "completed",
            100,
            "scripted",
            record.text,
        )
        assert await agent.access.unconfirmed.settle() == 0
    assert len(world.client.calls) == 1


async def test_call_unknown_long_after_it_was_last_sent_never_arrived_and_costs_nothing(world: World) -> None:
    async with world.agent() as agent:
        calls = agent.access.unconfirmed
        world.client.fail_next("stream_complete", CoordinatorUnavailable("cut", reason="CONNECTION_LOST"))
        record = await agent.answerer.answer(AnswerRequest(QUESTION))
        assert await calls.settle() == 0
        world.clock.advance(ARRIVES_WITHIN_S - 1.0)
        assert await calls.settle() == 0
        world.clock.advance(1.0)
        calls.sent(record.call_key)  # it may be on its way again
        calls.returned(record.call_key)
        assert await calls.settle() == 0
        assert calls.waiting() == [record.call_key]
        world.clock.advance(ARRIVES_WITHIN_S)
        await calls.settle()
        assert (recorded(agent, record.id).call_state, recorded(agent, record.id).charged_uusd) == ("never_arrived", 0)


async def test_request_overtaken_by_its_own_lookup_is_recorded_with_its_cost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The person left, the coordinator knew nothing of the call yet, and then it arrived and was answered."""
    on_its_way: list[CloudCall] = []

    async def slow(call: CloudCall, deadline_s: float) -> AsyncGenerator[CloudDelta, None]:
        on_its_way.append(call)
        raise CoordinatorUnavailable("cut", reason="CONNECTION_LOST")
        yield

    monkeypatch.setattr(world.client, "stream_complete", slow)
    async with world.agent() as agent:
        record = await agent.answerer.answer(AnswerRequest(QUESTION))
        assert await agent.access.unconfirmed.settle() == 0
        await world.client.complete(on_its_way[0], 5.0)
        await agent.access.unconfirmed.settle()
        assert (recorded(agent, record.id).call_state, recorded(agent, record.id).charged_uusd) == ("completed", 100)


async def test_call_that_ended_without_an_answer_is_recorded_with_its_cost(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def cancelled(key: str) -> CancelledCall:
        return CancelledCall(key, CallProgress.IN_DOUBT, 211)

    monkeypatch.setattr(world.client, "cancel_call", cancelled)
    world.client.fail_next("stream_complete", OutcomeUnknown("cut after dispatch"))
    world.client.fail_next("get_call", CallInProgress("still running"))
    world.client.fail_next("get_call", OutcomeUnknown("cut after dispatch"))
    async with world.agent() as agent:
        record = await agent.answerer.answer(AnswerRequest(QUESTION))
        await settled(agent)
        assert (recorded(agent, record.id).call_state, recorded(agent, record.id).charged_uusd) == ("in_doubt", 211)


async def test_answer_abandoned_during_the_cloud_stream_keeps_a_record_of_its_cost(world: World) -> None:
    honest = world.client.stream_complete

    async def slow(call: Any, deadline_s: float) -> Any:
        async for delta in honest(call, deadline_s):
            yield delta
            if isinstance(delta, CloudDelta) and delta.completion is None:
                await asyncio.sleep(0)

    world.client.stream_complete = slow  # type: ignore[method-assign]
    async with world.agent() as agent:
        async with aclosing(agent.answerer.stream(AnswerRequest(QUESTION, id="left"))) as pieces:
            async for piece in pieces:
                if piece.source == "cloud":
                    break
        await settled(agent)
        record = recorded(agent, "left")
        assert (record.charged_uusd, record.call_state, "cut off" in record.reason) == (100, "completed", True)


async def test_process_killed_during_a_call_leaves_enough_to_find_its_cost(world: World) -> None:
    async with world.agent() as agent:
        record = await agent.answerer.answer(AnswerRequest(QUESTION, id="one"))
        draft = recorded(agent, "one")
        with agent.components.state.database as database:  # as kill -9 between the reply and the record would leave it
            database.execute("DELETE FROM requests")
        agent.access.unconfirmed.begin(draft)
    async with world.agent() as agent:
        await settled(agent)
        assert recorded(agent, "one").charged_uusd == record.charged_uusd == 100
    assert len(world.client.calls) == 1


async def test_answer_that_outlives_the_state_folder_ends_silently(world: World) -> None:
    async with world.agent() as agent:
        outliving = agent.access.unconfirmed.waited_for(lambda: "k")
        outliving.__enter__()
    outliving.__exit__(None, None, None)
    assert not agent.access.unconfirmed.wake.is_set()
