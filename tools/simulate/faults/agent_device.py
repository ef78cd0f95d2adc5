"""A real agent in the fault worlds: one life of it, how people ask it, and what befalls it.

Its state folder is a real one on a disk that forgets nothing: a crash stops the process between two of its steps and lets go of the folder,
as the system does. What SQLite or a checkpoint had not synced yet is not lost here, so that a missing sync would not be found.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from edge.agent import Agent
from edge.budget.daily import DailyLimits
from edge.budget.dial import HelpDial
from edge.config.schema import PhaseConfig
from edge.core.errors import CoordinatorError, EdgeError, PermissionDenied
from edge.core.events import Event
from edge.core.rng import derive_seed, stream
from edge.core.types import Message, Mode
from edge.rpc.client import CloudCall, CloudCompletion, CloudDelta, StepClosed, StepOpened, StepUnits
from edge.rpc.grpc_client import ClientPolicy
from edge.state.answer_record import AnswerRecord, AnswerRequest
from edge.state.events import Notice, StepFinished
from edge.state.reader import StateReader
from edge.state.rows import Report, StoredTerms
from tools.simulate.faults.device import WISHED_RATE, FaultSurroundings, Member, Notebook
from tools.simulate.faults.log import DeviceLog, answer_parts, refusal_parts
from tools.simulate.faults.scenario import AgentPlan, Fault, FaultScenario
from tools.simulate.faults.upstream import MAX_OUTPUT_TOKENS
from tools.simulate.fleet.agent import SimulatedState, simulated_agent
from tools.simulate.fleet.backend import SimulatedBackend
from tools.simulate.fleet.hardware import SimulatedSpeed
from tools.simulate.fleet.machine import Machine
from tools.simulate.fleet.mind import Mind
from tools.simulate.fleet.people import NUMBERS_OF_A_DEVICE, PRACTICE_FROM, Practice, draw_question
from tools.simulate.fleet.scenario import GroupPart, LearningPart, TokensPart
from tools.simulate.virtual.loop import VirtualClock
from tools.simulate.virtual.network import SimulatedChannel, SimulatedClient

POLICY = ClientPolicy()
DEADLINE_S = 15.0
CHECK_S = 1.0
SETTLE_S = 400.0
"""For calls in doubt: an agent asks for their end once a minute at least."""
STOP_S = 120.0
SPEED = SimulatedSpeed("laptop", "small", 400.0, ((1, 40.0), (16, 200.0)), 500.0, 5.0, 30.0)
_MODES: tuple[Mode | None, ...] = (None, None, None, None, "prefer-local", "cloud-only")


@dataclass(slots=True)
class AskedQuestion:
    """One question and how it ended: "" while it is open, or cut by a crash; the source of its answer; "refused" or "left"."""

    id: str
    end: str = ""
    record: AnswerRecord | None = None
    dial_set: bool = False
    """The dial was set while it was answered."""


@dataclass(frozen=True, slots=True)
class Paid:
    """A call of learning: what a call cost in micro-USD, on which day it was let out, and whether its end is known."""

    day: str
    spend_uusd: int
    settled: bool


@dataclass(frozen=True, slots=True)
class Kept:
    """What a state folder has at the end, as plain values. `steps`: each with its task's step number, in the order of their commits."""

    records: Mapping[str, dict[str, Any]]
    steps: Sequence[tuple[StepFinished, int]]
    waiting_reports: Sequence[Report]
    unconfirmed: Sequence[str]
    daily_budget: Mapping[str, Paid]
    dial: HelpDial | None
    terms: Mapping[str, StoredTerms | None]
    steps_done: int
    cursors: Mapping[str, int]

    @classmethod
    def read(cls, state: StateReader, tasks: Iterable[str]) -> Kept:
        """All of it out of an open folder."""
        records = {str(key): json.loads(text) for key, text in state.rows("SELECT id, record FROM requests")}
        places = [int(place) for (place,) in state.rows("SELECT task_step FROM steps ORDER BY step")]
        paid = state.rows("SELECT call_key, day, spend_uusd, settled FROM learning_spend")
        names = tuple(tasks)
        dials = state.rows("SELECT dial FROM dials WHERE task = ?", (names[0],))
        return cls(
            records=records,
            steps=list(zip(state.steps(), places, strict=True)),
            waiting_reports=[report for _, report in state.waiting_reports()],
            unconfirmed=[str(key) for (key,) in state.rows("SELECT call_key FROM calls_in_doubt")],
            daily_budget={str(key): Paid(str(day), int(spend), bool(settled)) for key, day, spend, settled in paid},
            dial=HelpDial.from_json(names[0], str(dials[0][0])) if dials else None,
            terms={task: state.terms(task) for task in names},
            steps_done=state.position().steps_done,
            cursors={str(source): int(place) for source, place in state.rows("SELECT source, position FROM cursors")},
        )


