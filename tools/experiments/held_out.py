"""Answers of a cell's adapter to held-out items, and their stored form. Each item is answered by the model's own decision and with help
requests suppressed, at T = 0; the cloud's answers are asked once for all cells and kept in one recording.

A cell's folder has `looks/step-000100/SOURCE.json` and `adapters/step-000100`. A finished source is a file, so that an interrupted
evaluation resumes with the next one.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from edge.agent import Agent
from edge.app.judging import build_verifier
from edge.app.measuring import train_router
from edge.app.settings import agent_settings
from edge.cloud.group_calls import GroupCalls
from edge.config.schema import AgentConfig
from edge.core.clock import Clock
from edge.core.concurrency import all_of
from edge.core.errors import EdgeError
from edge.core.events import MemorySink
from edge.core.files import replacing_folder
from edge.core.types import LocalResponse, TaskItem
from edge.evaluation.cloud import CloudAnswers, RecordingAnswers, ReplayedAnswers, digest_of
from edge.evaluation.evaluate import Candidate, EvalRoles, Evaluation, candidates_of
from edge.evaluation.judging import CLOUD_TEMPERATURE, Judged, RolloutSettings, call_key, cloud_messages
from edge.evaluation.plan import EvalPlan
from edge.learning.components import with_prompt_form
from edge.learning.curriculum import StepPlan
from edge.routing.policy import OffloadPolicy
from edge.rpc.cassette import open_for_recording
from edge.rpc.client import CloudCall
from edge.tasks.registry import open_source
from tools.experiments.cells import Cell
from tools.experiments.result import cloud_of
from tools.places import put

Report = Callable[[dict[str, Any]], None]
MOST_LOG_ODDS = 300.0
"""Further ones have no use; a public model begins 30 nats below even odds."""
_CALLS_AT_ONCE = 4


class Router(Protocol):
    """Estimates the probability that the local model fails."""

    def probability(self, item: TaskItem, response: LocalResponse) -> float:
        """p(fail) of one response."""
        ...


class Observer:
    """Implements `OffloadPolicy` as another one, and records the router's score of each response."""

    def __init__(self, decides: OffloadPolicy, router: Router) -> None:
        self._decides = decides
        self._router = router
        self.probabilities: dict[str, float] = {}

    def wants_cloud(self, item: TaskItem, response: LocalResponse) -> bool:
        """As the other one."""
        self.probabilities[Candidate(item).key] = self._router.probability(item, response)
        return self._decides.wants_cloud(item, response)


