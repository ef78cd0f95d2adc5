"""A scenario played: devices, links, coordinator and cloud in virtual time, and what became of them."""

from __future__ import annotations

import asyncio
import gc
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from coordinator.config import ServerConfig, UpstreamConfig
from coordinator.ledger.accounts import Amount, CallRow, CallState, budget_key
from coordinator.ledger.budgets import window_label
from coordinator.ledger.stores.memory import MemoryRows
from coordinator.ledger.tables import BUDGET, CALL, SHARED_DUAL
from coordinator.ledger.verify import verify
from tools.simulate.fleet.cloud import Askers, SimulatedCloud, most_tokens
from tools.simulate.fleet.device import FleetDevice, FleetGroup, FleetSurroundings
from tools.simulate.fleet.link import PATIENCE_S, Outage, covered_s
from tools.simulate.fleet.people import NUMBERS_OF_A_DEVICE
from tools.simulate.fleet.scenario import DAY_S, HOUR_S, EventPart, FleetScenario, GroupPart
from tools.simulate.fleet.tally import GroupTally, Sample, jain_index, mean
from tools.simulate.reports.result import FORMAT, CloudResult, GroupResult, SimulationResult, rounded
from tools.simulate.virtual.loop import Host, quiet_logs
from tools.simulate.virtual.site import Site

LEFT_OVER_S = 6 * HOUR_S
"""Virtual time after the end within which everything has to come to rest."""
SETTLE_S = 1800.0
CHECK_S = 5.0


