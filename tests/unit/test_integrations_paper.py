"""The launch files of both engines have the paper's settings: groups, rates, numbers of steps, λ."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from coordinator.config import CoordinatorConfig
from edge.config.loader import resolve
from tools.integrations.trl.config import TrlConfig, resolve_run

INTEGRATIONS = Path("tools/integrations")
VERL = INTEGRATIONS / "verl"


@pytest.fixture(params=["qwen2.5-1.5b-instruct", "llama-3.2-3b-instruct"])
def trl(request: pytest.FixtureRequest) -> TrlConfig:
    return resolve_run(INTEGRATIONS / "trl" / "configs" / f"{request.param}.yaml").config


def test_verl_coordinator_has_the_rates_and_lambda_of_the_trl_runs(trl):
    tasks = resolve(CoordinatorConfig, files=[VERL / "config" / "coordinator.yaml"]).config.tasks
    learning = trl.agent.learning
    for phase, terms in zip(trl.agent.phases, (tasks["*"], tasks["group2"]), strict=True):
        assert terms.target_rate == phase.target_rate
        assert (terms.dual_init, terms.dual_lr, terms.dual_scope) == (learning.dual_init, learning.dual_lr, learning.dual_scope)


def test_verls_launch_file_has_the_rate_and_steps_of_trls_first_phase(trl):
    launch, first = yaml.safe_load((VERL / "config" / "dagrpo.yaml").read_text(encoding="utf-8")), trl.agent.phases[0]
    assert (launch["dagrpo"]["task"], launch["dagrpo"]["target_rate"]) == (first.task, first.target_rate)
    assert launch["trainer"]["total_training_steps"] == first.steps
