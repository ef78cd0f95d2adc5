"""λ of many devices and tasks. Knows scopes, τ schedules, step credit and the dual update in the order of time; knows nothing of responses.

A λ of one's own moves by `edge.dagrpo.dual.dual_step`, a shared one by each report's share of a round (`shared_lr`), one report after the
other: with the reports of a stretch of time that is a walk held at 0, whose closed form a cumulative sum and minimum give.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from coordinator.config import ANY_TASK, TaskConfig
from coordinator.ledger.accounts import price_key
from coordinator.ledger.transitions import step_credit
from edge.core.errors import UsageError
from tools.simulate.fleet.scenario import CoordinatorPart
from tools.simulate.vectorised.draws import Floats, Ints

LOOKS = 60


def held_walk(start: float, steps: Floats) -> Floats:
    """x_k = max(0, x_{k-1} + step_k) from x_0 = start."""
    free = start + np.cumsum(steps)
    return np.asarray(free - np.minimum(0.0, np.minimum.accumulate(free)))


class SharedPrice:
    """A λ that many devices move, and the units that each of them brings to a round."""

    def __init__(self, dual: float, devices: int) -> None:
        self.dual = dual
        self._units = np.zeros(devices, np.int32)
        self._seen = np.zeros(devices)
        self._looked = -np.inf
        self.round_units = 0

    def enter(self, who: Ints, units: Ints, at: Floats) -> None:
        """These devices opened or closed a step of so many units."""
        self.round_units += int(units.sum()) - int(self._units[who].sum())
        self._units[who] = units
        self._seen[who] = at

    def forget_idle(self, now: float, idle_s: float) -> None:
        """Who was not seen for so long leaves the rounds; looked at every sixtieth of that time."""
        if self.round_units and now - self._looked >= idle_s / LOOKS:
            self._looked = now
            seen_before = now - idle_s
            idle = np.flatnonzero((self._units > 0) & (self._seen < seen_before))
            self.round_units -= int(self._units[idle].sum())
            self._units[idle] = 0

    def move(self, rate: Floats, target: Floats, lr: float, units: Ints) -> Floats:
        """λ after each report, in the order of time."""
        after = held_walk(self.dual, lr * (units / self.round_units) * (rate - target))
        self.dual = float(after[-1])
        return after


class Duals:
    """The λ of all devices; each device has one task. `names`: task labels by number."""

    def __init__(self, coordinator: CoordinatorPart, names: tuple[str, ...], task_of: Ints) -> None:
        self._names = names
        self._task_of = task_of
        self._shared: dict[str, SharedPrice] = {}
        self.configure(coordinator)
        first = np.array([self.terms(task).dual_init for task in range(len(names))])
        self._own = first[task_of]

    def configure(self, coordinator: CoordinatorPart) -> None:
        """Hold later steps to these terms. Raises UsageError where λ follows more than the integral rule."""
        for name, terms in coordinator.tasks.items():
            if terms.dual_rule.proportional > 0.0 or terms.dual_ceiling is not None:
                told = f"tasks.{name}: the vectorised fleet knows neither dual_proportional nor dual_ceiling"
                raise UsageError(told, hint="play it without --vectorised")
        self._tasks: Mapping[str, TaskConfig] = coordinator.tasks
        self._idle_s = coordinator.fleet.price_idle_s

    def terms(self, task: int) -> TaskConfig:
        """What a task is held to."""
        return self._tasks.get(self._names[task]) or self._tasks.get(ANY_TASK) or TaskConfig()

    def targets(self, task: int, steps: Ints, now: float) -> Floats:
        """τ for steps of these numbers, opened at `now` (seconds since the epoch)."""
        terms = self.terms(task)
        targets = np.full(steps.size, terms.target_rate)
        for point in terms.target_rate_schedule:
            if point.from_step is not None:
                targets[steps >= point.from_step] = point.target_rate
            elif point.holds(0, now):
                targets[:] = point.target_rate
        return targets

    def credits(self, task: int, targets: Floats, prompts: int) -> Ints:
        """Most calls of steps with these τ."""
        factor, known = self.terms(task).step_credit_kappa, {}
        for target in np.unique(targets).tolist():
            credit = step_credit(factor, target, prompts)
            known[target] = prompts if credit is None else credit
        return (
            np.array([known[target] for target in targets.tolist()], np.int64)
            if len(known) > 1
            else np.full(targets.size, next(iter(known.values()), prompts), np.int64)
        )

    def open(self, task: int, who: Ints, units: int, at: float) -> Floats:
        """λ that these devices open a step with."""
        shared = self._price(task, who)
        if shared is None:
            return self._own[who]
        shared.enter(who, np.full(who.size, units), np.full(who.size, at))
        return np.full(who.size, shared.dual)

    def close(self, task: int, who: Ints, at: Floats, rate: Floats, target: Floats, units: Ints) -> None:
        """Reports of steps, in the order of time; each device once."""
        terms, shared = self.terms(task), self._price(task, who)
        if shared is None:
            self._own[who] = np.maximum(0.0, self._own[who] + terms.dual_rule.lr * (rate - target))
            return
        shared.forget_idle(float(at[0]), self._idle_s)
        shared.enter(who, units, at)
        self._own[who] = shared.move(rate, target, terms.dual_rule.lr, units)

    def tell(self, task: int, who: Ints) -> None:
        """These devices hear what their shared λ is now."""
        shared = self._shared.get(self._key(task))
        if shared is not None:
            self._own[who] = shared.dual

    def mean(self, who: slice) -> float:
        """Mean λ of these devices, as they heard it last."""
        return float(self._own[who].mean())

    def fleet(self) -> float | None:
        """The λ that a fleet shares; None where there is none, or one for each of several tasks."""
        prices = list(self._shared.values())
        return prices[0].dual if len(prices) == 1 else None

    def _key(self, task: int) -> str:
        scope = self.terms(task).dual_scope
        return price_key(scope, "", self._names[task]) if scope in ("fleet", "fleet_all") else ""

    def _price(self, task: int, who: Ints) -> SharedPrice | None:
        key = self._key(task)
        if not key:
            return None
        if key not in self._shared:
            self._shared[key] = SharedPrice(float(self._own[who[0]]), self._task_of.size)
        return self._shared[key]
