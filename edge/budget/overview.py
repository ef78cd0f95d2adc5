"""The budgets of all tasks at a glance, from a running agent or from what a state folder holds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal

from edge.budget.access import CloudAccess
from edge.budget.dial import DialSnapshot, HelpDial, default_rate, is_rate_set, stored_dials
from edge.budget.known import KnownBudgets
from edge.budget.limits import NO_BUDGET_LIMITS, BudgetLimits, cloud_name_of, has_set_limits, limits_of
from edge.budget.pace import DualUnit, Pace, PeriodBudget
from edge.budget.quota import Circumstances, Quota, known_quota
from edge.cloud.client import CoordinatorLink, KnownBudget
from edge.cloud.switch import PAUSED, is_paused
from edge.core.clock import Clock
from edge.core.errors import CoordinatorError
from edge.core.formatting import rate_words
from edge.core.periods import PERIOD_WORDS, period_end
from edge.core.units import BUDGET_UNITS, BY_WORD, Unit
from edge.dagrpo.ranking import Ranking
from edge.state.rankings import rankings
from edge.state.reader import StateReader
from edge.state.usage import OfTask, used_by_task

_NOTHING, _NOT_JUDGED = OfTask(), Ranking()
Origin = Literal["agent", "coordinator", "stored"]


@dataclass(frozen=True, slots=True)
class TaskBudget:
    """One task's quota, its dial, what the task alone has used by this device's records, and how well what the dial acts on orders right
    and wrong answers."""

    quota: Quota
    dial: DialSnapshot
    used: OfTask = _NOTHING
    ranking: Ranking = _NOT_JUDGED

    def to_json(self) -> dict[str, Any]:
        """The quota's fields with the dial as `dial` and the task's own use as `used`."""
        dial = {**self.dial.to_json(), "ranking": self.ranking.to_json()}
        return {**self.quota.to_json(), "dial": dial, "used": asdict(self.used)}


@dataclass(frozen=True, slots=True)
class Held:
    """What asking is held to. `limits`: of this device's own ledger (None: another coordinator's operator sets them), `renews_at` when they
    begin again (None: never); `cloud_name`: what the cloud is called where money is shown, "" where it charges; `target` in one line."""

    limits: BudgetLimits | None
    renews_at: float | None
    cloud_name: str
    target: str

    def to_json(self) -> dict[str, Any]:
        """As fields of the budgets."""
        limits = None
        if self.limits is not None:
            limits = {**self.limits.to_json(), "renews_at": self.renews_at, "words": self.limits.words}
        return {"limits": limits, "cloud_name": self.cloud_name, "target": self.target}


@dataclass(frozen=True, slots=True)
class Target:
    """What the assist rate is held to."""

    budget: PeriodBudget | None
    """What the rate follows from (None: λ acts on calls)."""
    rate: float | None
    """What the budget leaves now."""
    dial: float | None
    """τ of people's questions, where a person or the configuration set one."""
    learning: float | None
    """τ of learning (None: nothing was learned)."""

    @property
    def words(self) -> str:
        """In one line."""
        if self.budget is not None:
            amount = BY_WORD[self.budget.unit].amount(self.budget.limit)
            now = "" if self.rate is None else f": now {rate_words(self.rate)} of questions"
            dial = "" if self.dial is None else f"; the dial holds people's questions at {rate_words(self.dial)}"
            return f"{amount} {PERIOD_WORDS[self.budget.period]}{now}{dial}"
        if self.dial is not None:
            return f"{rate_words(self.dial)} of questions may ask"
        if self.learning is not None:
            return f"the model decides; it learns to ask for help at {rate_words(self.learning)}"
        return "the model decides"


def held_to(limits: BudgetLimits | None, cloud_name: str, target: Target, now: float) -> Held:
    """What asking is held to at a time."""
    end = math.inf if limits is None else period_end(limits.period, now)
    return Held(limits, None if math.isinf(end) else end, cloud_name, target.words)


