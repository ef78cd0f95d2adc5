"""The vectorised fleet: all groups through time, in stretches of a minute. Knows the order in which things happen; knows nothing of how any
group answers or learns.

In each stretch: steps begin, questions are asked in rounds (nobody twice in one), their calls and those of rollouts that ended go to the
cloud together in the order of time, answers are counted, and steps that end move θ and λ. Stretches end where an hour, an interval of the
report or an event does.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from tools.simulate.fleet.hardware import DeviceSpeed, LinkModel
from tools.simulate.fleet.scenario import HOUR_S, MONDAY_MIDNIGHT, Scenario
from tools.simulate.fleet.spans import Span
from tools.simulate.vectorised.cloud import Calls, Cloud, Replies
from tools.simulate.vectorised.devices import Devices
from tools.simulate.vectorised.draws import Draws
from tools.simulate.vectorised.links import FleetLinks
from tools.simulate.vectorised.prices import Duals
from tools.simulate.vectorised.tally import Tally

STRETCH_S = 60.0
Hardware = tuple[DeviceSpeed, LinkModel]


class World:
    """One run. `curves` of the cloud side are kept by interval."""

    def __init__(self, scenario: Scenario, seed: int, hardware: Sequence[Hardware]) -> None:
        self.scenario = scenario
        self.ends_at = interval_ends(scenario)
        names = tuple(dict.fromkeys(group.task for group in scenario.groups))
        task_of = np.concatenate([np.full(group.devices, names.index(group.task)) for group in scenario.groups])
        gone = spans(scenario, "coordinator_down_for_s")
        self.cloud = Cloud(
            scenario.cloud,
            scenario.coordinator,
            scenario.devices,
            len(names),
            Draws(seed, "cloud"),
            down=spans(scenario, "cloud_down_for_s"),
            gone=gone,
        )
        self.duals = Duals(scenario.coordinator, names, task_of)
        self.groups = _groups(scenario, seed, hardware, names, len(self.ends_at))
        self.cloud_curves: dict[str, list[float | None]] = {}
        self._changes = scenario.configurations()[1:]
        self._gone = gone

    def run(self) -> None:
        """From the beginning to the end."""
        edges, interval = stretches(self.scenario, self.ends_at), 0
        for begins, ends in pairwise(edges):
            self._stretch(begins, ends)
            if ends >= self.ends_at[interval] - 1e-9:
                self._interval_ends(interval)
                interval += 1

    def _stretch(self, begins: float, ends: float) -> None:
        while self._changes and self._changes[0][0] <= begins:
            _, coordinator = self._changes.pop(0)
            self.cloud.configure(coordinator)
            self.duals.configure(coordinator)
        now = MONDAY_MIDNIGHT + self.scenario.starts_at_h * HOUR_S + begins
        if begins > 0.0 and self.scenario.hour_at(begins) < 1e-6:
            for group in self.groups:
                group.recharge(begins)
        for group in self.groups:
            group.begin_steps(begins, ends, self.duals, now)
        self._ask(begins, ends, now)
        for group in self.groups:
            group.end_rollouts(ends)
            group.close_steps(ends, self.duals)

    def _ask(self, begins: float, ends: float, now: float) -> None:
        """All rounds of questions, the first one together with the calls of rollouts that ended."""
        asking = [(group, group.questions(begins, ends)) for group in self.groups]
        lessons = [(group, found) for group in self.groups if (found := group.training_calls(ends)) is not None]
        while asking or lessons:
            rounds = [
                (group, group.ask(*next_ones), lines) for group, lines in asking if (next_ones := next(lines, None)) is not None
            ]
            calls = [(group, asked, *group.calls(asked)) for group, asked, _ in rounds]
            batches = [each for _, _, each, _ in calls] + [found.calls for _, found in lessons]
            parts = self._replies(batches, now)
            for (group, asked, _, places), replies in zip(calls, parts, strict=False):
                group.answer(asked, places, replies)
                self.duals.tell(group.task, asked.who + group.offset)
            for (group, found), replies in zip(lessons, parts[len(calls) :], strict=True):
                group.hear(found, replies)
            asking, lessons = [(group, lines) for group, _, lines in rounds], []

    def _replies(self, batches: Sequence[Calls], now: float) -> list[Replies]:
        """What becomes of the calls of several batches, one reply for each batch."""
        whole = Calls.together(batches)
        if not whole.count:
            return [Replies.none() for _ in batches]
        replies = self.cloud.ask(whole, now)
        bounds = np.cumsum([0, *(batch.count for batch in batches)])
        return [replies.part(int(first), int(last)) for first, last in pairwise(bounds)]

    def _interval_ends(self, interval: int) -> None:
        begins, ends = (self.ends_at[interval - 1] if interval else 0.0), self.ends_at[interval]
        now = MONDAY_MIDNIGHT + self.scenario.starts_at_h * HOUR_S + ends
        for group in self.groups:
            who, curves = slice(group.offset, group.offset + group.part.devices), group.tally.curves
            curves.dual.append(round(self.duals.mean(who), 9) if group.part.learning else None)
            curves.off_s[interval] = group.off_s(begins, ends)
            curves.online.append(round(group.links.share_up(begins, ends, self._gone), 9))
            curves.target.append(round(group.target_rate(self.duals, now), 9))
            training = group.training_target_rate(self.duals, now)
            curves.training_target.append(None if training is None else round(training, 9))
        charged = self.cloud.purse.fleet.charged(ends)
        limit, slots = self.cloud.purse.fleet.limit, self.cloud.slots
        down = sum(max(0.0, min(ends, last) - max(begins, first)) for first, last in self._gone)
        dual = self.duals.fleet()
        found: dict[str, float | None] = {
            "queue": slots.longest_queue,
            "in_flight": slots.most_in_flight,
            "up": round(1.0 - down / (ends - begins), 9),
            "spend_uusd": int(charged[2]),
            "calls": int(charged[0]),
            "limit_uusd": limit.spend_limit_uusd,
            "limit_calls": limit.calls_limit,
            "fleet_dual": None if dual is None else round(dual, 9),
        }
        for name, value in found.items():
            self.cloud_curves.setdefault(name, []).append(value)
        slots.reset_peaks()


def interval_ends(scenario: Scenario) -> list[float]:
    """When the intervals of the report end."""
    count = int(np.ceil(scenario.lasts_s / scenario.report_every_s - 1e-9))
    return [min(scenario.lasts_s, (place + 1) * scenario.report_every_s) for place in range(count)]


def stretches(scenario: Scenario, ends_at: Sequence[float]) -> list[float]:
    """The edges of all stretches, from 0 to the end."""
    lasts = scenario.lasts_s
    first_hour = (-scenario.starts_at_h % 1.0) * HOUR_S
    edges = {0.0, lasts, *ends_at, *np.arange(first_hour, lasts, HOUR_S).tolist(), *np.arange(0.0, lasts, STRETCH_S).tolist()}
    edges |= {event.at_h * HOUR_S for event in scenario.events if event.at_h * HOUR_S < lasts}
    return sorted(edges)


def spans(scenario: Scenario, action: str, group: str = "") -> list[Span]:
    """When events of this kind hold, of a group where one is named."""
    chosen = [event for event in scenario.events if getattr(event, action) is not None]
    concerned = [event for event in chosen if not group or not event.groups or group in event.groups]
    return [(event.at_h * HOUR_S, event.at_h * HOUR_S + getattr(event, action)) for event in concerned]


def _groups(scenario: Scenario, seed: int, hardware: Sequence[Hardware], names: tuple[str, ...], intervals: int) -> list[Devices]:
    groups, offset = [], 0
    for part, (speed, link) in zip(scenario.groups, hardware, strict=True):
        cut = spans(scenario, "links_down_for_s", part.name)
        links = FleetLinks(link, part.devices, Draws(seed, "links", part.name), cut, scenario.starts_at_h)
        tally = Tally(part.devices, intervals, scenario.report_every_s, scenario.warm_up_s)
        draws = Draws(seed, "group", part.name)
        groups.append(Devices(part, scenario, speed, links, tally, draws, offset, names.index(part.task)))
        offset += part.devices
    return groups
