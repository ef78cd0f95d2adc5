"""Telling how learning goes: a run's beginning, its phases, its end. Knows what is told when; knows nothing of who listens."""

from __future__ import annotations

from edge.agent.curriculum import Curriculum
from edge.agent.events import Notice, PhaseStarted, RunFinished, RunStarted, StopReason
from edge.agent.state_reader import StateReader
from edge.agent.step import StepPlan
from edge.core.clock import Clock
from edge.core.events import EventSink
from edge.inference.backend import InferenceBackend


class LearningProgress:
    """What learning tells. A phase is told once as long as learning stays in it."""

    def __init__(
        self, run_id: str, state: StateReader, curriculum: Curriculum, serving: InferenceBackend, sink: EventSink, clock: Clock
    ) -> None:
        self._run_id = run_id
        self._state = state
        self._curriculum = curriculum
        self._serving = serving
        self._sink = sink
        self._clock = clock
        self._began = 0.0
        self._phase: int | None = None

    def begins(self, steps_planned: int | None) -> None:
        """Learning begins or goes on; None where nobody knows how many steps there will be."""
        done, model = self._state.position().steps_done, self._serving.model.name
        version = self._serving.adapter_version
        self._sink.emit(RunStarted(self._run_id, model, done, steps_planned, version, self._clock.now()))
        self._began = self._clock.monotonic()

    def comes_to(self, plan: StepPlan) -> None:
        """A step of the phases is about to be made."""
        if plan.own or self._phase == plan.phase:
            return
        self._phase = plan.phase
        steps, phases = self._curriculum.phase(plan.phase).steps, self._curriculum.phase_count
        self._sink.emit(PhaseStarted(plan.phase, plan.source, plan.task, plan.target_rate, steps, plan.phase_step, phases))

    def ends(self, reason: StopReason) -> RunFinished:
        """Learning has ended."""
        last = next(iter(self._state.steps(last=1)), None)
        finished = RunFinished(
            run_id=self._run_id,
            reason=reason,
            steps_done=self._state.position().steps_done,
            adapter_version=self._serving.adapter_version,
            total_cloud_calls=last.total_cloud_calls if last else 0,
            total_cloud_tokens=last.total_cloud_tokens if last else 0,
            total_spend_uusd=last.total_spend_uusd if last else 0,
            seconds=self._clock.monotonic() - self._began,
            at=self._clock.now(),
        )
        self._sink.emit(finished)
        return finished

    def notice(self, text: str) -> None:
        """One line for a person."""
        self._sink.emit(Notice(text, self._clock.now()))