@dataclass(frozen=True, slots=True)
class Evaluator:
    """Evaluates held-out items with the engine of an open agent when it is time to: after each phase and, if asked for, every
    `evaluate.every` steps. `note` is called often, to account for what it costs.
    """

    cell: Cell
    config: AgentConfig
    agent: Agent
    folder: Path
    clock: Clock
    report: Report
    note: Callable[[], None]

    async def between_steps(self, plan: StepPlan | None, steps_done: int, version: int) -> None:
        """`plan` is the next step, None when all phases are done."""
        self.note()
        self._report(steps_done, "learning")
        phases_done = len(self.cell.phases) if plan is None else plan.phase
        boundary = steps_done > 0 and (plan is None or plan.phase_step == 1)
        every = self.cell.evaluate.every
        if boundary or (every and steps_done and steps_done % every == 0):
            await self.evaluate(steps_done, phases_done if boundary else None)

    async def evaluate(self, steps_done: int, phases_done: int | None) -> None:
        """Keep the adapter, train the router where one is wanted, and write `SOURCE.json` for each source that has none yet."""
        evaluate, into = self.cell.evaluate, self.folder / "looks" / f"step-{steps_done:06d}"
        if not evaluate.items:
            return
        into.mkdir(parents=True, exist_ok=True)
        adapter = self._keep_adapter(steps_done)
        router = None
        if self.cell.router and phases_done and adapter is not None:
            router = await self._router(phases_done, adapter, into)
        put(json.dumps({"step": steps_done, "phase": phases_done}), into / "look.json")
        for source in evaluate.sources:
            file = into / f"{source.replace(':', '_').replace('/', '_')}.json"
            if file.is_file():
                continue
            began = self.clock.monotonic()
            found = await self._answers(source, open_source(source).test(evaluate.items), router, steps_done)
            put(json.dumps({**found, "seconds": round(self.clock.monotonic() - began, 1)}), file)
        self.note()

    def _report(self, steps_done: int, part: str) -> None:
        self.report({"steps_done": steps_done, "steps": self.cell.steps, "part": part})

    def _keep_adapter(self, steps_done: int) -> Path | None:
        """A copy of the active adapter for later use."""
        used = self.agent.adapter.in_use()
        if used is None:
            return None
        kept = self.folder / "adapters" / f"step-{steps_done:06d}"
        if not kept.is_dir():
            with replacing_folder(kept) as draft:
                shutil.copytree(used.folder, draft, dirs_exist_ok=True)
        return kept

    async def _router(self, phases_done: int, adapter: Path, into: Path) -> Router:
        """The classifier for all phases so far, fitted once, its threshold at the last one's τ."""
        from edge.routing.classifier import ThresholdRouter

        phase, file = self.cell.phases[phases_done - 1], into / "router.onnx"
        if not (into / "router.json").is_file():
            self._report(0, f"training a router on {phase.source}")
            sources = tuple(dict.fromkeys(one.full_source for one in self.cell.phases[:phases_done]))
            plan = EvalPlan(sources, limit=self.cell.evaluate.router_items, adapters=(adapter,), cloud="none")
            quality = await train_router(self.config, MemorySink(), plan, phase.target_rate, file)
            found = ThresholdRouter(file)
            auc = None if quality.auc is None else round(quality.auc, 3)
            fitted = {"threshold": found.threshold, "auc": auc, "asked": round(quality.asked, 3), "fitted": quality.fitted}
            put(json.dumps(fitted), into / "router.json")
        return ThresholdRouter(file)

    async def _answers(self, source: str, items: Sequence[TaskItem], router: Router | None, steps_done: int) -> dict[str, Any]:
        parts, backend = self.agent.components, self.agent.adapter.backend
        settings = with_prompt_form(agent_settings(self.config, parts.state.run_id), backend.model).rollout
        settings = replace(settings, temperature=0.0)
        policy = parts.policy if router is None else Observer(parts.policy, router)
        candidates, done = candidates_of((item, 1.0) for item in items), 0

        def count(*_: object) -> None:
            nonlocal done
            done += 1
            self._report(steps_done, f"{source}, {done} of {len(candidates)} held-out items")

        roles = EvalRoles(backend, build_verifier(self.config), policy, await self._cloud(settings, items))
        evaluation = Evaluation(roles, settings, cloud_all=True)
        judged = await evaluation.judge_all(candidates, f"{parts.state.run_id} {source}", on_judged=count)
        by_key = {one.candidate.key: one.judged for one in judged}
        keys = [Candidate(item).key for item in items]
        _require_answered(source, list(by_key.values()))
        known = [policy.probabilities.get(key) for key in keys] if isinstance(policy, Observer) else None
        return {"source": source, **packed([by_key[key] for key in keys], known)}

    async def _cloud(self, settings: RolloutSettings, items: Sequence[TaskItem]) -> CloudAnswers:
        """The recorded answers; missing ones are asked first. With hints every question is a separate one."""
        desk = GroupCalls(self.agent.link.client, self.config.coordinator.call_deadline_s)
        if settings.hint_chars:
            return desk
        calls, recording = [_call(settings, item) for item in items], self.folder.parent / recording_of(self.config)
        async with _alone(recording.with_suffix(".lock")):
            known = open_for_recording(recording)
            if missing := [call for call in calls if digest_of(call) not in known]:
                await _record(missing, RecordingAnswers(recording, desk, settings.cloud_prompt_form))
            return ReplayedAnswers(recording)


