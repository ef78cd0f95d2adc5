"""The agent: answers and learns in one process. Knows when to learn and when to stop; knows nothing of HTTP, terminals or torch.

`async with` opens the parts in order (engine, coordinator, the step a crash left unfinished, the last adapter) and closes them in the
reverse order. Learning pauses while somebody is served, and stops at safe points only: a step that has not begun its update is given
up (it is made again, with the same seeds and call keys), one that has is finished.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol, Self

from edge import __version__
from edge.agent.answer import Answerer, AnswerSettings, CloudAccess
from edge.agent.budget_watch import BudgetWatch
from edge.agent.checkpoints import Checkpoint, Checkpoints
from edge.agent.cloud import CloudDesk
from edge.agent.completing import ServedTexts
from edge.agent.conditions import LearningConditions
from edge.agent.curriculum import Curriculum, HeldOut
from edge.agent.daybook import daybook
from edge.agent.dial import DialReading
from edge.agent.dials import DialBook
from edge.agent.doubts import CallsInDoubt
from edge.agent.evaluate import Candidate, EvalRoles, Evaluation
from edge.agent.evaluation.scores import Scores, score
from edge.agent.events import AdapterSwapped, Notice, PhaseStarted, RunFinished, RunStarted, StepFinished, WentBack
from edge.agent.feedback import Feedback, FeedbackBook
from edge.agent.gate import ServingGate
from edge.agent.guard import Guard
from edge.agent.line import Line
from edge.agent.link import KnownBudget, WatchedClient, why_away
from edge.agent.own_use import OwnUse, is_about_the_device
from edge.agent.promotion import Exam, PromotionGate
from edge.agent.purse import NO_LIMITS, DailyLimits, LearningPurse, PurseDesk
from edge.agent.quota import Quota, Quotas
from edge.agent.readiness import Readiness, is_paused
from edge.agent.record import AnswerRecord
from edge.agent.rollout import Rollout, RolloutSettings
from edge.agent.sent import SentReader
from edge.agent.state import StateFolder, StateReader, Terms
from edge.agent.step import LearningStep, StepCloser, StepPlan, StepRoles, version_name
from edge.agent.stepbook import StepBook
from edge.agent.switch import CloudSwitch
from edge.agent.usage import UsedToday, used_today
from edge.agent.versions import Versions
from edge.core.clock import Clock
from edge.core.errors import (
    AdapterError,
    ContextOverflow,
    CoordinatorError,
    CoordinatorUnavailable,
    InvalidRequest,
    NotFound,
    PermissionDenied,
    StateError,
    UsageError,
)
from edge.core.events import EventSink
from edge.core.rng import stream
from edge.core.types import AdapterRef
from edge.dagrpo.advantages import AdvantageScale
from edge.inference.backend import InferenceBackend, ModelInfo
from edge.routing.policy import OffloadPolicy
from edge.rpc.client import BudgetSnapshot, CloudCompletion, CoordinatorClient, TaskTerms
from edge.training.floor import StepMeasure
from edge.training.gate import GateRules
from edge.training.learner import Learner
from edge.verifiers.verifier import Verifier

StopReason = Literal["done", "max_steps", "stopped"]
BetweenSteps = Callable[[StepPlan | None, int, int], Awaitable[None]]
"""Awaited before each step and after the last one: with the plan of the step that comes (None when all phases are done), the number of
steps done, and the version of the adapter that is trained."""
_HAND_IN_TRIES, _HAND_IN_PAUSE_S = 5, 1.0
_SETTLE_PAUSE_S, _LONGEST_SETTLE_PAUSE_S = 1.0, 60.0


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


class CoordinatorProcess(Protocol):
    """A coordinator that the agent starts for itself."""

    async def start(self) -> None:
        """Start it and wait until it serves. Raises CoordinatorUnavailable."""
        ...

    async def aclose(self) -> None:
        """Stop it."""
        ...


@dataclass(frozen=True, slots=True)
class AgentParts:
    """What an agent is made of. Heavy parts are opened by async factories when they are needed, the learner when learning begins.

    `coordinator_name` is shown to people: the address, or "embedded".
    """

    state: StateFolder
    curriculum: Curriculum
    open_backend: Callable[[], Awaitable[InferenceBackend]]
    open_learner: Callable[[], Awaitable[Learner]]
    client: CoordinatorClient
    coordinator: CoordinatorProcess | None
    coordinator_name: str
    verifier: Verifier
    policy: OffloadPolicy
    sink: EventSink
    clock: Clock
    failpoint: Callable[[str], None] = lambda name: None
    release: Callable[[], None] = lambda: None
    """Called last, after every part is closed."""
    open_rollouts: Callable[[InferenceBackend], Awaitable[InferenceBackend]] | None = None
    """A second engine over the same weights for learning, so that another adapter can be trained than serves; a gate needs it."""
    sound: Callable[[Path], None] = lambda adapter_folder: None
    """Reads an adapter's files through. Raises AdapterError when they are damaged."""
    own_use: OwnUse | None = None
    """What is learned beside the phases: verdicts on answers, watched task files."""
    conditions: LearningConditions | None = None
    """When learning may use the machine; None: always."""
    step_measure: Callable[[], StepMeasure | None] = lambda: None
    """What the least time of a step is computed from, where the device was measured; asked once, when learning begins."""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """How it works. Prompt forms are "auto" (of the model) or fixed; `answers.prompt_form` likewise."""

    rollout: RolloutSettings
    answers: AnswerSettings
    dual_init: float
    advantage_scale: AdvantageScale
    call_deadline_s: float
    dial_rate: float | None
    offline_retry_s: float = 10.0
    gate: GateRules | None = None
    """None: every step's adapter serves at once."""
    daily_limits: DailyLimits = NO_LIMITS
    recheck_every: int | None = None
    """Steps after which the version that serves is examined again; with a gate only. None: never."""


