"""Puts together what makes, judges and guards a learning step. Knows which role takes which; makes no step and decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from edge.cloud.group_calls import CloudDesk
from edge.core.types import AdapterRef
from edge.evaluation.evaluate import Candidate, EvalRoles, Evaluation
from edge.evaluation.scores import Scores, score
from edge.inference.backend import InferenceBackend
from edge.learning.adapters import ServingAdapter
from edge.learning.components import AgentParts, AgentSettings
from edge.learning.promotion import Exam, PromotionGate
from edge.learning.rollback import Guard
from edge.learning.rollout import Rollout
from edge.learning.session import Trainee
from edge.learning.step import LearningStep, StepCloser, StepRoles
from edge.learning.step_book import StepBook


class Workshop:
    """Everything here works on the trainee's engine, which is opened when it is first needed."""

    def __init__(
        self,
        parts: AgentParts,
        settings: AgentSettings,
        adapter: ServingAdapter,
        trainee: Trainee,
        book: StepBook,
        desk: CloudDesk,
    ) -> None:
        """`desk`: where learning asks the cloud."""
        self._parts = parts
        self._settings = settings
        self._adapter = adapter
        self._trainee = trainee
        self._book = book
        self._desk = desk

    async def step(self) -> LearningStep:
        """What makes steps."""
        parts, settings, engine = self._parts, self._settings, await self._trainee.engine()
        rollout = Rollout(engine, self._desk, parts.verifier, parts.policy, parts.clock, settings.rollout)
        group_size, method = settings.rollout.group_size, settings.method
        return LearningStep(self._roles(engine), rollout, self._trainee.learner, group_size, method, parts.step_measure())

    async def closer(self) -> StepCloser:
        """What finishes a step that was cut."""
        return StepCloser(self._roles(await self._trainee.engine()))

    async def guard(self) -> Guard | None:
        """What looks after the version that serves; without a gate every step's adapter does."""
        if self._settings.gate is None:
            return None
        parts, adapter, every = self._parts, self._adapter, self._settings.recheck_every
        exam, now = self._exam(await self._trainee.engine()), parts.clock.now
        return Guard(parts.state, adapter.checkpoints, exam, now, every=every, sound=adapter.is_sound)

    async def scores(self, candidates: Sequence[Candidate], on_item: Callable[[], None]) -> Scores:
        """What the adapter that is trained makes of at least one candidate at temperature 0, without the cloud."""
        evaluation = self._evaluation(self._trainee.present_engine)
        return score(await evaluation.judge_all(candidates, "held-out", on_judged=lambda candidate, judged: on_item()))

    def _roles(self, engine: InferenceBackend) -> StepRoles:
        parts, adapter = self._parts, self._adapter
        return StepRoles(
            adapter.backend,
            engine,
            self._book,
            adapter.checkpoints,
            parts.state,
            parts.sink,
            parts.clock,
            adapter.switching,
            self._promotion(engine),
            parts.failpoint,
        )

    def _promotion(self, engine: InferenceBackend) -> PromotionGate | None:
        parts, rules = self._parts, self._settings.gate
        if rules is None:
            return None
        own_anchors = {} if parts.own_use is None else {"own_anchors": parts.own_use.anchors}
        anchors, exam = parts.curriculum.anchors, self._exam(engine)
        return PromotionGate(rules, anchors, exam, parts.state, self._adapter.checkpoints, **own_anchors)

    def _exam(self, engine: InferenceBackend) -> Exam:
        evaluation = self._evaluation(engine)

        async def exam(adapter: AdapterRef | None, candidates: Sequence[Candidate]) -> dict[str, bool]:
            await engine.swap_adapter(adapter)
            judged = await evaluation.judge_all(candidates, "anchors")
            return {one.candidate.key: one.judged.forced.right for one in judged}

        return exam

    def _evaluation(self, engine: InferenceBackend) -> Evaluation:
        """At temperature 0, without the cloud."""
        roles = EvalRoles(engine, self._parts.verifier, self._parts.policy, cloud=None)
        return Evaluation(roles, replace(self._settings.rollout, temperature=0.0))