def recording_of(config: AgentConfig) -> str:
    """The file of a cloud LLM's answers to held-out items, in the folder of all cells."""
    return f"held-out-answers-{cloud_of(config)}.jsonl"


def evaluations_in(folder: Path) -> list[dict[str, Any]]:
    """All that a cell's folder holds, by step and name."""
    found = []
    for step_folder in sorted((folder / "looks").glob("step-*")):
        when = json.loads((step_folder / "look.json").read_text(encoding="utf-8"))
        router = step_folder / "router.json"
        fitted = {"router_fit": json.loads(router.read_text(encoding="utf-8"))} if router.is_file() else {}
        for file in sorted(step_folder.glob("*.json")):
            if file.name not in ("look.json", "router.json"):
                body = json.loads(file.read_text(encoding="utf-8"))
                found.append({**when, **body, **(fitted if "router" in body else {})})
    return found


def packed(judged: Sequence[Judged], router: Sequence[float | None] | None) -> dict[str, Any]:
    """Scores as texts of 0, 1 and - (unknown), one character per item; log-odds of asking (nats) to three digits, None: no decision.

    `doubt`: what of the log-odds is doubt in the answer, where that has a part; `router`: p(fail) of each item where a router was asked.
    """
    body: dict[str, Any] = {
        "items": len(judged),
        "asked": _bits([one.asked for one in judged]),
        "own": _bits([one.own.right for one in judged]),
        "forced": _bits([one.forced.right for one in judged]),
        "cloud": _bits([None if one.cloud is None else one.cloud.right for one in judged]),
        "joint": _bits([None if one.joint is None else one.joint.right for one in judged]),
        "format": _bits([one.format_ok for one in judged]),
        "help": [_rounded(one.help_log_odds) for one in judged],
        "tokens": round(sum(one.tokens for one in judged) / max(1, len(judged)), 1),
    }
    if any(one.doubt is not None for one in judged):
        body["doubt"] = [_rounded(one.doubt) for one in judged]
    if router is not None:
        body["router"] = [None if p is None else round(p, 3) for p in router]
    return body


def _require_answered(source: str, judged: Sequence[Judged]) -> None:
    """Raises EdgeError unless the cloud answered every item; missing answers are asked again in the next run."""
    if silent := [one.failure for one in judged if one.failure]:
        raise EdgeError(f"{source}: the cloud did not answer {len(silent)} of {len(judged)} held-out items: {silent[0]}")


async def _record(calls: Sequence[CloudCall], answers: RecordingAnswers) -> None:
    slots = asyncio.Semaphore(_CALLS_AT_ONCE)

    async def one(call: CloudCall) -> None:
        async with slots:
            await answers.ask(call)

    await all_of(one(call) for call in calls)


@asynccontextmanager
async def _alone(path: Path) -> AsyncIterator[None]:
    """One process at a time; the lock falls with the process that holds it."""
    with path.open("a") as lock:
        await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
        yield


def _call(settings: RolloutSettings, item: TaskItem) -> CloudCall:
    return CloudCall(
        call_key=call_key(settings.run_id, "held-out", 0, 0, Candidate(item).key),
        task=item.task,
        step=-1,
        prompt_id=f"held-out:{item.id}",
        help_units=1,
        messages=cloud_messages(item, settings.cloud_prompt_form),
        max_output_tokens=settings.max_output_tokens,
        model_alias=settings.model_alias,
        temperature=CLOUD_TEMPERATURE,
    )


def _bits(values: Sequence[bool | None]) -> str:
    return "".join("-" if value is None else "01"[value] for value in values)


def _rounded(log_odds: float | None) -> float | None:
    if log_odds is None or log_odds != log_odds:
        return None
    return round(min(max(log_odds, -MOST_LOG_ODDS), MOST_LOG_ODDS), 3)