def with_prompt_form(settings: AgentSettings, model: ModelInfo) -> AgentSettings:
    """The settings with "auto" prompt forms replaced by what the loaded model reads."""
    if settings.rollout.prompt_form != "auto":
        return settings
    form = model.prompt_form
    rollout, answers = replace(settings.rollout, prompt_form=form), replace(settings.answers, prompt_form=form)
    return replace(settings, rollout=rollout, answers=answers)


class Agent:
    """`async with build_agent(...) as agent:`; then serve `agent.answerer` and run `agent.learn()` beside it."""

    answerer: Answerer
    texts: ServedTexts

    def __init__(self, parts: AgentParts, settings: AgentSettings) -> None:
        if settings.gate is not None and parts.open_rollouts is None:
            raise ValueError("a gate needs a second engine for learning")
        self._parts = parts
        self._settings = settings
        self._rollouts: InferenceBackend | None = None
        self._learner: Learner | None = None
        self._trained = -1
        self._switching = asyncio.Lock()
        self._client = WatchedClient(parts.client, parts.sink, parts.clock)
        jitter = stream(settings.rollout.seed, "budget-watch", settings.rollout.run_id)
        self._budget_watch = BudgetWatch(parts.client, jitter)
        self._gate = ServingGate(parts.clock)
        self._readiness = Readiness(self._gate, parts.conditions, parts.state, parts.sink, parts.clock)
        self._purse = LearningPurse(parts.state, parts.clock, settings.daily_limits, self._notice)
        self.feedback = FeedbackBook(parts.state)
        self._served_task = ""
        self._switch = CloudSwitch(parts.state, settings.answers.switched_off)
        self._dials = DialBook(parts.state, settings.dial_rate, parts.clock)
        self._quotas = Quotas(parts.state, self._known_budget, self._why_away, self._dials, self._switch)
        self._doubts = CallsInDoubt(parts.state, self._client, parts.sink, parts.clock)
        self._stop = asyncio.Event()
        self._learning = "idle"
        self._phase_told: int | None = None
        self._reached = False
        self._refusal: PermissionDenied | None = None
        self._checkpoints = Checkpoints(parts.state.folder / "checkpoints")
        self._book = StepBook(self._client, parts.state, parts.sink, parts.clock, settings.dual_init, settings.offline_retry_s)
        self._stack = AsyncExitStack()
        self._began = parts.clock.monotonic()

    async def __aenter__(self) -> Self:
        """Load the model and the last adapter, start or reach the coordinator (offline is fine), resume the state.

        With the cloud switched off, the embedded coordinator is started by `learn`.
        """
        async with AsyncExitStack() as stack:
            self._stack = stack
            stack.callback(self._parts.state.close)
            stack.callback(self._parts.release)
            self._backend = await self._parts.open_backend()
            stack.push_async_callback(self._backend.aclose)
            self._settings = with_prompt_form(self._settings, self._backend.model)
            stack.push_async_callback(self._client.aclose)
            stack.push_async_callback(self._budget_watch.aclose)
            if not self._may_wait_for_learning():
                await self._reach_coordinator(stack)
            await self._resume()
            if self._reached:
                await self._budget_watch.follow(self._current_task())
                await self._ask_for_budget_of_serving()
            self.answerer = self._make_answerer()
            self.texts = ServedTexts(self._backend, self._gate)
            stack.push_async_callback(_cancelled, self._begin_settling())
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Stop learning at the safe point, release engine, coordinator and state."""
        self.request_stop()
        await self._stack.aclose()

    async def learn(self, max_steps: int | None = None, between_steps: BetweenSteps | None = None) -> RunFinished:
        """Work through the phases, at most `max_steps` steps in this call; pauses while somebody is served.

        `between_steps` is cancelled when a stop is asked for. Raises UsageError when it is learning already, and what a step could not
        get over (a refused credential, an engine failure).
        """
        if self._learning in ("learning", "paused"):
            raise UsageError("this agent is learning already")
        self._learning = "learning"
        try:
            if not self._reached:
                await self._reach_coordinator(self._stack)
            self._require_all_tasks()
            await self._prepare_learner()
            step = self._made_step(await self._for_rollouts())
            self._tell_start()
            reason = await self._learn_until(step, max_steps, between_steps)
            await self._hand_in()
            self._learning = "finished" if reason == "done" else "stopped"
        except BaseException:
            self._learning = "stopped"
            raise
        return self._tell_end(reason)

    def request_stop(self) -> None:
        """Ask learning to end after the step's current safe point; may be called from a signal handler."""
        self._stop.set()

    @property
    def busy(self) -> bool:
        """Somebody is being served."""
        return self._gate.busy

    def status(self) -> AgentStatus:
        """A snapshot for a screen."""
        state, position = self._parts.state, self._parts.state.position()
        last = next(iter(state.steps(last=1)), None)
        task = self._parts.curriculum.phase_task(position.phase)
        terms = state.terms(task)
        return AgentStatus(
            run_id=state.run_id,
            model=self._backend.model,
            adapter_version=self._backend.adapter_version,
            mode=self._settings.answers.mode,
            learning=self._learning_word(),
            online=self._client.online,
            offline_reason=self._client.offline_reason,
            coordinator=self._parts.coordinator_name,
            task=task,
            target_rate=terms.target_rate if terms else self._parts.curriculum.phase_rate(position.phase),
            dual=terms.dual if terms else None,
            phase=position.phase,
            phases=self._parts.curriculum.phase_count,
            steps_done=position.steps_done,
            steps_planned=self._parts.curriculum.steps_planned,
            last_step=last,
            outbox=len(state.outbox()),
            answers=self.answerer.answers,
            total_cloud_calls=last.total_cloud_calls if last else 0,
            total_cloud_tokens=last.total_cloud_tokens if last else 0,
            total_spend_uusd=last.total_spend_uusd if last else 0,
            uptime_s=self._parts.clock.monotonic() - self._began,
            trained_version=state.line().head,
            waiting=self._readiness.told(),
            paused=is_paused(state),
            quota=self.quota(),
            unsettled_calls=len(self._doubts.waiting()),
        )

    def _learning_word(self) -> str:
        waits = self._gate.busy or self._readiness.waiting
        return "paused" if self._learning == "learning" and waits else self._learning

    def pause_learning(self, paused: bool) -> None:
        """Begin no further step, or go on; kept over restarts. A step under way is finished."""
        self._readiness.pause(paused)

    def rate_answer(self, feedback: Feedback) -> Feedback:
        """Keep what a person thinks of an answer. Raises NotFound, UsageError."""
        return self.feedback.give(feedback, self._parts.clock.now())

    def report(self, since: float) -> dict[str, Any]:
        """What was learned, gained, forgotten and spent since a time (seconds since the epoch)."""
        return daybook(self._parts.state.database, since, self._parts.clock.now())

    def more_to_learn(self) -> bool:
        """Whether learning that was done has something new to learn from."""
        return self._next_step() is not None

    def steps(self, last: int | None = None) -> list[StepFinished]:
        """Finished steps from the state folder, oldest first (for learning curves)."""
        return self._parts.state.steps(last)

    @property
    def run_id(self) -> str:
        """The name of this state folder's run."""
        return self._parts.state.run_id

    def held_out(self, limit: int) -> list[HeldOut]:
        """At most `limit` held-out items of each phase's source. Raises TaskFileError."""
        return self._parts.curriculum.held_out(limit)

    async def examine(self, candidates: Sequence[Candidate], on_item: Callable[[], None] = lambda: None) -> Scores:
        """What the adapter that is trained makes of at least one candidate at temperature 0, without the cloud."""
        evaluation = self._evaluation(self._rollouts or self._backend)
        return score(await evaluation.judge_all(candidates, "held-out", on_judged=lambda candidate, judged: on_item()))

    def why(self, request_id: str) -> AnswerRecord:
        """The stored record of an answer. Raises NotFound."""
        return AnswerRecord(**self._parts.state.request(request_id))

    def used_today(self) -> UsedToday:
        """What this device has used, today and ever."""
        return used_today(self._parts.state.database, self._parts.clock.now())

    def sent(self) -> SentReader:
        """What left the device, and what waits."""
        return SentReader(self._parts.state.database)

    async def budget(self, task: str | None = None) -> BudgetSnapshot:
        """The budget at the coordinator. Raises CoordinatorError."""
        return await self._client.get_budget(task or self._current_task())

    def followed_budget(self) -> BudgetSnapshot | None:
        """The budget of the task at hand as the coordinator told it last of its own accord; None while it cannot be followed."""
        return self._budget_watch.newest(self._budget_watch.task)

    def adapter(self) -> AdapterRef | None:
        """The adapter in use, None for the bare model."""
        checkpoint = self._checkpoints.at(self._backend.adapter_version)
        return checkpoint.adapter if checkpoint else None

    def versions(self) -> Versions:
        """The adapter versions in the state folder."""
        return Versions(self._parts.state, self._checkpoints, self._parts.sound)

    async def rollback(self, version: int, by: str = "person", reason: str = "") -> Line:
        """Serve this version at once, and go on learning from it (a step under way is finished first, and left). 0 is the bare model.

        `by`: a person, or what found the version in use worse, with its `reason` in one line.

        Raises NotFound, and AdapterError or StateError for a damaged one; everything stays as it was then.
        """
        versions = self.versions()
        async with self._switching:
            checkpoint = await asyncio.to_thread(versions.checkpoint, version)
            await self._backend.swap_adapter(checkpoint.adapter if checkpoint else None)
            line = versions.go_back(version, self._parts.clock.now(), by, reason)
        told = f" ({reason})" if reason else ""
        self._notice(f"went back to {version_name(version)}{told}; serving and learning go on from there")
        self._parts.sink.emit(AdapterSwapped(version, checkpoint.adapter.folder if checkpoint else ""))
        return line

    def set_dial(self, rate: float | None, task: str | None = None) -> None:
        """The share of served questions that may ask, from the next one on (None: the model decides alone), of one task or of every one.

        Kept over restarts. Raises UsageError outside [0, 1].
        """
        self._dials.set(rate, task)

    def dial(self, task: str | None = None) -> DialReading:
        """The dial of a task (None: the one that serving uses)."""
        return self._dials.of(task or self.serving_task).reading(self._backend.adapter_version)

    def pause_cloud(self, paused: bool) -> None:
        """Ask no cloud, for people or for learning, until it is resumed. Kept over restarts."""
        self._switch.pause(paused, self._parts.clock.now())
        self._notice("the cloud is paused; answers come from this device" if paused else "the cloud may be asked again")

    @property
    def switch(self) -> CloudSwitch:
        """Whether the cloud may be asked."""
        return self._switch

    def quota(self, task: str | None = None) -> Quota:
        """What a task (None: the one that serving uses) may still ask, from what is known; asks nobody."""
        return self._quotas.now(task or self.serving_task, self._backend.adapter_version)

    @property
    def serving_task(self) -> str:
        """The label whose budget people's questions use."""
        return self._served_task or self._settings.answers.task or self._current_task()

    @property
    def default_dial_rate(self) -> float | None:
        """The dial's τ of tasks without one of their own."""
        return self._dials.default_rate

    def follows(self, task: str) -> bool:
        """Whether the coordinator tells of this task's budget by itself."""
        return self._budget_watch.newest(task) is not None

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that have a budget here: the one that serving uses, those of the phases, and those with a dial."""
        return tuple(dict.fromkeys([self.serving_task, *self._parts.curriculum.tasks, *self._dials.tasks]))

    async def call(self, call_key: str) -> CloudCompletion:
        """The coordinator's entry of a call. Raises CoordinatorError."""
        return await self._client.get_call(call_key)

    async def settle_calls(self) -> int:
        """Ask now for the ends of calls that are not known; how many are known thereby."""
        return await self._doubts.settle()

    @property
    def state(self) -> StateReader:
        """The state folder, to look into."""
        return self._parts.state

    def _may_wait_for_learning(self) -> bool:
        """With the cloud switched off nobody who is served needs a coordinator of our own; learning and a cut step do."""
        cut = self._checkpoints.at(self._parts.state.position().steps_done + 1)
        return self._parts.coordinator is not None and bool(self._settings.answers.switched_off) and cut is None

    async def _reach_coordinator(self, stack: AsyncExitStack) -> None:
        """Start the embedded one; register. Being offline is fine, a task that this device may not work on is for serving; a refused
        credential or an unknown task is not."""
        self._reached = True
        try:
            if self._parts.coordinator is not None:
                stack.push_async_callback(self._parts.coordinator.aclose)
                await self._parts.coordinator.start()
            await self._register()
        except CoordinatorUnavailable as error:
            self._client.lost(why_away(error))

    async def _ask_for_budget_of_serving(self) -> None:
        """Once, where people's questions use another budget than the one that is followed."""
        if self._client.online and self.serving_task != self._budget_watch.task:
            with suppress(CoordinatorError):
                await self._client.get_budget(self.serving_task)

    async def _register(self) -> None:
        for terms in await self._terms_of(self._parts.curriculum.tasks):
            if self._parts.state.terms(terms.task) is None:
                self._parts.state.note_terms(Terms(terms.task, terms.target_rate, terms.dual, terms.next_step))

    async def _terms_of(self, tasks: Sequence[str]) -> list[TaskTerms]:
        """What the coordinator holds tasks to. One that this device may not work on is answered here, and not learned."""
        try:
            return list((await self._client.register(__version__, tasks)).tasks)
        except PermissionDenied as error:
            if error.reason != PermissionDenied.reason:
                raise
            if len(tasks) > 1:
                return [terms for task in tasks for terms in await self._terms_of([task])]
            self._refusal = error
            self._notice(f"{error}; its questions are answered here")
            return []

    def _require_all_tasks(self) -> None:
        """Raises PermissionDenied: a phase that may not be learned is told before the first step, not when its turn comes."""
        if self._refusal is not None:
            hint = f"{self._refusal.hint}; set phases, or --tasks, to what it may work on".removeprefix("; ")
            raise PermissionDenied(str(self._refusal), hint=hint)

    async def _resume(self) -> None:
        """Finish the step a crash cut after its checkpoint, then serve the adapter that served, or the last one that can be used."""
        steps_done = self._parts.state.position().steps_done
        cut = self._checkpoints.at(steps_done + 1)
        if cut is None or not await self._finished(cut):
            await self._serve_newest()
        if self._parts.curriculum.adopt():
            self._notice("the phases have changed; learning begins at the first one with the present adapter")

    async def _finished(self, cut: Checkpoint) -> bool:
        """Report, commit and serve a cut step; False when its checkpoint is damaged (uncommitted, it is made again)."""
        try:
            cut.manifest()
            self._notice(f"step {cut.step} had been cut before it was reported; finishing it")
            await StepCloser(self._roles(await self._for_rollouts())).finish(cut)
        except AdapterError:
            return False  # committed; looking for the newest usable adapter tells what is wrong with it
        except StateError as error:
            self._notice(f"{error}; step {cut.step} will be made again")
            return False
        return self._backend.adapter_version == self._parts.state.line().serving

    async def _serve_newest(self) -> None:
        """Serve the version that shall serve or else the newest undamaged one it was trained from, or the bare model; say so then."""
        serving = self._parts.state.line().serving
        chosen, problem = None, f"the checkpoint of step {serving} is missing"
        for checkpoint in self._on_line(serving):
            try:
                checkpoint.manifest()
                await self._backend.swap_adapter(checkpoint.adapter)
            except (AdapterError, StateError) as error:
                problem = str(error) if checkpoint.step == serving else problem
                continue
            chosen = checkpoint
            break
        if (chosen.step if chosen else 0) != serving:
            used = f"the adapter of step {chosen.step}" if chosen else "the bare model"
            self._notice(f"{problem}; going on with {used}")

    def _on_line(self, version: int) -> list[Checkpoint]:
        """The checkpoints of a version and of those it was trained from, newest first."""
        return self._checkpoints.among(self._parts.state.line_of(version))

    async def _prepare_learner(self) -> None:
        """A learner and an engine that hold the head of the line. Raises StateError when no checkpoint of the line is intact."""
        rollouts, head = await self._for_rollouts(), self._parts.state.line().head
        if self._learner is None or head == 0:
            self._learner = None  # a fresh one is the bare model; the old one's memory is free before
            self._learner = await self._parts.open_learner()
        if head == 0:
            await rollouts.swap_adapter(None)
        else:
            await self._load_newest(self._learner, rollouts)
        self._trained = self._parts.state.line().head

    async def _load_newest(self, learner: Learner, rollouts: InferenceBackend) -> None:
        """Load the state that belongs to the head of the line, or an older one with its adapter. Raises StateError when none is intact.

        Step numbers, λ and the data cursor stay where they are; only what the lost steps had learned is learned again.
        """
        refusal = StateError(
            f"{self._parts.state.folder / 'checkpoints'}: no checkpoint is intact, so learning cannot go on from here",
            hint="restore the folder from a backup, or learn in another one with --state",
        )
        line = self._parts.state.line()
        start = self._backend.adapter_version if line.head == line.serving else line.head
        for number, checkpoint in enumerate(self._on_line(start)):
            try:
                await learner.load(checkpoint.learner_folder)
                await rollouts.swap_adapter(checkpoint.adapter)
            except (AdapterError, StateError) as error:
                refusal = error if number == 0 and isinstance(error, StateError) else refusal
                continue
            if number:
                self._notice(f"{refusal}; learning goes on from the checkpoint of step {checkpoint.step}")
            if checkpoint.step != line.head:
                serving = checkpoint.step if line.serving == line.head else line.serving
                self._parts.state.set_line(replace(line, head=checkpoint.step, serving=serving))
            return
        raise refusal

    async def _for_rollouts(self) -> InferenceBackend:
        """The engine for learning: the one that serves, or with a gate a second one, opened when it is first needed."""
        if self._settings.gate is None or self._parts.open_rollouts is None:
            return self._backend
        if self._rollouts is None:
            self._rollouts = await self._parts.open_rollouts(self._backend)
            self._stack.push_async_callback(self._rollouts.aclose)
        return self._rollouts

    def _made_step(self, rollouts: InferenceBackend) -> LearningStep:
        desk: CloudDesk = CloudDesk(self._client, self._settings.call_deadline_s, lambda: self._switch.reason)
        desk = PurseDesk(desk, self._purse)
        rollout = Rollout(rollouts, desk, self._parts.verifier, self._parts.policy, self._parts.clock, self._settings.rollout)
        group_size, scale = self._settings.rollout.group_size, self._settings.advantage_scale
        measure = self._parts.step_measure()
        return LearningStep(self._roles(rollouts), rollout, self._present_learner, group_size, scale, measure)

    def _present_learner(self) -> Learner:
        """The learner of now: going back to the bare model opens another one."""
        if self._learner is None:
            raise UsageError("this agent is not learning")
        return self._learner

    async def _learn_until(self, step: LearningStep, max_steps: int | None, between_steps: BetweenSteps | None) -> StopReason:
        made, guard = 0, self._made_guard(await self._for_rollouts())
        while not self._stop.is_set():
            plan = self._next_step()
            if between_steps is not None:
                await self._follow_line()
                done = self._parts.state.position().steps_done
                await self._unless_stopped(between_steps(plan, done, self._trained))
            if self._stop.is_set():
                break
            if max_steps is not None and made >= max_steps:
                return "max_steps"
            if plan is None:
                return "done"
            await self._unless_stopped(self._readiness.ready())
            if self._stop.is_set():
                break
            if guard is not None:
                await self._unless_stopped(self._keep_the_best(guard))
                if self._stop.is_set():
                    break
            plan = self._next_step() or plan
            await self._follow_line()
            self._tell_phase(plan)
            await self._budget_watch.follow(plan.task)
            if await self._made_or_left_out(step, plan):
                self._trained = self._parts.state.position().steps_done
                self._keep_budget(plan.task)
                made += 1
        return "stopped"

    def _next_step(self) -> StepPlan | None:
        """The phases' next step, or one of one's own use whose turn it is."""
        plan = self._parts.curriculum.next_step()
        return plan if self._parts.own_use is None else self._parts.own_use.next_step(plan)

    async def _made_or_left_out(self, step: LearningStep, plan: StepPlan) -> bool:
        """Make the step. False where its items, a person's own, cannot be learned from: they are left out from now on."""
        try:
            await self._unless_stopped(step.run(plan, self._trained), may_cancel=lambda: step.interruptible)
        except (ContextOverflow, InvalidRequest, NotFound, PermissionDenied, UsageError) as error:
            if self._parts.own_use is None or not plan.own or is_about_the_device(error):
                raise
            self._parts.own_use.leave_out(plan, error)
            self._notice(f"{plan.source}: {len(plan.items)} questions cannot be learned from and are left out ({error})")
            return False
        return True

    def _made_guard(self, rollouts: InferenceBackend) -> Guard | None:
        if self._settings.gate is None:
            return None
        state, clock, every = self._parts.state, self._parts.clock, self._settings.recheck_every
        return Guard(state, self._checkpoints, self._exam(rollouts), clock.now, every=every, sound=self._is_sound)

    async def _is_sound(self, version: int) -> bool:
        try:
            await asyncio.to_thread(self.versions().checkpoint, version)
        except (AdapterError, StateError, NotFound):
            return False
        return True

    async def _keep_the_best(self, guard: Guard) -> None:
        """Go back where the version that serves is worse than one before it."""
        examined = guard.exam_is_due()
        found = await guard.withdrawal()
        if examined:
            await self._load_head_for_rollouts()
        if found is not None:
            await self.rollback(found.better, by=found.cause, reason=found.reason)
            now = self._parts.clock.now()
            self._parts.sink.emit(WentBack(found.version, found.better, found.cause, found.reason, now))

    async def _load_head_for_rollouts(self) -> None:
        """What an exam has left in the engine for learning makes room for the adapter that is trained."""
        head = self._checkpoints.at(self._parts.state.line().head)
        await (await self._for_rollouts()).swap_adapter(head.adapter if head else None)

    async def _follow_line(self) -> None:
        """Where training went back to another version, load that one."""
        if self._trained != self._parts.state.line().head:
            await self._prepare_learner()

    async def _hand_in(self) -> None:
        """Deliver the step reports that still wait; a coordinator of our own may just be coming back. What stays goes with the next run."""
        for attempt in range(_HAND_IN_TRIES if self._parts.coordinator is not None else 1):
            if attempt:
                await self._unless_stopped(asyncio.sleep(_HAND_IN_PAUSE_S))
            if not self._parts.state.outbox():
                return
            try:
                await self._book.deliver()
            except CoordinatorUnavailable:
                continue

    async def _unless_stopped(self, work: Awaitable[object], may_cancel: Callable[[], bool] = lambda: True) -> None:
        """Await the work; when a stop is asked for, cancel it if it may be cancelled, else wait for its end."""
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done() and may_cancel():
                task.cancel()
            await asyncio.wait({task})
        finally:
            stop.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
        if not task.cancelled():
            task.result()

    def _roles(self, rollouts: InferenceBackend) -> StepRoles:
        parts = self._parts
        return StepRoles(
            self._backend,
            rollouts,
            self._book,
            self._checkpoints,
            parts.state,
            parts.sink,
            parts.clock,
            self._switching,
            self._promotion(rollouts),
            parts.failpoint,
        )

    def _promotion(self, rollouts: InferenceBackend) -> PromotionGate | None:
        rules = self._settings.gate
        if rules is None:
            return None
        own = self._parts.own_use
        own_anchors = {} if own is None else {"own_anchors": own.anchors}
        anchors, exam = self._parts.curriculum.anchors, self._exam(rollouts)
        return PromotionGate(rules, anchors, exam, self._parts.state, self._checkpoints, **own_anchors)

    def _exam(self, rollouts: InferenceBackend) -> Exam:
        evaluation = self._evaluation(rollouts)

        async def exam(adapter: AdapterRef | None, candidates: Sequence[Candidate]) -> dict[str, bool]:
            await rollouts.swap_adapter(adapter)
            judged = await evaluation.judge_all(candidates, "anchors")
            return {one.candidate.key: one.judged.forced.right for one in judged}

        return exam

    def _evaluation(self, backend: InferenceBackend) -> Evaluation:
        """At temperature 0, without the cloud."""
        roles = EvalRoles(backend, self._parts.verifier, self._parts.policy, cloud=None)
        return Evaluation(roles, replace(self._settings.rollout, temperature=0.0))

    def _make_answerer(self) -> Answerer:
        self._served_task = self.serving_task
        return Answerer(
            self._backend,
            self._client,
            self._parts.state,
            self._gate,
            CloudAccess(self._switch, self._dials, self._quotas, self._doubts),
            self._parts.sink,
            self._parts.clock,
            replace(self._settings.answers, task=self._served_task),
        )

    def _begin_settling(self) -> asyncio.Task[None]:
        """Calls that an earlier process left, and those that this one will lose."""
        if self._doubts.waiting():
            self._doubts.wake.set()
        return asyncio.create_task(self._doubts.keep_settling(_SETTLE_PAUSE_S, _LONGEST_SETTLE_PAUSE_S), name="settle-calls")

    def _known_budget(self, task: str) -> KnownBudget | None:
        """What the coordinator said last of a task's budget, by itself or with an answer."""
        told, followed = self._client.budget_of(task), self._budget_watch.newest(task)
        if followed is None or (told is not None and told.budget.version > followed.version):
            return told
        return KnownBudget(followed, self._parts.clock.now())

    def _keep_budget(self, task: str) -> None:
        with self._parts.state.database:
            self._quotas.save(task)

    def _why_away(self) -> str:
        return "" if self._client.online else self._client.offline_reason or "the coordinator is away"

    def _current_task(self) -> str:
        return self._parts.curriculum.phase_task(self._parts.state.position().phase)

    def _tell_start(self) -> None:
        state = self._parts.state
        self._parts.sink.emit(
            RunStarted(
                state.run_id,
                self._backend.model.name,
                state.position().steps_done,
                None
                if self._parts.own_use
                else self._parts.curriculum.steps_planned,  # own steps come on top, as their events tell
                self._backend.adapter_version,
                self._parts.clock.now(),
            )
        )
        self._learning_began = self._parts.clock.monotonic()

    def _tell_phase(self, plan: StepPlan) -> None:
        if plan.own or self._phase_told == plan.phase:
            return
        self._phase_told = plan.phase
        curriculum = self._parts.curriculum
        steps, phases = curriculum.phase(plan.phase).steps, curriculum.phase_count
        self._parts.sink.emit(PhaseStarted(plan.phase, plan.source, plan.task, plan.target_rate, steps, plan.phase_step, phases))

    def _tell_end(self, reason: StopReason) -> RunFinished:
        state = self._parts.state
        last = next(iter(state.steps(last=1)), None)
        finished = RunFinished(
            run_id=state.run_id,
            reason=reason,
            steps_done=state.position().steps_done,
            adapter_version=self._backend.adapter_version,
            total_cloud_calls=last.total_cloud_calls if last else 0,
            total_cloud_tokens=last.total_cloud_tokens if last else 0,
            total_spend_uusd=last.total_spend_uusd if last else 0,
            seconds=self._parts.clock.monotonic() - self._learning_began,
            at=self._parts.clock.now(),
        )
        self._parts.sink.emit(finished)
        return finished

    def _notice(self, text: str) -> None:
        self._parts.sink.emit(Notice(text=text, at=self._parts.clock.now()))


async def _cancelled(task: asyncio.Task[None]) -> None:
    """End a task of the agent's own."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
