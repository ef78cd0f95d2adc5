"""One seed from beginning to verdict: devices and agents, network, coordinator, disk and upstream in virtual time, faults, healing, the
checkers.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coordinator import failpoints
from coordinator.config import ServerConfig
from coordinator.ledger.journal import JournalEntry
from coordinator.ledger.verify import verify
from edge.core.rng import stream
from edge.rpc.grpc_client import ClientPolicy
from tools.simulate.faults.administrator import ADMINISTRATOR, SimulatedAdministrator
from tools.simulate.faults.agent_device import CHECK_S, SETTLE_S, AgentMember
from tools.simulate.faults.checker import DiskLog, check
from tools.simulate.faults.device import WISHED_RATE, FaultSurroundings, Member, ScriptedMember, last_questions
from tools.simulate.faults.fold import Rules
from tools.simulate.faults.log import DeviceLog
from tools.simulate.faults.scenario import TASK_TAKEN, Fault, FaultScenario
from tools.simulate.faults.terms import FOREIGN_TASK, LIMIT_FIELDS, SCOPES, DrawnTaskTerms, DrawnTerms, History
from tools.simulate.faults.upstream import INPUT_BOUND, MAX_OUTPUT_TOKENS, SimulatedUpstream, UpstreamMood
from tools.simulate.faults.verdict import PlayedWorld, WorldVerdict
from tools.simulate.virtual.disk import scratch_folder
from tools.simulate.virtual.loop import Deadlock, Host, quiet_finalisers, quiet_logs
from tools.simulate.virtual.network import SimulatedChannel, SimulatedClient
from tools.simulate.virtual.site import Site

LATE_WORD_S = 15.0
"""What an administrator sent before everything healed has come by then, or never comes."""
REST_S, AGENTS_REST_S = 120.0, 3600.0
"""For what is left once everything has healed: a rate of 30 calls a minute for all devices makes each of their last calls wait its turn."""
DEADLINE_S = 6.0
LEASE_MARGIN_S = 3.0
SWEEP_S = 1.0
LIMIT_S = 400.0
SLOW_SYNC_S = (0.01, 0.1)
"""Of a slow disk, on which batches gather while others are written."""
HEARTBEAT_S, AGENTS_HEARTBEAT_S = 4.0, 60.0
SCRIPTS_CHECK_S = 0.5
OUTAGES = ("full", "locked", "eio")
OF_DEVICES = frozenset(
    {
        "cut",
        "crash",
        "crash_at",
        "restart",
        "device_clock_jump",
        "dial",
        "cloud_paused",
        "learning_paused",
        "upstream_down",
        TASK_TAKEN,
    }
)
"""Faults that hold up no lease of the coordinator's."""
PATIENT = ClientPolicy(connect_timeout_s=10.0, control_deadline_s=60.0, max_retries=20)


