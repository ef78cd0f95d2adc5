"""Pauses and reports through the port of a running agent."""

from __future__ import annotations

import asyncio
from pathlib import Path

from edge.serve.agent_schemas import LearningPausedView
from edge.serve.running_agent import RunningAgent
from edge.testing.endpoint import ScriptedAnswers, ScriptedControl
from tests.worlds.agent import World


async def test_end_of_a_pause_is_shown_immediately_while_learning_still_waits(tmp_path: Path) -> None:
    async with World(tmp_path).agent() as agent:
        control = RunningAgent(agent)
        await control.pause_learning(True)
        learning = asyncio.create_task(agent.learn())
        while not agent.learning.readiness.waiting:
            await asyncio.sleep(0)
        assert await control.pause_learning(False) == LearningPausedView(paused=False, waiting="")
        await learning


async def test_the_scripted_report_has_the_keys_of_a_real_one(tmp_path: Path) -> None:
    async with World(tmp_path).agent() as agent:
        real = await RunningAgent(agent).report(5.0)
    assert real.model_copy(update={"now": 0.0}) == await ScriptedControl(ScriptedAnswers([])).report(5.0)
