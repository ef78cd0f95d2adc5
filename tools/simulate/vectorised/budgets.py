"""Budgets of a fleet as arrays: which calls fit.

As in the ledger a call must fit with the most it can cost into every budget concerned, until it ends and its true cost is known. While a
budget has room for all calls of a batch, or for none, that is seen at once; only where it runs out are they taken one by one.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coordinator.config import BudgetsConfig, LimitConfig
from coordinator.ledger.budgets import window_label
from coordinator.ledger.fairness import PPM, floor_target
from tools.simulate.vectorised.draws import Bools, Floats, Ints

UNITS = 3
"""Calls, tokens, micro-USD; first axis of all amounts."""
Amounts = NDArray[np.int64]
NO_LIMIT = 2**62


def limits_of(limit: LimitConfig) -> Amounts:
    """Calls, tokens, micro-USD; NO_LIMIT where there is none."""
    asked = (limit.calls_limit, limit.tokens_limit, limit.spend_limit_uusd)
    return np.array([NO_LIMIT if value is None else value for value in asked], np.int64)


def is_limited(limit: LimitConfig) -> bool:
    """Whether it can refuse anything."""
    return bool((limits_of(limit) < NO_LIMIT).any())


@dataclass(frozen=True, slots=True)
class Bids:
    """Calls in the order of time that ask for room: who, when, until when; the most each can cost and what it will, [UNITS, N]."""

    who: Ints
    task: Ints
    at: Floats
    until: Floats
    hold: Amounts
    charge: Amounts

    def of(self, kept: Bools | Ints) -> Bids:
        """Some of them."""
        own = (self.who[kept], self.task[kept], self.at[kept], self.until[kept])
        return Bids(*own, self.hold[:, kept], self.charge[:, kept])


class SharedBudget:
    """A budget of many devices, in its window. With a floor f each of the N devices that spent of it can rely on f/N of it."""

    def __init__(self, limit: LimitConfig, devices: int, floor: float = 0.0) -> None:
        self._devices = devices
        self._window: str | None = None
        self.committed = np.zeros(UNITS, np.int64)
        self._used_by = np.zeros((UNITS, 0), np.int64)
        self._until = np.zeros(0)
        self._hold = np.zeros((UNITS, 0), np.int64)
        self._charge = np.zeros((UNITS, 0), np.int64)
        self.configure(limit, floor)

    def configure(self, limit: LimitConfig, floor: float) -> None:
        """Hold later calls to this."""
        self.limit = limit
        self._limits = limits_of(limit)
        self._floor_ppm = round(floor * PPM) if is_limited(limit) else 0
        if self._floor_ppm and not self._used_by.size:
            self._used_by = np.zeros((UNITS, self._devices), np.int64)

    def enter(self, now: float) -> None:
        """The calendar shows `now`, seconds since the epoch."""
        label = window_label(self.limit.window, now)
        if label != self._window:
            self._window = label
            self.committed[:] = 0
            self._used_by[:] = 0
            self._until, self._hold, self._charge = self._until[:0], self._hold[:, :0], self._charge[:, :0]

    def admit(self, bids: Bids) -> Bools:
        """Which calls fit; they are held, and settled when they end."""
        self._settle(float(bids.at[0]))
        aside, floors = self._set_aside(bids)
        used = self.committed + self._hold.sum(axis=1)
        if (used + bids.hold.sum(axis=1) + aside <= self._limits).all():
            taken = np.ones(bids.at.size, bool)
        elif self.is_spent(bids):
            return np.zeros(bids.at.size, bool)
        else:
            taken = self._one_by_one(bids, aside, floors)
        kept = bids.of(taken)
        self._until = np.concatenate([self._until, kept.until])
        self._hold = np.hstack([self._hold, kept.hold])
        self._charge = np.hstack([self._charge, kept.charge])
        if self._floor_ppm:
            for unit in range(UNITS):
                np.add.at(self._used_by[unit], kept.who, kept.charge[unit])
        return taken

    def charged(self, now: float) -> Amounts:
        """What calls that have ended cost since the window began."""
        self._settle(now)
        return self.committed

    def is_spent(self, bids: Bids) -> bool:
        """Whether none of these calls can fit, whatever of those under way ends before."""
        used = self.committed + self._charge.sum(axis=1)
        return bool((used + bids.hold.min(axis=1) > np.maximum(self._limits, self.committed)).any())

    def _settle(self, now: float) -> None:
        over = self._until <= now
        if over.any():
            self.committed += self._charge[:, over].sum(axis=1)
            self._until, self._hold, self._charge = self._until[~over], self._hold[:, ~over], self._charge[:, ~over]

    def _set_aside(self, bids: Bids) -> tuple[Amounts, Amounts]:
        """What is kept for members below their floor, and the floors; those who ask now are members."""
        aside, floors = np.zeros(UNITS, np.int64), np.zeros(UNITS, np.int64)
        if not self._floor_ppm:
            return aside, floors
        member = self._used_by[0] > 0
        member[bids.who] = True
        for unit in np.flatnonzero(self._limits < NO_LIMIT):
            used = np.sort(self._used_by[unit, member])
            target = floor_target(int(self._limits[unit]), self._floor_ppm, used.size)
            free = max(0, int(self._limits[unit] - self.committed[unit] - self._hold[unit].sum()))
            floors[unit] = highest(target, used, free)
            aside[unit] = int(np.maximum(0, floors[unit] - used).sum())
        return aside, floors

    def _one_by_one(self, bids: Bids, aside: Amounts, floors: Amounts) -> Bools:
        taken = np.zeros(bids.at.size, bool)
        units = [int(unit) for unit in np.flatnonzero(self._limits < NO_LIMIT)]
        limits = [int(self._limits[unit]) for unit in units]
        used = [int(self.committed[unit] + self._hold[unit].sum()) for unit in units]
        kept, floor = [int(aside[unit]) for unit in units], [int(floors[unit]) for unit in units]
        back = [(float(until), place, -1) for place, until in enumerate(self._until)]
        heapq.heapify(back)
        own: dict[int, list[int]] = {}
        for place, at in enumerate(bids.at.tolist()):
            while back and back[0][0] <= at:
                _, at_place, mine = heapq.heappop(back)
                hold, charge = (self._hold, self._charge) if mine < 0 else (bids.hold, bids.charge)
                for index, unit in enumerate(units):
                    used[index] -= int(hold[unit, at_place] - charge[unit, at_place])
            asked = [int(bids.hold[unit, place]) for unit in units]
            from_aside = [0] * len(units)
            if self._floor_ppm:
                who = int(bids.who[place])
                before = own.setdefault(who, [int(self._used_by[unit, who]) for unit in units])
                missing = [max(0, floor[i] - before[i]) for i in range(len(units))]
                from_aside = [missing[i] - max(0, floor[i] - before[i] - asked[i]) for i in range(len(units))]
            if all(used[i] + asked[i] + kept[i] - from_aside[i] <= limits[i] for i in range(len(units))):
                taken[place] = True
                for i in range(len(units)):
                    used[i] += asked[i]
                    kept[i] -= from_aside[i]
                    if self._floor_ppm:
                        own[int(bids.who[place])][i] += asked[i]
                heapq.heappush(back, (float(bids.until[place]), place, 0))
        return taken


def highest(target: int, ascending: Amounts, free: int) -> int:
    """`coordinator.ledger.fairness.highest_floor` for amounts in ascending order."""
    below = ascending[ascending < target]
    if target * below.size - int(below.sum()) <= free:
        return target
    count = np.arange(1, below.size + 1)
    floors = (free + np.cumsum(below)) // count
    fits = floors <= np.append(below[1:], NO_LIMIT)
    return int(floors[np.argmax(fits)])


class OwnBudgets:
    """One budget for each device."""

    def __init__(self, limit: LimitConfig, devices: int) -> None:
        self._window: str | None = None
        self._devices = devices
        self._used = np.zeros((UNITS, 0), np.int64)
        self.configure(limit)

    def configure(self, limit: LimitConfig) -> None:
        """Hold later calls to this."""
        self.limit = limit
        self._limits = limits_of(limit)
        if is_limited(limit) and not self._used.size:
            self._used = np.zeros((UNITS, self._devices), np.int64)

    def enter(self, now: float) -> None:
        """The calendar shows `now`, seconds since the epoch."""
        label = window_label(self.limit.window, now)
        if label != self._window:
            self._window = label
            self._used[:] = 0

    def fits(self, bids: Bids) -> Bools:
        """Which calls have room."""
        if not is_limited(self.limit):
            return np.ones(bids.at.size, bool)
        return np.asarray((self._used[:, bids.who] + bids.hold <= self._limits[:, None]).all(axis=0))

    def charge(self, bids: Bids) -> None:
        """These calls were taken."""
        for unit in range(UNITS if self._used.size else 0):
            np.add.at(self._used[unit], bids.who, bids.charge[unit])


class Budgets:
    """All budgets, asked in the ledger's order."""

    def __init__(self, config: BudgetsConfig, floor: float, devices: int, tasks: int) -> None:
        self.fleet = SharedBudget(config.fleet, devices, floor)
        self._fleet_tasks = [SharedBudget(config.fleet_task, devices) for _ in range(tasks)]
        self._own = (OwnBudgets(config.device, devices), OwnBudgets(config.device_task, devices))

    def configure(self, config: BudgetsConfig, floor: float) -> None:
        """Hold later calls to these limits."""
        self.fleet.configure(config.fleet, floor)
        self._own[0].configure(config.device)
        self._own[1].configure(config.device_task)
        for budget in self._fleet_tasks:
            budget.configure(config.fleet_task, 0.0)

    def enter(self, now: float) -> None:
        """The calendar shows `now`, seconds since the epoch."""
        for shared in (self.fleet, *self._fleet_tasks):
            shared.enter(now)
        for own in self._own:
            own.enter(now)

    def may_fit(self, bids: Bids) -> Bools:
        """Which calls could fit if what is under way ended before; the others take no slot."""
        left = np.ones(bids.at.size, bool)
        for own in self._own:
            left &= own.fits(bids)
        for shared, mine in self._shared(bids):
            asking = np.flatnonzero(left & mine)
            if asking.size and shared.is_spent(bids.of(asking)):
                left[asking] = False
        return left

    def admit(self, bids: Bids) -> Bools:
        """Which calls fit everywhere; they are held."""
        left = np.ones(bids.at.size, bool)
        for shared, mine in self._shared(bids):
            asking = np.flatnonzero(left & mine)
            if asking.size:
                left[asking] = shared.admit(bids.of(asking))
        for own in self._own:
            own.charge(bids.of(left))
        return left

    def _shared(self, bids: Bids) -> list[tuple[SharedBudget, Bools]]:
        """The budgets of many devices, and whose calls each concerns."""
        by_task = [(budget, bids.task == task) for task, budget in enumerate(self._fleet_tasks)]
        return [(self.fleet, np.ones(bids.at.size, bool)), *by_task]


def charged(input_tokens: Ints, output_tokens: Ints, price_in: int, price_out: int) -> Amounts:
    """`coordinator.calls.prices.Price.charge` of each call."""
    total = input_tokens.astype(np.int64) * price_in + output_tokens.astype(np.int64) * price_out
    return np.stack([np.ones(total.size, np.int64), (input_tokens + output_tokens).astype(np.int64), -(-total // 1_000_000)])
