"""Verdicts, pauses and reports through the port of a running agent."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from edge.core.errors import NotFound, UsageError
from edge.core.types import Message
from edge.learning.own_use import LEARNED_LATER
from edge.serve.running_agent import RunningAgent
from edge.state.answer_record import AnswerRequest
from edge.testing.endpoint import NOTHING_TO_REPORT, ScriptedAnswers, ScriptedControl
from tests.unit.agent_world import World


async def test_verdicts_are_kept_over_restarts_and_counted_in_the_report(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with world.agent() as agent:
        control = RunningAgent(agent)
        answer = await agent.answerer.answer(AnswerRequest((Message("user", "What is 3 + 1?"),)))
        kept = {"id": answer.id, "verdict": "bad", "correction": "4"}
        assert await control.feedback(answer.id, "bad", " 4 ") == {**kept, "outlook": LEARNED_LATER}
        with pytest.raises(NotFound):
            await control.feedback("nobody", "good", None)
        with pytest.raises(UsageError):
            await control.feedback(answer.id, "fine", None)
    async with world.agent() as agent:
        told = await RunningAgent(agent).report(0.0)
        assert [(one["bad"], one["corrected"]) for one in told["answers"]] == [(1, 1)]
        assert agent.records.feedback.of(answer.id).to_json() == kept


async def test_a_pause_is_told_by_the_status_and_kept(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with world.agent() as agent:
        assert await RunningAgent(agent).pause_learning(True) == {"paused": True, "waiting": "paused by you"}
    async with world.agent() as agent:
        control = RunningAgent(agent)
        status = await control.status()
        assert (status["paused"], status["waiting"]) == (True, "paused by you")
        assert await control.pause_learning(False) == {"paused": False, "waiting": ""}


async def test_the_end_of_a_pause_is_told_at_once_while_learning_still_waits(tmp_path: Path) -> None:
    async with World(tmp_path).agent() as agent:
        control = RunningAgent(agent)
        await control.pause_learning(True)
        learning = asyncio.create_task(agent.learn())
        while not agent.learning.readiness.waiting:
            await asyncio.sleep(0)
        assert await control.pause_learning(False) == {"paused": False, "waiting": ""}
        await learning


async def test_the_scripted_report_has_the_keys_of_a_real_one(tmp_path: Path) -> None:
    async with World(tmp_path).agent() as agent:
        real = await RunningAgent(agent).report(5.0)
    assert real | {"now": 0.0} == await ScriptedControl(ScriptedAnswers([])).report(5.0)
    assert real.keys() == NOTHING_TO_REPORT.keys() | {"since"}
