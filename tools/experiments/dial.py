"""How well the budget dial holds its rate on a real, frozen model, and the accuracy at each rate. One agent with its embedded coordinator
answers everything; each run has its own task label, so that its dial starts cold, except where τ moves half way. Every answer is greedy, so
a question is the same question in every run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from edge.agent import Agent
from edge.app.agents import build_agent
from edge.app.judging import build_verifier
from edge.config.agent import resolve_agent_config
from edge.config.schema import AgentConfig
from edge.core.errors import EdgeError
from edge.core.events import MemorySink
from edge.core.types import Message, Mode, TaskItem
from edge.dagrpo.metrics import oracle_router_bound
from edge.dagrpo.prompts import compact_question
from edge.evaluation.judging import judge
from edge.state.answer_record import AnswerRecord, AnswerRequest
from edge.tasks.practice import FAMILIES
from edge.verifiers.verifier import Verifier

RATES = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7)
TOLERANCE = 0.03


@dataclass(frozen=True, slots=True)
class KnownItem:
    """A question, and whether the model and the cloud answer it rightly."""

    item: TaskItem
    local_right: bool
    cloud_right: bool


@dataclass(frozen=True, slots=True)
class DialRun:
    """One run. `oracle` and `random_routing`: joint accuracy of the best and of a random choice of as many questions for the cloud."""

    kind: str
    target_rate: float
    realised_rate: float
    joint_accuracy: float
    forced_local_accuracy: float
    oracle: float
    random_routing: float

    @property
    def held(self) -> bool:
        """Whether the realised rate is within the tolerance."""
        return abs(self.realised_rate - self.target_rate) <= TOLERANCE + 1e-9


def mixed_items(count: int, seed: int) -> list[TaskItem]:
    """Held-out questions of all families, each as often, in random order."""
    streams = [family.stream(seed, "test") for family in FAMILIES.values()]
    items = [item for stream in streams for item in islice(stream, -(-count // len(streams)))][:count]
    random.Random(f"dial/{seed}").shuffle(items)
    return items


def config_for(state: Path, *sets: str) -> AgentConfig:
    """A frozen agent on one thread."""
    return resolve_agent_config(sets=[f"state_folder={state}", "engine.threads=1", "learning.enabled=false", *sets]).config


class Experiment:
    """Runs over one agent. `report` receives a line after each run."""

    def __init__(self, agent: Agent, verifier: Verifier, report: Callable[[str], None]) -> None:
        self._agent = agent
        self._verifier = verifier
        self._report = report

    async def known(self, items: Sequence[TaskItem]) -> list[KnownItem]:
        """The answers of local-only and cloud-only to each question."""
        known = []
        for item in items:
            local = await self._ask(item, "known", "local-only")
            cloud = await self._ask(item, "known", "cloud-only")
            rights = [await judge(self._verifier, item, record.text) for record in (local, cloud)]
            known.append(KnownItem(item, rights[0], rights[1]))
        return known

    async def run(self, kind: str, rate: float, known: Sequence[KnownItem], label: str = "") -> DialRun:
        """Set τ and answer all; a `label` of an earlier run keeps what its dial has seen."""
        task = label or f"{kind}-{rate}"
        self._agent.access.dials.set(rate, task)
        records = [await self._ask(one.item, task) for one in known]
        failed = next((record for record in records if record.asked and record.source != "cloud"), None)
        if failed is not None:
            raise EdgeError(f"{kind}, τ {rate:g}: the cloud did not answer ({failed.reason})")
        right = [await judge(self._verifier, one.item, record.text) for one, record in zip(known, records, strict=True)]
        count, asked = len(known), sum(record.asked for record in records) / len(known)
        local, cloud = (sum(getattr(one, name) for one in known) / count for name in ("local_right", "cloud_right"))
        joint, oracle = sum(right) / count, oracle_router_bound(asked, local, cloud)
        run = DialRun(kind, rate, asked, joint, local, oracle, local + asked * (cloud - local))
        self._report(row(run))
        return run

    async def _ask(self, item: TaskItem, task: str, mode: Mode | None = None) -> AnswerRecord:
        return await self._agent.answerer.answer(AnswerRequest((Message("user", compact_question(item)),), mode=mode, task=task))


async def measure(
    state: Path, rates: Sequence[float], questions: int, seed: int, sets: Sequence[str], report: Callable[[str], None]
) -> list[DialRun]:
    """All runs, cold first, then with a τ that moves half way."""
    config = config_for(state, *sets)
    async with build_agent(config, MemorySink()) as agent:
        experiment = Experiment(agent, build_verifier(config), report)
        known = await experiment.known(mixed_items(questions, seed))
        runs = [await experiment.run("cold", rate, known) for rate in rates]
        for first, then in zip(rates, [*rates[1:], rates[0]], strict=True):
            label = f"moving-{first}"
            await experiment.run(f"before it moves to {then:g}", first, known[: questions // 2], label)
            runs.append(await experiment.run("set moves half way", then, known, label))
    return runs


def row(run: DialRun) -> str:
    """One run as a line of text."""
    mark = "ok " if run.held else "OFF"
    return (
        f"{mark} {run.kind:<24} τ {run.target_rate:<5g} realised {run.realised_rate:.3f}  joint {run.joint_accuracy:.3f}"
        f"  forced local {run.forced_local_accuracy:.3f}  random {run.random_routing:.3f}  oracle {run.oracle:.3f}"
    )
