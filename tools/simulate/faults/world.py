"""One seed from beginning to verdict: devices, network, coordinator, disk and upstream in virtual time, faults, healing, the checker.
Knows the order of things; knows nothing of how a part works inside.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from coordinator import failpoints
from coordinator.config import (
    BudgetsConfig,
    CoordinatorConfig,
    FleetConfig,
    RateConfig,
    RatePoint,
    RatesConfig,
    ServiceConfig,
    TaskConfig,
    UpstreamConfig,
)
from coordinator.ledger.journal import JournalEntry
from coordinator.ledger.verify import verify
from edge.core.rng import stream
from edge.rpc.grpc_client import ClientPolicy
from tools.simulate.faults.administrator import SimulatedAdministrator
from tools.simulate.faults.checker import DiskLog, check
from tools.simulate.faults.device import (
    MAX_OUTPUT_TOKENS,
    POLICY,
    WISHED_RATE,
    DeviceEvent,
    Notebook,
    SimulatedClient,
    SimulatedDevice,
    last_questions,
)
from tools.simulate.faults.fold import Rules
from tools.simulate.faults.outcome import Outcome
from tools.simulate.faults.scenario import Fault, Scenario, draw
from tools.simulate.faults.terms import LIMIT_FIELDS, SCOPES, Caps, History, Rate, TaskTerms, Terms
from tools.simulate.faults.upstream import INPUT_BOUND, SimulatedUpstream, UpstreamMood
from tools.simulate.faults.verdict import Verdict
from tools.simulate.virtual.clock import VirtualClock
from tools.simulate.virtual.disk import Disk
from tools.simulate.virtual.loop import Deadlock, Host, SeededLoop
from tools.simulate.virtual.network import LinkFaults, Network, SimulatedChannel, Traffic
from tools.simulate.virtual.site import Site

LATE_WORD_S = 15.0
"""What an administrator sent before everything healed has come by then, or never comes."""
HORIZON_S = 30.0
REST_S = 120.0
"""For what is left once everything has healed: a rate of 30 calls a minute for all devices makes each of their last calls wait its turn."""
DEADLINE_S = 6.0
LEASE_MARGIN_S = 3.0
SWEEP_S = 1.0
LIMIT_S = 400.0
SLOW_SYNC_S = (0.01, 0.1)
"""Of every third disk, on which batches gather while others are written."""
HEARTBEAT_S = 4.0
OUTAGES = ("full", "locked", "eio")
PATIENT = ClientPolicy(connect_timeout_s=10.0, control_deadline_s=60.0, max_retries=20)


@dataclass(slots=True)
class _Device:
    name: str
    notebook: Notebook
    faults: LinkFaults
    host: Host | None = None
    watching: asyncio.Task[None] | None = None


class World:
    """The parts of one seed."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.loop = SeededLoop(scenario.seed)
        self.clock = VirtualClock(self.loop, scenario.begins_s)
        self.network = Network(self.loop, stream(scenario.seed, "network"))
        self.disk = Disk(self.loop, stream(scenario.seed, "disk"))
        if scenario.seed % 3 == 0:
            self.disk.sync_s = SLOW_SYNC_S
        mood = UpstreamMood(dict(scenario.upstream_acts), scenario.upstream_duplicate, scenario.slow_s)
        self.upstream = SimulatedUpstream(self.loop, stream(scenario.seed, "upstream"), mood)
        self.terms = [(float("-inf"), scenario.terms)]
        self.site = Site(
            self.loop,
            self.disk,
            self.network,
            self.upstream,
            self.clock,
            coordinator_config(scenario.terms),
            scenario.slots,
            scenario.max_queue,
        )
        names = tuple(f"d{number}" for number in range(scenario.devices))
        self.devices = tuple(_Device(name, Notebook(), self._link()) for name in names)
        self.log: list[DeviceEvent] = []
        self.story: list[tuple[float, str]] = []
        self.injected: Counter[str] = Counter()
        self.met: Counter[str] = Counter()
        self.outages: list[tuple[float, float]] = []
        self.leftovers: list[str] = []
        self._armed: dict[str, int] = {}
        self._admin_link = self._link()
        self._administrator: Host | None = None

    def _link(self) -> LinkFaults:
        scenario = self.scenario
        return LinkFaults(drop=scenario.drop, duplicate=scenario.duplicate, late=scenario.late, reorder=scenario.reorder)

    def run(self) -> Outcome:
        """Play it through. A world that hangs is a violation too."""
        verdict = Verdict()
        with quiet_logs(), failpoints.hooked(self._reached):
            try:
                self.loop.run_until_complete(self._play(), LIMIT_S)
            except Deadlock as error:
                verdict.check("I11", False, f"it hangs: {error}")
            verdict = self._judge(verdict)
        outcome = Outcome(
            self.scenario.seed, verdict, self._digest(), self.loop.steps, self.loop.time(), self.injected, self._told()
        )
        self.loop.close()
        return outcome

    # playing -------------------------------------------------------------------------------------------------------------------

    async def _play(self) -> None:
        self.site.start()
        for device in self.devices:
            self._boot(device)
        self._let_administer()
        chaos = self.loop.create_task(self._chaos(), name="chaos")
        await self._until_done(HORIZON_S)
        await chaos
        await self._heal()
        await self._end()

    def _boot(self, device: _Device) -> None:
        scenario, note = self.scenario, device.notebook
        note.lives += 1
        device.host = Host(f"{device.name} life {note.lives}", self.loop)
        others = tuple(other.name for other in self.devices if other is not device)
        rng = stream(scenario.seed, "device", device.name, note.lives)
        client = self._client(device, note.lives, POLICY)
        living = SimulatedDevice(
            device.name, others, note, self.log, client, rng, scenario.steps, scenario.prompts, tasks=scenario.tasks
        )
        device.host.spawn(living.live(), "life")
        if scenario.watched:
            device.watching = device.host.spawn(living.watch(), "watch")

    def _let_administer(self) -> None:
        if self.scenario.administered:
            self._administrator = Host("administrator", self.loop)
            self._administrator.spawn(self._new_administrator().work(8), "work")

    def _new_administrator(self) -> SimulatedAdministrator:
        channel = SimulatedChannel(self.network, lambda: self.site.admin_endpoint, self._admin_link)
        names = tuple(device.name for device in self.devices)
        return SimulatedAdministrator(channel, self.log, stream(self.scenario.seed, "administrator"), names)

    def _client(self, device: _Device, seed: int, policy: ClientPolicy) -> SimulatedClient:
        channel = SimulatedChannel(self.network, lambda: self.site.endpoint, device.faults)
        return SimulatedClient(channel, device.name, policy, seed)

    async def _until_done(self, horizon_s: float) -> None:
        while self.loop.time() < horizon_s and not all(device.notebook.done for device in self.devices):  # noqa: ASYNC110
            await asyncio.sleep(0.5)

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
        match fault.kind:
            case "kill":
                await self._kill_for(fault.for_s)
            case "drain":
                await self._drain(fault.amount)
                await self._kill_for(fault.for_s)
            case "kill_at":
                self._armed[fault.detail] = int(fault.amount)
            case _ if fault.kind.startswith("disk_"):
                await self._disk_for(fault.kind.removeprefix("disk_"), fault.for_s)
            case "cut":
                await self._cut_for(self.devices[int(fault.amount) % len(self.devices)], fault.for_s)
            case "device_crash":
                await self._crash_device(self.devices[int(fault.amount) % len(self.devices)], fault.for_s)
            case "clock_jump":
                self.clock.jump(fault.amount)
            case "reload":
                self._reload(fault)
            case "set_elsewhere":
                changes = {"calls_limit": int(fault.amount)}
                self.site.elsewhere(lambda store: store.set_limits(fault.detail, changes, self.clock.now()))
            case "disabled_elsewhere":
                name = self.devices[int(fault.amount) % len(self.devices)].name
                self.site.elsewhere(lambda store: store.set_device_disabled(name, True, self.clock.now()))
                await asyncio.sleep(fault.for_s)
                self.site.elsewhere(lambda store: store.set_device_disabled(name, False, self.clock.now()))
            case "limits":
                self.site.kill()
                self._reload(fault)
                await self._kill_for(fault.for_s)

    def _reload(self, fault: Fault) -> None:
        assert fault.terms is not None
        self.terms.append((self.loop.time(), fault.terms))
        if self.site.reload(coordinator_config(fault.terms)):
            self.met["reload of a running coordinator"] += 1
            self._tell("configuration read again")

    async def _kill_for(self, seconds: float) -> None:
        self._tell("coordinator killed")
        self.site.kill()
        await asyncio.sleep(seconds)
        if self.site.host is None:
            self._tell("coordinator started")
            self.site.start()

    async def _drain(self, grace_s: float) -> None:
        """Stop it in good order; it may be killed, or its disk fail, while it stops."""
        draining = self.site.stop(grace_s)
        if draining is not None:
            await asyncio.wait([draining], timeout=grace_s + LEASE_MARGIN_S + 2.0)

    async def _disk_for(self, condition: str, seconds: float) -> None:
        self.disk.condition, start = condition, self.loop.time()
        await asyncio.sleep(seconds)
        if condition in OUTAGES and self.disk.condition == condition:
            self.outages.append((start, self.loop.time()))
        self.disk.condition = "ok"

    async def _cut_for(self, device: _Device, seconds: float) -> None:
        device.faults.cut = True
        await asyncio.sleep(seconds)
        device.faults.cut = False

    async def _crash_device(self, device: _Device, seconds: float) -> None:
        if device.notebook.done or device.host is None or not device.host.alive:
            return
        device.host.die()
        await asyncio.sleep(seconds)
        self._boot(device)

    def _reached(self, point: str) -> None:
        """A failpoint was passed: the coordinator may be armed to die there."""
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
            self.site.start()

    async def _heal(self) -> None:
        """No fault any more; wait until every lease that can be open is over."""
        self._tell("healed")
        self._armed.clear()
        self.disk.condition = "ok"
        self.upstream.mood = UpstreamMood({})
        if self._administrator is not None:
            self._administrator.die()
        for faults in (self._admin_link, *(device.faults for device in self.devices)):
            faults.drop = faults.duplicate = faults.late = faults.reorder = 0.0
            faults.cut = False
        self._restart()
        if self._administrator is not None or self.injected["disabled_elsewhere"]:
            await self._let_in()
            await asyncio.sleep(LATE_WORD_S)
            await self._let_in()
        await self._until_done(self.loop.time() + REST_S)
        for device in self.devices:
            if device.host is not None and not device.notebook.done:
                self.leftovers.append(f"{device.name} did not come to the end of its steps")
        patience_s = sum(max(0.0, -fault.amount) for fault in self.scenario.faults if fault.kind == "clock_jump")
        await asyncio.sleep(DEADLINE_S + LEASE_MARGIN_S + 2 * SWEEP_S + patience_s + 15.0)

    async def _let_in(self) -> None:
        """Devices that are shut out could not come to an end."""
        while self.site.admin_endpoint is None:  # noqa: ASYNC110
            await asyncio.sleep(0.5)
        await self._new_administrator().let_all_in()

    async def _end(self) -> None:
        for device in self.devices:
            client = self._client(device, 0, PATIENT)
            await last_questions(device.name, device.notebook, self.log, client, self.scenario.tasks)
        if self.scenario.administered:
            await self._new_administrator().last_questions()
        watching = [device.watching for device in self.devices if device.watching is not None]
        for task in watching:
            task.cancel()
        if watching:
            await asyncio.wait(watching)
        broker, host = self.site.broker, self.site.host
        if broker is None or host is None:
            self.leftovers.append("no coordinator serves")
            return
        await broker.drain(0.0)
        await asyncio.sleep(1.0)
        if broker.in_flight:
            self.leftovers.append(f"{broker.in_flight} calls are in flight after the drain")
        at_rest = {f"{host.name}: start", f"{host.name}: budget bell", "ledger writer"}
        self.leftovers += [name for name in self.loop.live_tasks(host) if name not in at_rest]

    # judging -------------------------------------------------------------------------------------------------------------------

    def _judge(self, verdict: Verdict) -> Verdict:
        entries = [json.loads(entry.to_json()) for entry in self.disk.tables.journal]
        durable = [*self.disk.durable_at, *[float("inf")] * (len(entries) - len(self.disk.durable_at))]
        disk = DiskLog(durable, self.outages, frozenset(self.disk.unsure))
        found = check(entries, self.upstream.log, self.log, self._rules(), disk)
        verdict.checks.update(found.checks)
        verdict.met.update(found.met)
        verdict.met.update(self.scenario.features)
        verdict.met.update(self.met)
        verdict.met.update(messages_met(self.network.traffic))
        for event in self.log:
            verdict.check("I5", event.outcome != "INTERNAL", f"{event.device} was told INTERNAL of {event.what} {event.key}")
            verdict.meet(f"told {event.what if event.outcome == 'ok' else event.outcome}", event.outcome != "asked")
        verdict.violations += found.violations
        verdict.check("I14", not self.leftovers, f"left over: {', '.join(self.leftovers[:5])}")
        verdict.check("I14", not self.loop.complaints, f"asyncio complains: {self.loop.complaints[:3]}")
        report = verify(self.disk.tables)
        verdict.check("I2", report.ok, f"verify finds {report.difference_count} differences: {report.differences[:3]}")
        return verdict

    def _rules(self) -> Rules:
        faults = self.scenario.faults
        slack_s = 2 * SWEEP_S + LEASE_MARGIN_S + 5.0 + sum(abs(fault.amount) + fault.for_s + 2.0 for fault in faults)
        stalled = any(fault.kind == "disk_stalled" for fault in faults)
        history = History(self.terms, slack_s=8.0 if stalled else 1.0)
        return Rules(history, round(1000 * slack_s), WISHED_RATE, (INPUT_BOUND, MAX_OUTPUT_TOKENS))

    def _digest(self) -> str:
        parts: list[Any] = [entry.hash for entry in self.disk.tables.journal[-1:]]
        digest = hashlib.blake2b(digest_size=16)
        for part in (*parts, self.loop.steps, self.loop.time(), *self.upstream.log, *self.log, *self.story):
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