class LoggedClient(SimulatedClient):
    """The real client, which writes down requests and replies."""

    def __init__(self, channel: SimulatedChannel, seed: int, notebook: Notebook, log: DeviceLog) -> None:
        super().__init__(channel, log.device, POLICY, seed)
        self._notebook = notebook
        self._log = log

    async def complete(self, call: CloudCall, deadline_s: float) -> CloudCompletion:
        """Ask the cloud once."""
        self._notebook.calls[call.call_key] = call
        return await self._log.noted("complete", call.call_key, super().complete(call, deadline_s))

    async def stream_complete(self, call: CloudCall, deadline_s: float) -> AsyncIterator[CloudDelta]:
        """Ask the cloud once and stream its answer."""
        self._notebook.calls[call.call_key] = call
        self._log.note("complete", call.call_key, "asked")
        try:
            async with aclosing(super().stream_complete(call, deadline_s)) as deltas:  # type: ignore[type-var]
                async for delta in deltas:
                    if delta.completion is not None:
                        self._log.note("complete", call.call_key, "completed", answer_parts(delta.completion))
                    yield delta
        except CoordinatorError as error:
            self._log.note("complete", call.call_key, error.reason, refusal_parts(error))
            raise

    async def get_call(self, call_key: str) -> CloudCompletion:
        """The stored result of an earlier call."""
        return await self._log.noted("get_call", call_key, super().get_call(call_key))

    async def open_step(self, task: str, step: int, planned_prompts: int, group_size: int, target_rate: float) -> StepOpened:
        """Open a learning step."""
        opening = super().open_step(task, step, planned_prompts, group_size, target_rate)
        return await self._log.noted("open_step", f"{task}#{step}", opening)

    async def close_step(self, task: str, step: int, units: StepUnits) -> StepClosed:
        """Report a step."""
        return await self._log.noted("close_step", f"{task}#{step}", super().close_step(task, step, units))


class EvenlySpread:
    """Implements `LearningConditions`: no step begins sooner than `every_s` after the one before, so that faults meet steps at any time."""

    def __init__(self, every_s: float, time: Callable[[], float]) -> None:
        self._every_s = every_s
        self._time = time
        self._next_s = 0.0
        self.check_s = every_s

    def waiting_for(self, now: float, quiet_s: float) -> str:
        """Why no step may begin, or ""."""
        left_s = self._next_s - self._time()
        self.check_s = left_s if left_s > 0.0 else self._every_s
        if left_s > 0.0:
            return "the next step has its time"
        self._next_s = self._time() + self._every_s
        return ""


