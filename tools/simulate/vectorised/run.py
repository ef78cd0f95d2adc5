"""A scenario played by the vectorised fleet, as a result. Knows how a large fleet is cut into shards that share nothing, and how what they
found is put together; knows nothing of how a stretch of time is played.

Shards are chosen by the number of devices alone, never by the machine, so that the same seed gives the same bytes everywhere. Each has its
part of every group, of the upstream's slots and line, of the fleet's budgets and of its rate; beyond a hundred thousand devices what that
changes is below the grain of a histogram's bin.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any

import numpy as np

from edge.core.errors import UsageError
from edge.core.rng import derive_seed
from tools.simulate.fleet.profiles import load_device, load_link
from tools.simulate.fleet.scenario import HOUR_S, CoordinatorPart, GroupPart, Scenario
from tools.simulate.reports.result import FORMAT, CloudResult, GroupResult, SimulationResult
from tools.simulate.vectorised.engine import Hardware, World, interval_ends
from tools.simulate.vectorised.tally import Tally, quantiles, share

DEVICES_OF_A_SHARD = 500_000


@dataclass(frozen=True, slots=True)
class Found:
    """What a shard found: the tallies of its groups, the cloud's curves and errors."""

    tallies: list[Tally]
    cloud: dict[str, list[float | None]]
    errors: Counter[str]


def run_vectorised(scenario: Scenario, seed: int | None = None, name: str = "", processes: int = 0) -> SimulationResult:
    """Play a scenario, with its own seed where none is given; `name` is what the result calls it. `processes` 0: one for each processor of
    this machine, which changes the time it takes and nothing else. Raises UsageError for a device or link that is not known, and for what
    only the exact fleet plays."""
    for group in scenario.groups:
        if group.price != "calls" or group.demand or set(group.by_weekday) != {1.0} or group.tokens.prompt_further:
            told = f"group {group.name}: the vectorised fleet knows no price but calls, and no demand or length that changes"
            raise UsageError(told, hint="play it without --vectorised")
    chosen = scenario.seed if seed is None else seed
    hardware = [_hardware(part) for part in scenario.groups]
    return _result(
        scenario, chosen, name, hardware, _played(shards_of(scenario), chosen, hardware, processes or os.cpu_count() or 1)
    )


def _hardware(part: GroupPart) -> Hardware:
    speed = load_device(part.device, part.model)
    return replace(speed, battery_wh=None) if part.on_mains else speed, load_link(part.link)


