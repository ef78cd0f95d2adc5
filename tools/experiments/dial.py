"""How well the budget dial holds its rate on a real, frozen model, and the accuracy at each rate. One agent with its embedded coordinator
answers everything; each run has its own task label, so that its dial starts cold, except where a run is to start warm. Every answer is
greedy, so a question is the same question in every run.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from edge.agent import Agent
from edge.app.agents import build_agent
from edge.app.judging import build_verifier
from edge.config.agent import resolve_agent_config
from edge.config.schema import AgentConfig
from edge.core.errors import EdgeError
from edge.core.events import MemorySink
from edge.core.types import Message, Mode, TaskItem
from edge.dagrpo.metrics import oracle_router_bound, wilson_interval
from edge.dagrpo.prompts import compact_question
from edge.evaluation.judging import judge
from edge.state.answer_record import AnswerRecord, AnswerRequest
from edge.tasks.practice import FAMILIES
from edge.verifiers.verifier import Verifier
from tools.places import put

RATES = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7)
TOLERANCE = 0.03
_EASY_FIRST = "mix shifts half way"


@dataclass(frozen=True, slots=True)
class KnownItem:
    """A question with the answers of model and cloud, and the help log-odds (nats) of the free answer's decision."""

    item: TaskItem
    local_right: bool
    cloud_right: bool
    log_odds: float | None


@dataclass(frozen=True, slots=True)
class DialRun:
    """One run: the dial's start and end.

    `kind` is cold, warm, "mix shifts half way" or "set moves half way"; `rates_by_question` the realised rate after each question since τ
    was set. `best_threshold`: joint accuracy of the best fixed threshold at this rate, chosen in hindsight.
    """

    kind: str
    target_rate: float
    questions: int
    realised_rate: float
    joint_accuracy: float
    joint_interval: tuple[float, float]
    forced_local_accuracy: float
    cloud_accuracy: float
    oracle: float
    random_routing: float
    best_threshold: float
    rates_by_question: tuple[float, ...]

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
            known.append(KnownItem(item, rights[0], rights[1], local.help_log_odds))
        return known

    async def run(self, kind: str, rate: float, known: Sequence[KnownItem], label: str = "", *, again: bool = False) -> DialRun:
        """Set τ and answer all. `again`: the label's dial has seen answers before."""
        task = label or f"{kind.replace(' ', '-')}-{rate}"
        self._agent.access.dials.set(rate, task)
        if not again:
            assert self._agent.access.dial(task).known_log_odds == 0
        records, rates = [], []
        for one in known:
            records.append(await self._ask(one.item, task))
            rates.append(self._agent.access.dial(task).realised_since_set or 0.0)
        failed = next((record for record in records if record.asked and record.source != "cloud"), None)
        if failed is not None:
            raise EdgeError(f"{kind}, τ {rate:g}: the cloud did not answer ({failed.reason})")
        right = [await judge(self._verifier, one.item, record.text) for one, record in zip(known, records, strict=True)]
        run = _run_of(kind, rate, known, records, right, rates)
        self._report(row(run))
        return run

    async def _ask(self, item: TaskItem, task: str, mode: Mode | None = None) -> AnswerRecord:
        return await self._agent.answerer.answer(AnswerRequest((Message("user", compact_question(item)),), mode=mode, task=task))


def _run_of(
    kind: str,
    rate: float,
    known: Sequence[KnownItem],
    records: Sequence[AnswerRecord],
    right: Sequence[bool],
    rates: Sequence[float],
) -> DialRun:
    count = len(known)
    local, cloud = (sum(getattr(one, name) for one in known) / count for name in ("local_right", "cloud_right"))
    asked = sum(record.asked for record in records)
    return DialRun(
        kind=kind,
        target_rate=rate,
        questions=count,
        realised_rate=asked / count,
        joint_accuracy=sum(right) / count,
        joint_interval=wilson_interval(sum(right), count),
        forced_local_accuracy=local,
        cloud_accuracy=cloud,
        oracle=oracle_router_bound(asked / count, local, cloud),
        random_routing=local + asked / count * (cloud - local),
        best_threshold=_at_the_best_threshold(known, asked),
        rates_by_question=tuple(rates),
    )


def _at_the_best_threshold(known: Sequence[KnownItem], asked: int) -> float:
    """Joint accuracy when exactly the `asked` highest log-odds are sent to the cloud."""
    order = sorted(known, key=lambda one: float("-inf") if one.log_odds is None else one.log_odds, reverse=True)
    return (sum(one.cloud_right for one in order[:asked]) + sum(one.local_right for one in order[asked:])) / len(known)


async def measure(
    state: Path, rates: Sequence[float], questions: int, seed: int, sets: Sequence[str], report: Callable[[str], None]
) -> list[DialRun]:
    """All runs, cold first, then warm, then with a mix that shifts, then with a τ that moves."""
    config = config_for(state, *sets)
    async with build_agent(config, MemorySink()) as agent:
        experiment = Experiment(agent, build_verifier(config), report)
        known = await experiment.known(mixed_items(questions, seed))
        report(_known_line(known))
        runs = [await experiment.run("cold", rate, known) for rate in rates]
        runs += [await experiment.run("warm", rate, known, "known", again=True) for rate in rates]
        by_log_odds = sorted(known, key=lambda one: float("-inf") if one.log_odds is None else one.log_odds)
        runs += [await experiment.run(_EASY_FIRST, rate, _halves(by_log_odds, seed)) for rate in rates]
        for first, then in zip(rates, [*rates[1:], rates[0]], strict=True):
            label = f"moving-{first}"
            await experiment.run(f"before it moves to {then:g}", first, known[: questions // 2], label)
            runs.append(await experiment.run("set moves half way", then, known, label, again=True))
    return runs


def _halves(ordered: Sequence[KnownItem], seed: int) -> list[KnownItem]:
    """The half the model asks least for, shuffled, then the other one, shuffled."""
    half, rng = len(ordered) // 2, random.Random(f"halves/{seed}")
    return [one for part in (ordered[:half], ordered[half:]) for one in rng.sample(list(part), len(part))]


def _known_line(known: Sequence[KnownItem]) -> str:
    reached = [one.log_odds for one in known if one.log_odds is not None]
    local, cloud = (sum(getattr(one, name) for one in known) / len(known) for name in ("local_right", "cloud_right"))
    spread = f"log-odds {min(reached):.1f} to {max(reached):.1f}" if reached else "no decision was reached"
    return f"{len(known)} questions: forced local {local:.3f}, cloud {cloud:.3f}, {spread}, {len(reached)} reached a decision"


def row(run: DialRun) -> str:
    """One run as a line of text."""
    mark = "ok " if run.held else "OFF"
    low, high = run.joint_interval
    return (
        f"{mark} {run.kind:<24} τ {run.target_rate:<5g} realised {run.realised_rate:.3f}  joint {run.joint_accuracy:.3f}"
        f" [{low:.3f}, {high:.3f}]  forced local {run.forced_local_accuracy:.3f}  random {run.random_routing:.3f}"
        f"  best threshold {run.best_threshold:.3f}  oracle {run.oracle:.3f}"
    )


def write(folder: Path, runs: Sequence[DialRun], about: dict[str, Any]) -> None:
    """dial.json."""
    body = {**about, "tolerance": TOLERANCE, "runs": [asdict(run) | {"held": run.held} for run in runs]}
    put(json.dumps(body, indent=2) + "\n", folder / "dial.json")