class World(FaultSurroundings):
    """One seed. `folder`: for the agents' state folders."""

    def __init__(self, scenario: FaultScenario, folder: Path) -> None:
        super().__init__(scenario)
        if scenario.slow_disk:
            self.disk.sync_s = SLOW_SYNC_S
        self._mood = UpstreamMood(dict(scenario.upstream_acts), scenario.upstream_duplicate, scenario.slow_s)
        self.upstream = SimulatedUpstream(self.loop, stream(scenario.seed, "upstream"), self._mood)
        self.terms = [(-math.inf, scenario.terms)]
        config, slots, max_queue = self._config(scenario.terms), scenario.slots, scenario.max_queue
        self.site = Site(
            self.loop, self.disk, self.network, self.upstream, self.clock, config, slots, max_queue, MAX_OUTPUT_TOKENS
        )
        names = tuple(f"d{number}" for number in range(scenario.devices))
        self.devices = [ScriptedMember(name, tuple(each for each in names if each != name), self) for name in names]
        self.site.taken = {name: {FOREIGN_TASK} for name in names}
        self.agents = [AgentMember(number, self, folder) for number in range(len(scenario.agents))]
        self.members: list[Member] = [*self.devices, *self.agents]
        self.met: Counter[str] = Counter()
        self.outages: list[tuple[float, float]] = []
        self.leftovers: list[str] = []
        self._armed: dict[str, int] = {}
        self._admin_link = self.link()
        self._administrator: Host | None = None
        self._rest_s, self._check_every_s = (AGENTS_REST_S, CHECK_S) if self.agents else (REST_S, SCRIPTS_CHECK_S)

    def run(self) -> PlayedWorld:
        """Play it through. A world that hangs is a violation too."""
        verdict, loop = WorldVerdict(), self.loop
        with quiet_logs(), failpoints.hooked(self._reached):
            try:
                loop.run_until_complete(self._play(), LIMIT_S + self.scenario.lasts_s + 2 * self._rest_s)
            except Deadlock as error:
                verdict.check("I11", False, f"it hangs: {error}")
            self._judge(verdict)
        lines = self._lines()
        outcome = PlayedWorld(self.scenario.seed, verdict, self._digest(), loop.steps, loop.time(), self.injected, lines)
        for agent in self.agents:
            agent.close()
        with quiet_finalisers():
            loop.close()
            if self.agents:
                gc.collect()  # generators of the dead that stand in no task
        return outcome

    # playing -------------------------------------------------------------------------------------------------------------------

    async def _play(self) -> None:
        self.site.start()
        for member in self.members:
            member.boot()
        if self.scenario.administered:
            self._administrator = Host("administrator", self.loop)
            self._administrator.spawn(self._new_administrator().work(8), "work")
        chaos = self.loop.create_task(self._chaos(), name="chaos")
        lasts_s = self.scenario.lasts_s
        await self.until(lambda: all(member.rests for member in self.members), lasts_s, self._check_every_s)
        await chaos
        await self._heal()
        await self._last_lives()
        await self._end()

    def _new_administrator(self) -> SimulatedAdministrator:
        channel = SimulatedChannel(self.network, lambda: self.site.admin_endpoint, self._admin_link)
        rng, names = stream(self.scenario.seed, "administrator"), tuple(device.name for device in self.devices)
        return SimulatedAdministrator(channel, DeviceLog(self.log, ADMINISTRATOR), rng, names)

    async def _chaos(self) -> None:
        undoing: list[asyncio.Task[None]] = []
        for fault in self.scenario.faults:
            await asyncio.sleep(max(0.0, fault.at - self.loop.time()))
            self.injected[fault.kind] += 1
            self.note(f"fault {fault.kind} {fault.detail} {fault.amount:g} for {fault.for_s:.2f} s")
            undoing.append(self.loop.create_task(self._inject(fault), name=f"fault {fault.kind}"))
        for task in undoing:
            await task

    async def _inject(self, fault: Fault) -> None:
        member = self.members[int(fault.amount) % len(self.members)]
        match fault.kind:
            case "kill":
                await self._kill_for(fault.for_s)
            case "drain":  # a stop in good order; it may be killed, or its disk fail, while it stops
                draining = self.site.stop(fault.amount)
                if draining is not None:
                    await asyncio.wait([draining], timeout=fault.amount + LEASE_MARGIN_S + 2.0)
                await self._kill_for(fault.for_s)
            case "kill_at":
                self._armed[fault.detail] = int(fault.amount)
            case "cut":
                member.link.cut = True
                await asyncio.sleep(fault.for_s)
                member.link.cut = False
            case "clock_jump":
                self.clock.jump(fault.amount)
            case "upstream_down":
                self.upstream.mood = UpstreamMood({"refuse": 1.0})
                await asyncio.sleep(fault.for_s)
                self.upstream.mood = self._mood
            case "reload":
                self._reload(fault)
            case "limits":
                self.site.kill()
                self._reload(fault)
                await self._kill_for(fault.for_s)
            case "set_elsewhere":
                changes = {"calls_limit": int(fault.amount)}
                self.site.elsewhere(lambda store: store.set_limits(fault.detail, changes, self.clock.now()))
            case "disabled_elsewhere":
                self.site.elsewhere(lambda store: store.set_device_disabled(member.name, True, self.clock.now()))
                await asyncio.sleep(fault.for_s)
                self.site.elsewhere(lambda store: store.set_device_disabled(member.name, False, self.clock.now()))
            case kind if kind == TASK_TAKEN:
                taken = self.site.taken.setdefault(member.name, set())
                taken.add(fault.detail)
                await asyncio.sleep(fault.for_s)
                taken.discard(fault.detail)
            case kind if kind.startswith("disk_"):
                await self._disk_for(kind.removeprefix("disk_"), fault.for_s)
            case _:
                await member.suffer(fault)

    def _reload(self, fault: Fault) -> None:
        assert fault.terms is not None
        self.terms.append((self.loop.time(), fault.terms))
        if self.site.reload(self._config(fault.terms)):
            self.met["reload of a running coordinator"] += 1
            self.note("configuration read again")

    def _config(self, terms: DrawnTerms) -> ServerConfig:
        return coordinator_config(terms, AGENTS_HEARTBEAT_S if self.scenario.agents else HEARTBEAT_S)

    async def _kill_for(self, seconds: float) -> None:
        self.note("coordinator killed")
        self.site.kill()
        await asyncio.sleep(seconds)
        self._restart()

    async def _disk_for(self, condition: str, seconds: float) -> None:
        self.disk.condition, start = condition, self.loop.time()
        await asyncio.sleep(seconds)
        if condition in OUTAGES and self.disk.condition == condition:
            self.outages.append((start, self.loop.time()))
        self.disk.condition = "ok"

    def _reached(self, point: str) -> None:
        """A failpoint was passed: the coordinator may be armed to die there."""
        left = self._armed.get(point, 0)
        if left <= 0:
            return
        self._armed[point] = left - 1
        if left == 1 and self.site.host is not None:
            self.injected[f"killed at {point}"] += 1
            self.note(f"coordinator killed at {point}")
            self.site.kill()
            self.network.later(1.0, self._restart)

    def _restart(self) -> None:
        if self.site.host is None:
            self.note("coordinator started")
            self.site.start()

    # the end -------------------------------------------------------------------------------------------------------------------

    async def _heal(self) -> None:
        """No fault any more; everybody comes to the end of what was planned."""
        self.note("healed")
        self._armed.clear()
        self.disk.condition = "ok"
        self.upstream.mood = UpstreamMood({})
        if self._administrator is not None:
            self._administrator.die()
        self._admin_link.heal()
        for member in self.members:
            member.heal()
        self._restart()
        if self._administrator is not None or self.injected["disabled_elsewhere"]:
            await self._let_in()
            await asyncio.sleep(LATE_WORD_S)
            await self._let_in()
        await self.until(lambda: all(member.up for member in self.members), SETTLE_S, self._check_every_s)
        for member in self.members:
            await member.resume()
        await self.until(lambda: all(member.done for member in self.members), self._rest_s, self._check_every_s)
        for member in self.members:
            if not member.done:
                waits = "; ".join(line.strip() for line in self.loop.who_waits().splitlines() if member.name in line)
                member.leftovers.append(f"{member.name} did not come to the end of its steps: {waits}")

    async def _let_in(self) -> None:
        """Devices that are shut out could not come to an end."""
        await self.until(lambda: self.site.admin_endpoint is not None, math.inf, 0.5)
        await self._new_administrator().let_all_in()

    async def _last_lives(self) -> None:
        """Agents live once more, to hand in what waits and to learn how calls ended; then their folders are read."""
        for agent in self.agents:
            await agent.stop()
        for agent in self.agents:
            agent.boot(asked=False)
        await self.until(lambda: all(agent.settled for agent in self.agents), SETTLE_S, self._check_every_s)
        for agent in self.agents:
            await agent.stop()
            agent.read()

    async def _end(self) -> None:
        """Wait until every lease that can be open is over, ask what became of everything, and stop."""
        patience_s = sum(max(0.0, -fault.amount) for fault in self.scenario.faults if fault.kind == "clock_jump")
        await asyncio.sleep(DEADLINE_S + LEASE_MARGIN_S + 2 * SWEEP_S + patience_s + 15.0)
        for member in self.members:
            client = SimulatedClient(self.channel(member.link), member.name, PATIENT, 0)
            await last_questions(member.notebook, DeviceLog(self.log, member.name), client, self.scenario.tasks)
        if self.scenario.chats:
            for device in self.devices:
                await device.last_usages()
        if self.scenario.administered:
            await self._new_administrator().last_questions()
        watching = [device.watching for device in self.devices if device.watching is not None]
        for task in watching:
            task.cancel()
        if watching:
            await asyncio.wait(watching)
        parts, host = self.site.parts, self.site.host
        if parts is None or host is None:
            self.leftovers.append("no coordinator serves")
            return
        await parts.broker.drain(0.0)
        await asyncio.sleep(1.0)
        if parts.broker.in_flight:
            self.leftovers.append(f"{parts.broker.in_flight} calls are in flight after the drain")
        at_rest = {f"{host.name}: start", f"{host.name}: budget notifier", "ledger writer"}
        self.leftovers += [name for name in self.loop.live_tasks(host) if name not in at_rest]

    # judging -------------------------------------------------------------------------------------------------------------------

    def _judge(self, verdict: WorldVerdict) -> None:
        entries = [json.loads(entry.to_json()) for entry in self.disk.tables.journal]
        durable = [*self.disk.durable_at, *[math.inf] * (len(entries) - len(self.disk.durable_at))]
        disk = DiskLog(durable, self.outages, frozenset(self.disk.unsure))
        check(entries, self.upstream.log, self.log, self._rules(), disk, self.agents, verdict)
        verdict.met.update([*self.scenario.features, *self.met.elements()])
        verdict.met.update({f"message {what}": count for what, count in asdict(self.network.traffic).items()})
        for event in self.log:
            verdict.check("I5", event.outcome != "INTERNAL", f"{event.device} got INTERNAL for {event.what} {event.key}")
            verdict.meet(f"replied {event.what if event.outcome == 'ok' else event.outcome}", event.outcome != "asked")
        for member in self.members:
            verdict.check(member.invariant, not member.leftovers, f"left over: {', '.join(member.leftovers[:5])}")
        verdict.check("I14", not self.leftovers, f"left over: {', '.join(self.leftovers[:5])}")
        verdict.check("I14", not self.loop.complaints, f"asyncio complains: {self.loop.complaints[:3]}")
        report = verify(self.disk.tables)
        verdict.check("I2", report.ok, f"verify finds {report.difference_count} differences: {report.differences[:3]}")

    def _rules(self) -> Rules:
        faults = self.scenario.faults
        shaken_s = sum(abs(fault.amount) + fault.for_s + 2.0 for fault in faults if fault.kind not in OF_DEVICES)
        slack_s = 2 * SWEEP_S + LEASE_MARGIN_S + 5.0 + shaken_s
        stalled = any(fault.kind == "disk_stalled" for fault in faults)
        history = History(self.terms, slack_s=8.0 if stalled else 1.0)
        return Rules(history, round(1000 * slack_s), WISHED_RATE, (INPUT_BOUND, MAX_OUTPUT_TOKENS))

    def _digest(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        folders = [(agent.name, agent.kept) for agent in self.agents]
        kept = [(name, sorted(each.records.items()), each.daily_budget) for name, each in folders if each is not None]
        last = [entry.hash for entry in self.disk.tables.journal[-1:]]
        logs = (*self.upstream.log, *self.log, *self.story, *kept)
        for part in (*last, self.loop.steps, self.loop.time(), *logs):
            digest.update(repr(part).encode())
        return digest.hexdigest()

    def _lines(self) -> tuple[str, ...]:
        """All that happened, in order, one line each."""
        lines = [(at, f"world     {text}") for at, text in self.story]
        lines += [(each.at, f"{each.device:9} {each.what} {each.key}: {each.outcome} {each.reply}") for each in self.log]
        lines += [(event.at, f"upstream  {event.key} {event.what} {event.usage or ''}") for event in self.upstream.log]
        lines += zip(self.disk.durable_at, journal_lines(self.disk.tables.journal), strict=False)
        return tuple(f"{at:8.3f} {text}" for at, text in sorted(lines, key=lambda line: line[0]))


def play(scenario: FaultScenario) -> PlayedWorld:
    """The world of a scenario, played and judged."""
    with scratch_folder() as folder:
        return World(scenario, Path(folder)).run()


def journal_lines(entries: Iterable[JournalEntry]) -> Iterator[str]:
    """The journal for a person: each entry with the budgets that it moves."""
    held: dict[tuple[Any, ...], str] = {}
    for entry in entries:
        body = entry.data()
        attempt = tuple(body.get(name) for name in ("device", "key", "attempt"))
        if "budgets" in body:
            held[attempt] = ", ".join(body["budgets"])
        step = f"{body.get('task', '')}#{body['step']}" if body.get("step", -1) >= 0 else ""
        amounts = [f"{name} {body[name]}" for name in ("hold", "charge", "limits") if name in body]
        of = f"of {held[attempt]}" if attempt in held else ""
        parts = (body.get("device", ""), body.get("key", body.get("budget", "")), step, *amounts, of)
        yield " ".join([f"journal   {entry.seq} {entry.kind}", *(str(part) for part in parts if part)])


def coordinator_config(terms: DrawnTerms, heartbeat_s: float) -> ServerConfig:
    """What an operator would write to have these terms."""
    price_in, price_out = (1_000_000 * price for price in terms.prices)
    upstream = {"deadline_s": DEADLINE_S, "price_in_uusd_per_mtok": price_in, "price_out_uusd_per_mtok": price_out}
    rates = {"device": terms.device_rate, "fleet": terms.fleet_rate}
    service = {
        "sweep_interval_s": SWEEP_S,
        "lease_margin_s": LEASE_MARGIN_S,
        "max_queue_wait_s": 4.0,
        "answer_cache": terms.answers_cached,
        "watch_heartbeat_s": heartbeat_s,
    }
    return ServerConfig.model_validate(
        {
            "state_dir": "/nonexistent",
            "upstreams": {"default": upstream},
            "tasks": {FOREIGN_TASK: {}, **{name: _task(task) for name, task in terms.tasks.items()}},
            "budgets": {
                scope: {"window": terms.windows.get(scope, "total"), **dict(zip(LIMIT_FIELDS, terms.cap(scope), strict=True))}
                for scope in SCOPES
            },
            "rates": {who: {"calls_per_min": rate[0], "burst": rate[1]} for who, rate in rates.items() if rate is not None},
            "fleet": {"fairness_floor": terms.floor_ppm / 1_000_000, "dual_idle_s": terms.dual_idle_s},
            "service": service,
        }
    )


def _task(terms: DrawnTaskTerms) -> dict[str, Any]:
    schedule = []
    for change in terms.schedule:
        since = None if change.from_ms is None else datetime.fromtimestamp((change.from_ms + 0.5) / 1000, UTC)
        schedule.append({"target_rate": change.target_rate, "from_step": change.from_step, "from_date": since})
    return {
        "target_rate": terms.target_rate,
        "target_rate_schedule": schedule,
        "target_rate_from_device": terms.rate_from_device,
        "dual_scope": terms.scope,
        "dual_init": terms.dual_init,
        "dual_lr": terms.dual_lr,
        "dual_proportional": terms.proportional,
        "dual_window": terms.window,
        "dual_ceiling": terms.ceiling,
        "step_credit_kappa": terms.credit_factor,
        "answer_cache": terms.answer_cache,
    }
