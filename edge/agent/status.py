"""An agent at a glance. Knows what a screen shows; knows nothing of who looks."""

from __future__ import annotations

from dataclasses import dataclass

from edge.agent.answer import Answerer
from edge.agent.budgets import TaskBudgets
from edge.agent.events import StepFinished
from edge.agent.learning import Learning
from edge.agent.parts import AgentParts
from edge.agent.quota import Quota
from edge.agent.reaching import CoordinatorLink
from edge.inference.backend import InferenceBackend, ModelInfo


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """A snapshot for a screen. `learning` is one of idle, learning, paused (somebody is served), stopped, finished."""

    run_id: str
    model: ModelInfo
    adapter_version: int
    mode: str
    learning: str
    online: bool
    offline_reason: str
    coordinator: str
    task: str
    target_rate: float | None
    dual: float | None
    phase: int
    phases: int
    steps_done: int
    steps_planned: int | None
    last_step: StepFinished | None
    outbox: int
    answers: int
    total_cloud_calls: int
    total_cloud_tokens: int
    total_spend_uusd: int
    uptime_s: float
    trained_version: int = 0
    """The newest adapter on the line of training; `adapter_version` is the one that serves."""
    waiting: str = ""
    """Why no step is begun, as "paused by you" or "waiting: on battery"; "" where nothing is waited for."""
    paused: bool = False
    """A person has paused learning."""
    quota: Quota | None = None
    """What people may still ask of the cloud, for the task that serving uses."""
    unsettled_calls: int = 0
    """Cloud calls for people whose end is not known yet."""


@dataclass(frozen=True, slots=True)
class StatusBoard:
    """Puts the status together from those who know."""

    parts: AgentParts
    mode: str
    backend: InferenceBackend
    link: CoordinatorLink
    learning: Learning
    budgets: TaskBudgets
    answerer: Answerer
    began: float
    """When the agent began, in seconds of its clock."""

    def now(self) -> AgentStatus:
        """The status at this moment; asks nobody."""
        state, curriculum, client = self.parts.state, self.parts.curriculum, self.link.client
        position, task = state.position(), curriculum.present_task
        last, terms = next(iter(state.steps(last=1)), None), state.terms(task)
        return AgentStatus(
            run_id=state.run_id,
            model=self.backend.model,
            adapter_version=self.backend.adapter_version,
            mode=self.mode,
            learning=self.learning.stage,
            online=client.online,
            offline_reason=client.offline_reason,
            coordinator=self.parts.coordinator_name,
            task=task,
            target_rate=terms.target_rate if terms else curriculum.phase_rate(position.phase),
            dual=terms.dual if terms else None,
            phase=position.phase,
            phases=curriculum.phase_count,
            steps_done=position.steps_done,
            steps_planned=curriculum.steps_planned,
            last_step=last,
            outbox=len(state.outbox()),
            answers=self.answerer.answers,
            total_cloud_calls=last.total_cloud_calls if last else 0,
            total_cloud_tokens=last.total_cloud_tokens if last else 0,
            total_spend_uusd=last.total_spend_uusd if last else 0,
            uptime_s=self.parts.clock.monotonic() - self.began,
            trained_version=state.line().head,
            waiting=self.learning.waiting,
            paused=self.learning.paused,
            quota=self.budgets.quota(),
            unsettled_calls=len(self.budgets.doubts.waiting()),
        )
