"""Learning, step after step: when a step may begin, whose turn it is, and when to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from edge.budget.daily import DailyBudget
from edge.budget.quota import Quotas
from edge.cloud.connection import CoordinatorLink
from edge.core.clock import Clock
from edge.core.concurrency import Stop
from edge.core.errors import ContextOverflow, CoordinatorUnavailable, InvalidRequest, NotFound, PermissionDenied, UsageError
from edge.core.events import EventSink
from edge.evaluation.evaluate import Candidate
from edge.evaluation.scores import Scores
from edge.inference.backend import InferenceBackend
from edge.learning.adapters import ServingAdapter
from edge.learning.components import AgentComponents
from edge.learning.conditions import DiskSpace, Readiness, learning_is_paused
from edge.learning.curriculum import Curriculum, HeldOut, StepPlan
from edge.learning.own_use import is_about_the_device
from edge.learning.rollback import Rollback, RollbackMonitor
from edge.learning.session import TrainingSession
from edge.learning.step import LearningStep
from edge.learning.step_reporter import StepReporter
from edge.state.events import Notice, PhaseStarted, RunFinished, RunStarted, StopReason, WentBack
from edge.state.reader import StateReader


class LearningProgress:
    """The events of a run: its beginning, its phases (once as long as learning stays in one), its end."""

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
            total_cloud_calls=last.cloud.total_cloud_calls if last else 0,
            total_cloud_tokens=last.cloud.total_cloud_tokens if last else 0,
            total_spend_uusd=last.cloud.total_spend_uusd if last else 0,
            seconds=self._clock.monotonic() - self._began,
            at=self._clock.now(),
        )
        self._sink.emit(finished)
        return finished

    def notice(self, text: str) -> None:
        """One line for a person."""
        self._sink.emit(Notice(text, self._clock.now()))


BetweenSteps = Callable[[StepPlan | None, int, int], Awaitable[None]]
"""Awaited before each step and after the last one: with the plan of the step that comes (None when all phases are done), the number of
steps done, and the version of the adapter that is trained."""
_DELIVERY_TRIES, _DELIVERY_PAUSE_S = 5, 1.0


@dataclass(frozen=True, slots=True)
class LearningRoles:
    """What learning works with. `closing` closes with the agent what is opened for learning."""

    components: AgentComponents
    link: CoordinatorLink
    adapter: ServingAdapter
    session: TrainingSession
    reporter: StepReporter
    readiness: Readiness
    disk_space: DiskSpace
    daily_budget: DailyBudget
    quotas: Quotas
    progress: LearningProgress
    stop: Stop
    closing: AsyncExitStack
    finish_cut_step: Callable[[], Awaitable[None]]
    """Reports and commits a step whose checkpoint is on disk and which was not committed; does nothing where there is none."""


class Learning:
    """The learning of one agent: run it, hold it back, ask how it stands.

    It stops at safe points only: a step that has not begun its update is given up (it is made again, with the same seeds and call keys),
    one that has is finished. A step that a full disk cut is finished or made again once there is room.
    """

    def __init__(self, roles: LearningRoles) -> None:
        self.roles = roles
        self._stage = "idle"
        self._monitor: RollbackMonitor | None = None

    async def run(self, max_steps: int | None = None, between_steps: BetweenSteps | None = None) -> RunFinished:
        """Work through the phases, at most `max_steps` steps in this call; see `Agent.learn`."""
        if self._stage == "learning":
            raise UsageError("this agent is learning already")
        self._stage = "learning"
        try:
            step = await self._open()
            reason = await self._loop(step, max_steps, between_steps)
            await self._deliver_reports()
            self._stage = "finished" if reason == "done" else "stopped"
        except BaseException:
            self._stage = "stopped"
            raise
        return self.roles.progress.ends(reason)

    @property
    def stage(self) -> str:
        """One of idle, learning, paused (no step may begin now), stopped, finished."""
        return "paused" if self._stage == "learning" and self.roles.readiness.held_back else self._stage

    @property
    def waiting(self) -> str:
        """Why no step is begun, as "paused by you" or "waiting: on battery"; "" where nothing is waited for."""
        return self.roles.readiness.reason()

    @property
    def paused(self) -> bool:
        """A person has paused learning."""
        return learning_is_paused(self.roles.components.state)

    def pause(self, paused: bool) -> None:
        """Begin no further step, or go on; kept over restarts. A step under way is finished."""
        self.roles.readiness.pause(paused)

    async def more_to_learn(self) -> bool:
        """Whether learning that was done has something new to learn from."""
        curriculum, own_use = self.roles.components.curriculum, self.roles.components.own_use
        return curriculum.next_step() is not None or (own_use is not None and await own_use.fresh() > 0)

    async def apply_feedback(self) -> None:
        """Go back where people like what serves less than the version before."""
        if self._monitor is not None and (worse := await self._monitor.disliked()) is not None:
            await self._go_back(worse)

    def held_out(self, limit: int) -> list[HeldOut]:
        """At most `limit` held-out items of each phase's source. Raises TaskFileError."""
        return self.roles.components.curriculum.held_out(limit)

    async def examine(self, candidates: Sequence[Candidate], on_item: Callable[[], None] = lambda: None) -> Scores:
        """What the adapter that is trained makes of at least one candidate at temperature 0, without the cloud."""
        return await self.roles.session.scores(candidates, on_item)

    async def _open(self) -> LearningStep:
        """Everything that the first step needs."""
        roles, components = self.roles, self.roles.components
        if not roles.link.begun:
            await roles.link.begin(roles.closing)
        roles.link.require_all_tasks()
        await roles.session.prepare()
        step = await roles.session.step()
        # steps of one's own use come on top of those planned, as their events report
        roles.progress.begins(None if components.own_use else components.curriculum.steps_planned)
        self._monitor = await roles.session.monitor()
        return step

    async def _loop(self, step: LearningStep, max_steps: int | None, between_steps: BetweenSteps | None) -> StopReason:
        """Until the phases are done, so many steps are made, or a stop is asked for."""
        roles, made, is_cut = self.roles, 0, False
        while not roles.stop.asked:
            try:
                if is_cut and not await self._recover():
                    break
                is_cut = False
                plan = await self._next_plan()
                if between_steps is not None:
                    await self._between(between_steps, plan)
                if roles.stop.asked:
                    break
                if max_steps is not None and made >= max_steps:
                    return "max_steps"
                if plan is None:
                    return "done"
                waits = roles.readiness.waits
                if await self._may_begin():
                    if roles.readiness.waits > waits:  # feedback and files may have come and gone since
                        plan = await self._next_plan() or plan
                    made += await self._make(step, plan)
            except Exception:
                if not roles.disk_space.was_missing():
                    raise
                is_cut = True
        return "stopped"

    async def _next_plan(self) -> StepPlan | None:
        """The phases' next step, or one of one's own use whose turn it is."""
        curriculum, own_use = self.roles.components.curriculum, self.roles.components.own_use
        plan = curriculum.next_step()
        return plan if own_use is None else await own_use.next_step(plan)

    async def _recover(self) -> bool:
        """Once there is room on the disk: finish the step that was cut where its checkpoint is whole, else go back to what was committed.

        False where a stop was asked for meanwhile.
        """
        roles = self.roles
        await roles.stop.cuts(roles.readiness.ready())
        if roles.stop.asked:
            return False
        await roles.finish_cut_step()
        await roles.session.prepare()
        return True

    async def _between(self, between_steps: BetweenSteps, plan: StepPlan | None) -> None:
        session, state = self.roles.session, self.roles.components.state
        await session.follow_lineage()
        await self.roles.stop.cuts(between_steps(plan, state.position().steps_done, session.version))

    async def _may_begin(self) -> bool:
        """Wait until nothing holds learning back, and go back where the active version is worse than one before it.

        False where a stop was asked for meanwhile.
        """
        stop = self.roles.stop
        await stop.cuts(self.roles.readiness.ready(self.apply_feedback))
        if self._monitor is not None and not stop.asked:
            await stop.cuts(self._keep_the_best(self._monitor))
        return not stop.asked

    async def _keep_the_best(self, monitor: RollbackMonitor) -> None:
        examined = monitor.exam_is_due()
        worse = await monitor.worse_than_before()
        if examined:
            await self.roles.session.load_latest()
        if worse is not None:
            await self._go_back(worse)

    async def _go_back(self, worse: Rollback) -> None:
        roles, components = self.roles, self.roles.components
        await roles.adapter.rollback(worse.better, by=worse.cause, reason=worse.reason)
        components.sink.emit(WentBack(worse.version, worse.better, worse.cause, worse.reason, components.clock.now()))

    async def _make(self, step: LearningStep, plan: StepPlan) -> bool:
        """Make the step. False where its items, a person's own, cannot be learned from: they are left out from now on."""
        roles, own_use = self.roles, self.roles.components.own_use
        await roles.session.follow_lineage()
        roles.progress.comes_to(plan)
        await roles.link.watch.follow(plan.task)
        try:
            await roles.stop.cuts(step.run(plan, roles.session.version), may_cancel=lambda: step.interruptible)
        except (ContextOverflow, InvalidRequest, NotFound, PermissionDenied, UsageError) as error:
            if own_use is None or not plan.own or is_about_the_device(error):
                raise
            own_use.leave_out(plan, error)
            roles.progress.notice(f"{plan.source}: {len(plan.items)} questions cannot be learned from and are left out ({error})")
            return False
        roles.session.version = roles.components.state.position().steps_done
        with roles.components.state.database:
            roles.quotas.save(plan.task)
        return True

    async def _deliver_reports(self) -> None:
        """Deliver the step reports that still wait; an embedded coordinator may just be coming back. What stays goes with the next run."""
        roles = self.roles
        for attempt in range(_DELIVERY_TRIES if roles.link.embedded else 1):
            if attempt:
                await roles.stop.cuts(asyncio.sleep(_DELIVERY_PAUSE_S))
            if not roles.components.state.unreported():
                return
            try:
                await roles.reporter.deliver()
            except CoordinatorUnavailable:
                continue
