"""The budget dial on the bundled model with the bundled cloud LLM: it holds its rate, and chooses better than a lot."""

from __future__ import annotations

from pathlib import Path

from edge.bootstrap import build_agent, build_verifier
from edge.core.events import MemorySink
from tools.experiments.dial import Experiment, config_for, mixed_items


async def test_on_a_frozen_bundled_model_the_dial_realises_its_rate_from_a_cold_start(tmp_path: Path) -> None:
    config = config_for(tmp_path / "state")
    async with build_agent(config, MemorySink()) as agent:
        experiment = Experiment(agent, build_verifier(config), lambda line: None)
        known = await experiment.known(mixed_items(60, seed=3))
        for rate in (0.1, 0.5):
            run = await experiment.run("cold", rate, known)
            assert abs(run.realised_rate - rate) <= 0.05
            assert run.forced_local_accuracy < run.joint_accuracy <= run.oracle + 0.05
            assert run.joint_accuracy >= run.random_routing - 0.02
            assert len(run.rates_by_question) == 60
