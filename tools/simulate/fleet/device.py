"""One device of a fleet: the real agent over a simulated machine, model, learner and link, and the person who asks it."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from edge.agent import Agent
from edge.config.schema import PhaseConfig
from edge.core.events import Event
from edge.core.rng import derive_seed, stream
from edge.core.types import Message
from edge.rpc.grpc_client import ClientPolicy
from edge.state.answer_record import AnswerRecord, AnswerRequest
from edge.state.events import StepFinished
from edge.tasks.source import TaskSource
from tools.simulate.fleet.agent import SimulatedState, simulated_agent
from tools.simulate.fleet.backend import SimulatedBackend, right_answer
from tools.simulate.fleet.cloud import most_tokens
from tools.simulate.fleet.hardware import LinkModel, SimulatedSpeed
from tools.simulate.fleet.link import DeviceLink, FleetChannel, FleetNetwork
from tools.simulate.fleet.machine import Machine
from tools.simulate.fleet.mind import SimulatedQuestion
from tools.simulate.fleet.people import NUMBERS_OF_A_DEVICE, PRACTICE_FROM, Practice, arrivals, draw_question
from tools.simulate.fleet.scenario import DAY_S, HOUR_S, FleetScenario, GroupPart, LearningPart
from tools.simulate.fleet.tally import DeviceFigures, GroupTally
from tools.simulate.virtual.loop import EPOCH
from tools.simulate.virtual.network import SimulatedClient
from tools.simulate.virtual.world import SimulatedWorld

_CHECK_AGAIN_S = 900.0
_GRAIN = 1e-3
"""Of a pause: turns are told apart by more than their rounding."""


class Timetable:
    """Implements `LearningConditions`: so many steps a day, evenly within the hours, shifted by `shift` (share of the pause between two).

    `check_s` says exactly when to check again, so that waiting costs no events.
    """

    def __init__(
        self, part: LearningPart, starts_at_h: float, shift: float, time: Callable[[], float], empty: Callable[[], bool]
    ) -> None:
        """`time`: virtual seconds; `empty`: whether the battery is."""
        hours = (part.until_hour - part.from_hour) % 24.0 or 24.0
        self._pause_s = hours * HOUR_S / part.steps_per_day
        self._steps = part.steps_per_day
        self._first_s = (part.from_hour - starts_at_h) * HOUR_S + shift * self._pause_s
        self._time = time
        self._empty = empty
        self._next_s = self._turn_from(time())
        self.check_s = _CHECK_AGAIN_S

    def waiting_for(self, now: float, quiet_s: float) -> str:
        """Why no step may begin, or ""; then the next turn is meant from now on, and turns that were missed are."""
        at = self._time()
        self.check_s = max(self._next_s - at, 0.0) or _CHECK_AGAIN_S
        if at < self._next_s:
            return "the next step has its time"
        if self._empty():
            return "the battery is empty"
        self._next_s = self._turn_from(at + _GRAIN * self._pause_s)
        return ""

    def _turn_from(self, at: float) -> float:
        """The first turn at this time or later."""
        day = math.floor((at - self._first_s) / DAY_S)
        while True:
            begins = self._first_s + day * DAY_S
            turn = max(0, math.ceil((at - begins) / self._pause_s))
            if turn < self._steps:
                return begins + turn * self._pause_s
            day += 1


BOOT_S = 60.0
"""Devices are switched on within so many seconds of each other."""
EMPTY = "battery empty"
PATIENCE = ClientPolicy()
_CALLS = (
    "SELECT json_extract(record, '$.call_key'), json_extract(record, '$.charged_uusd'),"
    " json_extract(record, '$.call_state') != 'unsettled' FROM requests WHERE json_extract(record, '$.call_key') != ''"
    " UNION ALL SELECT call_key, spend_uusd, settled FROM learning_spend"
)


@dataclass(slots=True)
class FleetGroup:
    """The devices of one group, and what they have in common. `target_rate` and `dual_init` are those of its task."""

    part: GroupPart
    speed: SimulatedSpeed
    link: LinkModel
    tally: GroupTally
    target_rate: float
    dual_init: float
    devices: list[FleetDevice] = field(default_factory=list)
    energy_wh: float = 0.0


class FleetSurroundings(SimulatedWorld[FleetNetwork]):
    """A fleet's world as its devices see it. `folder`: for their checkpoints."""

    def __init__(self, scenario: FleetScenario, folder: Path) -> None:
        super().__init__(scenario.seed, scenario.calendar_at(0.0) - EPOCH, FleetNetwork)
        self.scenario = scenario
        self.folder = folder


