"""What is being trained (a learner and the engine that samples for it, on one version of the adapter), and the steps made with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import cache

from edge.cloud.group_calls import GroupCalls
from edge.core.clock import Clock
from edge.core.errors import AdapterError, StateError, UsageError
from edge.core.events import EventSink
from edge.core.types import AdapterRef
from edge.evaluation.evaluate import Candidate, EvalRoles, Evaluation
from edge.evaluation.scores import Scores, score
from edge.inference.backend import InferenceBackend
from edge.learning.adapters import ServingAdapter
from edge.learning.checkpoints import Checkpoint, Checkpoints
from edge.learning.components import AgentComponents, AgentSettings
from edge.learning.promotion import Exam, PromotionGate
from edge.learning.rollback import RollbackMonitor
from edge.learning.rollout import Rollout
from edge.learning.step import LearningStep, StepRoles
from edge.learning.step_reporter import StepReporter
from edge.state.events import Notice
from edge.state.folder import StateFolder
from edge.training.learner import Learner


class TrainingSession:
    """Opened when learning begins, and closed with the agent. `version` is what the learner holds (-1: there is none yet)."""

    def __init__(
        self,
        serving: InferenceBackend,
        open_learner: Callable[[], Awaitable[Learner]],
        open_engine: Callable[[InferenceBackend], Awaitable[InferenceBackend]] | None,
        state: StateFolder,
        checkpoints: Checkpoints,
        sink: EventSink,
        clock: Clock,
        closing: AsyncExitStack,
    ) -> None:
        """`open_engine`: a second engine beside the one that serves; None: learning samples with that one. `closing` closes it."""
        self.version = -1
        self._serving = serving
        self._open_learner = open_learner
        self._open_engine = open_engine
        self._state = state
        self._checkpoints = checkpoints
        self._sink = sink
        self._clock = clock
        self._closing = closing
        self._engine: InferenceBackend | None = None
        self._learner: Learner | None = None

    @property
    def present_engine(self) -> InferenceBackend:
        """The engine for learning where it is open, else the one that serves."""
        return self._engine or self._serving

    async def engine(self) -> InferenceBackend:
        """The engine for learning: the one that serves, or a second one, opened when it is first needed."""
        if self._open_engine is None:
            return self._serving
        if self._engine is None:
            self._engine = await self._open_engine(self._serving)
            self._closing.push_async_callback(self._engine.aclose)
        return self._engine

    def learner(self) -> Learner:
        """The learner of now: going back to the bare model opens another one. Raises UsageError where there is none."""
        if self._learner is None:
            raise UsageError("this agent is not learning")
        return self._learner

    async def prepare(self) -> None:
        """Bring learner and engine to the latest version. Raises StateError when no checkpoint of the lineage is intact."""
        engine, latest = await self.engine(), self._state.lineage().latest
        if self._learner is None or latest == 0:
            self._learner = None  # a fresh one is the bare model; the old one's memory is free before
            self._learner = await self._open_learner()
        if latest == 0:
            await engine.swap_adapter(None)
        else:
            await self._load_newest(self._learner, engine)
        self.version = self._state.lineage().latest

    async def follow_lineage(self) -> None:
        """Where training went back to another version, load that one."""
        if self.version != self._state.lineage().latest:
            await self.prepare()

    async def load_latest(self) -> None:
        """What an exam has left in the engine makes room for the adapter that is trained."""
        latest = self._checkpoints.at(self._state.lineage().latest)
        await (await self.engine()).swap_adapter(latest.adapter if latest else None)

    async def _load_newest(self, learner: Learner, engine: InferenceBackend) -> None:
        """Load the state that belongs to the latest version, or an older one with its adapter. Raises StateError when none is intact.

        Step numbers, λ and the data cursor stay where they are; only what the lost steps had learned is learned again.
        """
        refusal = self._nothing_intact()
        for number, checkpoint in enumerate(self._candidates()):
            try:
                await learner.load(checkpoint.learner_folder)
                await engine.swap_adapter(checkpoint.adapter)
            except (AdapterError, StateError) as error:
                refusal = error if number == 0 and isinstance(error, StateError) else refusal
                continue
            if number:
                text = f"{refusal}; learning goes on from the checkpoint of step {checkpoint.step}"
                self._sink.emit(Notice(text, self._clock.now()))
            self._move_lineage(checkpoint)
            return
        raise refusal

    def _candidates(self) -> list[Checkpoint]:
        """Checkpoints to go on from, newest first; where one version is served and trained, that which the engine could load."""
        lineage = self._state.lineage()
        start = self._serving.adapter_version if lineage.latest == lineage.serving else lineage.latest
        return self._checkpoints.among(self._state.ancestors(start))

    def _move_lineage(self, checkpoint: Checkpoint) -> None:
        """The lineage goes on from what was loaded."""
        lineage = self._state.lineage()
        if checkpoint.step != lineage.latest:
            serving = checkpoint.step if lineage.serving == lineage.latest else lineage.serving
            self._state.set_lineage(replace(lineage, latest=checkpoint.step, serving=serving))

    def _nothing_intact(self) -> StateError:
        return StateError(
            f"{self._state.folder / 'checkpoints'}: no checkpoint is intact, so learning cannot go on from here",
            hint="restore the folder from a backup, or learn in another one with --state",
        )


class StepFactory:
    """Everything here works on the session's engine, which is opened when it is first needed."""

    def __init__(
        self,
        components: AgentComponents,
        settings: AgentSettings,
        adapter: ServingAdapter,
        session: TrainingSession,
        reporter: StepReporter,
        cloud: GroupCalls,
    ) -> None:
        """`cloud`: how learning asks it."""
        self._components = components
        self._settings = settings
        self._adapter = adapter
        self._session = session
        self._reporter = reporter
        self._cloud = cloud

    async def step(self) -> LearningStep:
        """What makes steps, and finishes one that was cut."""
        components, settings, engine = self._components, self._settings, await self._session.engine()
        return LearningStep(
            StepRoles(
                backend=self._adapter.backend,
                rollout_backend=engine,
                rollout=Rollout(engine, self._cloud, components.verifier, components.policy, components.clock, settings.rollout),
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

    async def monitor(self) -> RollbackMonitor | None:
        """What takes a worse version back; without a gate every step's adapter serves."""
        if self._settings.gate is None:
            return None
        components, adapter, every = self._components, self._adapter, self._settings.recheck_every
        exam, now = self._exam(await self._session.engine()), components.clock.now
        return RollbackMonitor(components.state, adapter.checkpoints, exam, now, every=every, sound=adapter.is_sound)

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
