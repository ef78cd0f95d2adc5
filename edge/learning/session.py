"""What is being trained (a learner and the engine that samples for it, on one version of the adapter), and what works with it: steps,
exams and held-out scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

from edge.budget.pace import Pace
from edge.cloud.group_calls import GroupCalls
from edge.core.errors import AdapterError, StateError, UsageError
from edge.core.types import AdapterRef
from edge.evaluation.evaluate import Candidate, EvalRoles, Evaluation
from edge.evaluation.judging import Judged
from edge.evaluation.scores import Scores, score
from edge.inference.backend import InferenceBackend
from edge.learning.adapters import ServingAdapter
from edge.learning.components import AgentComponents, AgentSettings
from edge.learning.imitation import GivenAnswers
from edge.learning.promotion import Exam, PromotionGate
from edge.learning.rollback import RollbackMonitor
from edge.learning.rollout import Rollout
from edge.learning.step import LearningStep
from edge.learning.step_reporter import StepReporter
from edge.state.events import Notice
from edge.state.rows import ExamAnswer
from edge.training.learner import Learner


@dataclass(slots=True)
class TrainingSession:
    """Opened when learning begins, and closed with the agent.

    With a gate, learning has a second engine in addition to the one that serves.
    """

    components: AgentComponents
    settings: AgentSettings
    adapter: ServingAdapter
    reporter: StepReporter
    cloud: GroupCalls
    """How learning asks the cloud."""
    closing: AsyncExitStack
    """Closes with the agent what is opened for learning."""
    pace: Pace | None = None
    """What calls cost and a budget leaves; None: λ acts on calls."""
    version: int = field(default=-1, init=False)
    """What the learner holds; -1: there is none yet."""
    _engine: InferenceBackend | None = field(default=None, init=False)
    _learner: Learner | None = field(default=None, init=False)

    async def engine(self) -> InferenceBackend:
        """The engine for learning: the one that serves, or a second one, opened when it is first needed."""
        if self._engine is None:
            self._engine, open_rollouts = self.adapter.backend, self.components.open_rollouts
            if self.settings.gate is not None and open_rollouts is not None:
                self._engine = await open_rollouts(self.adapter.backend)
                self.closing.push_async_callback(self._engine.aclose)
        return self._engine

    def learner(self) -> Learner:
        """The learner of now: going back to the bare model opens another one. Raises UsageError where there is none."""
        if self._learner is None:
            raise UsageError("this agent is not learning")
        return self._learner

    @property
    def fit_threads(self) -> Callable[[], None] | None:
        """Fits the threads of what is open by then to the cores that other programs leave."""
        fit = self.components.fit_threads
        return fit and (lambda: fit([self.adapter.backend, self._engine or self.adapter.backend], self._learner))

    async def prepare(self) -> None:
        """Bring learner and engine to the latest version. Raises StateError when no checkpoint of the lineage is intact."""
        state, engine = self.components.state, await self.engine()
        latest = state.lineage().latest
        if self._learner is None or latest == 0:
            self._learner = None  # a fresh one is the bare model; the old one's memory is free before
            self._learner = await self.components.open_learner()
        if latest == 0:
            await engine.swap_adapter(None)
        else:
            await self._load_newest(self._learner, engine)
        self.version = state.lineage().latest

    async def follow_lineage(self) -> None:
        """Where training went back to another version, load that one."""
        if self.version != self.components.state.lineage().latest:
            await self.prepare()

    async def load_latest(self) -> None:
        """What an exam has left in the engine makes room for the adapter that is trained."""
        latest = self.adapter.checkpoints.at(self.components.state.lineage().latest)
        await (await self.engine()).swap_adapter(latest.adapter if latest else None)

    async def step(self) -> LearningStep:
        """What makes steps, and finishes one that was cut."""
        components, settings, adapter, engine = self.components, self.settings, self.adapter, await self.engine()
        gate = None
        if settings.gate is not None:
            own = {} if components.own_use is None else {"own_anchors": components.own_use.anchors}
            anchors_of = components.curriculum.anchors
            skills = tuple(components.curriculum.skills)
            gate = PromotionGate(
                settings.gate, anchors_of, self._exam(engine), components.state, adapter.checkpoints, skills=skills, **own
            )
        rollout = Rollout(engine, self.cloud, components.verifier, components.policy, components.clock, settings.rollout)
        given = GivenAnswers(engine, settings.rollout, components.state, components.curriculum.skills)
        return LearningStep(components, settings, adapter, rollout, given, self.learner, self.reporter, gate, self.pace)

    async def finish_cut_step(self) -> bool:
        """Report, commit and serve a step whose checkpoint is on disk and which was not committed; whether its adapter serves now.

        False where there is none, or its checkpoint is damaged (uncommitted, it is made again).
        """
        cut = self.adapter.checkpoints.at(self.components.state.position().steps_done + 1)
        if cut is None:
            return False
        try:
            cut.manifest()
            self._notice(f"step {cut.step} had been cut before it was reported; finishing it")
            await (await self.step()).finish(cut)
        except AdapterError:
            return False  # committed; looking for the newest usable adapter shows what is wrong with it
        except StateError as error:
            self._notice(f"{error}; step {cut.step} will be made again")
            return False
        return self.adapter.backend.adapter_version == self.components.state.lineage().serving

    async def monitor(self) -> RollbackMonitor | None:
        """What takes a worse version back; without a gate every step's adapter is active."""
        gate = self.settings.gate
        if gate is None:
            return None
        state, adapter, now = self.components.state, self.adapter, self.components.clock.now
        exam, every = self._exam(await self.engine()), gate.recheck_every
        return RollbackMonitor(state, adapter.checkpoints, exam, now, every=every, sound=adapter.is_sound)

    async def scores(self, candidates: Sequence[Candidate], on_item: Callable[[], None]) -> Scores:
        """What the adapter that is trained makes of at least one candidate at temperature 0, without the cloud."""
        evaluation = self._evaluation(self._engine or self.adapter.backend)
        return score(await evaluation.judge_all(candidates, "held-out", on_judged=lambda candidate, judged: on_item()))

    async def _load_newest(self, learner: Learner, engine: InferenceBackend) -> None:
        """Load the state that belongs to the latest version, or an older one with its adapter. Raises StateError when none is intact.

        Step numbers, λ and the data cursor stay where they are; only what the lost steps had learned is learned again.
        """
        state, lineage = self.components.state, self.components.state.lineage()
        damage = StateError(
            f"{state.folder / 'checkpoints'}: no checkpoint is intact, so learning cannot go on from here",
            hint="restore the folder from a backup, or learn in another one with --state",
        )
        # where one version is active and trained, that which the engine could load
        start = self.adapter.backend.adapter_version if lineage.latest == lineage.serving else lineage.latest
        for number, checkpoint in enumerate(self.adapter.checkpoints.among(state.ancestors(start))):
            try:
                await learner.load(checkpoint.learner_folder)
                await engine.swap_adapter(checkpoint.adapter)
            except (AdapterError, StateError) as error:
                damage = error if number == 0 and isinstance(error, StateError) else damage
                continue
            if number:
                self._notice(f"{damage}; learning goes on from the checkpoint of step {checkpoint.step}")
            if checkpoint.step != lineage.latest:
                serving = checkpoint.step if lineage.serving == lineage.latest else lineage.serving
                state.set_lineage(replace(lineage, latest=checkpoint.step, serving=serving))
            return
        raise damage

    def _notice(self, text: str) -> None:
        self.components.sink.emit(Notice(text, self.components.clock.now()))

    def _exam(self, engine: InferenceBackend) -> Exam:
        evaluation = self._evaluation(engine)

        async def exam(adapter: AdapterRef | None, candidates: Sequence[Candidate]) -> dict[str, ExamAnswer]:
            await engine.swap_adapter(adapter)
            found = await evaluation.judge_all(candidates, "anchors")
            return {one.candidate.key: _exam_answer(one.judged) for one in found}

        return exam

    def _evaluation(self, engine: InferenceBackend) -> Evaluation:
        """At temperature 0, without the cloud."""
        roles = EvalRoles(engine, self.components.verifier, self.components.policy, cloud=None)
        return Evaluation(roles, replace(self.settings.rollout, temperature=0.0))


def _exam_answer(judged: Judged) -> ExamAnswer:
    return ExamAnswer(judged.forced.right, judged.help_log_odds, judged.answer)
