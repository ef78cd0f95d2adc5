"""What a seed stands for in the worlds of real agents: which agents, what they learn and are asked, which terms, which faults and when.
Knows how to draw them and what is smaller; knows nothing of how they are played.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from edge.core.rng import stream
from tools.simulate.faults.scenario import BORDERS_S, MESSAGES, POINTS, Fault
from tools.simulate.faults.shrink import less, without_some
from tools.simulate.faults.smaller import counted, fault_words, message_words, share_words, with_one
from tools.simulate.faults.terms import NO_CAPS, SCOPES, Caps, TaskTerms, Terms
from tools.simulate.faults.upstream import ACTS

STEP_POINTS = ("collected", "updated", "checkpointed", "closed", "judged", "committed")
CALL_POINTS = ("asked", "answered")
AGENT_POINTS = STEP_POINTS + CALL_POINTS
"""Places in a learning step, and around a call, at which an agent may die: before it is sent, and before its answer is kept."""
AGENT_FAULTS = (
    "agent_crash",
    "agent_crash_at",
    "agent_restart",
    "agent_clock_jump",
    "cut",
    "kill",
    "kill_at",
    "drain",
    "clock_jump",
    "upstream_down",
    "disk_full",
    "disk_eio",
    "dial",
    "cloud_paused",
    "learning_paused",
)
AGENT_FEATURES = MESSAGES | {
    "agent with a dial",
    "agent with a daily limit of calls",
    "agent with a daily limit of spend",
    "agent that only answers",
    "agent with two tasks",
    "answer local",
    "answer cloud",
    "answer local-fallback",
    "answer refused",
    "answer left by its person",
    "answer cut by a crash",
    "record of a call whose reply was lost",
    "step reported",
    "cut step finished after a crash",
    "step reported out of the outbox",
    "training call in the purse",
    "training call that was not settled",
    "learning call refused by the day's budget",
    *(f"call {end}" for end in ("completed", "refunded", "failed", "in_doubt")),
}


@dataclass(frozen=True, slots=True)
class AgentPlan:
    """One agent. `questions` come every `every_s` seconds on average; `steps`: how many each phase has (0: it only answers).
    `calls_limit` and `spend_limit_uusd` bound a day's learning."""

    questions: int
    every_s: float
    steps: int
    dial: float | None = None
    calls_limit: int | None = None
    spend_limit_uusd: int | None = None


@dataclass(frozen=True, slots=True)
class AgentScenario:
    """One run of the world. `begins_s` is the calendar's distance from EPOCH at the start; people ask with pauses
    for `lasts_s`, and then what is left without any."""

    seed: int
    agents: tuple[AgentPlan, ...]
    tasks: tuple[str, ...]
    lasts_s: float
    prompts: int
    group_size: int
    slots: int
    max_queue: int
    terms: Terms
    begins_s: float
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
        """What is special about it, by names of AGENT_FEATURES."""
        held = {
            "agent with a dial": any(agent.dial is not None for agent in self.agents),
            "agent with a daily limit of calls": any(agent.calls_limit is not None for agent in self.agents),
            "agent with a daily limit of spend": any(agent.spend_limit_uusd is not None for agent in self.agents),
            "agent that only answers": any(not agent.steps for agent in self.agents),
            "agent with two tasks": len(self.tasks) > 1,
        }
        return tuple(name for name, holds in held.items() if holds)