class FleetDevice:
    """`live` it as a task of a host of its own; `end` asks it to."""

    def __init__(self, index: int, group: FleetGroup, around: FleetSurroundings) -> None:
        self.index = index
        self.name = f"{group.part.name}-{len(group.devices):05d}"
        self.group = group.part
        self.figures = DeviceFigures(group.dual_init)
        self.kept = 0
        """How many records the state folder has at the end."""
        self.charges: dict[str, int | None] = {}
        """What each call cost by these records, in micro-USD; None: that is not known yet."""
        self._tally = group.tally
        self._around = around
        self._seed = around.scenario.seed
        self._ended = asyncio.Event()
        self.machine = Machine(around.loop, group.speed)
        self.link = DeviceLink(group.link, self._rng("link"), around.scenario.starts_at_h)
        self.channel = FleetChannel(around.network, around.endpoint, self.link)
        self.state = SimulatedState(around.folder / self.name, in_memory=True)
        part = group.part
        self.backend = SimulatedBackend(self.machine, part.mind, part.nature, part.tokens, self._seed)
        self.agent = self._make_agent(group.target_rate, group.dual_init)

    # life ----------------------------------------------------------------------------------------------------------------------

    async def live(self, asked_all: Callable[[], None]) -> None:
        """Boot, answer and learn until `end`. `asked_all` is called when the person has no question any more."""
        await asyncio.sleep(self._rng("boot").uniform(0.0, BOOT_S))
        async with self.agent:
            learning = asyncio.create_task(self.agent.learn(), name=f"{self.name}: learn") if self.group.learning else None
            await self._be_asked()
            self.agent.request_stop()
            if learning is not None:
                await learning
            asked_all()
            await self._ended.wait()
            self._read_records()

    def end(self) -> None:
        """Close the agent."""
        self._ended.set()

    def unsettled(self) -> list[str]:
        """Keys of calls whose end the agent does not know yet."""
        return self.agent.access.unconfirmed.waiting()

    def emit(self, event: Event) -> None:
        """Implements `EventSink`."""
        if isinstance(event, StepFinished):
            self._tally.stepped(self.figures, self._around.loop.time(), event)

    async def _be_asked(self) -> None:
        """One question after the other, each when its time has come; until the scenario is over."""
        around, loop = self._around, self._around.loop
        lasts_s, first = around.scenario.lasts_s, self.index * NUMBERS_OF_A_DEVICE
        for place, at in enumerate(arrivals(self.group, around.scenario.starts_at_h, self._rng("arrivals"))):
            if at >= lasts_s:
                break
            await asyncio.sleep(max(0.0, at - loop.time()))
            if loop.time() >= lasts_s:
                break
            await self._ask(first + place)
        await asyncio.sleep(max(0.0, lasts_s - loop.time()))

    async def _ask(self, number: int) -> None:
        if self.machine.empty:
            self._tally.refused[EMPTY] += 1
            return
        question = draw_question(self.group, self._seed, number, self._around.loop.time())
        self.figures.asked += 1
        record = await self.agent.answerer.answer(
            AnswerRequest((Message("user", question.text),), id=f"{number:012d}", seed=number)
        )
        self._note(question, record)

    def _read_records(self) -> None:
        """What the state folder has at the end: how many records, and what each call cost (key -> uUSD; None: that is not known yet)."""
        self.kept = int(self.state.rows("SELECT count(*) FROM requests")[0][0])
        self.charges = {str(key): int(charged) if settled else None for key, charged, settled in self.state.rows(_CALLS)}

    def _note(self, question: SimulatedQuestion, record: AnswerRecord) -> None:
        self._tally.answered(self.figures, self._around.loop.time(), record, record.final == right_answer(question))

    # making --------------------------------------------------------------------------------------------------------------------

    def _make_agent(self, target_rate: float, dual_init: float) -> Agent:
        group, around = self.group, self._around
        client_seed = derive_seed(self._seed, "client", self.name)
        return simulated_agent(
            group,
            self.backend,
            self.machine,
            self.state,
            SimulatedClient(self.channel, self.name, PATIENCE, client_seed),
            around.clock,
            self,
            seed=self._seed,
            phases=(PhaseConfig(source="practice", target_rate=target_rate, task=group.task),),
            practice=lambda _: self._practice(),
            conditions=self._timetable(),
            dual_init=dual_init,
            most_cloud_tokens=most_tokens(group.tokens),
            patience_s=around.scenario.cloud.deadline_s,
        )

    def _practice(self) -> TaskSource:
        first = self.index * NUMBERS_OF_A_DEVICE + PRACTICE_FROM
        return Practice(self.group, self.group.task, first, self._seed, self._around.loop.time)

    def _timetable(self) -> Timetable | None:
        learning, around = self.group.learning, self._around
        if learning is None:
            return None
        shift = 0.0 if learning.at_once else self._rng("turn").random()
        return Timetable(learning, around.scenario.starts_at_h, shift, around.loop.time, lambda: self.machine.empty)

    def _rng(self, what: str) -> random.Random:
        return stream(self._seed, what, self.name)