def shards_of(scenario: Scenario) -> list[Scenario]:
    """The scenario in as many parts as its devices ask for, and as its smallest group can be cut into."""
    smallest = min(group.devices for group in scenario.groups)
    count = max(1, min(-(-scenario.devices // DEVICES_OF_A_SHARD), smallest))
    return [scenario] if count == 1 else [_shard(scenario, place, count) for place in range(count)]


def _shard(scenario: Scenario, place: int, count: int) -> Scenario:
    def part(whole: int) -> int:
        return whole // count + (place < whole % count)

    groups = [group.model_copy(update={"devices": part(group.devices)}) for group in scenario.groups]
    cloud = scenario.cloud.model_copy(
        update={"slots": max(1, part(scenario.cloud.slots)), "max_queue": part(scenario.cloud.max_queue)}
    )
    events = tuple(
        event if event.coordinator is None else event.model_copy(update={"coordinator": _divided(event.coordinator, part)})
        for event in scenario.events
    )
    coordinator = CoordinatorPart.model_validate(_divided(scenario.coordinator.model_dump(mode="json"), part))
    return scenario.model_copy(
        update={
            "groups": tuple(groups),
            "cloud": cloud,
            "events": events,
            "coordinator": coordinator,
        }
    )


def _divided(configuration: dict[str, Any], part: Any) -> dict[str, Any]:
    """The configuration with what all devices share divided: the fleet's limits and its rate."""
    shared = (("budgets", "fleet"), ("budgets", "fleet_task"), ("rates", "fleet"))
    divided = dict(configuration)
    for section, name in shared:
        if name in divided.get(section, {}):
            amounts = {
                key: part(value) if isinstance(value, int) and key != "window" else value
                for key, value in divided[section][name].items()
            }
            divided[section] = {**divided[section], name: amounts}
    return divided


def _played(shards: Sequence[Scenario], seed: int, hardware: Sequence[Hardware], processes: int) -> list[Found]:
    seeds = [derive_seed(seed, "shard", place) for place in range(len(shards))]
    if len(shards) == 1 or processes == 1:
        return [_play(shard, own, hardware) for shard, own in zip(shards, seeds, strict=True)]
    with ProcessPoolExecutor(min(processes, len(shards)), get_context("spawn")) as pool:
        return list(pool.map(_play, shards, seeds, [hardware] * len(shards)))


def _play(scenario: Scenario, seed: int, hardware: Sequence[Hardware]) -> Found:
    world = World(scenario, seed, hardware)
    world.run()
    groups = world.groups
    return Found(
        tallies=[group.tally for group in groups],
        cloud=world.cloud_curves,
        errors=world.cloud.errors,
    )


def _result(scenario: Scenario, seed: int, name: str, hardware: Sequence[Hardware], found: Sequence[Found]) -> SimulationResult:
    ends_at = interval_ends(scenario)
    groups = [_group(scenario, place, hardware[place], found, ends_at) for place, part in enumerate(scenario.groups)]
    return SimulationResult(
        format=FORMAT,
        scenario=name,
        about=scenario.about,
        engine="vectorised",
        seed=seed,
        virtual_s=scenario.lasts_s,
        warm_up_s=scenario.warm_up_s,
        devices=scenario.devices,
        groups=groups,
        cloud=_cloud(found, ends_at),
        events=_events(scenario),
        assertions=[],
    )


def _events(scenario: Scenario) -> list[tuple[float, str]]:
    """What happened, in the words of the exact simulation."""
    told = []
    for event in sorted(scenario.events, key=lambda event: event.at_h):
        if event.cloud_down_for_s is not None:
            text = f"the cloud is down for {event.cloud_down_for_s:g} s"
        elif event.coordinator_down_for_s is not None:
            text = f"the coordinator is killed, and started again after {event.coordinator_down_for_s:g} s"
        elif event.links_down_for_s is not None:
            text = f"links of {', '.join(event.groups) or 'all'} are down for {event.links_down_for_s:g} s"
        else:
            text = "the coordinator reads a changed configuration"
        told.append((event.at_h * HOUR_S, text))
    return told


def _group(scenario: Scenario, place: int, hardware: Hardware, found: Sequence[Found], ends_at: Sequence[float]) -> GroupResult:
    part, (speed, link) = scenario.groups[place], hardware
    tally = Tally.together([each.tallies[place] for each in found])
    series = tally.series(ends_at, speed.idle_w, speed.busy_w)
    curves, settled = tally.curves, tally.settled
    answers, calls = int(curves.answers.sum()), int(curves.calls.sum())
    total = tally.total.histograms()
    return GroupResult(
        name=part.name,
        devices=part.devices,
        profile=speed.name,
        link=link.name,
        target_rate=tally.curves.target[-1] or 0.0,
        answers={source: histogram.count for source, histogram in total.items()},
        latency_first=tally.first.histograms(),
        latency_total=total,
        assist_rate=share(curves.asked.sum(), answers),
        settled_assist_rate=share(settled["asked"], settled["answers"]),
        training_assist_rate=share(curves.rate_sum.sum(), curves.steps.sum()),
        settled_training_assist_rate=share(tally.settled_rate, settled["steps"]),
        accuracy=share(curves.right.sum(), answers),
        local_accuracy=share(curves.local_right.sum(), curves.local.sum()),
        dual=series.dual[-1] if series.dual else None,
        steps=int(curves.steps.sum()),
        calls=calls,
        spend_uusd=int(curves.spend_uusd.sum()),
        refused=dict(sorted((scope, count) for scope, count in tally.refused.items() if count)),
        energy_wh=round(sum(series.energy_wh), 6),
        battery_empty_s=round(float(curves.off_s.sum()), 6),
        calls_by_device=quantiles(tally.calls_by_device),
        spend_by_device_uusd=quantiles(tally.spend_by_device),
        series=series,
        lost=0,
        training_target_rate=tally.curves.training_target[-1],
    )


def _cloud(found: Sequence[Found], ends_at: Sequence[float]) -> CloudResult:
    curves = [each.cloud for each in found]

    def sums(name: str) -> list[int]:
        return [sum(int(values[name][place] or 0) for values in curves) for place in range(len(ends_at))]

    def limits(name: str) -> list[int | None]:
        return [None if curves[0][name][place] is None else whole for place, whole in enumerate(sums(name))]

    calls = np.concatenate([tally.calls_by_device for each in found for tally in each.tallies]).astype(np.float64)
    errors = sum((each.errors for each in found), Counter[str]())
    return CloudResult(
        at_s=[round(float(at), 6) for at in ends_at],
        queue=sums("queue"),
        in_flight=sums("in_flight"),
        up=[float(value or 0.0) for value in curves[0]["up"]],
        spend_uusd=sums("spend_uusd"),
        limit_uusd=limits("limit_uusd"),
        calls=sums("calls"),
        limit_calls=limits("limit_calls"),
        fleet_dual=curves[0]["fleet_dual"],
        errors=dict(sorted(errors.items())),
        ledger_violations=0,
        jain_index=round(float(calls.sum() ** 2 / (calls.size * (calls**2).sum())), 9) if calls.any() else None,
    )
