"""The agent: answers and learns in one process. Opens its components in order, closes them in reverse, and goes on after a crash."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Self

from edge.answering.answerer import Answerer
from edge.answering.ask_cloud import CloudQuestions
from edge.answering.draft import AnswerRecorder
from edge.budget.access import CloudAccess
from edge.budget.daily import DailyBudget
from edge.budget.dial import Dials
from edge.budget.known import KnownBudgets
from edge.budget.limits import Changes, cloud_name_of, limits_of, note_charge, of_the_operator, set_limits
from edge.budget.overview import Held, Target, held_to
from edge.budget.pace import Pace
from edge.budget.quota import Quota, Quotas
from edge.cloud.client import CoordinatorLink
from edge.cloud.group_calls import GroupCalls
from edge.cloud.switch import CloudSwitch
from edge.cloud.unconfirmed import AnswerCalls, end_of_call
from edge.core.concurrency import ServingPrecedence, Stop
from edge.core.errors import EdgeError
from edge.core.limits import OWN_LABEL
from edge.core.rng import stream
from edge.dagrpo.prompts import TextQuestion
from edge.inference.backend import InferenceBackend, ModelInfo
from edge.learning.adapters import ServingAdapter, Versions
from edge.learning.checkpoints import Checkpoints
from edge.learning.components import AgentComponents, AgentSettings, with_prompt_form
from edge.learning.conditions import DiskSpace, Readiness
from edge.learning.loop import BetweenSteps, Learning
from edge.learning.session import TrainingSession
from edge.learning.step_reporter import StepReporter
from edge.rpc.client import BudgetSnapshot
from edge.state.events import Notice, RunFinished, StepProgress
from edge.state.folder import CHECKPOINTS
from edge.state.text_questions import kept_questions


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """A snapshot for a screen, and what `/api/status` returns and describes.

    `learning` is one of idle, learning, paused or off (`waiting` says why no step may begin), stopped, finished. `waiting_reports`: step
    reports that wait for the coordinator.
    """

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
    waiting_reports: int
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
    progress: StepProgress | None = None
    """How far the step under way has come; None between steps."""
    unsettled_calls: int = 0
    """Cloud calls for people whose end is not known yet."""
    budget: BudgetSnapshot | None = None
    """The budget of the task at hand, with its λ; None where the coordinator was not asked, or cannot be."""
    text_tasks: Mapping[str, TextQuestion] = field(default_factory=dict)
    """By label what is asked about each of its texts."""


_FIT_THREADS_S = 2.0
_SETTLE_PAUSE_S, _LONGEST_SETTLE_PAUSE_S = 1.0, 60.0


class Agent:
    """`async with build_agent(...) as agent:`; then serve `agent.answerer` and run `agent.learn()` at the same time.

    Inside the block: `answerer` serves people, `learning` learns, `adapter` is what serves. At any time: `link` to the coordinator,
    people's `access` to the cloud and their `precedence`.
    """

    answerer: Answerer
    learning: Learning
    adapter: ServingAdapter
    _checkpoints: Checkpoints

    def __init__(self, components: AgentComponents, settings: AgentSettings) -> None:
        if settings.gate is not None and components.open_rollouts is None:
            raise ValueError("a gate needs a second engine for learning")
        self.components = components
        self._settings = settings
        self._began = components.clock.monotonic()
        self._closing = AsyncExitStack()
        self._stop = Stop()
        self.precedence = ServingPrecedence(components.clock)
        state, sink, clock = components.state, components.sink, components.clock
        jitter = stream(settings.rollout.seed, "budget-watch", settings.rollout.run_id)
        client, curriculum = components.client, components.curriculum
        charged = partial(note_charge, state) if not settings.cloud_name else lambda: None
        self.link = CoordinatorLink(client, components.coordinator, curriculum, state, sink, clock, jitter, charged)
        known = KnownBudgets(state, self.link.client.reported, settings.limits if self.link.embedded else None, clock.now)
        self.pace = (
            None
            if settings.dual_unit == "calls"
            else Pace(settings.dual_unit, state, lambda: known.of(curriculum.present_task), clock)
        )
        switch = CloudSwitch(state, settings.answers.switched_off)
        dials = Dials(state, settings.dial_rate, clock, self.pace.rate if self.pace else None)
        quotas = Quotas(known, self.link.why_away, dials, switch)
        self._end_of_call = partial(end_of_call, self.link.client)
        self.access = CloudAccess(
            switch, dials, quotas, AnswerCalls(state, self._end_of_call, sink, clock),
            serving_task=settings.answers.task or OWN_LABEL, learned=curriculum,
            adapter_version=lambda: self.adapter.backend.adapter_version, sink=sink, clock=clock,
        )  # fmt: skip

    async def __aenter__(self) -> Self:
        """Load the model and the last adapter, start or reach the coordinator (offline is fine), resume the state.

        With the cloud switched off, the embedded coordinator is started by `learn`.
        """
        try:
            await self._open()
        except BaseException:
            await self._closing.aclose()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Stop learning at the safe point, release engine, coordinator and state."""
        self.request_stop()
        await self._closing.aclose()

    async def learn(self, max_steps: int | None = None, between_steps: BetweenSteps | None = None) -> RunFinished:
        """Work through the phases, at most `max_steps` steps in this call; pauses while somebody is served.

        `between_steps` is cancelled when a stop is asked for. Raises UsageError when it is learning already, and what a step could not
        get over (a refused credential, an engine failure).
        """
        return await self.learning.run(max_steps, between_steps)

    def request_stop(self) -> None:
        """Ask learning to end after the step's current safe point; may be called from a signal handler."""
        self._stop.ask()

    async def set_limits(self, changes: Changes | None) -> None:
        """Set hard limits of this device's own ledger, from now on and over restarts (None: the configuration's hold again).

        Raises UsageError where another coordinator rules, CoordinatorUnavailable where the limit is kept and not in force yet.
        """
        if not self.link.embedded:
            raise of_the_operator(self.components.coordinator_name)
        set_limits(self.components.state, changes)
        await self.link.hold_to(limits_of(self.components.state, self._settings.limits).to_coordinator())
        self.access.quotas.limits_changed()

    @property
    def held(self) -> Held:
        """What asking the cloud is held to."""
        state, settings, curriculum = self.components.state, self._settings, self.components.curriculum
        limits = limits_of(state, settings.limits) if self.link.embedded else None
        budget, rate = (self.pace.budget(), self.pace.rate()) if self.pace else (None, None)
        dial = self.access.dials.of(self.access.serving_task)
        chosen = dial.target_rate if rate is None or self.access.dials.is_set or dial.own else None
        terms = state.terms(curriculum.present_task)
        learning = terms.target_rate if terms else curriculum.phase_rate(state.position().phase)
        cloud_name = cloud_name_of(state, settings.cloud_name)
        return held_to(limits, cloud_name, Target(budget, rate, chosen, learning), self.components.clock.now())

    def status(self) -> AgentStatus:
        """A snapshot for a screen; asks nobody."""
        backend = self.adapter.backend
        state, curriculum, client = self.components.state, self.components.curriculum, self.link.client
        position, task = state.position(), curriculum.present_task
        last, terms = next(iter(state.steps(last=1)), None), state.terms(task)
        return AgentStatus(
            run_id=state.run_id,
            model=backend.model,
            adapter_version=backend.adapter_version,
            mode=self._settings.answers.mode,
            learning=self.learning.stage,
            online=client.online,
            offline_reason=client.offline_reason,
            coordinator=self.components.coordinator_name,
            task=task,
            target_rate=terms.target_rate if terms else curriculum.phase_rate(position.phase),
            dual=terms.dual if terms else None,
            phase=position.phase,
            phases=curriculum.phase_count,
            steps_done=position.steps_done,
            steps_planned=curriculum.steps_planned,
            waiting_reports=len(state.waiting_reports()),
            answers=self.answerer.answers,
            total_cloud_calls=last.cloud.total_cloud_calls if last else 0,
            total_cloud_tokens=last.cloud.total_cloud_tokens if last else 0,
            total_spend_uusd=last.cloud.total_spend_uusd if last else 0,
            uptime_s=self.components.clock.monotonic() - self._began,
            trained_version=state.lineage().latest,
            waiting=self.learning.waiting,
            paused=self.learning.paused,
            progress=self.learning.progress,
            quota=self.access.quota(),
            unsettled_calls=len(self.access.unconfirmed.waiting()),
            text_tasks=self.answerer.asked,
        )

    async def _open(self) -> None:
        components, closing = self.components, self._closing
        closing.callback(components.state.close)
        closing.callback(components.release)
        engine = await closing.enter_async_context(AsyncExitStack())
        closing.push_async_callback(self.link.client.aclose)
        closing.push_async_callback(self.link.watch.aclose)
        closing.push_async_callback(self.link.serving_watch.aclose)
        self._checkpoints = Checkpoints(components.state.folder / CHECKPOINTS)
        coordinator = await closing.enter_async_context(AsyncExitStack())
        beginning = None  # the coordinator starts while the engine is opened
        if not self._may_wait_for_learning():
            beginning = asyncio.create_task(self.link.begin(coordinator), name="coordinator")
            closing.push_async_callback(_cancelled, beginning)
        backend = await components.open_backend()
        engine.push_async_callback(backend.aclose)
        settings = with_prompt_form(self._settings, backend.model)
        versions = Versions(components.state, self._checkpoints, components.sound)
        self.adapter = ServingAdapter(backend, components.state, self._checkpoints, versions, components.sink, components.clock)
        self.learning = self._learning(settings)
        if fit_threads := self.learning.session.fit_threads:
            fit_threads()  # before the first answer
            engine.push_async_callback(
                _cancelled, asyncio.create_task(_repeated(fit_threads, _FIT_THREADS_S), name="fit-threads")
            )
        if beginning is not None:
            await beginning
        await self._resume()
        await self._begin_serving(backend, settings)

    async def _begin_serving(self, backend: InferenceBackend, settings: AgentSettings) -> None:
        components, task = self.components, self.access.serving_task
        if self.link.begun:
            await self.link.follow_budgets(task)
        answers = replace(settings.answers, task=task)
        state, access, clock = components.state, self.access, components.clock
        recorder = AnswerRecorder(backend, state, access, components.sink, clock)
        asker = CloudQuestions(self.link.client, access, recorder.record, clock, state.run_id, answers)
        asked = kept_questions(state, components.curriculum.asked)
        self.answerer = Answerer(backend, self.precedence, access, asker, recorder, clock, answers, asked=asked)
        unconfirmed = access.unconfirmed  # calls that an earlier process left, and those that this one will lose
        if unconfirmed.waiting():
            unconfirmed.wake.set()
        settling = asyncio.create_task(unconfirmed.keep_settling(_SETTLE_PAUSE_S, _LONGEST_SETTLE_PAUSE_S), name="settle-calls")
        self._closing.push_async_callback(_cancelled, settling)

    def _learning(self, settings: AgentSettings) -> Learning:
        components, adapter, client, closing = self.components, self.adapter, self.link.client, self._closing
        state, sink, clock = components.state, components.sink, components.clock
        share = {"share": self.pace.learning_limits} if self.pace else {}
        daily_budget = DailyBudget(state, clock, settings.daily_limits, self._notice, self._end_of_call, **share)
        reporter = StepReporter(
            client,
            state,
            sink,
            clock,
            settings.dual_init,
            settings.offline_retry_s,
            settings.help_bias_rule,
            settings.estimates_dual,
        )
        calls = GroupCalls(client, settings.call_deadline_s, lambda: self.access.switch.reason, daily_budget)
        session = TrainingSession(components, settings, adapter, reporter, calls, closing, self.pace)
        readiness = Readiness(self.precedence, components.conditions, DiskSpace(state.folder), state, sink, clock)
        return Learning(components, session, self.link, readiness, self.access.quotas, self._stop)

    def _may_wait_for_learning(self) -> bool:
        """With the cloud switched off nobody who is served needs a coordinator of our own; learning and a cut step do."""
        cut = self._checkpoints.at(self.components.state.position().steps_done + 1)
        return self.link.embedded and bool(self._settings.answers.switched_off) and cut is None

    async def _resume(self) -> None:
        """Finish the step a crash cut after its checkpoint, then serve the adapter that served, or the last one that can be used.

        A step that cannot be finished now is left to learning; answering does not wait for it.
        """
        try:
            serves = await self.learning.session.finish_cut_step()
        except EdgeError as error:
            serves = False
            self._notice(f"{error.with_hint}; the step is finished when learning goes on")
        if not serves:
            await self.adapter.serve_newest()
        if aside := self.components.state.set_aside:
            self._notice(f"the state folder's database is new; what was learned before it lies in {aside} and is not used")

    def _notice(self, text: str) -> None:
        self.components.sink.emit(Notice(text, self.components.clock.now()))


async def _repeated(function: Callable[[], None], pause_s: float) -> None:
    while True:
        await asyncio.sleep(pause_s)
        function()


async def _cancelled(task: asyncio.Task[None]) -> None:
    """End a task of the agent's own."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