class FleetWorld(FleetSurroundings):
    """The parts of one scenario. `events_run` counts the steps of the event loop."""

    def __init__(self, scenario: FleetScenario, name: str, folder: Path) -> None:
        """Loads profiles. Raises UsageError for a device or link that is not known. `folder`: for the agents' checkpoints."""
        super().__init__(scenario, folder)
        self.name = name
        self.cloud = SimulatedCloud(scenario.cloud, self._asked_by, self._waiting, scenario.seed)
        self.found: list[str] = []
        self._part = scenario.coordinator
        self._groups = [self._group(part) for part in scenario.groups]
        self._of_device: list[FleetGroup] = [group for group in self._groups for _ in range(group.part.devices)]
        self._series = CloudResult([], [], [], [], [], [], [], [], [], {}, 0, None)
        self._down: list[Outage] = []
        self._still_asking = scenario.devices
        self._all_asked = asyncio.Event()
        most = max(most_tokens(group.part.tokens) for group in self._groups)
        self.site = Site(
            self.loop,
            self.disk,
            self.network,
            self.cloud,
            self.clock,
            self._config(),
            scenario.cloud.slots,
            scenario.cloud.max_queue,
            max_output_tokens=most,
            max_streams=self._part.service.max_open_streams,
            shared_pause_s=scenario.shared_news_every_s,
        )

    @property
    def devices(self) -> list[FleetDevice]:
        """All of them, group by group."""
        return [device for group in self._groups for device in group.devices]

    def run(self) -> SimulationResult:
        """Play it to the end. Raises Deadlock, with who waits for what, when it does not come to one."""
        try:
            with quiet_logs(), _rare_collections():
                self.loop.run_until_complete(self._play(), limit_s=self.scenario.lasts_s + LEFT_OVER_S)
            self.found = violations(self.disk.tables, self.devices, self.cloud.executed)
            calls = calls_by_device(self.disk.tables)
            for device in self.devices:
                charged = [row.charged for row in calls[device.name].values()]
                device.figures.calls = sum(each.calls for each in charged)
                device.figures.spend_uusd = sum(each.uusd for each in charged)
            return self._result()
        finally:
            self.loop.close()
            for device in self.devices:
                device.state.close()

    # playing -------------------------------------------------------------------------------------------------------------------

    async def _play(self) -> None:
        self.site.start()
        await self._until_served()
        lives = [self._switch_on(index, group) for index, group in enumerate(self._of_device)]
        sampling, *beside = [self.loop.create_task(work, name=name) for work, name in self._beside()]
        gc.freeze()
        await self._all_asked_or_broken(lives)
        await sampling  # its last sample may fall on this moment
        await self._heal()
        for task in beside:
            task.cancel()
        for device in self.devices:
            device.end()
        await asyncio.gather(*lives)
        if self.site.parts is not None:
            self.loop.create_task(self.site.parts.broker.drain(0.0), name="stop")
        await asyncio.sleep(CHECK_S)

    def _switch_on(self, index: int, group: FleetGroup) -> asyncio.Task[None]:
        device = FleetDevice(index, group, self)
        group.devices.append(device)
        return Host(device.name, self.loop).spawn(device.live(self._one_asked_all), "life")

    def _beside(self) -> Iterator[tuple[Any, str]]:
        yield self._sample(), "sample"
        if any(group.speed.battery_wh is not None for group in self._groups):
            yield self._recharge(), "recharge"
        for event in sorted(self.scenario.events, key=lambda event: event.at_h):
            yield self._happen(event), f"event at {event.at_h:g} h"

    def _one_asked_all(self) -> None:
        self._still_asking -= 1
        if self._still_asking == 0:
            self._all_asked.set()

    async def _all_asked_or_broken(self, lives: list[asyncio.Task[None]]) -> None:
        """Until nobody has a question any more; what breaks a device breaks the world."""
        waiting = self.loop.create_task(self._all_asked.wait(), name="until all have asked")
        done, _ = await asyncio.wait([waiting, *lives], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        for task in done - {waiting}:
            task.result()

    async def _heal(self) -> None:
        """No fault any more: every agent learns how its calls ended."""
        self.cloud.down = False
        for device in self.devices:
            device.link.heal(self.loop.time())
            self.network.wake(device.link)
        if self.site.host is None:
            self.site.start()
        await self._until_served()
        await self.until(lambda: not any(device.unsettled() for device in self.devices), SETTLE_S, CHECK_S)

    async def _until_served(self) -> None:
        """Until the coordinator has started; then those who wait for it look again."""
        await self.until(lambda: self.site.endpoint is not None, math.inf, 0.05)
        for device in self.devices:
            if device.link.waiting:
                self.network.wake(device.link)

    # what happens --------------------------------------------------------------------------------------------------------------

    async def _happen(self, event: EventPart) -> None:
        await asyncio.sleep(event.at_h * HOUR_S - self.loop.time())
        if event.cloud_down_for_s is not None:
            self.note(f"the cloud is down for {event.cloud_down_for_s:g} s")
            self.cloud.down = True
            await asyncio.sleep(event.cloud_down_for_s)
            self.cloud.down = False
        elif event.coordinator_down_for_s is not None:
            await self._coordinator_down(event.coordinator_down_for_s)
        elif event.links_down_for_s is not None:
            await self._links_down(event.links_down_for_s, event.groups)
        else:
            self.note("the coordinator reads a changed configuration")
            self._part = next(part for at, part in reversed(self.scenario.configurations()) if at <= self.loop.time() + 1.0)
            self.site.reload(self._config())

    async def _coordinator_down(self, seconds: float) -> None:
        self.note(f"the coordinator is killed, and started again after {seconds:g} s")
        began, place = self.loop.time(), len(self._down)
        self._down.append(Outage(began, math.inf))
        self.site.kill()
        await asyncio.sleep(seconds)
        self.site.start()
        await self._until_served()
        self._down[place] = Outage(began, self.loop.time())

    async def _links_down(self, seconds: float, groups: tuple[str, ...]) -> None:
        self.note(f"links of {', '.join(groups) or 'all'} are down for {seconds:g} s")
        hit = [device for group in self._groups if not groups or group.part.name in groups for device in group.devices]
        for device in hit:
            device.link.force_down(self.loop.time(), seconds)
        if seconds > PATIENCE_S:
            await asyncio.sleep(PATIENCE_S)
            for device in hit:
                device.channel.break_streams()

    async def _recharge(self) -> None:
        midnight = (-self.scenario.starts_at_h * HOUR_S) % DAY_S
        while True:
            await asyncio.sleep(midnight - self.loop.time())
            for device in self.devices:
                device.machine.recharge()
            midnight += DAY_S

    # looking -------------------------------------------------------------------------------------------------------------------

    async def _sample(self) -> None:
        lasts_s, every_s = self.scenario.lasts_s, self.scenario.report_every_s
        at = 0.0
        while at < lasts_s:
            before, at = at, min(lasts_s, at + every_s)
            await asyncio.sleep(at - self.loop.time())
            self._sample_cloud(before, at)
            for group in self._groups:
                group.tally.samples.append(self._sample_group(group, before, at))

    def _sample_group(self, group: FleetGroup, before: float, at: float) -> Sample:
        for device in group.devices:
            device.machine.settle()
        group.energy_wh = sum(device.machine.energy_wh for device in group.devices)
        away_s = sum(covered_s([*device.link.outages_until(at), *self._down], before, at) for device in group.devices)
        return Sample(
            at,
            mean(device.figures.dual for device in group.devices) if group.part.learning else None,
            self._target_rate(group),
            self._training_target_rate(group),
            1.0 - away_s / (at - before) / len(group.devices),
        )

    def _target_rate(self, group: FleetGroup) -> float:
        """τ in force of people's questions: of the dial, or the coordinator's."""
        return self._coordinators_rate(group) if group.part.dial is None else group.part.dial

    def _training_target_rate(self, group: FleetGroup) -> float | None:
        """τ in force of learning steps, which λ steers to; None where people's questions have the same or nothing is learned."""
        return None if group.part.dial is None or group.part.learning is None else self._coordinators_rate(group)

    def _coordinators_rate(self, group: FleetGroup) -> float:
        """The coordinator's τ for the steps that the devices have come to."""
        steps = sum(device.figures.steps for device in group.devices) // max(1, len(group.devices))
        return self._part.task(group.part.task).rate_at(steps, self.clock.now())

    def _sample_cloud(self, before: float, at: float) -> None:
        series, budget = self._series, self._part.budgets.fleet
        series.at_s.append(rounded(at))
        series.queue.append(self.cloud.most_waiting)
        self.cloud.most_waiting = self._waiting()
        series.in_flight.append(self.cloud.most_under_way)
        self.cloud.most_under_way = self.cloud.under_way
        series.up.append(rounded(1.0 - covered_s(self._down, before, at) / (at - before)))
        spent = self._spent(budget.window)
        series.spend_uusd.append(spent.uusd)
        series.calls.append(spent.calls)
        series.limit_uusd.append(budget.spend_limit_uusd)
        series.limit_calls.append(budget.calls_limit)
        duals = [row.dual for row in self.disk.tables.all(SHARED_DUAL)]
        series.fleet_dual.append(mean(duals) if duals else None)

    def _spent(self, window: str) -> Amount:
        """What the ledger has charged to the fleet's budget since its window began."""
        at = min(self.loop.time(), self.scenario.lasts_s) - 1e-3
        label = window_label(window, self.scenario.calendar_at(at))
        row = self.disk.tables.get(BUDGET, budget_key("fleet", window=label))
        return Amount() if row is None else row.committed

    # results -------------------------------------------------------------------------------------------------------------------

    def _result(self) -> SimulationResult:
        scenario = self.scenario
        return SimulationResult(
            format=FORMAT,
            scenario=self.name,
            about=scenario.about,
            seed=scenario.seed,
            virtual_s=scenario.lasts_s,
            warm_up_s=scenario.warm_up_s,
            devices=scenario.devices,
            groups=[self._group_result(group) for group in self._groups],
            cloud=self._cloud_result(),
            events=[(rounded(at), text) for at, text in self.story],
            assertions=[],
        )

    def _group_result(self, group: FleetGroup) -> GroupResult:
        figures = [device.figures for device in group.devices]
        return group.tally.result(
            group.part,
            group.speed,
            group.link,
            calls=sum(each.calls for each in figures),
            spend_uusd=sum(each.spend_uusd for each in figures),
            target_rate=self._target_rate(group),
            training_target_rate=self._training_target_rate(group),
            dual=mean(each.dual for each in figures) if group.part.learning else None,
            steps=sum(each.steps for each in figures),
            energy_wh=group.energy_wh,
            battery_empty_s=sum(device.machine.empty_for_s for device in group.devices),
            lost=sum(device.figures.asked - device.kept for device in group.devices),
        )

    def _cloud_result(self) -> CloudResult:
        series, spent = self._series, self._spent(self._part.budgets.fleet.window)
        series.spend_uusd[-1], series.calls[-1] = spent.uusd, spent.calls  # with the answers that ended late
        return msgspec.structs.replace(
            series,
            errors=dict(sorted(self.cloud.errors.items())),
            ledger_violations=len(self.found),
            jain_index=jain_index([device.figures.calls for device in self.devices]),
        )

    # making --------------------------------------------------------------------------------------------------------------------

    def _group(self, part: GroupPart) -> FleetGroup:
        scenario, task = self.scenario, self._part.task(part.task)
        tally = GroupTally(scenario.report_every_s, scenario.lasts_s, scenario.warm_up_s)
        return FleetGroup(part, *part.hardware(), tally, task.target_rate, task.dual_init)

    def _asked_by(self, number: int) -> Askers:
        part = self._of_device[number // NUMBERS_OF_A_DEVICE].part
        return Askers(part.tokens, part.nature)

    def _waiting(self) -> int:
        return 0 if self.site.gate is None else self.site.gate.waiting

    def _config(self) -> ServerConfig:
        part, cloud = self._part, self.scenario.cloud
        tasks = part.tasks
        # τ is the coordinator's, unless the scenario says that devices send theirs
        led = {name: task.model_copy(update={"target_rate_from_device": False}) for name, task in tasks.items()}
        own = {name: task for name, task in tasks.items() if "target_rate_from_device" in task.model_fields_set}
        upstream = UpstreamConfig(
            deadline_s=cloud.deadline_s,
            price_in_uusd_per_mtok=cloud.price_in_uusd_per_mtok,
            price_out_uusd_per_mtok=cloud.price_out_uusd_per_mtok,
        )
        return ServerConfig(
            state_dir="/nonexistent",
            upstreams={"default": upstream},
            tasks=led | own,
            budgets=part.budgets,
            fleet=part.fleet,
            rates=part.rates,
            service=part.service,
        )


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Thousands of agents are walked through at each collection of the oldest objects; few are needed."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 50, 1000)
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


def calls_by_device(tables: MemoryRows) -> dict[str, dict[str, CallRow]]:
    """The ledger's calls of each device, by key."""
    calls: defaultdict[str, dict[str, CallRow]] = defaultdict(dict)
    for row in tables.all(CALL):
        calls[row.device][row.key] = row
    return calls


def violations(tables: MemoryRows, devices: Sequence[FleetDevice], executed: Mapping[str, int]) -> list[str]:
    """One line each: what the ledger finds wrong with itself, answers without a record, and charges that are missing or doubled."""
    report = verify(tables)
    found = [f"the ledger does not verify: {difference}" for difference in report.differences]
    found += [f"{key} was executed {times} times" for key, times in executed.items() if times > 1]
    calls = calls_by_device(tables)
    for device in devices:
        found += _of_device(device, calls[device.name])
    return found


def _of_device(device: FleetDevice, rows: Mapping[str, CallRow]) -> Iterator[str]:
    if device.kept != device.figures.asked:
        yield f"{device.name}: {device.figures.asked} questions, {device.kept} records"
    for key, row in rows.items():
        if key not in device.charges:
            if row.state is not CallState.REFUNDED:
                yield f"{device.name}: the ledger has {key}, of which the device knows nothing"
        elif (known := device.charges[key]) is not None and known != row.charged.uusd:
            yield f"{device.name}: {key} was charged {row.charged.uusd} uUSD, the device knows of {known}"
    for key, charged in device.charges.items():
        if charged and key not in rows:
            yield f"{device.name}: {key} cost {charged} uUSD by its record, the ledger has no such call"
