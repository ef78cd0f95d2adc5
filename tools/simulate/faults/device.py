"""The members of a fault world: what every device and agent of it is, and the scripted device, which works through learning steps with the
real client in ways that strain the coordinator. Each writes down all it asks and all replies."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from edge.core.errors import CoordinatorError, KeyReused, OutcomeUnknown, StepMismatch
from edge.core.rng import stream
from edge.core.types import Message
from edge.rpc.client import CloudCall, CloudCompletion, StepClosed, StepOpened, StepUnits
from edge.rpc.grpc_client import ClientPolicy, GrpcCoordinatorClient
from tools.simulate.faults.chats import CHAT_WAYS, ChatClient, Chats, last_usages
from tools.simulate.faults.log import DeviceEvent, DeviceLog, answer_parts
from tools.simulate.faults.scenario import GROUP_SIZE, Fault, FaultScenario
from tools.simulate.faults.upstream import MAX_OUTPUT_TOKENS
from tools.simulate.virtual.loop import Host
from tools.simulate.virtual.network import LinkFaults, Network, SimulatedChannel, SimulatedClient
from tools.simulate.virtual.world import SimulatedWorld

WISHED_RATE = 0.5


@dataclass(slots=True)
class Page:
    """Of one task: the step at hand, and what is to be reported of it."""

    step: int = 0
    report: tuple[int, int] | None = None


@dataclass(slots=True)
class Notebook:
    """What a device keeps over a crash: its position in each task, the calls it made, and the keys of those it made by chatting."""

    pages: dict[str, Page] = field(default_factory=dict)
    calls: dict[str, CloudCall] = field(default_factory=dict)
    chats: set[str] = field(default_factory=set)
    done: bool = False
    lives: int = 0

    def page(self, task: str) -> Page:
        """Its position in a task."""
        return self.pages.setdefault(task, Page())

    def keep(self, call: CloudCall) -> CloudCall:
        """Note a call before it is made; where its key is known already, the one it belongs to."""
        return self.calls.setdefault(call.call_key, call)


class FaultSurroundings(SimulatedWorld[Network]):
    """A fault world as its devices and agents see it, and where they note what happens to them."""

    def __init__(self, scenario: FaultScenario) -> None:
        super().__init__(scenario.seed, scenario.begins_s, Network, inline_executor=bool(scenario.agents))
        self.scenario = scenario
        self.log: list[DeviceEvent] = []
        self.injected: Counter[str] = Counter()

    def link(self) -> LinkFaults:
        """A link with the scenario's faults."""
        scenario = self.scenario
        return LinkFaults(drop=scenario.drop, duplicate=scenario.duplicate, late=scenario.late, reorder=scenario.reorder)

    def channel(self, link: LinkFaults) -> SimulatedChannel:
        """To the coordinator that serves when something is sent."""
        return SimulatedChannel(self.network, self.endpoint, link)


