"""Measuring: evaluations, routers and hints, with an engine and a coordinator of their own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.app.coordinator import build_embedded, coordinator_address, egress_client
from edge.app.engines import SharedWorker, open_backend, require_onnx
from edge.app.judging import build_policy, build_verifier, policy_name
from edge.app.settings import (
    adapter_version,
    agent_settings,
    build_registry,
    cloud_prompt_form,
    model_file,
    state_folder,
    switched_off,
    with_hint_cut,
)
from edge.config.schema import AgentConfig
from edge.core.errors import AdapterError, TaskFileError
from edge.core.events import EventSink

if TYPE_CHECKING:
    from edge.core.clock import Clock
    from edge.evaluation.cloud import CloudAnswers
    from edge.evaluation.evaluate import Candidate
    from edge.evaluation.hint_trial import HintReport
    from edge.evaluation.judging import RolloutSettings
    from edge.evaluation.plan import EvalOutcome, EvalPlan
    from edge.inference.backend import InferenceBackend, ModelInfo
    from edge.routing.classifier import RouterQuality


_UNNUMBERED = 1
"""What an engine calls an adapter whose version nobody knows."""


async def evaluate(config: AgentConfig, sink: EventSink, plan: EvalPlan) -> EvalOutcome:
    """Measure a model or adapter on test splits. Raises UsageError, TaskFileError, AdapterError, StateError, ConfigError."""
    from edge.core.clock import SystemClock
    from edge.evaluation.cloud import ReplayedAnswers
    from edge.evaluation.evaluate import EvalRoles
    from edge.evaluation.plan import EvalRun
    from edge.verifiers.math_answer import both_verdicts

    clock, policy, plan = SystemClock(), build_policy(config), replace(plan, policy=policy_name(config))
    path, candidates = model_file(config.model.path), eval_candidates(plan)
    async with AsyncExitStack() as stack:
        cloud, run_id = await _cloud_answers(config, sink, clock, plan, candidates, stack)
        backend, adapter = await _eval_backend(config, path, sink, clock, plan, stack)
        math = both_verdicts()
        stack.callback(math.close)
        roles = EvalRoles(backend, build_verifier(config), policy, cloud, math)
        settings = _eval_settings(config, run_id, backend.model, plan)
        if isinstance(cloud, ReplayedAnswers):
            settings = cloud.asked_as(settings)
        version = 0 if adapter is None else adapter_version(adapter)
        return await EvalRun(plan, roles, settings, adapter, version, sink, clock).outcome(candidates)


async def train_router(config: AgentConfig, sink: EventSink, plan: EvalPlan, rate: float, out: Path) -> RouterQuality:
    """Train a router on the local model's answers to `plan.limit` training items of each source, and write it as ONNX.

    Raises UsageError, TaskFileError, AdapterError, ModelFileError.
    """
    require_onnx("a router is an ONNX file")
    import numpy as np

    from edge.core.clock import SystemClock
    from edge.core.limits import LARGEST_SEED
    from edge.core.rng import derive_seed
    from edge.evaluation.evaluate import EvalRoles, examples_of
    from edge.routing.classifier import calibrate, export, features
    from edge.routing.policy import SelfOffload
    from edge.state.events import EvalProgress
    from edge.tasks.registry import open_source

    sources = [open_source(name, plan.columns.get(name)) for name in plan.sources]
    # not the questions that the adapter was trained on, in that order
    seed = derive_seed(config.learning.seed, "router") % LARGEST_SEED
    items = [item for source in sources for item in islice(source.train(seed), plan.limit)]
    path = model_file(config.model.path)
    async with AsyncExitStack() as stack:
        backend, _ = await _eval_backend(config, path, sink, SystemClock(), plan, stack)
        roles = EvalRoles(backend, build_verifier(config), SelfOffload(), None)
        settings = _eval_settings(config, "", backend.model, plan)
        examples = await examples_of(roles, settings, items, lambda done, of: sink.emit(EvalProgress(done, of)))
    rows = np.array([features(example.item, example.response) for example in examples]).reshape(len(examples), -1)
    router = calibrate(rows, np.array([example.failed for example in examples], dtype=bool), rate)
    export(router.model, router.threshold, out)
    return router.quality


def eval_candidates(plan: EvalPlan) -> list[Candidate]:
    """The test items of all sources, weighted, each once: the plan's where it has them.

    Raises UsageError or TaskFileError for a source without any.
    """
    from edge.evaluation.evaluate import candidates_of, counted_once
    from edge.tasks.descriptions import strata_of
    from edge.tasks.jsonl import JsonLinesSource
    from edge.tasks.registry import open_source

    if plan.candidates is not None:
        return list(plan.candidates)
    by_source: list[list[Candidate]] = []
    for name in plan.sources:
        source = open_source(name, plan.columns.get(name))
        hint = 'give the items to be measured "split": "test"'
        if isinstance(source, JsonLinesSource):
            hint = next(iter(source.notes), hint)
            source = source.to_measure()
        if plan.per_level is None:
            found = [(item, 1.0) for item in source.test(plan.limit)]
        else:
            strata = strata_of(source, plan.per_level)
            found = [(item, stratum.weight / len(stratum.items)) for stratum in strata for item in stratum.items]
        if not found:
            raise TaskFileError(f"{name}: no test item", hint=hint)
        by_source.append(candidates_of(found, plan.max_steps))
    return counted_once(by_source)


def _eval_settings(config: AgentConfig, run_id: str, model: ModelInfo, plan: EvalPlan) -> RolloutSettings:
    from edge.learning.components import with_prompt_form

    settings = with_prompt_form(with_hint_cut(agent_settings(config, run_id), build_registry(config)), model).rollout
    return replace(settings, temperature=plan.temperature, max_tokens=plan.max_tokens or settings.max_tokens)


async def _eval_backend(
    config: AgentConfig, path: Path, sink: EventSink, clock: Clock, plan: EvalPlan, stack: AsyncExitStack
) -> tuple[InferenceBackend, Path | None]:
    """The engine with the first usable adapter of the plan. Raises AdapterError when there are some and none is usable."""
    from edge.core.types import AdapterRef
    from edge.state.events import Notice

    worker = SharedWorker()
    stack.callback(worker.close)
    backend = await open_backend(config, path, worker.get())
    stack.push_async_callback(backend.aclose)
    first: AdapterError | None = None
    for folder in plan.adapters:
        try:
            await backend.swap_adapter(AdapterRef(adapter_version(folder) or _UNNUMBERED, str(folder)))
        except AdapterError as error:
            first = first or error
            continue
        if first is not None:
            sink.emit(Notice(f"{first}; measuring the one before, {folder}", clock.now()))
        return backend, folder
    if first is not None:
        hint = "name another one with --adapter, or measure the bare model with --adapter none"
        raise AdapterError(str(first), hint=hint) from first
    return backend, None


async def _cloud_answers(
    config: AgentConfig,
    sink: EventSink,
    clock: Clock,
    plan: EvalPlan,
    candidates: Sequence[Candidate],
    stack: AsyncExitStack,
) -> tuple[CloudAnswers | None, str]:
    """Where cloud answers come from, and the state's run id where there is need of one (the state folder is not touched otherwise).

    The budget is reported first when every item is going to be asked.
    """
    from edge.cloud.group_calls import GroupCalls
    from edge.evaluation.cloud import RecordingAnswers, ReplayedAnswers, announce_cost
    from edge.state.folder import StateFolder

    if plan.cloud == "none":
        return None, ""
    if plan.replay is not None:
        return ReplayedAnswers(plan.replay), ""
    registry = build_registry(config)
    state = stack.enter_context(StateFolder(state_folder(config)))
    if (embedded := build_embedded(config, state, sink, clock)) is not None:
        stack.push_async_callback(embedded.aclose)
        await embedded.start()
    client = egress_client(config, registry, coordinator_address(config, state.folder), state, clock)
    stack.push_async_callback(client.aclose)
    if plan.cloud_all:
        await announce_cost(client, candidates, config.coordinator, sink, clock)
    calls = GroupCalls(client, config.coordinator.call_deadline_s, lambda: switched_off(config))
    return (calls if plan.record is None else RecordingAnswers(plan.record, calls, cloud_prompt_form(config))), state.run_id


async def measure_hints(config: AgentConfig, sink: EventSink, plan: EvalPlan, hint_chars: int, margin: float) -> HintReport:
    """Whether hints of this many characters pay on the plan's test items; the verdict is kept in the state folder.

    Raises UsageError, TaskFileError, AdapterError, StateError, ConfigError.
    """
    from edge.core.clock import SystemClock
    from edge.evaluation.evaluate import EvalRoles
    from edge.evaluation.hint_trial import HintTrial, hint_report, trial_rng
    from edge.state.events import EvalProgress
    from edge.state.folder import StateFolder

    clock, path, candidates = SystemClock(), model_file(config.model.path), eval_candidates(plan)
    async with AsyncExitStack() as stack:
        cloud, run_id = await _cloud_answers(config, sink, clock, plan, candidates, stack)
        backend, _ = await _eval_backend(config, path, sink, clock, plan, stack)
        roles = EvalRoles(backend, build_verifier(config), build_policy(config), cloud)
        settings = _eval_settings(config, run_id, backend.model, plan)
        trial = HintTrial(roles, settings, hint_chars, f"{int(clock.now() * 1000)}")
        pairs = await trial.run(candidates, lambda done: sink.emit(EvalProgress(done, len(candidates))))
    report = hint_report(pairs, len(candidates), trial.asked, hint_chars, margin, trial_rng(config.learning.seed))
    if plan.replay is None:
        with StateFolder(state_folder(config)) as state:
            state.set_meta(_HINTS_MEASURED, json.dumps({**report.to_json(), "measured_at": clock.now()}))
    return report


_HINTS_MEASURED = "hints_measured"


def measured_hints(config: AgentConfig) -> dict[str, Any] | None:
    """The last verdict on hints, None where none was reached; read-only. Raises StateError."""
    from edge.state.reader import kept_meta

    text = kept_meta(state_folder(config), _HINTS_MEASURED)
    return None if text is None else dict(json.loads(text))
