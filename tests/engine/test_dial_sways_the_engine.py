"""The budget dial on the bundled model with the bundled cloud LLM: it holds its rate and selects better than chance."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.app.agents import build_agent
from edge.app.judging import build_verifier
from edge.core.events import MemorySink
from edge.core.types import Message
from edge.state.answer_record import AnswerRequest
from tools.experiments.dial import Experiment, config_for, mixed_items


@pytest.mark.long
async def test_dial_reaches_its_rate_on_a_frozen_bundled_model_from_a_cold_start(tmp_path: Path) -> None:
    config = config_for(tmp_path / "state")
    async with build_agent(config, MemorySink()) as agent:
        experiment = Experiment(agent, build_verifier(config), lambda line: None)
        known = await experiment.known(mixed_items(60, seed=3))
        for rate in (0.1, 0.5):
            run = await experiment.run("cold", rate, known)
            assert abs(run.realised_rate - rate) <= 0.05
            assert run.forced_local_accuracy < run.joint_accuracy <= run.oracle + 0.05
            assert run.joint_accuracy >= run.random_routing - 0.02


async def test_dial_at_one_always_asks_and_shows_no_partial_request(tmp_path: Path) -> None:
    config = config_for(tmp_path / "state")
    async with build_agent(config, MemorySink()) as agent:
        agent.access.dials.set(1.0)
        records = [
            await agent.answerer.answer(AnswerRequest((Message("user", item.question),))) for item in mixed_items(24, seed=5)
        ]
    assert [record.source for record in records[4:]] == ["cloud"] * 20
    assert all(record.asked == (record.source == "cloud") for record in records)
    assert all(record.reason == "the budget dial had the model ask for help" for record in records if record.help_log_odds < 0)