class Member(ABC):
    """A device or agent over all its lives."""

    invariant: str
    """What its `leftovers` violate."""

    def __init__(self, name: str, around: FaultSurroundings) -> None:
        self.name = name
        self.around = around
        self.link = around.link()
        self.notebook = Notebook()
        self.leftovers: list[str] = []
        self._host: Host | None = None

    def new_host(self) -> Host:
        """For another life."""
        self.notebook.lives += 1
        self._host = Host(f"{self.name} life {self.notebook.lives}", self.around.loop)
        return self._host

    @property
    def up(self) -> bool:
        """Whether it runs."""
        return self._host is not None and self._host.alive

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether nothing at all is left to do."""

    @property
    def rests(self) -> bool:
        """Whether nothing is left to do but what waits for the end of the faults."""
        return self.done

    @abstractmethod
    def boot(self) -> None:
        """Begin a life."""

    def die(self) -> None:
        """As kill -9 does: nothing of it runs any more."""
        assert self._host is not None
        self._host.die()

    async def crash(self, down_s: float) -> None:
        """Die, and begin another life after a while."""
        self.die()
        await asyncio.sleep(down_s)
        self.boot()

    @abstractmethod
    async def suffer(self, fault: Fault) -> None:
        """What befalls one member."""

    def heal(self) -> None:
        """No fault any more."""
        self.link.heal()

    @abstractmethod
    async def resume(self) -> None:
        """Everything is over: go on with what was paused."""


TASKS = ("math",)
PEOPLE = ("ann", "bob", "cy")
"""For whom devices ask, the same names on each."""
POLICY = ClientPolicy(connect_timeout_s=1.0, control_deadline_s=6.0, max_retries=4)
WAYS = (
    "plain",
    "plain",
    "plain",
    "twice",
    "other_key",
    "stream",
    "abandon",
    "reuse",
    "foreign",
    "serving",
    "shared",
    "cancel",
)


@dataclass(eq=False)
class SimulatedDevice:
    """One life of a device, which makes `steps` steps of `prompts` prompts of each task. `pace` scales all its durations. With `chats` it
    makes some of its calls over the OpenAI-compatible endpoint, for one of `people` each, if there are any."""

    others: tuple[str, ...]
    notebook: Notebook
    log: DeviceLog
    client: GrpcCoordinatorClient
    rng: random.Random
    steps: int
    prompts: int
    tasks: tuple[str, ...] = TASKS
    pace: float = 1.0
    chats: ChatClient | None = None
    people: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.ends = dict.fromkeys(self.tasks, self.steps)
        self._ways = WAYS if self.chats is None else (*WAYS, *CHAT_WAYS)

    def finish(self) -> None:
        """The steps at hand are the last ones."""
        self.ends = {task: min(end, self.notebook.page(task).step + 1) for task, end in self.ends.items()}

    async def live(self) -> None:
        """All the steps: one after the other of each task, all tasks at the same time."""
        await self._insist("register", "", lambda: self.client.register("1.0", self.tasks))
        await asyncio.gather(*(self._work(task) for task in self.tasks))
        self.notebook.done = True

    async def watch(self) -> None:
        """Write down each version of its budgets that it is shown, for as long as it lives."""
        await asyncio.gather(*(self._watch(task) for task in self.tasks))

    async def _watch(self, task: str) -> None:
        self.log.note("watch", task, "asked")
        while True:
            try:
                async with aclosing(self.client.watch_budget(task)) as versions:  # type: ignore[type-var]
                    async for budget in versions:
                        self.log.note("watch", task, "ok", answer_parts(budget))
            except CoordinatorError as error:
                self.log.note("watch", task, error.reason)
            await self._pause(0.2, 1.0)

    async def _work(self, task: str) -> None:
        if self.notebook.page(task).step == 0 and self.ends[task] > 0 and self.rng.random() < 0.3:
            # a call outside of any step, perhaps the first that the coordinator hears of this task
            call = replace(_call(task, -1, 0), call_key=f"first-{task}")
            await self._complete(self.notebook.keep(call))
        while self.notebook.page(task).step < self.ends[task]:
            await self._one_step(task)

    async def _one_step(self, task: str) -> None:
        page = self.notebook.page(task)
        number, key = page.step, f"{task}#{page.step}"
        if page.report is None:
            if self.rng.random() < 0.1:  # open a step that is not the next one, and close one that was never opened
                await self.log.ask("gap", key, self.client.open_step(task, number + 1, 1, 1, WISHED_RATE))
                await self.log.ask("gap", key, self.client.close_step(task, number + 1, StepUnits(1, 0)))

            async def opening() -> StepOpened:
                return await self.client.open_step(task, number, self.prompts, GROUP_SIZE, WISHED_RATE)

            if await self._insist("open_step", key, opening) is None:
                return
            calls = [_call(task, number, prompt) for prompt in range(self.prompts)]
            await asyncio.gather(*map(self._group, calls))
            page.report = (self.prompts * GROUP_SIZE, self.rng.randint(0, self.prompts * GROUP_SIZE))
        units = StepUnits(*page.report)

        async def report() -> StepClosed:
            return await self.client.close_step(task, number, units)

        closed = await self._insist("close_step", key, report)
        if closed is not None and self.rng.random() < 0.3:  # a report whose answer was lost is sent again
            await self.log.ask("close_step", key, report())
        page.step, page.report = page.step + 1, None

    async def _group(self, call: CloudCall) -> None:
        """One prompt group, in one of the ways a device may behave."""
        await self._pause(0.0, 1.0)
        way = self.rng.choice(self._ways)
        if self.chats is not None and way in CHAT_WAYS:
            known = self.notebook.chats
            chats = Chats(self.chats, self.client, self.rng, self.people, known, self._pause, self._patience_s)
            await chats.go(way, call)
            return
        if way in ("serving", "shared", "cancel"):
            messages = (Message("user", "what everybody asks"),) if way == "shared" else call.messages
            call = replace(call, step=-1, messages=messages, call_key=f"s{call.call_key}")
        await getattr(self, f"_{way}", self._plain)(self.notebook.keep(call))

    async def _plain(self, call: CloudCall) -> None:
        answer = await self._complete(call)
        if isinstance(answer, OutcomeUnknown) and self.rng.random() < 0.5:
            again = replace(call, call_key=f"{call.call_key[:-1]}1")
            self.notebook.keep(again)
            await self._complete(again)

    async def _twice(self, call: CloudCall) -> None:
        await asyncio.gather(self._complete(call), self._complete(call))
        await self._complete(call)

    async def _other_key(self, call: CloudCall) -> None:
        other = replace(call, call_key=f"o{call.call_key}")
        self.notebook.keep(other)
        await asyncio.gather(self._complete(call), self._complete(other))

    async def _cancel(self, call: CloudCall) -> None:
        asking = asyncio.create_task(self._complete(call), name=f"call {call.call_key}")
        await self._pause(0.0, 1.5)
        await self.log.ask("cancel_call", call.call_key, self.client.cancel_call(call.call_key))
        await asking

    async def _stream(self, call: CloudCall) -> None:
        async def streamed() -> CloudCompletion:
            async for delta in self.client.stream_complete(call, self._patience_s()):
                if delta.completion is not None:
                    return delta.completion
            raise CoordinatorError("a stream ended without its completion")

        await self.log.ask("complete", call.call_key, streamed())

    async def _abandon(self, call: CloudCall) -> None:
        asking = asyncio.create_task(self._complete(call), name=f"call {call.call_key}")
        await self._pause(0.0, 1.5)
        asking.cancel()
        await asyncio.wait([asking])
        if self.rng.random() < 0.7:
            await self.log.ask("get_call", call.call_key, self.client.get_call(call.call_key))

    async def _reuse(self, call: CloudCall) -> None:
        answer = await self._complete(call)
        other = replace(call, messages=(Message("user", "something else"),))
        if isinstance(answer, CloudCompletion | OutcomeUnknown):  # else the key may be free
            await self.log.ask("reuse", call.call_key, self.client.complete(other, self._patience_s()))

    async def _foreign(self, call: CloudCall) -> None:
        """A key that only this device uses, and then the same key of another device, which must be unknown to this one."""
        number = call.call_key.rsplit("-", 1)[0]
        mine = replace(call, call_key=f"{self.log.device}-{number}", prompt_id=f"x{call.prompt_id}")
        self.notebook.keep(mine)
        await self._complete(mine)
        for other in self.others:
            await self.log.ask("foreign", f"{other}-{number}", self.client.get_call(f"{other}-{number}"))

    async def _complete(self, call: CloudCall) -> CloudCompletion | CoordinatorError:
        return await self.log.ask("complete", call.call_key, self.client.complete(call, self._patience_s()))

    def _patience_s(self) -> float:
        return self.pace * self.rng.choice([1.0, 5.0, 12.0])

    async def _pause(self, least_s: float, most_s: float) -> None:
        await asyncio.sleep(self.pace * self.rng.uniform(least_s, most_s))

    async def _insist(self, what: str, key: str, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Ask until there is an answer. None where another step is expected: the notebook follows."""
        while True:
            value = await self.log.ask(what, key, ask())
            if isinstance(value, StepMismatch):
                page = self.notebook.page(key.rpartition("#")[0])
                page.step, page.report = value.expected_step, None
                return None
            if isinstance(value, KeyReused):
                return None
            if not isinstance(value, CoordinatorError):
                return value
            await self._pause(0.2, 1.0)