@dataclass(frozen=True, slots=True)
class Overview:
    """All budgets. `origin`: reported by a running agent, by the coordinator, or the last known values in the state folder.

    `target_rate`: the dial of tasks without one of their own; `switched_off`: why the cloud may not be asked, or "".
    `waiting_reports`: step reports that have not reached the coordinator. `held`: what asking is held to.
    """

    origin: Origin
    serving_task: str
    target_rate: float | None
    paused: bool
    switched_off: str
    waiting_reports: int
    unsettled_calls: int
    tasks: tuple[TaskBudget, ...]
    held: Held

    @property
    def device(self) -> dict[str, Any] | None:
        """The units that the tasks share with their limits, as reported last; None where they share none.

        The coordinator reports the device's own total where no budget of the task alone is tighter: then all tasks report the same.
        """
        known = sorted((one for one in self.tasks if one.quota.as_of is not None), key=lambda one: one.quota.as_of or 0.0)
        shared = [unit for unit in BUDGET_UNITS if known and _is_shared(unit, known)]
        fields = [name for unit in shared for name in (unit.name, unit.limit, unit.left, unit.period)]
        return {name: getattr(known[-1].quota, name) for name in (*fields, "as_of")} if shared else None

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "device": self.device,
            "origin": self.origin,
            "serving_task": self.serving_task,
            "target_rate": self.target_rate,
            "paused": self.paused,
            "switched_off": self.switched_off,
            "waiting_reports": self.waiting_reports,
            "unsettled_calls": self.unsettled_calls,
            "tasks": [task.to_json() for task in self.tasks],
            **self.held.to_json(),
        }


def _is_shared(unit: Unit, known: Sequence[TaskBudget]) -> bool:
    """Without any limit it is the device's total, whenever each task was reported (`known` in this order). With one limit for all it is
    where all report the same, or the later ones no less, and somebody more than the task alone has used."""
    limits = {getattr(one.quota, unit.limit) for one in known}
    if limits == {None}:
        return True
    reported = [getattr(one.quota, unit.name) for one in known]
    is_total = any(value > getattr(one.used, unit.name) for value, one in zip(reported, known, strict=True))
    return len(limits) == 1 and (len(set(reported)) == 1 or (is_total and reported == sorted(reported)))


async def overview(access: CloudAccess, link: CoordinatorLink, state: StateReader, held: Held) -> Overview:
    """Of a running agent; asks the coordinator, all tasks at one moment: it reports a task by itself when that task's calls change it."""
    for task in access.tasks if link.client.online else ():
        with suppress(CoordinatorError):  # what cannot be had stays as it was known
            await link.budget(task)
    used, ranked = used_by_task(state), rankings(state)
    return Overview(
        origin="agent",
        serving_task=access.serving_task,
        target_rate=access.dials.default_rate,
        paused=access.switch.paused,
        switched_off=access.switch.reason,
        waiting_reports=len(state.waiting_reports()),
        unsettled_calls=len(access.unconfirmed.waiting()),
        tasks=tuple(
            TaskBudget(access.quota(task), access.dial(task), used.get(task, _NOTHING), ranked.get(task, _NOT_JUDGED))
            for task in access.tasks
        ),
        held=held,
    )


@dataclass(frozen=True, slots=True)
class StoredSettings:
    """Of the configuration: the dial, the task that serving uses ("": not named), why the cloud is off for good ("": it is not), the
    limits of this device's own ledger (None: it has none), what the cloud is called, what λ acts on, and τ of learning by phase."""

    dial_rate: float | None
    serving_task: str
    switched_off: str
    limits: BudgetLimits | None = None
    cloud_name: str = ""
    dual_unit: DualUnit = "calls"
    learning_rates: tuple[float, ...] = ()

    def learning_rate(self, phase: int) -> float | None:
        """τ of a phase, of the last one past the end; None where nothing is learned."""
        return self.learning_rates[min(phase, len(self.learning_rates) - 1)] if self.learning_rates else None


def stored_tasks(state: StateReader, settings: StoredSettings) -> tuple[str, ...]:
    """The tasks of which a state folder knows something."""
    known = [str(task) for (task,) in state.rows("SELECT task FROM terms ORDER BY task")]
    dials = [dial.task for dial in stored_dials(state, settings.dial_rate)]
    named = [settings.serving_task] if settings.serving_task else []
    return tuple(dict.fromkeys([*named, *known, *dials]))


