"""The real agent over a simulated machine, model and learner, as fleets and fault worlds run it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

from edge.agent import Agent
from edge.answering.draft import AnswerSettings
from edge.budget.daily import NO_LIMITS, DailyLimits
from edge.config.schema import PhaseConfig
from edge.core.clock import Clock
from edge.core.events import EventSink
from edge.core.rng import derive_seed
from edge.evaluation.judging import RolloutSettings
from edge.learning.components import AgentComponents, AgentSettings
from edge.learning.conditions import LearningConditions
from edge.learning.curriculum import Curriculum
from edge.learning.methods import DaGrpo
from edge.routing.policy import SelfOffload
from edge.state.folder import StateFolder
from edge.state.schema import open_in_memory
from edge.tasks.source import TaskSource
from edge.verifiers.math_answer import ExactMathAnswer
from tools.simulate.fleet.backend import SimulatedBackend
from tools.simulate.fleet.learner import SimulatedLearner
from tools.simulate.fleet.machine import Machine
from tools.simulate.fleet.scenario import GroupPart
from tools.simulate.virtual.network import SimulatedClient

MOST_LOCAL_TOKENS = 4096
GROUP_SIZE_WITHOUT_LEARNING = 2


class SimulatedState(StateFolder):
    """A state folder whose run is named after it, so that call keys depend on the seed alone. `in_memory`: its database is; only
    checkpoints are on disk."""

    def __init__(self, folder: Path, *, in_memory: bool = False) -> None:
        self._in_memory = in_memory
        super().__init__(folder)

    def _open_database(self) -> sqlite3.Connection:
        return open_in_memory() if self._in_memory else super()._open_database()

    def _run_id(self) -> str:
        self.set_meta("run_id", self.folder.name)
        return self.folder.name


def simulated_agent(
    group: GroupPart,
    backend: SimulatedBackend,
    machine: Machine,
    state: SimulatedState,
    client: SimulatedClient,
    clock: Clock,
    sink: EventSink,
    *,
    seed: int,
    phases: Sequence[PhaseConfig],
    practice: Callable[[str], TaskSource],
    conditions: LearningConditions | None,
    dual_init: float,
    most_cloud_tokens: int,
    patience_s: float,
    daily_limits: DailyLimits = NO_LIMITS,
    failpoint: Callable[[str], None] = lambda point: None,
) -> Agent:
    """An agent that answers and learns as its group does. `practice`: the questions of a phase's source; `patience_s`: of a call."""
    name, most = state.run_id, MOST_LOCAL_TOKENS
    group_size = group.learning.group_size if group.learning else GROUP_SIZE_WITHOUT_LEARNING
    prompts = group.learning.prompts_per_step if group.learning else 1

    async def open_backend() -> SimulatedBackend:
        return backend

    async def open_learner() -> SimulatedLearner:
        return SimulatedLearner(machine, group.mind, group.nature, group.rates)

    components = AgentComponents(
        state=state,
        curriculum=Curriculum(phases, practice, state, seed=seed, prompts_per_step=prompts),
        open_backend=open_backend,
        open_learner=open_learner,
        client=client,
        coordinator=None,
        coordinator_name="simulated",
        verifier=ExactMathAnswer(),
        policy=SelfOffload(),
        sink=sink,
        clock=clock,
        failpoint=failpoint,
        conditions=conditions,
    )
    rollout_seed = derive_seed(seed, "rollout", name)
    rollout = RolloutSettings(name, rollout_seed, group_size, 1.0, most, "compact", "compact", most_cloud_tokens)
    answers = AnswerSettings("auto", group.task, 0.0, most, None, "compact", "compact", most_cloud_tokens, patience_s)
    settings = AgentSettings(
        rollout,
        answers,
        dual_init,
        DaGrpo(),
        patience_s,
        group.dial,
        daily_limits=daily_limits,
        dual_unit=group.dual_unit,
        learning_rate=group.rates.ask,
    )
    return Agent(components, settings)
