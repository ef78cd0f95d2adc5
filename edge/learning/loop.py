"""Learning, step after step: when a step may begin, whose turn it is, and when to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edge.budget.quota import Quotas
from edge.cloud.client import CoordinatorLink
from edge.core.concurrency import Stop
from edge.core.errors import Collapsed, ContextOverflow, CoordinatorUnavailable, EdgeError, UsageError, is_refused_alone
from edge.evaluation.evaluate import Candidate
from edge.evaluation.scores import Scores
from edge.learning.collapse import MOST_COLLAPSES, CollapseMemory
from edge.learning.components import AgentComponents
from edge.learning.conditions import Readiness, learning_is_paused
from edge.learning.curriculum import HeldOut, StepPlan
from edge.learning.own_items import LEARNED_LATER, outlook
from edge.learning.rollback import Rollback, RollbackMonitor
from edge.learning.session import TrainingSession
from edge.learning.step import LearningStep
from edge.state.events import Notice, OwnUseThrough, PhaseStarted, RunFinished, RunStarted, StepProgress, StopReason, WentBack
from edge.state.feedback import Feedback
from edge.state.folder import COLLAPSE_MEMORY
from edge.state.rows import version_name

BetweenSteps = Callable[[StepPlan | None, int, int], Awaitable[None]]
"""Awaited before each step and after the last one: with the plan of the step that comes (None when all phases are done), the number of
steps done, and the version of the adapter that is trained."""
_DELIVERY_TRIES, _DELIVERY_PAUSE_S = 5, 1.0


@dataclass(slots=True)
class Learning:
    """The learning of one agent: run it, hold it back, ask for its state.

    It stops at safe points only: a step that has not begun its update is given up (it is made again, with the same seeds and call keys),
    one that has is finished. A step that a full disk cut is finished or made again once there is room.
    """

    components: AgentComponents
    session: TrainingSession
    link: CoordinatorLink
    readiness: Readiness
    quotas: Quotas
    stop: Stop
    _stage: str = field(default="idle", init=False)
    _monitor: RollbackMonitor | None = field(default=None, init=False)
    _phase: int | None = field(default=None, init=False)
    _own_through: set[str] = field(default_factory=set, init=False)
    _step: LearningStep | None = field(default=None, init=False)

    async def run(self, max_steps: int | None = None, between_steps: BetweenSteps | None = None) -> RunFinished:
        """Work through the phases, at most `max_steps` steps in this call; see `Agent.learn`."""
        if self._stage == "learning":
            raise UsageError("this agent is learning already")
        self._stage = "learning"
        try:
            step = await self._open()
            began = self.components.clock.monotonic()
            reason = await self._loop(step, max_steps, between_steps)
            await self._deliver_reports()
            self._stage = "finished" if reason == "done" else "stopped"
        except BaseException:
            self._stage = "stopped"
            raise
        state, clock = self.components.state, self.components.clock
        last = next(iter(state.steps(last=1)), None)
        finished = RunFinished(
            run_id=state.run_id,
            reason=reason,
            steps_done=state.position().steps_done,
            adapter_version=self.session.adapter.backend.adapter_version,
            total_cloud_calls=last.cloud.total_cloud_calls if last else 0,
            total_cloud_tokens=last.cloud.total_cloud_tokens if last else 0,
            total_spend_uusd=last.cloud.total_spend_uusd if last else 0,
            seconds=clock.monotonic() - began,
            at=clock.now(),
        )
        self.components.sink.emit(finished)
        return finished

    @property
    def stage(self) -> str:
        """One of idle, learning, paused (no step may begin now), stopped, finished, off (this model cannot learn)."""
        if self.components.learning_off:
            return "off"
        return "paused" if self._stage == "learning" and self.readiness.held_back else self._stage

    @property
    def waiting(self) -> str:
        """Why no step is begun, as "paused by you" or "waiting: on battery"; "" where nothing is waited for."""
        return self.components.learning_off or self.readiness.reason()

    @property
    def progress(self) -> StepProgress | None:
        """How far the step under way has come; None where there is none."""
        return self._step.progress if self._step is not None and self.stage == "learning" else None

    @property
    def paused(self) -> bool:
        """A person has paused learning."""
        return learning_is_paused(self.components.state)

    def pause(self, paused: bool) -> None:
        """Begin no further step, or go on; kept over restarts. A step under way is finished."""
        self.readiness.pause(paused)

    async def more_to_learn(self) -> bool:
        """Whether learning that was done has something new to learn from."""
        curriculum, own_use = self.components.curriculum, self.components.own_use
        return curriculum.next_step() is not None or (own_use is not None and await own_use.fresh() > 0)

    def outlook(self, record: Mapping[str, Any], feedback: Feedback) -> str:
        """What a person who rated an answer may expect of it; see `own_items.outlook`."""
        own_use, when = self.components.own_use, "learned from in the next steps"
        if own_use is None or self._stage in ("idle", "stopped"):
            when = LEARNED_LATER
        elif self.waiting:
            when = f"learned from when learning goes on ({self.waiting})"
        return outlook(record, feedback, learns=own_use is None or own_use.use.learns_ratings, when=when)

    async def apply_feedback(self) -> None:
        """Go back where people like what serves less than the version before."""
        if self._monitor is not None and (worse := await self._monitor.disliked()) is not None:
            await self._go_back(worse)

    def held_out(self, limit: int) -> list[HeldOut]:
        """At most `limit` held-out items of each phase's source. Raises TaskFileError."""
        return self.components.curriculum.held_out(limit)

    async def examine(self, candidates: Sequence[Candidate], on_item: Callable[[], None] = lambda: None) -> Scores:
        """What the adapter that is trained makes of at least one candidate at temperature 0, without the cloud."""
        return await self.session.scores(candidates, on_item)

    async def _open(self) -> LearningStep:
        """Everything that the first step needs."""
        components, backend = self.components, self.session.adapter.backend
        if not self.link.begun:
            await self.link.begin(self.session.closing)
        await self.link.require_tasks(components.curriculum.tasks_ahead)
        await self.session.finish_cut_step()  # where the start of the agent could not
        self._require_no_collapse()
        if components.curriculum.adopt(components.state):
            text = "the phases have changed; learning begins at the first one with the present adapter"
            components.sink.emit(Notice(text, components.clock.now()))
        await self.session.prepare()
        step = self._step = await self.session.step()
        for text in step.given.check_skills():
            components.sink.emit(Notice(text, components.clock.now()))
        # steps of one's own use come on top of those planned, as their events report
        planned = None if components.own_use else components.curriculum.steps_planned
        done, version, now = components.state.position().steps_done, backend.adapter_version, components.clock.now()
        components.sink.emit(RunStarted(components.state.run_id, backend.model.name, done, planned, version, now))
        self._monitor = await self.session.monitor()
        return step

    async def _loop(self, step: LearningStep, max_steps: int | None, between_steps: BetweenSteps | None) -> StopReason:
        """Until the phases are done, `max_steps` steps are made, or a stop is asked for."""
        made, is_cut = 0, False
        await self._report_own_use()
        while not self.stop.asked:
            try:
                if is_cut and not await self._recover():
                    break
                is_cut = False
                plan = await self._next_plan()
                if between_steps is not None:
                    await self.session.follow_lineage()
                    steps_done = self.components.state.position().steps_done
                    await self.stop.cuts(between_steps(plan, steps_done, self.session.version))
                if self.stop.asked:
                    break
                if max_steps is not None and made >= max_steps:
                    return "max_steps"
                if plan is None:
                    return "done"
                waits = self.readiness.waits
                if await self._may_begin():
                    if self.readiness.waits > waits:  # feedback and files may have come and gone since
                        plan = await self._next_plan() or plan
                    made += await self._make(step, plan)
                    if plan.own:
                        await self._report_own_use()
            except Exception:
                if not self.readiness.disk_space.was_missing():
                    raise
                is_cut = True
        return "stopped"

    async def _next_plan(self) -> StepPlan | None:
        """The phases' next step, or one of one's own use whose turn it is."""
        curriculum, own_use = self.components.curriculum, self.components.own_use
        plan = curriculum.next_step()
        return plan if own_use is None else await own_use.next_step(plan, curriculum.learned_by_heart())

    async def _report_own_use(self) -> None:
        """Once of each source, when every question of it has been learned from as often as it may be."""
        own_use, clock = self.components.own_use, self.components.clock
        if own_use is None:
            return
        through, state = await own_use.through(), self.components.state
        for one in through:
            if one.source not in self._own_through:
                lost, passes, served = one.not_learned, own_use.use.passes, state.lineage().serving == state.position().steps_done
                self.components.sink.emit(
                    OwnUseThrough(one.source, one.questions, passes, clock.now(), len(lost), lost[0] if lost else "", served)
                )
        self._own_through = {one.source for one in through}

    async def _recover(self) -> bool:
        """Once there is room on the disk: finish the step that was cut where its checkpoint is whole, else go back to what was committed.

        False where a stop was asked for meanwhile.
        """
        await self.stop.cuts(self.readiness.ready())
        if self.stop.asked:
            return False
        await self.session.finish_cut_step()
        await self.session.prepare()
        return True

    async def _may_begin(self) -> bool:
        """Wait until nothing holds learning back, and go back where the active version is worse than one before it.

        False where a stop was asked for meanwhile.
        """
        await self.stop.cuts(self.readiness.ready(self.apply_feedback))
        if self._monitor is not None and not self.stop.asked:
            await self.stop.cuts(self._keep_the_best(self._monitor))
        return not self.stop.asked

    async def _keep_the_best(self, monitor: RollbackMonitor) -> None:
        examined = monitor.exam_is_due()
        worse = await monitor.worse_than_before()
        if examined:
            await self.session.load_latest()
        if worse is not None:
            await self._go_back(worse)

    async def _go_back(self, worse: Rollback) -> None:
        components = self.components
        await self.session.adapter.rollback(worse.better, by=worse.cause, reason=worse.reason)
        components.sink.emit(WentBack(worse.version, worse.better, worse.cause, worse.reason, components.clock.now()))

    async def _make(self, step: LearningStep, plan: StepPlan) -> bool:
        """Make the step. False where its items, a person's own, cannot be learned from: they are left out from now on."""
        components, own_use = self.components, self.components.own_use
        await self.session.follow_lineage()
        if not plan.own and self._phase != plan.phase:  # reported once as long as learning stays in a phase
            self._phase, phase, phases = plan.phase, components.curriculum.phase(plan.phase), components.curriculum.phase_count
            started = PhaseStarted(plan.phase, phase.source, plan.task, plan.target_rate, phase.steps, plan.phase_step, phases)
            components.sink.emit(started)
        await self.link.watch.follow(plan.task)
        try:
            await self.stop.cuts(step.run(plan, self.session.version), may_cancel=lambda: step.interruptible)
        except EdgeError as error:
            unfit = isinstance(error, ContextOverflow | UsageError) or is_refused_alone(error)
            if own_use is None or not plan.own or not unfit:
                raise
            own_use.leave_out(plan, error)
            text = f"{plan.source}: {len(plan.items)} questions cannot be learned from and are left out ({error})"
            components.sink.emit(Notice(text, components.clock.now()))
            return False
        self.session.version = components.state.position().steps_done
        with components.state.database:
            self.quotas.save(plan.task)
        self._require_no_collapse()
        return True

    def _require_no_collapse(self) -> None:
        """Raises Collapsed where going back did not help, until a person changes the learning rate or goes back to another version."""
        state, rate = self.components.state, self.session.settings.learning_rate
        memory = CollapseMemory.from_json(state.meta(COLLAPSE_MEMORY), state.lineage().latest, rate)
        if self.session.settings.watches_collapse and memory.collapses >= MOST_COLLAPSES:
            raise Collapsed(
                f"learning collapsed {memory.collapses} times in a row on the way from {version_name(memory.good)}, the last time with"
                f" learning rate {2 * memory.rate_share * rate:.2g}, and has gone back there",
                hint=f"start again with learning.optimiser.learning_rate below {memory.rate_share * rate:.2g}; more"
                " learning.prompts_per_step make steps surer, too",
            )

    async def _deliver_reports(self) -> None:
        """Deliver the step reports that still wait; an embedded coordinator may just be coming back. What stays goes with the next run."""
        for attempt in range(_DELIVERY_TRIES if self.link.embedded else 1):
            if attempt:
                await self.stop.cuts(asyncio.sleep(_DELIVERY_PAUSE_S))
            if not self.components.state.waiting_reports():
                return
            try:
                await self.session.reporter.deliver()
            except CoordinatorUnavailable:
                continue
