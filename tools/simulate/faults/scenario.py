"""What a seed stands for: how many devices, which terms, which faults and when. Knows how to draw them, not how they are run."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from edge.core.rng import stream
from tools.simulate.faults.terms import NO_CAPS, SCOPES, Caps, Rate, RateChange, TaskTerms, Terms
from tools.simulate.virtual.clock import EPOCH

FAULTS = (
    "kill",
    "kill_at",
    "drain",
    "disk_full",
    "disk_locked",
    "disk_eio",
    "disk_unsure",
    "disk_flaky",
    "disk_stalled",
    "cut",
    "device_crash",
    "clock_jump",
    "limits",
    "reload",
    "set_elsewhere",
    "disabled_elsewhere",
)
DISK_FAILURES = ("disk_full", "disk_locked", "disk_eio", "disk_unsure", "disk_flaky")
POINTS = ("before_reserve", "after_reserve", "answered", "settled", "before_close_step", "in_close_step", "closed")
DUAL_SCOPES = ("task", "global", "fleet", "fleet_all")
BORDERS_S = {"hour": 2800.0, "day": 6400.0, "month": 1_388_800.0}  # from EPOCH to the next hour, day and month in UTC


@dataclass(frozen=True, slots=True)
class Fault:
    """At `at` virtual seconds: a kind of FAULTS, for `for_s` seconds, with a word or number that says how; `terms` are those to be read."""

    at: float
    kind: str
    for_s: float = 0.0
    detail: str = ""
    amount: float = 0.0
    terms: Terms | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run of the world. `begins_s` is the calendar's distance from EPOCH at the start."""

    seed: int
    devices: int
    tasks: tuple[str, ...]
    steps: int
    prompts: int
    slots: int
    max_queue: int
    terms: Terms
    begins_s: float
    watched: bool
    administered: bool
    drop: float
    duplicate: float
    late: float
    upstream_acts: dict[str, float]
    upstream_duplicate: float
    slow_s: float
    faults: tuple[Fault, ...]
    reorder: float = 0.0

    @property
    def features(self) -> tuple[str, ...]:
        """What is special about it, by names of FEATURES."""
        found = {f"scenario of scope {task.scope}" for task in self.terms.tasks.values()}
        found |= {f"scenario with answer cache {task.answer_cache}" for task in self.terms.tasks.values()}
        found |= {"scenario without step credit" for task in self.terms.tasks.values() if task.credit_factor is None}
        found |= {"scenario with a schedule of τ" for task in self.terms.tasks.values() if task.schedule}
        held = {
            "scenario without an answer cache": not self.terms.answers_cached,
            "scenario with floors": self.terms.floor_ppm > 0,
            "scenario with windows": bool(self.terms.windows),
            "scenario with rate limits": (self.terms.device_rate or self.terms.fleet_rate) is not None,
            "scenario with two tasks": len(self.tasks) > 1,
            "scenario with watchers": self.watched,
            "scenario with an administrator": self.administered,
            "scenario with a sick disk": sum(fault.kind in DISK_FAILURES for fault in self.faults) >= SICK_FAILURES,
        }
        return tuple(sorted(found | {name for name, holds in held.items() if holds}))


SICK_FAILURES = 4
SCENARIOS = frozenset(
    {
        *(f"scenario of scope {scope}" for scope in DUAL_SCOPES),
        *(f"scenario with answer cache {cache}" for cache in ("off", "device", "fleet")),
        "scenario without an answer cache",
        "scenario without step credit",
        "scenario with a schedule of τ",
        "scenario with floors",
        "scenario with windows",
        "scenario with rate limits",
        "scenario with two tasks",
        "scenario with watchers",
        "scenario with an administrator",
        "scenario with a sick disk",
    }
)
MESSAGES = frozenset(
    {"message dropped", "message duplicated", "message late", "message held for a later one", "message overtaken"}
)
FEATURES = (
    SCENARIOS
    | MESSAGES
    | {
        *(f"step with a λ of scope {scope}" for scope in DUAL_SCOPES),
        "scope of a λ changed",
        "shared λ begun by a task that waits",
        "λ moved by others during a step",
        "λ moved by a share of a round",
        "λ moved in proportion",
        "λ held at its ceiling",
        "idle device left a round",
        "limits changed",
        "limit set below what was spent",
        "floors set",
        "floors lowered to what is left",
        "refused by a budget that is shared fairly",
        "holds in a window",
        "answer of the same group",
        "answer out of the cache",
        "answer of another device",
        "watched version",
        "watcher at the end",
        "request under way in an outage",
        "hold kept by a write that failed",
        "call refused by an unwritable ledger",
        *(f"call {end}" for end in ("completed", "refunded", "failed", "in_doubt")),
        *(f"told {what}" for what in ("batch", "cancel_call", "set_budget", "list_budgets", "list_tasks", "list_calls")),
        *(
            f"told {what}"
            for what in ("read_journal", "verify_ledger", "drain", "BUDGET_EXHAUSTED", "RATE_LIMITED", "KEY_REUSED")
        ),
        *(f"told {reason}" for reason in ("LEDGER_UNAVAILABLE", "DRAINING", "OVERLOADED", "OUTCOME_UNKNOWN", "STEP_MISMATCH")),
        "told disable",
        "told enable",
        "told DEVICE_DISABLED",
        "device let in again",
        "call of a disabled device settled",
        "reload of a running coordinator",
    }
)