class AgentLife:
    """An agent from the opening of its state folder to its end. `live` it as a task of a host of its own."""

    def __init__(self, member: AgentMember) -> None:
        self.name = member.name
        self.state = SimulatedState(member.folder)
        self._member = member
        self._plan = member.plan
        self._scenario = member.around.scenario
        self._loop = member.around.loop
        self._group = _group_of(self._scenario, self._plan)
        self._number = member.notebook.lives
        self._ended = asyncio.Event()
        self.is_open = False
        self.asked_all = not self._plan.questions
        self.learned_all = not self._plan.steps
        self.agent = self._make_agent(member)

    async def live(self, *, asked: bool) -> None:
        """Learn, answer where `asked`, until `end`; what breaks it is noted."""
        try:
            async with self.agent:
                self.is_open = True
                await self._work(asked=asked)
                self.is_open = False
        except* Exception as group:
            self._member.failures += [f"{type(error).__name__}: {error}" for error in _all_of(group)]
        finally:
            self.is_open = False

    async def _work(self, *, asked: bool) -> None:
        async with asyncio.TaskGroup() as both:
            learning = both.create_task(self._learn(), name=f"{self.name}: learn")
            if asked:
                both.create_task(self._be_asked(), name=f"{self.name}: asked")
            await self._ended.wait()
            self.agent.request_stop()
            await learning

    def end(self) -> None:
        """Come to an end in good order."""
        self._ended.set()

    def emit(self, event: Event) -> None:
        """Implements `EventSink`."""
        if isinstance(event, Notice):
            self._member.notices.append(event.text)

    async def _learn(self) -> None:
        while self._plan.steps and not self._ended.is_set():
            try:
                await self.agent.learn()
                break
            except PermissionDenied as error:  # a task that is still ahead was taken away; a person checks for that now and then
                if not any(repr(task) in str(error) for task in self.agent.components.curriculum.tasks_ahead):
                    raise
                self._member.waits_for_task += 1
                await self._pause(CHECK_S)
        self.learned_all = self.agent.learning.stage == "finished" or not self._plan.steps

    async def _be_asked(self) -> None:
        """One question after the other, sometimes two at once, until there are no more; what is left after `lasts_s` has no pauses."""
        rng = stream(self._scenario.seed, "people", self.name, self._number)
        async with asyncio.TaskGroup() as people:
            while len(self._member.asked) < self._plan.questions and not self._ended.is_set():
                time_left_s = max(0.0, self._scenario.lasts_s - self._loop.time())
                await self._pause(min(rng.expovariate(1.0 / self._plan.every_s), time_left_s))
                if self._ended.is_set() or len(self._member.asked) >= self._plan.questions:
                    break
                leaves_s = rng.uniform(0.1, 6.0) if rng.random() < 0.1 else None
                asking = people.create_task(self._ask(rng.choice(_MODES), leaves_s), name=f"{self.name}: question")
                if rng.random() < 0.8:
                    await asyncio.wait([asking])
        self.asked_all = True

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            return

    async def _ask(self, mode: Mode | None, leaves_s: float | None) -> None:
        number = self._member.number * NUMBERS_OF_A_DEVICE + len(self._member.asked)
        asked = AskedQuestion(f"{number:09d}")
        self._member.asked.append(asked)
        question = draw_question(self._group, self._scenario.seed, number, self._loop.time())
        request = AnswerRequest((Message("user", question.text),), mode=mode, id=asked.id, seed=number)
        try:
            async with asyncio.timeout(leaves_s):
                asked.record = await self.agent.answerer.answer(request)
            asked.end = asked.record.source
        except TimeoutError:
            asked.end = "left"
        except EdgeError:  # in mode cloud-only
            asked.end = "refused"

    # making --------------------------------------------------------------------------------------------------------------------

    def _make_agent(self, member: AgentMember) -> Agent:
        scenario, plan, group, machine = self._scenario, self._plan, self._group, Machine(self._loop, SPEED)
        log = DeviceLog(member.around.log, self.name, member.call_noted)
        client_seed = derive_seed(scenario.seed, "client", self.name, self._number)
        client = LoggedClient(member.around.channel(member.link), client_seed, member.notebook, log)
        phases = [
            PhaseConfig(source=f"practice:{task}", target_rate=WISHED_RATE, task=task, steps=max(1, plan.steps))
            for task in scenario.tasks
        ]
        return simulated_agent(
            group,
            SimulatedBackend(machine, group.mind, group.nature, group.tokens, scenario.seed),
            machine,
            self.state,
            client,
            member.clock,
            self,
            seed=scenario.seed,
            phases=phases,
            practice=self._practice,
            conditions=EvenlySpread(scenario.lasts_s / (1 + plan.steps * len(phases)), self._loop.time),
            dual_init=scenario.terms.tasks[group.task].dual_init,
            most_cloud_tokens=MAX_OUTPUT_TOKENS,
            patience_s=DEADLINE_S,
            daily_limits=DailyLimits(plan.calls_limit, plan.spend_limit_uusd),
            failpoint=member.reached,
        )

    def _practice(self, source: str) -> Practice:
        task = source.partition(":")[2]
        first = self._member.number * NUMBERS_OF_A_DEVICE + PRACTICE_FROM + 10_000 * self._scenario.tasks.index(task)
        return Practice(self._group, task, first, self._scenario.seed, self._loop.time)


def _group_of(scenario: FaultScenario, plan: AgentPlan) -> GroupPart:
    """An agent as the fleet's parts want it described; machine and link are this world's own."""
    return GroupPart(
        name="agents",
        device="laptop",
        link="simulated",
        task=scenario.tasks[0],
        dial=plan.dial,
        learning=LearningPart(prompts_per_step=scenario.prompts, group_size=scenario.group_size),
        mind=Mind(skill=0.4, ask=-0.5, ask_slope=3.0),
        tokens=TokensPart(prompt=60, local=60, cloud=6),
    )


class Died(BaseException):
    """Unwinds what an agent was doing when it died, so that it comes to no end of its own."""


