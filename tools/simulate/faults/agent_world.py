"""One seed of the worlds of real agents, from beginning to verdict: agents with their state folders, network, coordinator, disk and
upstream in virtual time, faults, healing, the checkers. Knows the order of things; knows nothing of how a part works inside.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coordinator import failpoints
from coordinator.ledger.verify import verify
from edge.core.rng import stream
from tools.simulate.faults.agent_checker import AgentChecker, Kept
from tools.simulate.faults.agent_device import AgentLife, AgentNotes, SeededState
from tools.simulate.faults.agent_scenario import AgentScenario
from tools.simulate.faults.checker import DiskLog, check
from tools.simulate.faults.device import MAX_OUTPUT_TOKENS, WISHED_RATE, DeviceEvent, SimulatedClient, last_questions
from tools.simulate.faults.fold import Fold, Rules
from tools.simulate.faults.outcome import Outcome
from tools.simulate.faults.scenario import Fault
from tools.simulate.faults.terms import History
from tools.simulate.faults.upstream import INPUT_BOUND, SimulatedUpstream, UpstreamMood
from tools.simulate.faults.verdict import Verdict
from tools.simulate.faults.world import (
    DEADLINE_S,
    LEASE_MARGIN_S,
    OUTAGES,
    PATIENT,
    SWEEP_S,
    coordinator_config,
    journal_lines,
    messages_met,
    quiet_logs,
)
from tools.simulate.virtual.clock import VirtualClock
from tools.simulate.virtual.disk import Disk
from tools.simulate.virtual.loop import Deadlock, Host, SeededLoop, quiet_finalisers
from tools.simulate.virtual.network import LinkFaults, Network, SimulatedChannel
from tools.simulate.virtual.site import Site

SHM = Path("/dev/shm")
LOOK_S = 1.0
REST_S = 3600.0
"""For the steps and questions that are left once everything has healed."""
SETTLE_S = 400.0
"""For calls in doubt: an agent asks for their end once a minute at least."""
STOP_S = 120.0
HEARTBEAT_S = 60.0


class Died(BaseException):
    """Unwinds what an agent was doing when it died, so that it comes to no end of its own."""


@dataclass(slots=True)
class _Agent:
    number: int
    name: str
    link: LinkFaults
    clock: VirtualClock
    notes: AgentNotes = field(default_factory=AgentNotes)
    host: Host | None = None
    life: AgentLife | None = None
    living: asyncio.Task[None] | None = None
    dial_since: int = 0
    armed: str = ""
    down_s: float = 0.0


class AgentWorld:
    """The parts of one seed. `folder`: for the state folders."""

    def __init__(self, scenario: AgentScenario, folder: Path) -> None:
        self.scenario = scenario
        self.loop = SeededLoop(scenario.seed, inline_executor=True)
        self.clock = VirtualClock(self.loop, scenario.begins_s)
        self.network = Network(self.loop, stream(scenario.seed, "network"))
        self.disk = Disk(self.loop, stream(scenario.seed, "disk"))
        self._mood = UpstreamMood(dict(scenario.upstream_acts), scenario.upstream_duplicate, scenario.slow_s)
        self.upstream = SimulatedUpstream(self.loop, stream(scenario.seed, "upstream"), self._mood)
        config = coordinator_config(scenario.terms, heartbeat_s=HEARTBEAT_S)
        self.site = Site(
            self.loop, self.disk, self.network, self.upstream, self.clock, config, scenario.slots, scenario.max_queue
        )
        self.agents = tuple(self._agent(number) for number in range(len(scenario.agents)))
        self.log: list[DeviceEvent] = []
        self.story: list[tuple[float, str]] = []
        self.injected: Counter[str] = Counter()
        self.met: Counter[str] = Counter()
        self.outages: list[tuple[float, float]] = []
        self.leftovers: list[str] = []
        self._left_at_site: list[str] = []
        self._folder = folder
        self._armed: dict[str, int] = {}
        self._kept: dict[str, Kept] = {}

    def _agent(self, number: int) -> _Agent:
        scenario = self.scenario
        link = LinkFaults(drop=scenario.drop, duplicate=scenario.duplicate, late=scenario.late, reorder=scenario.reorder)
        return _Agent(number, f"agent-{number}", link, VirtualClock(self.loop, scenario.begins_s))

    def run(self) -> Outcome:
        """Play it through. A world that hangs is a violation too."""
        verdict = Verdict()
        with quiet_logs(), failpoints.hooked(self._reached):
            try:
                self.loop.run_until_complete(self._play(), self.scenario.lasts_s + 2 * REST_S)
            except Deadlock as error:
                verdict.check("I11", False, f"it hangs: {error}")
            verdict = self._judge(verdict)
        seed, loop = self.scenario.seed, self.loop
        outcome = Outcome(seed, verdict, self._digest(), loop.steps, loop.time(), self.injected, self._told())
        for agent in self.agents:
            if agent.life is not None:
                agent.life.state.close()
        with quiet_finalisers():
            loop.close()
            gc.collect()  # generators of the dead that stand in no task
        return outcome

    # playing -------------------------------------------------------------------------------------------------------------------

    async def _play(self) -> None:
        self.site.start()
        for agent in self.agents:
            self._boot(agent)
        chaos = self.loop.create_task(self._chaos(), name="chaos")
        await self._until(lambda: all(self._has_asked(agent) for agent in self.agents), self.scenario.lasts_s)
        await chaos
        await self._heal()
        await self._last_lives()
        await self._end()

    def _boot(self, agent: _Agent, *, asked: bool = True) -> None:
        if agent.life is not None:
            return
        self._tell(f"{agent.name} started")
        agent.host = Host(f"{agent.name} life {agent.notes.lives + 1}", self.loop)
        state = SeededState(self._folder / agent.name)
        channel = SimulatedChannel(self.network, lambda: self.site.endpoint, agent.link)
        agent.life = AgentLife(
            agent.number,
            self.scenario,
            agent.notes,
            state,
            channel,
            self.log,
            agent.clock,
            self.loop,
            lambda point: self._agent_reached(agent, point),
        )
        agent.living = agent.host.spawn(agent.life.live(asked=asked), "life")

    def _die(self, agent: _Agent) -> None:
        """As kill -9 does: nothing of it runs any more, and the system lets go of its folder."""
        assert agent.host is not None
        assert agent.life is not None
        self._tell(f"{agent.name} crashed")
        agent.notes.crashes += 1
        agent.host.die()
        agent.life.state.close()
        agent.life = agent.living = None

    def _agent_reached(self, agent: _Agent, point: str) -> None:
        """A place in a learning step was passed: the agent may be armed to die there."""
        if agent.armed == point and agent.life is not None:
            agent.armed = ""
            self.injected[f"agent died at {point}"] += 1
            self._die(agent)
            self.network.later(agent.down_s, lambda: self._boot(agent))
            raise Died(point)

    async def _until(self, holds: Callable[[], bool], most_s: float) -> bool:
        end = self.loop.time() + most_s
        while not holds() and self.loop.time() < end:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        return holds()

    def _has_asked(self, agent: _Agent) -> bool:
        return agent.life is not None and agent.life.asked_all

    async def _chaos(self) -> None:
        undoing: list[asyncio.Task[None]] = []
        for fault in self.scenario.faults:
            await asyncio.sleep(max(0.0, fault.at - self.loop.time()))
            self.injected[fault.kind] += 1
            self._tell(f"fault {fault.kind} {fault.detail} {fault.amount:g} for {fault.for_s:.2f} s")
            undoing.append(self.loop.create_task(self._inject(fault), name=f"fault {fault.kind}"))
        for task in undoing:
            await task

    async def _inject(self, fault: Fault) -> None:
        agent = self.agents[int(fault.amount) % len(self.agents)]
        of_agents: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "agent_crash": lambda: self._crash_for(agent, fault.for_s),
            "agent_crash_at": lambda: self._arm(agent, fault),
            "agent_restart": lambda: self._restart_for(agent, fault.for_s),
            "agent_clock_jump": lambda: self._jump(agent, float(fault.detail or 0.0)),
            "cut": lambda: self._cut_for(agent, fault.for_s),
            "dial": lambda: self._set_dial(agent, fault.detail),
            "cloud_paused": lambda: self._pause_cloud_for(agent, fault.for_s),
            "learning_paused": lambda: self._pause_learning_for(agent, fault.for_s),
        }
        if fault.kind in of_agents:
            await of_agents[fault.kind]()
        else:
            await self._inject_elsewhere(fault)

    async def _inject_elsewhere(self, fault: Fault) -> None:
        match fault.kind:
            case "kill":
                await self._kill_for(fault.for_s)
            case "kill_at":
                self._armed[fault.detail] = int(fault.amount)
            case "drain":
                draining = self.site.stop(fault.amount)
                if draining is not None:
                    await asyncio.wait([draining], timeout=fault.amount + LEASE_MARGIN_S + 2.0)
                await self._kill_for(fault.for_s)
            case "clock_jump":
                self.clock.jump(fault.amount)
            case "upstream_down":
                self.upstream.mood = UpstreamMood({"refuse": 1.0})
                await asyncio.sleep(fault.for_s)
                self.upstream.mood = self._mood
            case _:
                await self._disk_for(fault.kind.removeprefix("disk_"), fault.for_s)

    async def _arm(self, agent: _Agent, fault: Fault) -> None:
        agent.armed, agent.down_s = fault.detail, fault.for_s

    async def _jump(self, agent: _Agent, seconds: float) -> None:
        agent.clock.jump(seconds)

    async def _crash_for(self, agent: _Agent, seconds: float) -> None:
        if agent.life is not None:
            self._die(agent)
            await asyncio.sleep(seconds)
            self._boot(agent)

    async def _restart_for(self, agent: _Agent, seconds: float) -> None:
        """A stop in good order, as an update of the program does."""
        await self._stopped(agent)
        await asyncio.sleep(seconds)
        self._boot(agent)

    async def _stopped(self, agent: _Agent) -> None:
        """Ask it to end; one that does not is killed, which is a violation unless it crashes meanwhile."""
        life, host, living = agent.life, agent.host, agent.living
        if life is None or living is None or host is None:
            return
        life.end()
        await asyncio.wait([living], timeout=STOP_S)
        if agent.life is not life:
            return
        if living.done():
            self.leftovers += [f"{name} of {agent.name}" for name in self.loop.live_tasks(host)]
            agent.life = agent.living = None
        else:
            self.leftovers.append(f"{agent.name} did not stop within {STOP_S:g} s: {self._who_waits(agent)}")
            self._die(agent)

    def _who_waits(self, agent: _Agent) -> str:
        return "; ".join(line.strip() for line in self.loop.who_waits().splitlines() if agent.name in line)

    async def _set_dial(self, agent: _Agent, rate: str) -> None:
        if not self._is_open(agent):
            return
        self._of_life(agent, lambda life: life.agent.access.dials.set(float(rate) if rate else None))
        for asked in agent.notes.asked:
            asked.dial_set = True
        agent.dial_since = next((place for place, one in enumerate(agent.notes.asked) if not one.end), len(agent.notes.asked))

    async def _pause_cloud_for(self, agent: _Agent, seconds: float) -> None:
        self._of_life(agent, lambda life: life.agent.access.switch.pause(True, agent.clock.now()))
        await asyncio.sleep(seconds)
        self._of_life(agent, lambda life: life.agent.access.switch.pause(False, agent.clock.now()))

    async def _pause_learning_for(self, agent: _Agent, seconds: float) -> None:
        self._of_life(agent, lambda life: life.agent.learning.pause(True))
        await asyncio.sleep(seconds)
        self._of_life(agent, lambda life: life.agent.learning.pause(False))

    def _of_life(self, agent: _Agent, do: Callable[[AgentLife], object]) -> None:
        """What its person does; nothing while it is down."""
        if agent.life is not None and self._is_open(agent):
            do(agent.life)

    def _is_open(self, agent: _Agent) -> bool:
        return agent.life is not None and agent.life.is_open

    async def _kill_for(self, seconds: float) -> None:
        self._tell("coordinator killed")
        self.site.kill()
        await asyncio.sleep(seconds)
        self._restart()

    async def _disk_for(self, condition: str, seconds: float) -> None:
        self.disk.condition, start = condition, self.loop.time()
        await asyncio.sleep(seconds)
        if condition in OUTAGES and self.disk.condition == condition:
            self.outages.append((start, self.loop.time()))
        self.disk.condition = "ok"

    async def _cut_for(self, agent: _Agent, seconds: float) -> None:
        agent.link.cut = True
        await asyncio.sleep(seconds)
        agent.link.cut = False

    def _reached(self, point: str) -> None:
        """A failpoint of the coordinator was passed: it may be armed to die there."""
        left = self._armed.get(point, 0)
        if left <= 0:
            return
        self._armed[point] = left - 1
        if left == 1 and self.site.host is not None:
            self.injected[f"killed at {point}"] += 1
            self._tell(f"coordinator killed at {point}")
            self.site.kill()
            self.network.later(1.0, self._restart)

    def _restart(self) -> None:
        if self.site.host is None:
            self._tell("coordinator started")
            self.site.start()

    # the end -------------------------------------------------------------------------------------------------------------------

    async def _heal(self) -> None:
        """No fault any more; everybody asks and learns to the end."""
        self._tell("healed")
        self._armed.clear()
        self.disk.condition = "ok"
        self.upstream.mood = UpstreamMood({})
        for agent in self.agents:
            link = agent.link
            link.drop = link.duplicate = link.late = link.reorder = 0.0
            link.cut, agent.armed = False, ""
        self._restart()
        await self._until(lambda: all(agent.life is not None for agent in self.agents), SETTLE_S)
        for agent in self.agents:
            await self._until(lambda agent=agent: self._is_open(agent), SETTLE_S)  # type: ignore[misc]
            self._of_life(agent, lambda life: life.agent.learning.pause(False))
            self._of_life(agent, lambda life, agent=agent: life.agent.access.switch.pause(False, agent.clock.now()))  # type: ignore[misc]
        await self._until(lambda: all(self._is_done(agent) for agent in self.agents), REST_S)
        for agent in self.agents:
            if not self._is_done(agent):
                self.leftovers.append(f"{agent.name} did not come to the end of its steps: {self._who_waits(agent)}")
        for agent in self.agents:
            await self._stopped(agent)

    def _is_done(self, agent: _Agent) -> bool:
        return agent.life is not None and agent.life.asked_all and agent.life.learned_all

    async def _last_lives(self) -> None:
        """Once more, to hand in what waits and to learn how calls ended."""
        for agent in self.agents:
            self._boot(agent, asked=False)
        await self._until(lambda: all(self._is_settled(agent) for agent in self.agents), SETTLE_S)
        for agent in self.agents:
            await self._stopped(agent)
            with SeededState(self._folder / agent.name) as state:
                self._kept[agent.name] = Kept.read(state, self.scenario.tasks)

    def _is_settled(self, agent: _Agent) -> bool:
        return agent.life is not None and agent.life.learned_all and not agent.life.agent.access.unconfirmed.waiting()

    async def _end(self) -> None:
        patience_s = sum(max(0.0, -fault.amount) for fault in self.scenario.faults if fault.kind == "clock_jump")
        await asyncio.sleep(DEADLINE_S + LEASE_MARGIN_S + 2 * SWEEP_S + patience_s + 15.0)
        for agent in self.agents:
            channel = SimulatedChannel(self.network, lambda: self.site.endpoint, agent.link)
            client = SimulatedClient(channel, agent.name, PATIENT, 0)
            await last_questions(agent.name, agent.notes.ledger, self.log, client, self.scenario.tasks)
        broker, host = self.site.broker, self.site.host
        assert broker is not None
        assert host is not None
        await broker.drain(0.0)
        await asyncio.sleep(1.0)
        at_rest = {f"{host.name}: start", f"{host.name}: budget bell", "ledger writer"}
        self._left_at_site = [name for name in self.loop.live_tasks(host) if name not in at_rest]

    # judging -------------------------------------------------------------------------------------------------------------------

    def _judge(self, verdict: Verdict) -> Verdict:
        entries = [json.loads(entry.to_json()) for entry in self.disk.tables.journal]
        durable = [*self.disk.durable_at, *[float("inf")] * (len(entries) - len(self.disk.durable_at))]
        disk = DiskLog(durable, self.outages, frozenset(self.disk.unsure))
        found = check(entries, self.upstream.log, self.log, self._rules(), disk)
        verdict.checks.update(found.checks)
        verdict.met.update(found.met)
        verdict.met.update(self.scenario.features)
        verdict.met.update(messages_met(self.network.traffic))
        verdict.violations += found.violations
        self._judge_agents(entries, verdict)
        verdict.check("I14", not self._left_at_site, f"left over: {', '.join(self._left_at_site[:5])}")
        verdict.check("A8", not self.leftovers, f"left over: {', '.join(self.leftovers[:5])}")
        verdict.check("A8", not self.loop.complaints, f"asyncio complains: {self.loop.complaints[:3]}")
        report = verify(self.disk.tables)
        verdict.check("I2", report.ok, f"verify finds {report.difference_count} differences: {report.differences[:3]}")
        return verdict

    def _judge_agents(self, entries: list[dict[str, Any]], verdict: Verdict) -> None:
        fold = Fold(self._rules(), Verdict())
        for entry in entries:
            fold.take(entry)
        for agent in self.agents:
            notes = agent.notes
            verdict.check("A8", not notes.failures, f"{agent.name} broke: {notes.failures[:3]}")
            verdict.meet("cut step finished after a crash", any("had been cut" in text for text in notes.notices))
            verdict.meet("learning call refused by the day's budget", any("learning, today's" in text for text in notes.notices))
            if agent.name in self._kept:
                checker = AgentChecker(agent.name, agent.number, self.scenario, fold, verdict)
                checker.check(self._kept[agent.name], notes.asked, agent.dial_since)

    def _rules(self) -> Rules:
        shaken = [fault for fault in self.scenario.faults if fault.kind in ("kill", "kill_at", "drain", "clock_jump", *_DISK)]
        slack_s = 2 * SWEEP_S + LEASE_MARGIN_S + 5.0 + sum(abs(fault.amount) + fault.for_s + 2.0 for fault in shaken)
        history = History([(float("-inf"), self.scenario.terms)], slack_s=1.0)
        return Rules(history, round(1000 * slack_s), WISHED_RATE, (INPUT_BOUND, MAX_OUTPUT_TOKENS))

    def _digest(self) -> str:
        parts: list[Any] = [entry.hash for entry in self.disk.tables.journal[-1:]]
        digest = hashlib.blake2b(digest_size=16)
        kept = [(name, sorted(each.records.items()), each.purse) for name, each in sorted(self._kept.items())]
        for part in (*parts, self.loop.steps, self.loop.time(), *self.upstream.log, *self.log, *self.story, *kept):
            digest.update(repr(part).encode())
        return digest.hexdigest()

    def _tell(self, text: str) -> None:
        self.story.append((self.loop.time(), text))

    def _told(self) -> tuple[str, ...]:
        """All that happened, in order, one line each."""
        lines = [(at, f"world     {text}") for at, text in self.story]
        lines += [(event.at, f"{event.device:9} {event.what} {event.key}: {event.outcome} {event.told}") for event in self.log]
        lines += [(event.at, f"upstream  {event.key} {event.what} {event.usage or ''}") for event in self.upstream.log]
        lines += zip(self.disk.durable_at, journal_lines(self.disk.tables.journal), strict=False)
        return tuple(f"{at:8.3f} {text}" for at, text in sorted(lines, key=lambda line: line[0]))


_DISK = ("disk_full", "disk_eio")


def play_agents(scenario: AgentScenario) -> Outcome:
    """The world of a scenario, played and judged."""
    with tempfile.TemporaryDirectory(prefix="simulate-", dir=SHM if SHM.is_dir() else None) as folder:
        return AgentWorld(scenario, Path(folder)).run()
