"""The world of a seed: who is in it, which terms hold, which faults happen and when.

A world has scripted devices, which strain the coordinator, or real agents with their state folders; both kinds are drawn here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from edge.core.rng import stream
from tools.simulate.faults.terms import CALL_SCOPES, NO_CAPS, SCOPES, Caps, DrawnTaskTerms, DrawnTerms, Rate, RateChange
from tools.simulate.faults.upstream import ACTS
from tools.simulate.virtual.loop import EPOCH

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
DISK_FAILURES = ("disk_full", "disk_locked", "disk_eio", "disk_unsure", "disk_flaky")
POINTS = ("before_reserve", "after_reserve", "answered", "settled", "before_close_step", "in_close_step", "closed")
STEP_POINTS = ("collected", "updated", "checkpointed", "closed", "judged", "committed")
CALL_POINTS = ("asked", "answered")
AGENT_POINTS = STEP_POINTS + CALL_POINTS
"""Places in a learning step, and around a call, at which an agent may die: before it is sent, and before its answer is kept."""
DUAL_SCOPES = ("task", "global", "fleet", "fleet_all")
BORDERS_S = {"hour": 2800.0, "day": 6400.0, "month": 1_388_800.0}  # from EPOCH to the next hour, day and month in UTC
SCRIPTED_LAST_S = 30.0
GROUP_SIZE = 4
SICK_FAILURES = 4


@dataclass(frozen=True, slots=True)
class Fault:
    """At `at` virtual seconds: a kind of FAULTS or AGENT_FAULTS, for `for_s` seconds. `detail` and `amount` say how, or which device;
    `terms` are those to be read."""

    at: float
    kind: str
    for_s: float = 0.0
    detail: str = ""
    amount: float = 0.0
    terms: DrawnTerms | None = None


def _plain(rng: random.Random, kind: str, at: float, for_s: float) -> Fault:
    return Fault(at, kind, for_s)


FAULTS: dict[str, Callable[[random.Random, str, float, float], Fault]] = {
    "kill": _plain,
    "kill_at": lambda rng, kind, at, for_s: Fault(at * 0.5, kind, for_s * 0.3, rng.choice(POINTS), rng.randint(1, 3)),
    "drain": lambda rng, kind, at, for_s: Fault(at, kind, for_s * 0.3, "", rng.choice([0.0, 0.2, 2.0])),
    "disk_full": _plain,
    "disk_locked": _plain,
    "disk_eio": _plain,
    "disk_unsure": _plain,
    "disk_flaky": _plain,
    "disk_stalled": _plain,
    "cut": lambda rng, kind, at, for_s: Fault(at, kind, for_s, "", rng.randrange(3)),
    "crash": lambda rng, kind, at, for_s: Fault(at, kind, for_s * 0.5, "", rng.randrange(3)),
    "clock_jump": lambda rng, kind, at, for_s: Fault(at, kind, 0.0, "", rng.choice([-20.0, -3.0, 3.0, 12.0, 40.0])),
    "limits": lambda rng, kind, at, for_s: Fault(at, kind, for_s * 0.2, "", rng.uniform(0.3, 1.0)),
    "reload": lambda rng, kind, at, for_s: Fault(at * 0.5, kind),
    "set_elsewhere": lambda rng, kind, at, for_s: Fault(at * 0.5, kind, 0.0, rng.choice(SCOPES), rng.randint(0, 12)),
    "disabled_elsewhere": lambda rng, kind, at, for_s: Fault(at * 0.5, kind, for_s * 0.2, "", rng.randrange(3)),
}
"""Faults of the scripted worlds, and how each is drawn at a time and for a time."""


def _whose(rng: random.Random, kind: str, at: float, for_s: float, whose: int) -> Fault:
    return Fault(at, kind, for_s, "", whose)


_JUMPS_S = ("-90000", "-30", "30", "4000", "90000")
AGENT_FAULTS: dict[str, Callable[[random.Random, str, float, float, int], Fault]] = {
    "crash": _whose,
    "crash_at": lambda rng, kind, at, for_s, whose: Fault(0.7 * at, kind, for_s, rng.choice(AGENT_POINTS), whose),
    "restart": _whose,
    "device_clock_jump": lambda rng, kind, at, for_s, whose: Fault(at, kind, 0.0, rng.choice(_JUMPS_S), whose),
    "cut": _whose,
    "kill": _whose,
    "kill_at": lambda rng, kind, at, for_s, whose: Fault(at, kind, for_s * 0.2, rng.choice(POINTS), rng.randint(1, 3)),
    "drain": lambda rng, kind, at, for_s, whose: Fault(at, kind, for_s * 0.2, "", rng.choice([0.0, 0.2, 2.0])),
    "clock_jump": lambda rng, kind, at, for_s, whose: Fault(at, kind, 0.0, "", rng.choice([-20.0, -3.0, 3.0, 12.0])),
    "upstream_down": _whose,
    "disk_full": lambda rng, kind, at, for_s, whose: Fault(at, kind, min(for_s, 10.0)),
    "disk_eio": lambda rng, kind, at, for_s, whose: Fault(at, kind, min(for_s, 10.0)),
    "dial": lambda rng, kind, at, for_s, whose: Fault(at, kind, 0.0, rng.choice(["", "0.1", "0.5"]), whose),
    "cloud_paused": _whose,
    "learning_paused": _whose,
}
TASK_TAKEN = "task_taken"
"""Those of the worlds of agents; `whose`: which of them it befalls."""


@dataclass(frozen=True, slots=True)
class AgentPlan:
    """One real agent. `questions` come every `every_s` seconds on average; `steps`: how many each task has (0: it only answers).
    `calls_limit` and `spend_limit_uusd` bound a day's learning."""

    questions: int
    every_s: float
    steps: int
    dial: float | None = None
    calls_limit: int | None = None
    spend_limit_uusd: int | None = None