def play(scenario: Scenario) -> Outcome:
    """The world of a scenario, played and judged."""
    return World(scenario).run()


def run_seed(seed: int) -> Outcome:
    """The world of a seed, played and judged."""
    return play(draw(seed))


def messages_met(traffic: Traffic) -> Counter[str]:
    """What became of messages, by names of MESSAGES."""
    return Counter(
        {
            "message dropped": traffic.dropped,
            "message duplicated": traffic.duplicated,
            "message late": traffic.late,
            "message held for a later one": traffic.held,
            "message overtaken": traffic.overtaken,
        }
    )


def journal_lines(entries: Iterable[JournalEntry]) -> Iterator[str]:
    """The journal for a person: each entry with the budgets that it moves."""
    held: dict[tuple[Any, ...], str] = {}
    for entry in entries:
        body = entry.data()
        attempt = tuple(body.get(name) for name in ("device", "key", "attempt"))
        if "budgets" in body:
            held[attempt] = ", ".join(body["budgets"])
        step = f"{body.get('task', '')}#{body['step']}" if body.get("step", -1) >= 0 else ""
        told = [f"{name} {body[name]}" for name in ("hold", "charge", "limits") if name in body]
        of = f"of {held[attempt]}" if attempt in held else ""
        parts = (body.get("device", ""), body.get("key", body.get("budget", "")), step, *told, of)
        yield " ".join([f"journal   {entry.seq} {entry.kind}", *(str(part) for part in parts if part)])


