"""Building an agent."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from edge.app.coordinator import build_embedded, coordinator_address, egress_client
from edge.app.engines import SharedWorker, Trainer, choose_engine, open_backend, open_learner, open_rollouts, sound_adapter
from edge.app.judging import build_policy, build_verifier, policy_name, program_sandbox
from edge.app.openers import SharedWeights
from edge.app.settings import (
    agent_settings,
    build_registry,
    check_model_of,
    keep_model,
    model_file,
    skills,
    state_folder,
    with_hint_cut,
)
from edge.config.schema import AgentConfig
from edge.core.errors import ModelFileError, NotComputed
from edge.core.events import EventSink
from edge.core.machine import physical_cores, usable_cores
from edge.core.types import AnswerKind
from edge.state.reader import reading

if TYPE_CHECKING:
    from edge.agent import Agent
    from edge.core.clock import Clock
    from edge.inference.backend import InferenceBackend
    from edge.learning.components import AgentComponents, AgentSettings
    from edge.learning.conditions import LearningConditions
    from edge.learning.curriculum import Curriculum
    from edge.learning.own_use import OwnUse
    from edge.state.folder import StateFolder
    from edge.tasks.source import TaskSource
    from edge.training.learner import Learner


LEARNS_NOTHING = "edge-agent run serves it without learning"
_LOOKED_AT = 64


def check_inputs(config: AgentConfig) -> None:
    """Check task sources, model file and, for programs, the sandbox; loads and creates nothing.

    Raises UsageError, TaskFileError, ModelFileError.
    """
    from edge.tasks.registry import open_source

    sources = [open_source(phase.source, phase.columns) for phase in config.phases]
    check_serving(config)
    if off := why_learning_is_off(config):
        raise ModelFileError(off, hint=LEARNS_NOTHING)
    if any(map(_asks_for_programs, sources)):
        program_sandbox(config)


def why_learning_is_off(config: AgentConfig) -> str:
    """What the model's file has that no learner here computes, though llama.cpp may serve it; "" where it can learn. Raises
    ModelFileError."""
    from edge.models.catalogue import check_learnable

    try:
        check_learnable(model_file(config.model.path))
    except NotComputed as error:
        return str(error)
    return ""


def check_serving(config: AgentConfig) -> None:
    """Check what answering alone needs: model file, engine, policy, the coordinator's address, that the state folder's adapters are the
    model's. Raises UsageError, ModelFileError, StateError."""
    choose_engine(config, model_file(config.model.path))
    policy_name(config)
    with reading(state_folder(config)) as state:
        if state is not None:
            check_model_of(state, config.model.path)
    if config.coordinator.address is not None:
        from edge.rpc.address import parse_address

        parse_address(config.coordinator.address)


def _asks_for_programs(source: TaskSource) -> bool:
    """Whether programs are among a source's items; a data set states it, of others the first items are checked."""
    from edge.tasks.datasets.source import DataSetSource

    if isinstance(source, DataSetSource):
        return source.data_set.kind is AnswerKind.PROGRAM
    return any(item.kind is AnswerKind.PROGRAM for item in islice(source.train(0), _LOOKED_AT))


def build_agent(config: AgentConfig, sink: EventSink, *, lives_here: bool = False) -> Agent:
    """An agent, not yet started (`async with`). Raises ModelFileError, StateError, TaskFileError, UsageError.

    `lives_here`: it learns from its own use too, and only when the machine is free (`use`, `learning.when`).
    """
    from edge.agent import Agent

    components, settings = build_components(config, sink, lives_here=lives_here)
    try:
        return Agent(components, settings)
    except BaseException:
        components.state.close()
        raise


