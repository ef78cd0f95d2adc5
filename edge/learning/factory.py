"""Puts together what makes and judges a learning step, and what takes a worse version back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

from edge.cloud.group_calls import GroupCalls
from edge.core.types import AdapterRef
from edge.evaluation.evaluate import Candidate, EvalRoles, Evaluation
from edge.evaluation.scores import Scores, score
from edge.inference.backend import InferenceBackend
from edge.learning.adapters import ServingAdapter
from edge.learning.components import AgentComponents, AgentSettings
from edge.learning.promotion import Exam, PromotionGate
from edge.learning.rollback import Guard
from edge.learning.rollout import Rollout
from edge.learning.session import TrainingSession
from edge.learning.step import LearningStep, StepRoles
from edge.learning.step_reporter import StepReporter


class StepFactory:
    """Everything here works on the session's engine, which is opened when it is first needed."""

    def __init__(
        self,
        components: AgentComponents,
        settings: AgentSettings,
        adapter: ServingAdapter,
        session: TrainingSession,
        reporter: StepReporter,
        desk: GroupCalls,
    ) -> None:
        """`desk`: where learning asks the cloud."""
        self._components = components
        self._settings = settings
        self._adapter = adapter
        self._session = session
        self._reporter = reporter
        self._desk = desk

    async def step(self) -> LearningStep:
        """What makes steps, and finishes one that was cut."""
        components, settings, engine = self._components, self._settings, await self._session.engine()
        return LearningStep(
            StepRoles(
                backend=self._adapter.backend,
                rollout_backend=engine,
                rollout=Rollout(engine, self._desk, components.verifier, components.policy, components.clock, settings.rollout),
                method=settings.method,
                learner=self._session.learner,
                group_size=settings.rollout.group_size,
                reporter=self._reporter,
                checkpoints=self._adapter.checkpoints,
                state=components.state,
                sink=components.sink,
                clock=components.clock,
                switching=self._adapter.switching,
                gate=self._promotion(engine),
                measure=cache(components.step_measure),
                failpoint=components.failpoint,
            )
        )

    async def guard(self) -> Guard | None:
        """What looks after the version that serves; without a gate every step's adapter does."""
        if self._settings.gate is None:
            return None
        components, adapter, every = self._components, self._adapter, self._settings.recheck_every
        exam, now = self._exam(await self._session.engine()), components.clock.now
        return Guard(components.state, adapter.checkpoints, exam, now, every=every, sound=adapter.is_sound)

    async def scores(self, candidates: Sequence[Candidate], on_item: Callable[[], None]) -> Scores:
        """What the adapter that is trained makes of at least one candidate at temperature 0, without the cloud."""
        evaluation = self._evaluation(self._session.present_engine)
        return score(await evaluation.judge_all(candidates, "held-out", on_judged=lambda candidate, judged: on_item()))

    def _promotion(self, engine: InferenceBackend) -> PromotionGate | None:
        components, rules = self._components, self._settings.gate
        if rules is None:
            return None
        own_anchors = {} if components.own_use is None else {"own_anchors": components.own_use.anchors}
        anchors, exam = components.curriculum.anchors, self._exam(engine)
        return PromotionGate(rules, anchors, exam, components.state, self._adapter.checkpoints, **own_anchors)

    def _exam(self, engine: InferenceBackend) -> Exam:
        evaluation = self._evaluation(engine)

        async def exam(adapter: AdapterRef | None, candidates: Sequence[Candidate]) -> dict[str, bool]:
            await engine.swap_adapter(adapter)
            judged = await evaluation.judge_all(candidates, "anchors")
            return {one.candidate.key: one.judged.forced.right for one in judged}

        return exam

    def _evaluation(self, engine: InferenceBackend) -> Evaluation:
        """At temperature 0, without the cloud."""
        roles = EvalRoles(engine, self._components.verifier, self._components.policy, cloud=None)
        return Evaluation(roles, replace(self._settings.rollout, temperature=0.0))