@dataclass(frozen=True, slots=True)
class FaultScenario:
    """One world: scripted devices, real agents, or both. `begins_s` is the calendar's distance from EPOCH at the start. Faults and pauses
    last for `lasts_s`, then everybody comes to an end. `steps` and `watched` concern scripted devices, and so does `chats`: they make some
    of their calls over the OpenAI-compatible endpoint, for `people` persons each (0: for nobody in particular). `administered`: an
    administrator sets limits and shuts scripted devices out."""

    seed: int
    tasks: tuple[str, ...]
    prompts: int
    slots: int
    max_queue: int
    terms: DrawnTerms
    begins_s: float
    devices: int = 0
    agents: tuple[AgentPlan, ...] = ()
    steps: int = 0
    group_size: int = GROUP_SIZE
    lasts_s: float = SCRIPTED_LAST_S
    watched: bool = False
    chats: bool = False
    people: int = 0
    administered: bool = False
    slow_disk: bool = False
    drop: float = 0.0
    duplicate: float = 0.0
    late: float = 0.0
    reorder: float = 0.0
    upstream_acts: dict[str, float] = field(default_factory=dict)
    upstream_duplicate: float = 0.0
    slow_s: float = 0.5
    faults: tuple[Fault, ...] = ()

    @property
    def features(self) -> tuple[str, ...]:
        """What is special about it."""
        return tuple(sorted(name for name, has in {**SCENARIOS, **OF_AGENTS}.items() if has(self)))


def _any_task(name: str, value: object) -> Callable[[FaultScenario], bool]:
    return lambda scenario: any(getattr(task, name) == value for task in scenario.terms.tasks.values())


def _any_agent(holds: Callable[[AgentPlan], bool]) -> Callable[[FaultScenario], bool]:
    return lambda scenario: any(holds(agent) for agent in scenario.agents)