def stored_held(state: StateReader, settings: StoredSettings, clock: Clock) -> Held:
    """What asking is held to, from a state folder."""
    limits = None if settings.limits is None else limits_of(state, settings.limits)
    task = settings.serving_task or next(iter(stored_tasks(state, settings)), "")
    budget, rate = None, None
    if settings.dual_unit != "calls":
        pace = Pace(settings.dual_unit, state, lambda: KnownBudgets(state, {}, settings.limits, clock.now).of(task), clock)
        budget, rate = pace.budget(), pace.rate()
    known_dials = {dial.task: dial for dial in stored_dials(state, settings.dial_rate)}
    dial = known_dials.get(task) or HelpDial(default_rate(state, settings.dial_rate), task)
    chosen = dial.target_rate if rate is None or is_rate_set(state) or dial.own else None
    last = (
        next(iter(state.steps(last=1)), None) if settings.limits is None else None
    )  # another coordinator may have a τ of its own
    terms = state.terms(last.task) if last else None
    learning = terms.target_rate if terms else settings.learning_rate(state.position().phase)
    target = Target(budget, rate, chosen, learning)
    if limits is not None and limits.words == NO_BUDGET_LIMITS.words and not has_set_limits(state):
        limits = _reported_limits(KnownBudgets(state, {}, settings.limits, clock.now).newest) or limits
    return held_to(limits, cloud_name_of(state, settings.cloud_name), target, clock.now())


def _reported_limits(known: KnownBudget | None) -> BudgetLimits | None:
    """The limits that the coordinator reported last; None where it reported none, or of several periods."""
    if known is None:
        return None
    limits = {unit.limit: getattr(known.budget, unit.limit) for unit in BUDGET_UNITS}
    periods: set[Any] = {getattr(known.budget, unit.period) or "total" for unit in BUDGET_UNITS if limits[unit.limit] is not None}
    return BudgetLimits(**limits, period=periods.pop()) if len(periods) == 1 else None


def stored_overview(state: StateReader, settings: StoredSettings, reported: Mapping[str, KnownBudget], clock: Clock) -> Overview:
    """Of a state folder without an agent, or whose agent cannot be reached; `reported` by the coordinator now, by task."""
    dials = {dial.task: dial for dial in stored_dials(state, settings.dial_rate)}
    default, paused = default_rate(state, settings.dial_rate), is_paused(state)
    off = settings.switched_off or (PAUSED if paused else "")
    now = Circumstances(off, paused and not settings.switched_off)
    tasks, used, ranked = stored_tasks(state, settings), used_by_task(state), rankings(state)

    budgets = KnownBudgets(state, reported, settings.limits, clock.now)

    def of(task: str) -> TaskBudget:
        snapshot = (dials.get(task) or HelpDial(default, task)).snapshot()
        quota = known_quota(budgets, task, snapshot, now)
        return TaskBudget(quota, snapshot, used.get(task, _NOTHING), ranked.get(task, _NOT_JUDGED))

    return Overview(
        origin="coordinator" if reported else "stored",
        serving_task=settings.serving_task,
        target_rate=default,
        paused=paused,
        switched_off=off,
        waiting_reports=len(state.waiting_reports()),
        unsettled_calls=len(state.rows("SELECT call_key FROM calls_in_doubt")),
        tasks=tuple(of(task) for task in tasks),
        held=stored_held(state, settings, clock),
    )


def nothing_held(settings: StoredSettings, now: float) -> Held:
    """What asking is held to where nothing has happened yet."""
    target = Target(None, None, settings.dial_rate, settings.learning_rate(0))
    return held_to(settings.limits, settings.cloud_name, target, now)


def nothing_stored(settings: StoredSettings, now: float) -> Overview:
    """Of a folder in which nothing has happened yet."""
    held = nothing_held(settings, now)
    return Overview("stored", settings.serving_task, settings.dial_rate, False, settings.switched_off, 0, 0, (), held)