def draw(seed: int) -> Scenario:
    """The scenario of a seed."""
    rng = stream(seed, "scenario")
    calm = rng.random() < 0.2
    trouble = 0.0 if calm else rng.choice([0.02, 0.1, 0.3])
    tasks = ("math", "code") if rng.random() < 0.3 else ("math",)
    begins_s = rng.choice([0.0, *(border - rng.uniform(1.0, 8.0) for border in BORDERS_S.values())])
    terms = _terms(rng, tasks, begins_s)
    return Scenario(
        seed=seed,
        devices=rng.randint(1, 3),
        tasks=tasks,
        steps=rng.choice([1, 2, 2, 4]),
        prompts=rng.randint(1, 4),
        slots=rng.randint(1, 4),
        max_queue=rng.choice([0, 1, 8]),
        terms=terms,
        begins_s=begins_s,
        watched=rng.random() < 0.6,
        administered=rng.random() < 0.25,
        drop=trouble * rng.random(),
        duplicate=trouble * rng.random(),
        late=trouble * rng.random(),
        upstream_acts=_acts(rng, trouble),
        upstream_duplicate=trouble,
        slow_s=rng.choice([0.2, 0.5, 2.0, 8.0]),
        faults=() if calm else _with_terms(rng, _faults(rng), terms, begins_s),
        reorder=trouble * stream(seed, "reorder").random(),
    )


def _terms(rng: random.Random, tasks: tuple[str, ...], begins_s: float) -> Terms:
    fair = rng.random() < 0.35
    fleet = _caps(rng, 3, 0.6 if fair else 0.4)
    narrow = {scope: _caps(rng, 2, 0.3) for scope in ("fleet_task", "device_task") if rng.random() < 0.2}
    labels = {task: _task(rng, begins_s) for task in tasks}
    if rng.random() < 0.5:
        labels = {task: _rescoped(terms, labels[tasks[0]].scope) for task, terms in labels.items()}
    windows = {scope: rng.choice(["month", "week", "day", "hour"]) for scope in SCOPES if rng.random() < 0.5}
    return Terms(
        tasks=labels,
        caps={"fleet": fleet, "device": _caps(rng, 1, 0.15 if fair else 0.4), **narrow},
        windows=windows if rng.random() < 0.25 else {},
        floor_ppm=rng.choice([300_000, 500_000, 900_000, 1_000_000]) if fair else 0,
        device_rate=_rate(rng),
        fleet_rate=_rate(rng),
        price_idle_s=rng.choice([3600.0, 3600.0, 1.5]),
        answers_cached=rng.random() < 0.8,
    )


def _task(rng: random.Random, begins_s: float) -> TaskTerms:
    scheduled = rng.random() < 0.25
    return _with_rule(_without_rule(rng, begins_s, scheduled))


def _with_rule(terms: TaskTerms) -> TaskTerms:
    """What was drawn decides whether λ knows more than η, so that a seed's story stays what it was."""
    if terms.dual_lr == 0.05 and terms.scope in ("task", "global"):
        return replace(terms, proportional=0.5 if terms.rate_from_device else 2.0, window=2)
    return replace(terms, ceiling=0.75) if terms.dual_lr == 3.0 else terms


def _without_rule(rng: random.Random, begins_s: float, scheduled: bool) -> TaskTerms:
    return TaskTerms(
        scope=rng.choice(["task", "task", "global", "fleet", "fleet", "fleet_all"]),
        target_rate=rng.choice([0.0, 0.3, 0.7]),
        rate_from_device=rng.random() < 0.6 and not scheduled,
        schedule=_schedule(rng, begins_s) if scheduled else (),
        dual_init=rng.choice([0.0, 0.5]),
        dual_lr=rng.choice([0.01, 0.05, 3.0]),
        credit_factor=rng.choice([None, None, 1.0, 2.0, 2.0]),
        answer_cache=rng.choice(["off", "device", "device", "fleet"]),
    )


def _schedule(rng: random.Random, begins_s: float) -> tuple[RateChange, ...]:
    by_step = RateChange(rng.choice([0.1, 0.5]), from_step=rng.randint(0, 1))
    by_time = RateChange(rng.choice([0.2, 1.0]), from_ms=round(1000 * (EPOCH + begins_s + rng.uniform(0.0, 6.0))))
    return rng.choice([(by_step,), (by_time,), (by_step, by_time)])