SCENARIOS: dict[str, Callable[[FaultScenario], bool]] = {
    **{f"scenario of scope {scope}": _any_task("scope", scope) for scope in DUAL_SCOPES},
    **{f"scenario with answer cache {cache}": _any_task("answer_cache", cache) for cache in ("off", "device", "fleet")},
    "scenario without an answer cache": lambda scenario: not scenario.terms.answers_cached,
    "scenario without step credit": _any_task("credit_factor", None),
    "scenario with a schedule of τ": lambda scenario: any(task.schedule for task in scenario.terms.tasks.values()),
    "scenario with floors": lambda scenario: scenario.terms.floor_ppm > 0,
    "scenario with windows": lambda scenario: bool(scenario.terms.windows),
    "scenario with rate limits": lambda scenario: (scenario.terms.device_rate or scenario.terms.fleet_rate) is not None,
    "scenario with two tasks": lambda scenario: len(scenario.tasks) > 1,
    "scenario with watchers": lambda scenario: scenario.watched,
    "scenario with chats": lambda scenario: scenario.chats,
    "scenario with people": lambda scenario: scenario.people > 0,
    "scenario with a budget of people": lambda scenario: scenario.people > 0 and scenario.terms.cap("user") != NO_CAPS,
    "scenario with an administrator": lambda scenario: scenario.administered,
    "scenario with a sick disk": lambda scenario: sum(each.kind in DISK_FAILURES for each in scenario.faults) >= SICK_FAILURES,
}
OF_AGENTS: dict[str, Callable[[FaultScenario], bool]] = {
    "agent with a dial": _any_agent(lambda agent: agent.dial is not None),
    "agent with a daily limit of calls": _any_agent(lambda agent: agent.calls_limit is not None),
    "agent with a daily limit of spend": _any_agent(lambda agent: agent.spend_limit_uusd is not None),
    "agent that only answers": _any_agent(lambda agent: not agent.steps),
}
MESSAGES = frozenset({"message dropped", "message duplicated", "message late", "message held", "message overtaken"})
ASKED = (
    "cancel_call", "set_budget", "list_budgets", "list_tasks", "list_calls", "read_journal", "verify_ledger", "drain", "disable", "enable",
)  # fmt: skip
REFUSED = (
    "BUDGET_EXHAUSTED", "RATE_LIMITED", "KEY_REUSED", "LEDGER_UNAVAILABLE", "DRAINING", "OVERLOADED", "OUTCOME_UNKNOWN", "STEP_MISMATCH",
    "DEVICE_DISABLED",
)  # fmt: skip
FEATURES = frozenset(
    {
        *SCENARIOS,
        *MESSAGES,
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
        "chat whole",
        "chat streamed",
        "chat of a person",
        "chat without a key",
        "chat answered again under its key",
        "chat refused in its stream",
        "chat cut in its stream",
        "chat whose reply was lost",
        "chat out of the cache",
        "chat cancelled over gRPC",
        "chat of a foreign task",
        "chat that is wrong",
        "key of a chat used again for something else",
        "person refused by their own budget",
        "replied final_usage",
        "watched version",
        "watcher at the end",
        "request under way in an outage",
        "hold kept by a write that failed",
        "call refused by an unwritable ledger",
        *(f"call {end}" for end in ("completed", "refunded", "failed", "in_doubt")),
        *(f"replied {what}" for what in (*ASKED, *REFUSED)),
        "device let in again",
        "call of a disabled device settled",
        "reload of a running coordinator",
    }
)
AGENT_FEATURES = frozenset(
    {
        *MESSAGES,
        *OF_AGENTS,
        "scenario with two tasks",
        "answer local",
        "answer cloud",
        "answer local-fallback",
        "answer refused",
        "answer left by its person",
        "answer cut by a crash",
        "record of a call whose reply was lost",
        "step reported",
        "cut step finished after a crash",
        "waiting step report delivered",
        "step report refused",
        "learning waited for a task that was taken away",
        "training call in the daily budget",
        "training call that was not settled",
        "learning call refused by the day's budget",
        *(f"call {end}" for end in ("completed", "refunded", "failed", "in_doubt")),
    }
)