def build_components(config: AgentConfig, sink: EventSink, *, lives_here: bool = False) -> tuple[AgentComponents, AgentSettings]:
    """What `build_agent` makes an agent of. Raises what it does; the state folder is open and locked."""
    from edge.core.clock import SystemClock
    from edge.core.failpoint import NAMES, VARIABLE, killer
    from edge.learning.components import AgentComponents
    from edge.learning.curriculum import Curriculum
    from edge.state.folder import StateFolder
    from edge.tasks.registry import is_own, open_source

    clock, policy, registry = SystemClock(), build_policy(config), build_registry(config)
    path = model_file(config.model.path)
    fit_threads = thread_fitting(config, path, sink, clock, learner=lives_here)
    if fit_threads is None or not lives_here:
        sink = with_load_notice(config, path, sink, clock)
    state = StateFolder(state_folder(config))
    try:
        keep_model(state, config.model.path)
        learning = config.learning
        demonstrates = {"own": is_own, "all": lambda source: True, "none": lambda source: False}[
            learning.imitation.demonstrations
        ]
        curriculum = Curriculum(
            config.phases,
            lambda name: open_source(name, config.columns.get(name)),
            state,
            learning.seed,
            learning.prompts_per_step,
            demonstrates,
            skills(config),
            drawn_questions=state.drawn_questions if learning.questions == "teaching" else None,
        )
        worker, weights, gated = SharedWorker(), SharedWeights(path), config.gate.enabled is not False
        trainer = Trainer(config, path, lambda: open_learner(config, path, worker.get(), weights))
        address = coordinator_address(config, state.folder)
        components = AgentComponents(
            state=state,
            curriculum=curriculum,
            open_backend=lambda: open_backend(config, path, worker.get(), weights, serves_only=gated),
            open_learner=trainer.open,
            client=egress_client(config, registry, address, state, clock),
            coordinator=build_embedded(config, state, sink, clock),
            coordinator_name=config.coordinator.address or "embedded",
            verifier=build_verifier(config),
            policy=policy,
            sink=sink,
            clock=clock,
            failpoint=killer(os.environ, VARIABLE, NAMES) or (lambda name: None),
            release=worker.close,
            open_rollouts=lambda serving: open_rollouts(config, serving),
            sound=sound_adapter,
            step_measure=trainer.step_measure,
            own_use=build_own_use(config, state, curriculum, sink, clock) if lives_here else None,
            conditions=build_conditions(config, clock) if lives_here else None,
            fit_threads=fit_threads,
            learning_off=why_learning_is_off(config),
        )
        return components, with_hint_cut(agent_settings(config, state.run_id), registry)
    except BaseException:
        state.close()
        raise


def build_own_use(config: AgentConfig, state: StateFolder, curriculum: Curriculum, sink: EventSink, clock: Clock) -> OwnUse:
    """What is learned in addition to the phases."""
    from edge.learning.own_use import OwnUse
    from edge.learning.watched_folder import WatchedFolder
    from edge.state.events import Notice

    folder = Path(config.use.tasks_folder).expanduser() if config.use.tasks_folder else None
    watched = WatchedFolder(folder, lambda text: sink.emit(Notice(text, clock.now()))) if folder else None
    return OwnUse(state, config.use, config.learning, watched, curriculum.rate_of)


def build_conditions(config: AgentConfig, clock: Clock) -> LearningConditions:
    """When learning may use this machine."""
    from edge.learning.conditions import MachineConditions, MachineProbe

    return MachineConditions(config.learning.when, MachineProbe(clock))


def thread_fitting(
    config: AgentConfig, path: Path, sink: EventSink, clock: Clock, *, learner: bool
) -> Callable[[Sequence[InferenceBackend], Learner | None], None] | None:
    """What fits the threads that nobody has set to the cores that other programs leave; None where all are set or none is used.

    `learner`: torch's threads, too. Their number changes the last bits of an update, so a run that must be repeatable keeps them; the
    engine's does not.
    """
    from edge.inference.backend import ThreadedBackend
    from edge.learning.conditions import MachineProbe, SpareCores
    from edge.training.learner import ThreadedLearner

    fits_engine, fits_learner = not config.engine.threads, learner and not config.learning.torch_threads
    if not (fits_engine or fits_learner) or physical_cores() < 2 or not choose_engine(config, path).shares_cores:
        return None
    spare = SpareCores(MachineProbe(clock), physical_cores(), sink, clock)

    def fit(engines: Sequence[InferenceBackend], trained: Learner | None) -> None:
        threads = spare.threads()
        for engine in engines:
            if fits_engine and isinstance(engine, ThreadedBackend):
                engine.use_threads(threads)
        if fits_learner and isinstance(trained, ThreadedLearner):
            trained.use_threads(threads)

    return fit


def with_load_notice(config: AgentConfig, path: Path, sink: EventSink, clock: Clock) -> EventSink:
    """The sink with a notice about slow steps where other programs slow down the engine's threads."""
    from edge.learning.conditions import MachineLoadNotice, MachineProbe

    if not choose_engine(config, path).shares_cores:
        return sink
    return MachineLoadNotice(sink, MachineProbe(clock), clock, high_load_settings(config))


def high_load_settings(config: AgentConfig) -> tuple[str, ...]:
    """What would help this configuration on a busy machine."""
    from edge.learning.conditions import thread_settings

    return thread_settings(config.engine.threads, config.learning.torch_threads, usable_cores())
