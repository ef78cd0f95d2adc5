"""A small world for tests of the TRL integration: questions "What is N + 1?", texts in place of tokens, a scripted coordinator."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from edge.cloud.group_calls import GroupCalls
from edge.config.schema import AgentConfig, LearningConfig, PhaseConfig
from edge.core.events import MemorySink
from edge.core.types import FinishReason, LocalResponse
from edge.evaluation.judging import RolloutSettings
from edge.learning.curriculum import StepPlan
from edge.learning.step_reporter import StepReporter
from edge.routing.policy import SelfOffload
from edge.state.folder import StateFolder
from edge.testing.clock import ManualClock
from edge.testing.coordinator import ScriptedCoordinatorClient, ScriptedTerms
from edge.verifiers.math_answer import ExactMathAnswer
from tests.worlds.agent import cloud_answer, item
from tools.integrations.scoring import Scorer
from tools.integrations.trl.config import TrainerConfig, TrlConfig
from tools.integrations.trl.steps import TrlSteps


def plans(steps: int, prompts: int = 2, target_rate: float = 0.25) -> list[StepPlan]:
    """Steps over consecutive sums."""
    return [
        StepPlan(
            step=step,
            steps_planned=steps,
            phase=0,
            phase_step=step,
            source="sums",
            task="math",
            target_rate=target_rate,
            items=tuple(item((step - 1) * prompts + index) for index in range(prompts)),
            cursor_seed=7,
            cursor_after=step * prompts,
        )
        for step in range(1, steps + 1)
    ]


def completions(step: int, groups: Sequence[Sequence[str]], *, cut: Sequence[str] = ()) -> list[tuple[int, LocalResponse]]:
    """The responses of a step with the places of their prompts; those in `cut` have no end."""
    first = (step - 1) * len(groups)
    return [
        (first + index, response(text, FinishReason.LENGTH if text in cut else FinishReason.EOS))
        for index, group in enumerate(groups)
        for text in group
    ]


def response(text: str, finish: FinishReason) -> LocalResponse:
    """A response of as many tokens as words."""
    count = len(text.split())
    return LocalResponse(text, tuple(range(5, 5 + count)), (0.0,) * count, finish)


def trl_config(learning: LearningConfig, *, out: str = "runs/trl", **trainer: Any) -> TrlConfig:
    """A run of three steps of sums."""
    agent = AgentConfig(learning=learning, phases=(PhaseConfig(source="practice:arith", steps=3),))
    return TrlConfig(out=out, agent=agent, trainer=TrainerConfig(**trainer))


def write_checkpoint(folder: Path, step: int) -> Path:
    """A complete checkpoint in transformers' layout with almost no content."""
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"):
        with zipfile.ZipFile(path / name, "w") as archive:
            archive.writestr("data", name)
    save_file({"weight": np.zeros(4, np.float32)}, path / "adapter_model.safetensors")
    (path / "adapter_config.json").write_text("{}")
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return path


@dataclass
class TrlWorld:
    """The parts that survive a kill: the state folder and the coordinator. `process` makes the rest, as a new process would."""

    folder: Path
    steps: list[StepPlan] = field(default_factory=lambda: plans(4))
    group_size: int = 4
    terms: ScriptedTerms = field(
        default_factory=lambda: ScriptedTerms(target_rate=0.25, dual_init=0.5, dual_lr=0.1, step_credit_kappa=None)
    )
    skip_unanimous_calls: bool = False

    def __post_init__(self) -> None:
        self.client = ScriptedCoordinatorClient(cloud_answer, terms=self.terms)
        self.sink = MemorySink()
        self.clock = ManualClock()
        self.states: list[StateFolder] = []

    def state(self) -> StateFolder:
        """The folder, reopened; a killed process has released it."""
        for state in self.states:
            state.close()
        self.states.append(StateFolder(self.folder))
        return self.states[-1]

    def process(self) -> TrlSteps:
        """Steps as a process that just started has them."""
        state = self.state()
        settings = RolloutSettings(
            state.run_id, 7, self.group_size, 1.0, 64, "compact", "compact", 64, skip_unanimous_calls=self.skip_unanimous_calls
        )
        book = StepReporter(self.client, state, self.sink, self.clock, self.terms.dual_init)
        scorer = Scorer(GroupCalls(self.client, 5.0), ExactMathAnswer(), SelfOffload(), self.clock, settings)
        return TrlSteps(state, book, scorer, self.sink, self.clock, self.steps)

    def close(self) -> None:
        """Release the folder."""
        for state in self.states:
            state.close()