def _call(task: str, step: int, number: int) -> CloudCall:
    return CloudCall(
        call_key=f"{task}{step}-{number}-0",
        task=task,
        step=step,
        prompt_id=f"p{number}",
        help_units=1 + number % GROUP_SIZE,
        messages=(Message("user", f"question {step}-{number}"),),
        max_output_tokens=MAX_OUTPUT_TOKENS,
    )


class ScriptedMember(Member):
    """A scripted device of a world, over all its lives."""

    invariant = "I14"

    def __init__(self, name: str, others: tuple[str, ...], around: FaultSurroundings) -> None:
        super().__init__(name, around)
        self.watching: asyncio.Task[None] | None = None
        self._others = others

    @property
    def done(self) -> bool:
        """Whether it has come to the end of its steps."""
        return self.notebook.done

    def boot(self) -> None:
        """Begin a life."""
        scenario, host, life = self.around.scenario, self.new_host(), self.notebook.lives
        client = SimulatedClient(self.around.channel(self.link), self.name, POLICY, life)
        living = SimulatedDevice(
            self._others,
            self.notebook,
            DeviceLog(self.around.log, self.name),
            client,
            stream(scenario.seed, "device", self.name, life),
            steps=scenario.steps,
            prompts=scenario.prompts,
            tasks=scenario.tasks,
            chats=self._chat_client(life) if scenario.chats else None,
            people=PEOPLE[: scenario.people],
        )
        host.spawn(living.live(), "life")
        if scenario.watched:
            self.watching = host.spawn(living.watch(), "watch")

    async def last_usages(self) -> None:
        """After all faults: what the calls of its chats count against."""
        scenario, log = self.around.scenario, DeviceLog(self.around.log, self.name)
        await last_usages(self.around.channel(self.link), log, scenario.tasks, PEOPLE[: scenario.people])

    def _chat_client(self, life: int) -> ChatClient:
        rng = stream(self.around.scenario.seed, "chats", self.name, life)
        return ChatClient(self.around.channel(self.link), DeviceLog(self.around.log, self.name), rng, life)

    async def suffer(self, fault: Fault) -> None:
        """Crash, unless its work is done."""
        if self.up and not self.done:
            await self.crash(fault.for_s)

    async def resume(self) -> None:
        """Nothing was paused."""


async def last_questions(
    notebook: Notebook, log: DeviceLog, client: GrpcCoordinatorClient, tasks: tuple[str, ...] = TASKS
) -> None:
    """After all faults: what became of every call, and the budgets. A call that never arrived is NOT_FOUND."""
    for key in sorted({*notebook.calls, *notebook.chats}):
        await log.ask("final_call", key, client.get_call(key))
    for task in tasks:
        await log.ask("final_budget", task, client.get_budget(task))
