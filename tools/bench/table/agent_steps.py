"""Our side: learning steps of the real agent in one process, timed and with their memory.

Rollouts by llama.cpp, the judge, the torch learner, the checkpoint, the report to an embedded coordinator (a process of its own) and the
adapter's swap are those of `edge-agent run`. For models with random weights, which never end a response and are never right, no token ends
one and advantages are generated. The promotion gate is off, as in `edge-agent learn` and as with the peer, unless a job has one: then its
judgement is a part of the step, and its second engine a part of the memory. The cloud LLM is the bundled one, on the same cores, or with
`cloud` answering one that answers immediately (mock_cloud). Nothing else differs. A step's time is from the end of the step before to its
own end.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tools.bench.processes import Server, own, running
from tools.bench.table.memory import MemoryWatch, memory_now, peak_of_children

if TYPE_CHECKING:
    from edge.agent import Agent
    from edge.config.schema import AgentConfig
    from edge.core.events import Event, EventSink
    from edge.core.types import TrainingGroup
    from edge.training.learner import Learner, LearnerReport


@dataclass(slots=True)
class Recorder:
    """A sink that times steps and reports the current part to the memory watch."""

    memory: MemoryWatch
    ended: float
    steps: list[dict[str, Any]] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def emit(self, event: Event) -> None:
        """Take an event."""
        fields = event.to_json()
        if event.kind == "step_progress":
            self.memory.part(fields["part"])
        elif event.kind == "run_started":
            self.memory.part("rollout")
        elif event.kind == "notice":
            self.notices.append(fields["text"])
        elif event.kind == "step_finished":
            now = time.perf_counter()
            self.steps.append({**fields, "seconds": now - self.ended})
            print(f"step {fields['step']}: {now - self.ended:.2f} s", flush=True)
            self.ended = now
            self.memory.part("rollout")


class CountingLearner:
    """A learner that counts its inputs, and generates advantages where the model has none; all else is the inner learner's."""

    def __init__(self, inner: Any, made_up: bool) -> None:
        self._inner = inner
        self._made_up = made_up
        self.counts: list[dict[str, float]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def update(self, groups: Sequence[TrainingGroup]) -> LearnerReport:
        """One update of the real learner."""
        given = [with_advantages(group) for group in groups] if self._made_up else list(groups)
        self.counts.append(count(given))
        report: LearnerReport = await self._inner.update(given)
        return report


def with_advantages(group: TrainingGroup) -> TrainingGroup:
    """The group with centred advantages that depend on the sampled ids alone."""
    raw = [(sum(sample.token_ids) % 97) / 96 - (sum(sample.token_ids) % 3 == 0) / 2 for sample in group.samples]
    mean = sum(raw) / len(raw)
    samples = [replace(sample, advantage=value - mean) for sample, value in zip(group.samples, raw, strict=True)]
    return replace(group, samples=tuple(samples))


def count(groups: Sequence[TrainingGroup]) -> dict[str, float]:
    """The inputs of a step's floor, as means."""
    responses = [sample for group in groups for sample in group.samples]
    return {
        "prompts": len(groups),
        "responses": len(responses),
        "prompt_tokens": sum(len(group.prompt_ids) for group in groups) / max(1, len(groups)),
        "response_tokens": sum(len(sample.token_ids) for sample in responses) / max(1, len(responses)),
    }


def endless(backend: Any) -> Any:
    """The backend without any token that ends a response, since a model with random weights never ends one sensibly. Changes the backend's
    internals, because only a bench of random models needs this.
    """
    ends: list[bool] = backend._batcher._tokens.ends
    ends[:] = [False] * len(ends)
    return backend


def config_of(job: dict[str, Any], cloud_port: int | None = None) -> AgentConfig:
    """The agent's configuration for a job; unnamed settings have their default. Without a cloud's port it is the bundled LLM."""
    from edge.config.schema import AgentConfig

    steps = job["warmup"] + job["steps"]
    return AgentConfig.model_validate(
        {
            "state_folder": job["scratch"],
            "model": {"path": job["model"], "responses": job["responses"]},
            "engine": {
                "threads": job["threads"],
                "max_rows": job["max_rows"],
                "weights": job["weights"],
                "repack": job["repack"],
            },
            "adapter": {"rank": job["rank"], "alpha": job["alpha"]},
            "learning": {
                "group_size": job["group_size"],
                "context_tokens": job["context_tokens"],
                "prompts_per_step": job["prompts_per_step"],
                "max_tokens": job["max_tokens"],
                "torch_threads": job["threads"],
                "optimiser": {"learning_rate": job["learning_rate"]},
                "control": {"dual_init": job["dual"], "dual_lr": job["dual_lr"]},
                "imitation": {
                    "demonstrations": "none",  # the other side imitates nothing
                    "skills": [],  # practice questions, most of which do not fit the context of a bench
                },
                **job["learning"],
            },
            "coordinator": {} if cloud_port is None else {"embedded": asking(cloud_port)},
            "gate": job["gate"],
            "serve": {"max_tokens": job["max_tokens"]},
            "phases": [{"source": job["items"], "target_rate": job["target_rate"], "steps": steps, "task": "bench"}],
        }
    )


def asking(port: int) -> dict[str, Any]:
    """The embedded coordinator's section for a cloud on this machine, with a made-up price."""
    prices = {"price_in_uusd_per_mtok": 150_000, "price_out_uusd_per_mtok": 600_000}
    return {"upstream": "openai_compatible", "model": "answering", "base_url": f"http://127.0.0.1:{port}/v1", **prices}


def build(config: AgentConfig, job: dict[str, Any], sink: EventSink, counted: list[CountingLearner]) -> Agent:
    """The agent of `edge-agent run`, with a counting learner and, for random models, responses without end.

    These components are exchanged from outside, so that the rest of the agent is measured unchanged.
    """
    from edge.agent import Agent
    from edge.app import agents

    parts, settings = agents.build_components(config, sink)

    async def open_learner() -> Learner:
        counted.append(CountingLearner(await parts.open_learner(), job["made_up_rewards"]))
        return cast("Learner", counted[-1])

    exchanged: dict[str, Any] = {"open_learner": open_learner}
    for name in ("open_backend", "open_rollouts") if job["endless"] else ():
        if (opener := getattr(parts, name, None)) is not None:
            exchanged[name] = opening_endless(opener)
    return Agent(replace(parts, **exchanged), settings)


def opening_endless(opener: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """The same way to open a backend, whose responses end at their greatest length only."""

    async def opened(*given: Any) -> Any:
        return endless(await opener(*given))

    return opened


def answering(items: Path) -> contextlib.AbstractContextManager[Server]:
    """A cloud with the answers to these items. It replaces a remote service: neither its time nor its memory belongs to a step."""
    return running(own("mock_cloud", "0", str(items)), items.with_suffix(".cloud.log"))


async def measure(job: dict[str, Any]) -> dict[str, Any]:
    """Make the job's steps."""
    shutil.rmtree(job["scratch"], ignore_errors=True)
    counted: list[CountingLearner] = []
    with contextlib.ExitStack() as watches:
        memory = watches.enter_context(MemoryWatch(count_pages_once=job["serve"]))
        cloud = watches.enter_context(answering(Path(job["items"]))) if job["cloud"] == "answering" else None
        recorder = Recorder(memory, time.perf_counter())
        memory.part("load")
        async with build(config_of(job, cloud.ready["port"] if cloud else None), job, recorder, counted) as agent:
            loaded = memory_now()
            served = asyncio.create_task(serve(agent, memory)) if job["serve"] else None
            recorder.ended = time.perf_counter()
            await agent.learn()
            if served is not None:
                served.cancel()
                await asyncio.gather(served, return_exceptions=True)
            rows = agent.status().model
            children = peak_of_children(without=cloud.pid if cloud else 0)
            answers = agent.answerer.answers
    shutil.rmtree(job["scratch"], ignore_errors=True)
    return {
        "warmup": [fields_of(step) for step in recorder.steps[: job["warmup"]]],
        "steps": [fields_of(step) for step in recorder.steps[job["warmup"] :]],
        "counts": counted[0].counts[job["warmup"] :],
        "checkpointing": counted[0].checkpointing,
        "peak_mib": max(memory_now()["peak_mib"], *(found["rss_mib"] for found in memory.peaks().values())),
        "once_mib": memory.once_mib,
        "children_peak_mib": children,
        "loaded": loaded,
        "memory_by_part": memory.peaks(),
        "answers": answers,
        "notices": recorder.notices,
        "model": {"name": rows.name, "parameters": rows.parameters, "file_bytes": rows.file_bytes},
    }


async def serve(agent: Agent, memory: MemoryWatch) -> None:
    """Ask a short question once in every part of the work: loading, sampling, training and reporting."""
    from edge.core.types import Message
    from edge.state.answer_record import AnswerRequest

    asked: set[str] = set()
    while True:
        await asyncio.sleep(0.1)
        if memory.current not in asked:
            asked.add(memory.current)
            await agent.answerer.answer(AnswerRequest((Message("user", "How many are 3 and 4?"),), mode="local-only"))


def fields_of(step: dict[str, Any]) -> dict[str, Any]:
    """The recorded fields of a step's event."""
    names = (
        "seconds seconds_by_part tokens prompts responses truncated assist_rate dual_before reward_mean gate frac_reward_zero_std "
        "mean_abs_logprob_diff kl effective_sample_share clipped_share learner_skipped"
    )
    return {name: step[name] for name in names.split()}