class AgentMember(Member):
    """A real agent of a world, over all its lives."""

    invariant = "A8"

    def __init__(self, number: int, around: FaultSurroundings, folder: Path) -> None:
        super().__init__(f"agent-{number}", around)
        self.number = number
        self.plan = around.scenario.agents[number]
        self.folder = folder / self.name
        self.clock = VirtualClock(around.loop, around.scenario.begins_s)
        self.asked: list[AskedQuestion] = []
        self.notices: list[str] = []
        self.waits_for_task = 0
        """How often it could not learn since its task was taken away."""
        self.failures: list[str] = []
        """What broke it."""
        self.dial_since = 0
        """How many questions had been asked when its dial was set last."""
        self.kept: Kept | None = None
        """What its folder has at the end; None: it did not come to one."""
        self._life: AgentLife | None = None
        self._living: asyncio.Task[None] | None = None
        self._dies_at = ""
        self._down_s = 0.0

    @property
    def up(self) -> bool:
        """Whether it runs."""
        return self._life is not None

    @property
    def rests(self) -> bool:
        """Whether everybody has asked."""
        return self._life is not None and self._life.asked_all

    @property
    def done(self) -> bool:
        """Whether everybody has asked and all is learned."""
        return self._life is not None and self._life.asked_all and self._life.learned_all

    @property
    def settled(self) -> bool:
        """Whether it knows the end of all its calls."""
        life = self._life
        return life is not None and life.learned_all and not life.agent.access.unconfirmed.waiting()

    def boot(self, *, asked: bool = True) -> None:
        """Begin a life, unless it lives; `asked`: people ask it."""
        if self._life is not None:
            return
        self.around.note(f"{self.name} started")
        host = self.new_host()
        self._life = AgentLife(self)
        self._living = host.spawn(self._life.live(asked=asked), "life")

    async def suffer(self, fault: Fault) -> None:
        """What befalls one agent."""
        match fault.kind:
            case "crash":
                if self.up:
                    await self.crash(fault.for_s)
            case "crash_at":
                self._dies_at, self._down_s = fault.detail, fault.for_s
            case "restart":  # a stop in good order, as an update of the program does
                await self.stop()
                await asyncio.sleep(fault.for_s)
                self.boot()
            case "device_clock_jump":
                self.clock.jump(float(fault.detail or 0.0))
            case "dial":
                self._set_dial(fault.detail)
            case "cloud_paused" | "learning_paused":
                self._pause(fault.kind, True)
                await asyncio.sleep(fault.for_s)
                self._pause(fault.kind, False)

    def heal(self) -> None:
        """No fault any more."""
        super().heal()
        self._dies_at = ""

    async def resume(self) -> None:
        """Everything is over: it learns and asks again."""
        await self.around.until(lambda: self._is_open, SETTLE_S, CHECK_S)
        self._pause("learning_paused", False)
        self._pause("cloud_paused", False)

    async def stop(self) -> None:
        """Ask it to end; one that does not is killed, which is a violation unless it crashes meanwhile."""
        life, host, living = self._life, self._host, self._living
        if life is None or living is None or host is None:
            return
        life.end()
        await asyncio.wait([living], timeout=STOP_S)
        if self._life is not life:
            return
        if living.done():
            self.leftovers += [f"{name} of {self.name}" for name in self.around.loop.live_tasks(host)]
            self._life = self._living = None
        else:
            self.leftovers.append(f"{self.name} did not stop within {STOP_S:g} s")
            self.die()

    def close(self) -> None:
        """Let go of the folder of an agent that was left running."""
        if self._life is not None:
            self._life.state.close()

    def read(self) -> None:
        """Read the folder of an agent that does not run."""
        with SimulatedState(self.folder) as state:
            self.kept = Kept.read(state, self.around.scenario.tasks)

    def die(self) -> None:
        """As kill -9 does; the system lets go of its folder, too."""
        self.around.note(f"{self.name} crashed")
        super().die()
        self.close()
        self._life = self._living = None

    def call_noted(self, what: str, outcome: str) -> None:
        """Its log has another line: it may be armed to die before a call leaves, and before the answer is passed on."""
        if what == "complete" and outcome in ("asked", "completed"):
            self.reached("asked" if outcome == "asked" else "answered")

    def reached(self, point: str) -> None:
        """A place in a learning step, or around a call, was passed: the agent may be armed to die there."""
        if self._dies_at == point and self._life is not None:
            self._dies_at = ""
            self.around.injected[f"agent died at {point}"] += 1
            self.die()
            self.around.network.later(self._down_s, partial(self._boot_after, self.notebook.lives))
            raise Died(point)

    def _boot_after(self, life: int) -> None:
        """Begin the life after this one, unless something else has begun it meanwhile."""
        if self.notebook.lives == life:
            self.boot()

    @property
    def _is_open(self) -> bool:
        return self._life is not None and self._life.is_open

    def _set_dial(self, rate: str) -> None:
        if self._life is None or not self._is_open:
            return
        self._life.agent.access.dials.set(float(rate) if rate else None)
        for asked in self.asked:
            asked.dial_set = True
        self.dial_since = next((place for place, one in enumerate(self.asked) if not one.end), len(self.asked))

    def _pause(self, what: str, paused: bool) -> None:
        if self._life is None or not self._is_open:
            return
        if what == "cloud_paused":
            self._life.agent.access.switch.pause(paused, self.clock.now())
        else:
            self._life.agent.learning.pause(paused)


def _all_of(error: BaseException) -> list[BaseException]:
    return [each for inner in error.exceptions for each in _all_of(inner)] if isinstance(error, BaseExceptionGroup) else [error]