def draw_scripted(seed: int) -> FaultScenario:
    """The world of scripted devices of a seed."""
    rng = stream(seed, "scenario")
    calm = rng.random() < 0.2
    trouble = 0.0 if calm else rng.choice([0.02, 0.1, 0.3])
    tasks = ("math", "code") if rng.random() < 0.3 else ("math",)
    begins_s = rng.choice([0.0, *(border - rng.uniform(1.0, 8.0) for border in BORDERS_S.values())])
    own = stream(seed, "chats")
    chats = own.random() < 0.5
    people = own.choice([0, 2, 2, 3]) if chats else 0
    terms = _terms(rng, tasks, begins_s)
    terms = _of_people(own, terms) if people else terms
    return FaultScenario(
        seed=seed,
        slow_disk=seed % 3 == 0,
        devices=rng.randint(1, 3),
        tasks=tasks,
        steps=rng.choice([1, 2, 2, 4]),
        prompts=rng.randint(1, 4),
        slots=rng.randint(1, 4),
        max_queue=rng.choice([0, 1, 8]),
        terms=terms,
        begins_s=begins_s,
        watched=rng.random() < 0.6,
        chats=chats,
        people=people,
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


def _terms(rng: random.Random, tasks: tuple[str, ...], begins_s: float) -> DrawnTerms:
    fair = rng.random() < 0.35
    fleet = _caps(rng, 3, 0.6 if fair else 0.4)
    narrow = {scope: _caps(rng, 2, 0.3) for scope in ("fleet_task", "device_task") if rng.random() < 0.2}
    labels = {task: _task(rng, begins_s) for task in tasks}
    if rng.random() < 0.5:
        labels = {task: _rescoped(terms, labels[tasks[0]].scope) for task, terms in labels.items()}
    windows = {scope: rng.choice(["month", "week", "day", "hour"]) for scope in CALL_SCOPES if rng.random() < 0.5}
    return DrawnTerms(
        tasks=labels,
        caps={"fleet": fleet, "device": _caps(rng, 1, 0.15 if fair else 0.4), **narrow},
        windows=windows if rng.random() < 0.25 else {},
        floor_ppm=rng.choice([300_000, 500_000, 900_000, 1_000_000]) if fair else 0,
        device_rate=_rate(rng),
        fleet_rate=_rate(rng),
        dual_idle_s=rng.choice([3600.0, 3600.0, 1.5]),
        answers_cached=rng.random() < 0.8,
    )


def _of_people(rng: random.Random, terms: DrawnTerms) -> DrawnTerms:
    """With limits of each person."""
    windows = {"user": rng.choice(["day", "hour"])} if rng.random() < 0.2 else {}
    return replace(terms, caps={**terms.caps, "user": _caps(rng, 1, 0.3)}, windows={**terms.windows, **windows})


def _task(rng: random.Random, begins_s: float) -> DrawnTaskTerms:
    scheduled = rng.random() < 0.25
    terms = DrawnTaskTerms(
        scope=rng.choice(["task", "task", "global", "fleet", "fleet", "fleet_all"]),
        target_rate=rng.choice([0.0, 0.3, 0.7]),
        rate_from_device=rng.random() < 0.6 and not scheduled,
        schedule=_schedule(rng, begins_s) if scheduled else (),
        dual_init=rng.choice([0.0, 0.5]),
        dual_lr=rng.choice([0.01, 0.05, 3.0]),
        credit_factor=rng.choice([None, None, 1.0, 2.0, 2.0]),
        answer_cache=rng.choice(["off", "device", "device", "fleet"]),
    )
    # what was drawn decides whether λ knows more than η, so that a seed's story stays what it was
    if terms.dual_lr == 0.05 and terms.scope in ("task", "global"):
        return replace(terms, proportional=0.5 if terms.rate_from_device else 2.0, window=2)
    return replace(terms, ceiling=0.75) if terms.dual_lr == 3.0 else terms


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


def changed(rng: random.Random, terms: DrawnTerms, begins_s: float) -> DrawnTerms:
    """What an operator may write into the configuration of a coordinator that runs."""
    task = rng.choice(sorted(terms.tasks))
    others: list[Callable[[], DrawnTerms]] = [
        lambda: replace(terms, tasks={**terms.tasks, task: _task(rng, begins_s)}),
        lambda: replace(terms, tasks={**terms.tasks, task: _rescoped(terms.tasks[task], rng.choice(DUAL_SCOPES))}),
        lambda: replace(terms, tasks={**terms.tasks, task: replace(terms.tasks[task], dual_lr=rng.choice([0.02, 1.0]))}),
        lambda: replace(terms, caps={**terms.caps, rng.choice(SCOPES): _caps(rng, 2, 0.5)}),
        lambda: replace(terms, floor_ppm=rng.choice([0, 200_000, 1_000_000])),
        lambda: replace(terms, prices=rng.choice([(1, 2), (2, 3), (1, 5)])),
        lambda: replace(terms, device_rate=_rate(rng), fleet_rate=_rate(rng)),
    ]
    return rng.choice(others)()


def _rescoped(terms: DrawnTaskTerms, scope: str) -> DrawnTaskTerms:
    """Under another scope; many devices' λ knows no proportional part."""
    fleet = scope.startswith("fleet")
    return replace(terms, scope=scope, proportional=0.0 if fleet else terms.proportional, window=1 if fleet else terms.window)


def lowered(terms: DrawnTerms, share: float) -> DrawnTerms:
    """All caps at this share."""

    def lower(caps: Caps) -> Caps:
        calls, tokens, uusd = (None if cap is None else int(cap * share) for cap in caps)
        return calls, tokens, uusd

    return replace(terms, caps={scope: lower(terms.caps.get(scope, NO_CAPS)) for scope in terms.caps})


def _acts(rng: random.Random, trouble: float) -> dict[str, float]:
    acts = rng.sample(ACTS[1:], rng.randint(1, 4))
    return {act: trouble / len(acts) for act in acts}


def _faults(rng: random.Random) -> list[Fault]:
    faults = []
    for _ in range(rng.randint(0, 4)):
        kind, at = rng.choice([*FAULTS]), rng.uniform(0.0, 8.0)
        for_s = rng.choice([rng.uniform(0.1, 3.0), rng.uniform(3.0, 14.0)])
        faults.append(FAULTS[kind](rng, kind, at, for_s))
    if rng.random() < 0.2:  # a disk that fails again and again while calls are under way
        at = 0.0
        for _ in range(rng.randint(SICK_FAILURES, 8)):
            at += rng.uniform(0.3, 1.2)
            faults.append(Fault(at, rng.choice(DISK_FAILURES), rng.uniform(0.1, 1.5)))
    return sorted(faults, key=lambda fault: fault.at)


def _with_terms(rng: random.Random, faults: list[Fault], terms: DrawnTerms, begins_s: float) -> tuple[Fault, ...]:
    """The faults with the terms that reading the configuration again then finds."""
    with_terms = []
    for fault in faults:
        if fault.kind in ("reload", "limits"):
            terms = changed(rng, terms, begins_s) if fault.kind == "reload" else lowered(terms, fault.amount)
            fault = replace(fault, terms=terms)
        with_terms.append(fault)
    return tuple(with_terms)


def draw_agents(seed: int) -> FaultScenario:
    """The world of real agents of a seed."""
    rng = stream(seed, "agents")
    calm = rng.random() < 0.15
    trouble = 0.0 if calm else rng.choice([0.0, 0.02, 0.1, 0.25])
    tasks = ("math", "code") if rng.random() < 0.25 else ("math",)
    lasts_s = rng.choice([120.0, 600.0, 3600.0])
    acts = _acts(rng, trouble)
    return FaultScenario(
        seed=seed,
        agents=tuple(_agent(rng, lasts_s) for _ in range(rng.randint(1, 3))),
        tasks=tasks,
        lasts_s=lasts_s,
        prompts=rng.randint(1, 3),
        group_size=rng.choice([2, 4]),
        slots=rng.randint(1, 4),
        max_queue=rng.choice([0, 8]),
        terms=_agent_terms(rng, tasks),
        begins_s=rng.choice([0.0, *(border - rng.uniform(1.0, lasts_s) for border in BORDERS_S.values())]),
        drop=trouble * rng.random(),
        duplicate=trouble * rng.random(),
        late=trouble * rng.random(),
        reorder=trouble * rng.random(),
        upstream_acts=acts,
        upstream_duplicate=trouble,
        slow_s=rng.choice([0.5, 2.0, 8.0]),
        faults=() if calm else _by_time(_agent_faults(rng, lasts_s), _taken_tasks(stream(seed, "taken tasks"), lasts_s, tasks)),
    )


def _agent(rng: random.Random, lasts_s: float) -> AgentPlan:
    questions = rng.choice([0, 4, 12, 30])
    return AgentPlan(
        questions=questions,
        every_s=lasts_s / (questions + 1),
        steps=rng.choice([0, 2, 4, 8]) if questions else rng.choice([2, 4, 8]),
        dial=rng.choice([None, 0.2, 0.7]),
        calls_limit=rng.choice([None, None, 2, 6]),
        spend_limit_uusd=rng.choice([None, None, 60, 400]),
    )


def _agent_terms(rng: random.Random, tasks: tuple[str, ...]) -> DrawnTerms:
    windows = {scope: rng.choice(["day", "hour"]) for scope in CALL_SCOPES if rng.random() < 0.5}
    return DrawnTerms(
        tasks={task: _agent_task(rng) for task in tasks},
        caps={"fleet": _agent_caps(rng, 60), "device": _agent_caps(rng, 30)},
        windows=windows if rng.random() < 0.25 else {},
        answers_cached=rng.random() < 0.8,
    )


def _agent_task(rng: random.Random) -> DrawnTaskTerms:
    return DrawnTaskTerms(
        scope=rng.choice(["task", "task", "global", "fleet"]),
        target_rate=rng.choice([0.3, 0.7]),
        rate_from_device=rng.random() < 0.6,
        dual_init=rng.choice([0.0, 0.5]),
        dual_lr=rng.choice([0.01, 0.3]),
        credit_factor=rng.choice([None, 1.0, 2.0]),
        answer_cache=rng.choice(["off", "device", "fleet"]),
    )


def _agent_caps(rng: random.Random, most: int) -> Caps:
    def cap(unit: int) -> int | None:
        return rng.randint(1, most) * unit if rng.random() < 0.2 else None

    return (cap(1), cap(48), cap(56))


def _agent_faults(rng: random.Random, lasts_s: float) -> list[Fault]:
    faults = []
    for _ in range(rng.randint(0, 6)):
        kind, at = rng.choice([*AGENT_FAULTS]), rng.uniform(0.0, lasts_s)
        for_s = rng.choice([rng.uniform(0.1, 5.0), rng.uniform(5.0, 120.0)])
        faults.append(AGENT_FAULTS[kind](rng, kind, at, for_s, rng.randrange(3)))
    return faults


def _taken_tasks(rng: random.Random, lasts_s: float, tasks: tuple[str, ...]) -> list[Fault]:
    """A task is taken away from an agent, perhaps while its reports wait, or before a step that was cut is finished."""
    if rng.random() >= 0.3:
        return []
    at, for_s, whose = rng.uniform(0.0, lasts_s), rng.uniform(0.1, 0.6) * lasts_s, rng.randrange(3)
    taken = Fault(at, TASK_TAKEN, for_s, rng.choice(tasks), whose)
    away_s = rng.uniform(0.1, 0.3) * lasts_s
    before = {
        "alone": [],
        "while reports wait": [Fault(max(0.0, at - away_s), "cut", min(at, away_s) + 1.0, "", whose)],
        "while a step is cut": [
            Fault(0.5 * at, "crash_at", lasts_s * 0.1, rng.choice(("checkpointed", "closed", "judged")), whose)
        ],
    }
    return [*before[rng.choice(list(before))], taken]


def _by_time(*faults: Sequence[Fault]) -> tuple[Fault, ...]:
    return tuple(sorted(chain.from_iterable(faults), key=lambda fault: fault.at))


def without_some(items: Sequence[T]) -> Iterator[tuple[T, ...]]:
    """A sequence without all, without each half, each quarter, and so on to each single one."""
    size = len(items)
    while size:
        for start in range(0, len(items), size):
            yield (*items[:start], *items[start + size :])
        size //= 2


def less(number: int, least: int = 0) -> Iterator[int]:
    """Smaller numbers, the least one first."""
    yield from dict.fromkeys(each for each in (least, number // 2, number - 1) if least <= each < number)


def _each(value: T, name: str, smaller: Callable[[Any], Iterable[object]]) -> Iterator[T]:
    """A frozen value with each smaller part in the place of the part of this name."""
    for part in smaller(getattr(value, name)):
        changes: dict[str, Any] = {name: part}
        yield replace(value, **changes)  # type: ignore[type-var]


def _only(plainest: object) -> Callable[[object], list[object]]:
    """The plainest part alone, where it is not so already."""
    return lambda part: [] if part == plainest else [plainest]


def smaller(scenario: FaultScenario) -> Iterator[FaultScenario]:
    """Scenarios with less in them: first what takes away most."""
    one_device, one_agent = (0 if scenario.agents else 1), (0 if scenario.devices else 1)
    yield from _each(scenario, "faults", without_some)
    yield from _each(scenario, "devices", lambda count: less(count, one_device))
    yield from _each(scenario, "agents", lambda agents: (agents[:count] for count in less(len(agents), one_agent)))
    for place, agent in enumerate(scenario.agents):
        for fewer in _smaller_agent(agent):
            yield replace(scenario, agents=(*scenario.agents[:place], fewer, *scenario.agents[place + 1 :]))
    yield from _each(scenario, "steps", less)
    yield from _each(scenario, "prompts", lambda count: less(count, 1))
    yield from _each(scenario, "tasks", lambda tasks: [(task,) for task in tasks if len(tasks) > 1])
    yield from _each(scenario, "upstream_acts", lambda acts: map(dict, without_some(tuple(acts.items()))))
    for name in (
        "drop",
        "duplicate",
        "late",
        "reorder",
        "upstream_duplicate",
        "watched",
        "chats",
        "people",
        "administered",
        "slow_disk",
    ):
        yield from _each(scenario, name, _only(type(getattr(scenario, name))()))
    yield from _each(scenario, "terms", _plainer)


def _smaller_agent(agent: AgentPlan) -> Iterator[AgentPlan]:
    yield from _each(agent, "questions", less)
    yield from _each(agent, "steps", less)
    for name in ("dial", "calls_limit", "spend_limit_uusd"):
        yield from _each(agent, name, _only(None))


def _plainer(terms: DrawnTerms) -> Iterator[DrawnTerms]:
    for scope, caps in terms.caps.items():
        if caps != NO_CAPS:
            yield replace(terms, caps={**terms.caps, scope: NO_CAPS})
    for name, plainest in {"windows": {}, "floor_ppm": 0, "device_rate": None, "fleet_rate": None}.items():
        yield from _each(terms, name, _only(plainest))
    for task, held in terms.tasks.items():
        if held.schedule:
            yield replace(terms, tasks={**terms.tasks, task: replace(held, schedule=())})


def words(scenario: FaultScenario) -> list[str]:
    """A scenario for a person: what is in it, a line for each agent, task and fault."""
    lines = [_set_fields(scenario, "seed", "terms", "agents", "faults"), f"terms: {_set_fields(scenario.terms, 'tasks')}"]
    lines += [f"agent-{number}: {_set_fields(agent)}" for number, agent in enumerate(scenario.agents)]
    lines += [f"task {name}: {_set_fields(task)}" for name, task in scenario.terms.tasks.items()]
    return lines + ([f"fault: {_set_fields(fault, 'terms')}" for fault in scenario.faults] or ["no faults beyond these"])


def _set_fields(part: DataclassInstance, *left_out: str) -> str:
    """All that is not nothing."""
    known = {each.name: getattr(part, each.name) for each in fields(part) if each.name not in left_out}
    return ", ".join(
        f"{name} {value:.6g}" if isinstance(value, float) else f"{name} {value}" for name, value in known.items() if value
    )