def _rate(rng: random.Random) -> Rate | None:
    return (rng.choice([30, 120]), rng.randint(1, 4)) if rng.random() < 0.1 else None


def _caps(rng: random.Random, devices: int, share: float) -> Caps:
    def cap(most: int) -> int | None:
        return rng.randint(1, most) * devices if rng.random() < share else None

    return (cap(6), cap(300), cap(500))


def changed(rng: random.Random, terms: Terms, begins_s: float) -> Terms:
    """What an operator may write into the configuration of a coordinator that runs."""
    task = rng.choice(sorted(terms.tasks))
    others: list[Callable[[], Terms]] = [
        lambda: replace(terms, tasks={**terms.tasks, task: _task(rng, begins_s)}),
        lambda: replace(terms, tasks={**terms.tasks, task: _rescoped(terms.tasks[task], rng.choice(DUAL_SCOPES))}),
        lambda: replace(terms, tasks={**terms.tasks, task: replace(terms.tasks[task], dual_lr=rng.choice([0.02, 1.0]))}),
        lambda: replace(terms, caps={**terms.caps, rng.choice(SCOPES): _caps(rng, 2, 0.5)}),
        lambda: replace(terms, floor_ppm=rng.choice([0, 200_000, 1_000_000])),
        lambda: replace(terms, prices=rng.choice([(1, 2), (2, 3), (1, 5)])),
        lambda: replace(terms, device_rate=_rate(rng), fleet_rate=_rate(rng)),
    ]
    return rng.choice(others)()


def _rescoped(terms: TaskTerms, scope: str) -> TaskTerms:
    """Under another scope; many devices' λ knows no proportional part."""
    fleet = scope.startswith("fleet")
    return replace(terms, scope=scope, proportional=0.0 if fleet else terms.proportional, window=1 if fleet else terms.window)


def lowered(terms: Terms, share: float) -> Terms:
    """All caps at this share."""

    def lower(caps: Caps) -> Caps:
        calls, tokens, uusd = (None if cap is None else int(cap * share) for cap in caps)
        return calls, tokens, uusd

    return replace(terms, caps={scope: lower(terms.caps.get(scope, NO_CAPS)) for scope in terms.caps})


def _acts(rng: random.Random, trouble: float) -> dict[str, float]:
    from tools.simulate.faults.upstream import ACTS

    acts = rng.sample(ACTS[1:], rng.randint(1, 4))
    return {act: trouble / len(acts) for act in acts}


def _faults(rng: random.Random) -> list[Fault]:
    faults = [_fault(rng, rng.choice(FAULTS)) for _ in range(rng.randint(0, 4))]
    if rng.random() < 0.2:  # a disk that fails again and again while calls are under way
        at = 0.0
        for _ in range(rng.randint(SICK_FAILURES, 8)):
            at += rng.uniform(0.3, 1.2)
            faults.append(Fault(at, rng.choice(DISK_FAILURES), rng.uniform(0.1, 1.5)))
    return sorted(faults, key=lambda fault: fault.at)


def _with_terms(rng: random.Random, faults: list[Fault], terms: Terms, begins_s: float) -> tuple[Fault, ...]:
    """The faults with the terms that reading the configuration again then finds."""
    told = []
    for fault in faults:
        if fault.kind in ("reload", "limits"):
            terms = changed(rng, terms, begins_s) if fault.kind == "reload" else lowered(terms, fault.amount)
            fault = replace(fault, terms=terms)
        told.append(fault)
    return tuple(told)


def _fault(rng: random.Random, kind: str) -> Fault:
    at, for_s = rng.uniform(0.0, 8.0), rng.choice([rng.uniform(0.1, 3.0), rng.uniform(3.0, 14.0)])
    details: dict[str, Callable[[], Fault]] = {
        "kill_at": lambda: Fault(at * 0.5, kind, for_s * 0.3, rng.choice(POINTS), rng.randint(1, 3)),
        "clock_jump": lambda: Fault(at, kind, 0.0, "", rng.choice([-20.0, -3.0, 3.0, 12.0, 40.0])),
        "device_crash": lambda: Fault(at, kind, for_s * 0.5, "", rng.randrange(3)),
        "cut": lambda: Fault(at, kind, for_s, "", rng.randrange(3)),
        "drain": lambda: Fault(at, kind, for_s * 0.3, "", rng.choice([0.0, 0.2, 2.0])),
        "limits": lambda: Fault(at, kind, for_s * 0.2, "", rng.uniform(0.3, 1.0)),
        "reload": lambda: Fault(at * 0.5, kind),
        "set_elsewhere": lambda: Fault(at * 0.5, kind, 0.0, rng.choice(SCOPES), rng.randint(0, 12)),
        "disabled_elsewhere": lambda: Fault(at * 0.5, kind, for_s * 0.2, "", rng.randrange(3)),
    }
    return details.get(kind, lambda: Fault(at, kind, for_s))()