def coordinator_config(terms: Terms, heartbeat_s: float = HEARTBEAT_S) -> CoordinatorConfig:
    """What an operator would write to have these terms."""
    price_in, price_out = (1_000_000 * price for price in terms.prices)
    upstream = UpstreamConfig(deadline_s=DEADLINE_S, price_in_uusd_per_mtok=price_in, price_out_uusd_per_mtok=price_out)
    limits = {scope: _limit(terms.cap(scope), terms.windows.get(scope, "total")) for scope in SCOPES}
    return CoordinatorConfig(
        state_dir="/nonexistent",
        upstreams={"default": upstream},
        tasks={name: _task(task) for name, task in terms.tasks.items()},
        budgets=BudgetsConfig.model_validate(limits),
        rates=RatesConfig(device=_rate(terms.device_rate), fleet=_rate(terms.fleet_rate)),
        fleet=FleetConfig(fairness_floor=terms.floor_ppm / 1_000_000, price_idle_s=terms.price_idle_s),
        service=ServiceConfig(
            sweep_interval_s=SWEEP_S,
            lease_margin_s=LEASE_MARGIN_S,
            max_queue_wait_s=4.0,
            answer_cache=terms.answers_cached,
            watch_heartbeat_s=heartbeat_s,
        ),
    )


def _task(terms: TaskTerms) -> TaskConfig:
    points = [
        RatePoint(
            target_rate=change.target_rate,
            from_step=change.from_step,
            from_date=None if change.from_ms is None else datetime.fromtimestamp((change.from_ms + 0.5) / 1000, UTC),
        )
        for change in terms.schedule
    ]
    return TaskConfig.model_validate(
        {
            "target_rate": terms.target_rate,
            "target_rate_schedule": points,
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
    )


def _rate(rate: Rate | None) -> RateConfig:
    return RateConfig() if rate is None else RateConfig(calls_per_min=rate[0], burst=rate[1])


def _limit(caps: Caps, window: str) -> dict[str, Any]:
    return {"window": window, **dict(zip(LIMIT_FIELDS, caps, strict=True))}


@contextmanager
def quiet_logs() -> Iterator[None]:
    """The coordinator's log says what the story says."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