def draw_agents(seed: int) -> AgentScenario:
    """The scenario of a seed."""
    rng = stream(seed, "agents")
    calm = rng.random() < 0.15
    trouble = 0.0 if calm else rng.choice([0.0, 0.02, 0.1, 0.25])
    tasks = ("math", "code") if rng.random() < 0.25 else ("math",)
    lasts_s = rng.choice([120.0, 600.0, 3600.0])
    acts = rng.sample(ACTS[1:], rng.randint(1, 4))
    return AgentScenario(
        seed=seed,
        agents=tuple(_agent(rng, lasts_s) for _ in range(rng.randint(1, 3))),
        tasks=tasks,
        lasts_s=lasts_s,
        prompts=rng.randint(1, 3),
        group_size=rng.choice([2, 4]),
        slots=rng.randint(1, 4),
        max_queue=rng.choice([0, 8]),
        terms=_terms(rng, tasks),
        begins_s=rng.choice([0.0, *(border - rng.uniform(1.0, lasts_s) for border in BORDERS_S.values())]),
        drop=trouble * rng.random(),
        duplicate=trouble * rng.random(),
        late=trouble * rng.random(),
        reorder=trouble * rng.random(),
        upstream_acts={act: trouble / len(acts) for act in acts},
        upstream_duplicate=trouble,
        slow_s=rng.choice([0.5, 2.0, 8.0]),
        faults=() if calm else tuple(_faults(rng, lasts_s)),
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


def _terms(rng: random.Random, tasks: tuple[str, ...]) -> Terms:
    windows = {scope: rng.choice(["day", "hour"]) for scope in SCOPES if rng.random() < 0.5}
    return Terms(
        tasks={task: _task(rng) for task in tasks},
        caps={"fleet": _caps(rng, 60), "device": _caps(rng, 30)},
        windows=windows if rng.random() < 0.25 else {},
        answers_cached=rng.random() < 0.8,
    )


def _task(rng: random.Random) -> TaskTerms:
    return TaskTerms(
        scope=rng.choice(["task", "task", "global", "fleet"]),
        target_rate=rng.choice([0.3, 0.7]),
        rate_from_device=rng.random() < 0.6,
        dual_init=rng.choice([0.0, 0.5]),
        dual_lr=rng.choice([0.01, 0.3]),
        credit_factor=rng.choice([None, 1.0, 2.0]),
        answer_cache=rng.choice(["off", "device", "fleet"]),
    )


def _caps(rng: random.Random, most: int) -> Caps:
    def cap(unit: int) -> int | None:
        return rng.randint(1, most) * unit if rng.random() < 0.2 else None

    return (cap(1), cap(48), cap(56))


def _faults(rng: random.Random, lasts_s: float) -> list[Fault]:
    faults = [_fault(rng, rng.choice(AGENT_FAULTS), lasts_s) for _ in range(rng.randint(0, 6))]
    return sorted(faults, key=lambda fault: fault.at)


def _fault(rng: random.Random, kind: str, lasts_s: float) -> Fault:
    at, for_s = rng.uniform(0.0, lasts_s), rng.choice([rng.uniform(0.1, 5.0), rng.uniform(5.0, 120.0)])
    whose = rng.randrange(3)
    drawn: dict[str, Callable[[], Fault]] = {
        "agent_crash_at": lambda: Fault(0.7 * at, kind, for_s, rng.choice(AGENT_POINTS), whose),
        "agent_clock_jump": lambda: Fault(at, kind, 0.0, rng.choice(["-90000", "-30", "30", "4000", "90000"]), whose),
        "clock_jump": lambda: Fault(at, kind, 0.0, "", rng.choice([-20.0, -3.0, 3.0, 12.0])),
        "kill_at": lambda: Fault(at, kind, for_s * 0.2, rng.choice(POINTS), rng.randint(1, 3)),
        "drain": lambda: Fault(at, kind, for_s * 0.2, "", rng.choice([0.0, 0.2, 2.0])),
        "disk_full": lambda: Fault(at, kind, min(for_s, 10.0)),
        "disk_eio": lambda: Fault(at, kind, min(for_s, 10.0)),
        "dial": lambda: Fault(at, kind, 0.0, rng.choice(["", "0.1", "0.5"]), whose),
    }
    return drawn.get(kind, lambda: Fault(at, kind, for_s, "", whose))()


def smaller_agents(scenario: AgentScenario) -> Iterator[AgentScenario]:
    """Scenarios with less in them: first what takes away most."""
    for faults in without_some(scenario.faults):
        yield replace(scenario, faults=faults)
    for count in less(len(scenario.agents), 1):
        yield replace(scenario, agents=scenario.agents[:count])
    for task in scenario.tasks[: len(scenario.tasks) if len(scenario.tasks) > 1 else 0]:
        yield replace(scenario, tasks=(task,))
    for place, agent in enumerate(scenario.agents):
        for fewer in _smaller_agent(agent):
            yield replace(scenario, agents=(*scenario.agents[:place], fewer, *scenario.agents[place + 1 :]))
    for prompts in less(scenario.prompts, 1):
        yield replace(scenario, prompts=prompts)
    for name in ("drop", "duplicate", "late", "reorder", "upstream_duplicate"):
        if getattr(scenario, name):
            yield with_one(scenario, name, 0.0)
    for acts in without_some(tuple(scenario.upstream_acts.items())):
        yield replace(scenario, upstream_acts=dict(acts))
    for scope, caps in scenario.terms.caps.items():
        if caps != NO_CAPS:
            terms = replace(scenario.terms, caps={**scenario.terms.caps, scope: NO_CAPS})
            yield replace(scenario, terms=terms)


def _smaller_agent(agent: AgentPlan) -> Iterator[AgentPlan]:
    for questions in less(agent.questions, 0):
        yield replace(agent, questions=questions)
    for steps in less(agent.steps, 0):
        yield replace(agent, steps=steps)
    for name in ("dial", "calls_limit", "spend_limit_uusd"):
        if getattr(agent, name) is not None:
            yield with_one(agent, name, None)


def agent_words(scenario: AgentScenario) -> list[str]:
    """A scenario, a line for each kind of thing in it."""
    return [
        f"{counted(len(scenario.agents), 'agent')}, tasks {' and '.join(scenario.tasks)}, {counted(scenario.prompts, 'prompt')} a step of"
        f" {counted(scenario.group_size, 'response')} each, {scenario.lasts_s:g} s",
        *(_agent_words(number, agent) for number, agent in enumerate(scenario.agents)),
        f"the cloud answers within {scenario.slow_s:g} s",
        *message_words(scenario),
        *share_words("upstream: ", {**scenario.upstream_acts, "asked twice": scenario.upstream_duplicate}),
        *fault_words(scenario.faults),
    ]


def _agent_words(number: int, agent: AgentPlan) -> str:
    limits = {"dial": agent.dial, "learning's calls a day": agent.calls_limit, "learning's uUSD a day": agent.spend_limit_uusd}
    told = "".join(f", {name} {value:g}" for name, value in limits.items() if value is not None)
    return f"agent-{number}: {counted(agent.questions, 'question')}, {counted(agent.steps, 'step')} a task{told}"
