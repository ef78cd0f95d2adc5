"""The composition root of the agent: the only place that names concrete classes. Heavy imports happen inside the builders."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import json
import os
import platform
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from edge.config.schema import AgentConfig
from edge.core.errors import AdapterError, ConfigError, ModelFileError, StateError, TaskFileError, UsageError
from edge.core.events import EventSink
from edge.core.install import install_extra
from edge.core.types import AnswerKind
from edge.sizing import learner_settings, probe_plan, step_measure, training_device, training_memory, weights_held

if TYPE_CHECKING:
    from edge.agent.agent import Agent
    from edge.agent.cloud import CloudDesk
    from edge.agent.conditions import LearningConditions
    from edge.agent.curriculum import Curriculum
    from edge.agent.embedded import EmbeddedCoordinator
    from edge.agent.evaluate import Candidate
    from edge.agent.evaluation.cloud import CloudAnswers
    from edge.agent.evaluation.examples import Example
    from edge.agent.evaluation.hint_trial import HintReport
    from edge.agent.evaluation.plan import EvalOutcome, EvalPlan
    from edge.agent.own_use import OwnUse
    from edge.agent.parts import AgentParts, AgentSettings
    from edge.agent.rollout import RolloutSettings
    from edge.agent.state import StateFolder
    from edge.core.clock import Clock
    from edge.core.worker import EngineWorker
    from edge.inference.backend import InferenceBackend, ModelInfo
    from edge.models.decoder import Decoder
    from edge.models.mlx_decoder import MlxDecoder
    from edge.privacy.registry import Registry
    from edge.routing.calibration import RouterQuality
    from edge.routing.policy import OffloadPolicy
    from edge.rpc.client import CoordinatorClient
    from edge.rpc.credentials import ClientCredentials
    from edge.tasks.source import TaskSource
    from edge.training.floor import StepMeasure
    from edge.training.gate import GateRules
    from edge.training.learner import Learner, Probing
    from edge.training.mlx_learner import MlxLearner
    from edge.training.torch_learner import TorchLearner
    from edge.verifiers.sandbox.role import Sandbox
    from edge.verifiers.verifier import Verifier

NO_CLOUD = "EDGE_AGENT_NO_CLOUD"
_LOOKED_AT = 64
_SERVING_ONLY_ROWS = 1
_UNNUMBERED = 1
"""What an engine calls an adapter whose version nobody knows."""


def state_folder(config: AgentConfig) -> Path:
    """The state folder this configuration names, or the platform's."""
    if config.state_folder is not None:
        return Path(config.state_folder).expanduser()
    from platformdirs import user_data_path

    return user_data_path("edge-agent", appauthor=False)


def bundled_models() -> Path:
    """The folder of the models that come with the package."""
    from edge.models.catalogue import bundled_folder

    return bundled_folder()


def model_file(name: str) -> Path:
    """The model file, or the MLX folder, that a name or path stands for: bundled, pulled, or by path. Raises ModelFileError."""
    from edge.models.catalogue import find_model

    return find_model(name)


def check_inputs(config: AgentConfig) -> None:
    """Look at task sources, model file and, for programs, the sandbox; loads and creates nothing.

    Raises UsageError, TaskFileError, ModelFileError.
    """
    from edge.tasks.registry import open_source

    sources = [open_source(phase.source) for phase in config.phases]
    engine_backend(config, model_file(config.model.path))
    policy_name(config)
    if any(map(_asks_for_programs, sources)):
        program_sandbox(config)


def _asks_for_programs(source: TaskSource) -> bool:
    """Whether programs are among a source's items; a data set says so, of others the first items are looked at."""
    from edge.tasks.datasets.source import DataSetSource

    if isinstance(source, DataSetSource):
        return source.data_set.kind is AnswerKind.PROGRAM
    return any(item.kind is AnswerKind.PROGRAM for item in islice(source.train(0), _LOOKED_AT))


def program_sandbox(config: AgentConfig) -> Sandbox:
    """The sandbox for programs that a model writes. Raises UsageError where there is none that may be used."""
    from edge.verifiers.sandbox.choice import choose_sandbox

    return choose_sandbox(config.programs.sandbox, unsafe=config.programs.unsafe)


def build_verifier(config: AgentConfig) -> Verifier:
    """What judges answers. The sandbox for programs is looked for when the first program comes.

    Raises UsageError when equivalence is asked for and math-verify is not installed.
    """
    from edge.verifiers.by_kind import VerifierByKind
    from edge.verifiers.math_answer import MathAnswer
    from edge.verifiers.program import ProgramJudge, ProgramVerifier
    from edge.verifiers.sandbox.role import Limits

    limits = Limits(wall_s=config.programs.timeout_s, memory_mib=config.programs.memory_mib)
    programs = ProgramVerifier(ProgramJudge(lambda: program_sandbox(config), limits))
    return VerifierByKind(math=MathAnswer(config.learning.answer_match), programs=programs)


def local_prompt_form(config: AgentConfig) -> str:
    """How the SLM is spoken to: bundled models carry the system prompt in their own template; "auto" asks the loaded model."""
    bundled = model_file(config.model.path).parent == bundled_models()
    return "compact" if bundled and config.model.prompt_form == "auto" else config.model.prompt_form


def build_agent(config: AgentConfig, sink: EventSink, *, lives_here: bool = False) -> Agent:
    """An agent, not yet started (`async with`). Raises ModelFileError, StateError, TaskFileError, UsageError.

    `lives_here`: it learns from its own use too, and only when the machine is free (`use`, `learning.when`).
    """
    from edge.agent.agent import Agent

    parts, settings = build_parts(config, sink, lives_here=lives_here)
    try:
        return Agent(parts, settings)
    except BaseException:
        parts.state.close()
        raise


def build_parts(config: AgentConfig, sink: EventSink, *, lives_here: bool = False) -> tuple[AgentParts, AgentSettings]:
    """What `build_agent` makes an agent of. Raises what it does; the state folder is open and locked."""
    from edge.agent.curriculum import Curriculum
    from edge.agent.failpoint import failpoint_from
    from edge.agent.parts import AgentParts
    from edge.agent.state import StateFolder
    from edge.core.clock import SystemClock
    from edge.tasks.registry import open_source

    clock, policy, registry = SystemClock(), build_policy(config), build_registry(config)
    path = model_file(config.model.path)
    state = StateFolder(state_folder(config))
    try:
        learning = config.learning
        curriculum = Curriculum(config.phases, open_source, state, learning.seed, learning.prompts_per_step)
        worker, weights, gated = _SharedWorker(), MlxWeights(path), config.gate.enabled is not False
        trainer = Trainer(config, path, lambda: open_learner(config, path, worker.get(), weights))
        address = coordinator_address(config, state.folder)
        parts = AgentParts(
            state=state,
            curriculum=curriculum,
            open_backend=lambda: open_backend(config, path, worker.get(), weights, serves_only=gated),
            open_learner=trainer.open,
            client=guarded_client(config, registry, address, state, clock),
            coordinator=build_embedded(config, state.folder, sink, clock),
            coordinator_name=config.coordinator.address or "embedded",
            verifier=build_verifier(config),
            policy=policy,
            sink=sink,
            clock=clock,
            failpoint=failpoint_from(os.environ),
            release=worker.close,
            open_rollouts=lambda serving: open_rollouts(config, path, worker.get(), weights, serving),
            sound=sound_adapter,
            step_measure=trainer.step_measure,
            own_use=build_own_use(config, state, curriculum, sink, clock) if lives_here else None,
            conditions=build_conditions(config, clock) if lives_here else None,
        )
        return parts, with_hint_cut(agent_settings(config, state.run_id), registry)
    except BaseException:
        state.close()
        raise


def build_own_use(config: AgentConfig, state: StateFolder, curriculum: Curriculum, sink: EventSink, clock: Clock) -> OwnUse:
    """What is learned beside the phases."""
    from edge.agent.events import Notice
    from edge.agent.own_use import OwnUse, OwnUseRules
    from edge.agent.watched import WatchedFolder

    use, learning = config.use, config.learning
    rules = OwnUseRules(use.feedback, use.agreement, use.share, use.passes, use.target_rate)
    folder = Path(use.tasks_folder).expanduser() if use.tasks_folder else None
    watched = WatchedFolder(folder, lambda text: sink.emit(Notice(text, clock.now()))) if folder else None
    return OwnUse(state, rules, watched, learning.seed, learning.prompts_per_step, curriculum.rate_of)


def build_conditions(config: AgentConfig, clock: Clock) -> LearningConditions:
    """When learning may use this machine."""
    from edge.agent.conditions import ConditionRules, MachineConditions
    from edge.agent.machine import MachineProbe

    return MachineConditions(ConditionRules(**config.learning.when.model_dump()), MachineProbe(clock))


async def evaluate(config: AgentConfig, sink: EventSink, plan: EvalPlan) -> EvalOutcome:
    """Measure a model or adapter on test splits. Raises UsageError, TaskFileError, AdapterError, StateError, ConfigError."""
    from edge.agent.evaluate import EvalRoles
    from edge.agent.evaluation.cloud import ReplayedAnswers
    from edge.agent.evaluation.plan import EvalRun
    from edge.core.clock import SystemClock
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


def build_policy(config: AgentConfig) -> OffloadPolicy:
    """Who decides that a response is handed to the cloud. Raises UsageError and ModelFileError for a router that cannot be run."""
    from edge.routing.self_offload import SelfOffload

    routing = config.routing
    if routing.policy == "self" or routing.router is None:
        return SelfOffload()
    require_onnx("routing.policy is router")
    from edge.routing.classifier import ThresholdRouter

    path = Path(routing.router).expanduser()
    return ThresholdRouter(path, providers=config.engine.onnx_providers, threshold=routing.threshold)


def policy_name(config: AgentConfig) -> str:
    """What `build_policy` builds, for reports: "self", or a router by its file's checksum and threshold. Raises ModelFileError."""
    routing = config.routing
    if routing.policy == "self" or routing.router is None:
        return "self"
    path = Path(routing.router).expanduser()
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read ({error.strerror})", hint="train one: edge-agent router train") from error
    return f"router {digest[:16]}" + ("" if routing.threshold is None else f" above {routing.threshold}")


async def train_router(config: AgentConfig, sink: EventSink, plan: EvalPlan, rate: float, out: Path) -> RouterQuality:
    """Train a router on the local model's answers to `plan.limit` training items of each source, and write it as ONNX.

    Raises UsageError, TaskFileError, AdapterError, ModelFileError.
    """
    require_onnx("a router is an ONNX file")
    import numpy as np

    from edge.routing.calibration import calibrate
    from edge.routing.classifier import export
    from edge.routing.features import features

    examples = await _router_examples(config, sink, plan)
    rows = np.array([features(example.item, example.response) for example in examples]).reshape(len(examples), -1)
    router = calibrate(rows, np.array([example.failed for example in examples], dtype=bool), rate)
    export(router.model, router.threshold, out)
    return router.quality


async def _router_examples(config: AgentConfig, sink: EventSink, plan: EvalPlan) -> list[Example]:
    from edge.agent.evaluate import EvalRoles
    from edge.agent.evaluation.examples import examples_of
    from edge.agent.events import EvalProgress
    from edge.core.clock import SystemClock
    from edge.routing.self_offload import SelfOffload
    from edge.tasks.registry import open_source

    sources = [open_source(name) for name in plan.sources]
    items = [item for source in sources for item in islice(source.train(config.learning.seed), plan.limit)]
    path = model_file(config.model.path)
    async with AsyncExitStack() as stack:
        backend, _ = await _eval_backend(config, path, sink, SystemClock(), plan, stack)
        roles = EvalRoles(backend, build_verifier(config), SelfOffload(), None)
        settings = _eval_settings(config, "", backend.model, plan)
        return await examples_of(roles, settings, items, lambda done, of: sink.emit(EvalProgress(done, of)))


def eval_candidates(plan: EvalPlan) -> list[Candidate]:
    """The test items of all sources, weighted, each once: the plan's where it has them.

    Raises UsageError or TaskFileError for a source without any.
    """
    from edge.agent.evaluate import candidates_of, counted_once
    from edge.tasks.registry import open_source
    from edge.tasks.strata import strata_of

    if plan.candidates is not None:
        return list(plan.candidates)
    by_source: list[list[Candidate]] = []
    for name in plan.sources:
        source = open_source(name)
        if plan.per_level is None:
            found = [(item, 1.0) for item in source.test(plan.limit)]
        else:
            strata = strata_of(source, plan.per_level)
            found = [(item, stratum.weight / len(stratum.items)) for stratum in strata for item in stratum.items]
        if not found:
            raise TaskFileError(f"{name}: no test item", hint='give the items to be measured "split": "test"')
        by_source.append(candidates_of(found, plan.max_steps))
    return counted_once(by_source)


def _eval_settings(config: AgentConfig, run_id: str, model: ModelInfo, plan: EvalPlan) -> RolloutSettings:
    from edge.agent.parts import with_prompt_form

    settings = with_prompt_form(with_hint_cut(agent_settings(config, run_id), build_registry(config)), model).rollout
    return replace(settings, temperature=plan.temperature, max_tokens=plan.max_tokens or settings.max_tokens)


async def _eval_backend(
    config: AgentConfig, path: Path, sink: EventSink, clock: Clock, plan: EvalPlan, stack: AsyncExitStack
) -> tuple[InferenceBackend, Path | None]:
    """The engine with the first usable adapter of the plan. Raises AdapterError when there are some and none is usable."""
    worker = _SharedWorker()
    stack.callback(worker.close)
    backend = await open_backend(config, path, worker.get())
    stack.push_async_callback(backend.aclose)
    return backend, await _use_first_usable(backend, plan.adapters, sink, clock)


async def _use_first_usable(backend: InferenceBackend, folders: Sequence[Path], sink: EventSink, clock: Clock) -> Path | None:
    from edge.agent.events import Notice
    from edge.core.types import AdapterRef

    first: AdapterError | None = None
    for folder in folders:
        try:
            await backend.swap_adapter(AdapterRef(adapter_version(folder) or _UNNUMBERED, str(folder)))
        except AdapterError as error:
            first = first or error
            continue
        if first is not None:
            sink.emit(Notice(f"{first}; measuring the one before, {folder}", clock.now()))
        return folder
    if first is not None:
        raise AdapterError(
            str(first), hint="name another one with --adapter, or measure the bare model with --adapter none"
        ) from first
    return None


async def _cloud_answers(
    config: AgentConfig,
    sink: EventSink,
    clock: Clock,
    plan: EvalPlan,
    candidates: Sequence[Candidate],
    stack: AsyncExitStack,
) -> tuple[CloudAnswers | None, str]:
    """Where cloud answers come from, and the state's run id where there is need of one (the state folder is not touched otherwise)."""
    from edge.agent.evaluation.cloud import RecordingAnswers, ReplayedAnswers

    if plan.cloud == "none":
        return None, ""
    if plan.replay is not None:
        return ReplayedAnswers(plan.replay), ""
    desk, run_id = await _eval_desk(config, sink, clock, plan, candidates, stack)
    return (desk if plan.record is None else RecordingAnswers(plan.record, desk, cloud_prompt_form(config))), run_id


async def _eval_desk(
    config: AgentConfig,
    sink: EventSink,
    clock: Clock,
    plan: EvalPlan,
    candidates: Sequence[Candidate],
    stack: AsyncExitStack,
) -> tuple[CloudDesk, str]:
    """The coordinator's desk; tells the budget first when every item is going to be asked."""
    from edge.agent.cloud import CloudDesk
    from edge.agent.evaluation.budget import announce_cost
    from edge.agent.state import StateFolder

    registry = build_registry(config)
    state = stack.enter_context(StateFolder(state_folder(config)))
    if (embedded := build_embedded(config, state.folder, sink, clock)) is not None:
        stack.push_async_callback(embedded.aclose)
        await embedded.start()
    client = guarded_client(config, registry, coordinator_address(config, state.folder), state, clock)
    stack.push_async_callback(client.aclose)
    if plan.cloud_all:
        await announce_cost(client, candidates, config.coordinator, sink, clock)
    return CloudDesk(client, config.coordinator.call_deadline_s, lambda: switched_off(config)), state.run_id


def adapter_version(folder: Path) -> int | None:
    """The version of an adapter by its folder: `step-000012/adapter`, or the one a run has left beside its summary; None: not known."""
    digits = folder.resolve().parent.name.removeprefix("step-")
    if digits.isdigit():
        return int(digits)
    try:
        version = json.loads((folder.parent / "summary.json").read_text(encoding="utf-8"))["adapter_version"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return version if isinstance(version, int) and version > 0 else None


def latest_adapters(config: AgentConfig) -> tuple[Path, ...]:
    """The folders of the adapters in the state folder, newest first; () before the first step."""
    return tuple(
        sorted(
            (state_folder(config) / "checkpoints").glob("step-*/adapter"),
            key=lambda path: adapter_version(path) or 0,
            reverse=True,
        )
    )


def serving_adapters(config: AgentConfig) -> tuple[Path, ...]:
    """The folder of the adapter that serves and of those it was trained from, newest first; () where the bare model serves.

    Raises StateError.
    """
    from edge.agent.state_reader import serving_versions

    folder = state_folder(config)
    folders = (folder / "checkpoints" / f"step-{version:06d}" / "adapter" for version in serving_versions(folder))
    return tuple(folder for folder in folders if folder.is_dir())


def engine_backend(config: AgentConfig, path: Path) -> Literal["llamacpp", "mlx", "onnx"]:
    """Which engine serves this model on this machine; MLX trains too, else torch does.

    Raises UsageError where it is not installed or cannot.
    """
    chosen, folder = config.engine.backend, path.is_dir()
    if chosen in ("llamacpp", "onnx") and folder:
        reader = "llama.cpp" if chosen == "llamacpp" else "ONNX export"
        raise UsageError(f"{path}: {reader} reads GGUF files only", hint="give a .gguf file, or set engine.backend to mlx")
    if chosen == "onnx":
        require_onnx("engine.backend is onnx")
    if (chosen == "mlx" or folder) and not mlx_installed():
        why = f"{path} is a folder" if folder else "engine.backend is mlx"
        raise UsageError(f"{why}, but MLX is not installed", hint=f"{install_extra('mlx')}, or use llama.cpp with a .gguf file")
    if chosen == "auto":
        return "mlx" if folder or (apple_silicon() and mlx_installed()) else "llamacpp"
    return chosen


def with_its_device(config: AgentConfig, path: Path) -> AgentConfig:
    """The configuration without `learning.device` where MLX trains: it is torch's, and MLX has a device of its own. Raises UsageError."""
    if config.learning.device == "auto" or engine_backend(config, path) != "mlx":
        return config
    return config.model_copy(update={"learning": config.learning.model_copy(update={"device": "auto"})})


def mlx_installed() -> bool:
    """Whether both packages of the MLX path are there; they are looked up, not imported."""
    return _installed("mlx", "mlx_lm")


def onnx_installed() -> bool:
    """Whether both packages of the ONNX path are there; they are looked up, not imported."""
    return _installed("onnx", "onnxruntime")


def require_onnx(why: str) -> None:
    """Raises UsageError that begins with `why` where ONNX is not installed."""
    if not onnx_installed():
        raise UsageError(f"{why}, but ONNX is not installed", hint=install_extra("onnx"))


def _installed(*packages: str) -> bool:
    return all(importlib.util.find_spec(package) is not None for package in packages)


def apple_silicon() -> bool:
    """Whether this is a Mac with Apple's own processor."""
    return (platform.system(), platform.machine()) == ("Darwin", "arm64")


class MlxWeights:
    """One copy of a model's weights for serving and training, loaded by whoever needs it first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._decoder: MlxDecoder | None = None

    def decoder(self) -> MlxDecoder:
        """The decoder without an adapter; take a twin of it. Raises ModelFileError."""
        from edge.models.mlx_decoder import load_mlx_decoder

        with self._lock:
            if self._decoder is None:
                self._decoder = load_mlx_decoder(self._path)
            return self._decoder


async def open_backend(
    config: AgentConfig, path: Path, worker: EngineWorker, weights: MlxWeights | None = None, *, serves_only: bool = False
) -> InferenceBackend:
    """The inference engine with the model loaded (on a thread: loading takes a while). Raises ModelFileError, UsageError.

    `serves_only`: with no more memory for rollouts than one row, because learning has an engine of its own.
    """
    rows = _SERVING_ONLY_ROWS if serves_only else config.engine.max_rows or None
    chosen = engine_backend(config, path)
    if chosen == "mlx":
        return await asyncio.to_thread(_mlx_backend, config, path, worker, weights or MlxWeights(path), rows)
    if chosen == "onnx":
        return await asyncio.to_thread(_onnx_backend, config, path, worker, rows)
    from edge.inference.llamacpp import LlamaCppBackend

    tokens, engine = config.model.context_tokens, config.engine
    options: dict[str, Any] = {"n_threads": engine.threads or None, "gpu_layers": engine.gpu_layers, "repack": engine.repack}
    return await asyncio.to_thread(LlamaCppBackend, path, worker, n_ctx=tokens, max_rows=rows, **options)


async def open_rollouts(
    config: AgentConfig, path: Path, worker: EngineWorker, weights: MlxWeights, serving: InferenceBackend
) -> InferenceBackend:
    """A second engine over the weights of the one that serves, with rows and an adapter of its own. Close it before that one."""
    rows = config.engine.max_rows or None
    if engine_backend(config, path) == "mlx":
        return await asyncio.to_thread(_mlx_backend, config, path, worker, weights, rows)
    from edge.inference.llamacpp import LlamaCppBackend
    from edge.inference.onnx_backend import OnnxBackend

    if not isinstance(serving, LlamaCppBackend | OnnxBackend):
        raise UsageError("the engine that serves has no second one over its weights")
    return await asyncio.to_thread(serving.beside, max_rows=rows)


def _mlx_backend(
    config: AgentConfig, path: Path, worker: EngineWorker, weights: MlxWeights, rows: int | None
) -> InferenceBackend:
    from edge.inference.mlx_backend import MlxBackend

    return MlxBackend(path, weights.decoder(), worker, n_ctx=config.model.context_tokens, max_rows=rows)


def _onnx_backend(config: AgentConfig, path: Path, worker: EngineWorker, rows: int | None) -> InferenceBackend:
    from edge.inference.onnx_backend import OnnxBackend

    engine = config.engine
    return OnnxBackend(
        path,
        onnx_graph(config, path),
        worker,
        providers=engine.onnx_providers,
        n_threads=engine.threads or None,
        n_ctx=config.model.context_tokens,
        max_rows=rows,
    )


def onnx_graph(config: AgentConfig, path: Path) -> Path:
    """The graph of a GGUF file: the .onnx beside it, else the state folder's, which is made where it is missing.

    Raises ModelFileError for a model that cannot be exported, StateError where the folder cannot be made.
    """
    from edge.inference.gguf_model import sha256_of
    from edge.models.onnx_decoder import export_onnx

    beside = path.with_suffix(".onnx")
    if beside.is_file():
        return beside
    folder = state_folder(config) / "onnx"
    graph = folder / f"{path.stem}-{sha256_of(path)[:16]}.onnx"
    if not graph.is_file():
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StateError(f"{folder}: cannot be made ({error.strerror})", hint="choose another with --state") from error
        export_onnx(path, graph, force=True)
    return graph


def sound_adapter(folder: Path) -> None:
    """Read an adapter folder through. Raises AdapterError with one line for what is missing, cut short or not finite."""
    from edge.inference.adapters import check_adapter

    check_adapter(folder)


async def open_learner(
    config: AgentConfig, path: Path, worker: EngineWorker, weights: MlxWeights | None = None
) -> MlxLearner | TorchLearner:
    """The learner of the engine in use on the same file (on a thread: importing torch takes seconds).

    Its memory is tried before it is handed out. Raises ModelFileError, UsageError, EdgeError when it does not fit.
    """
    if engine_backend(config, path) == "mlx":
        learner: MlxLearner | TorchLearner = await asyncio.to_thread(
            _mlx_learner, config, path, worker, weights or MlxWeights(path)
        )
    else:
        learner = await asyncio.to_thread(_torch_learner, config, path, worker)
    await probe_memory(config, path, learner)
    return learner


class Trainer:
    """Opens the learner, and tells afterwards against which floor its steps are measured: one that recomputes has a higher one."""

    def __init__(self, config: AgentConfig, path: Path, opened: Callable[[], Awaitable[MlxLearner | TorchLearner]]) -> None:
        self._config, self._path, self._opened = with_its_device(config, path), path, opened
        self._checkpointing = False

    async def open(self) -> Learner:
        """The learner. Raises what `open_learner` does."""
        learner = await self._opened()
        self._checkpointing = learner.checkpointing
        return learner

    def step_measure(self) -> StepMeasure | None:
        """None where the device was not measured."""
        return step_measure(self._config, self._path, checkpointing=self._checkpointing)


def _torch_learner(config: AgentConfig, path: Path, worker: EngineWorker) -> TorchLearner:
    from edge.training.torch_learner import TorchLearner

    spec, settings = learner_settings(config)
    seed, convert = config.learning.seed, _adapter_converter(path)
    return TorchLearner(_open_decoder(config, path), worker, convert, seed=seed, lora_spec=spec, settings=settings)


async def probe_memory(config: AgentConfig, path: Path, learner: Probing) -> None:
    """Try the longest micro-batch that this configuration allows. Raises OutOfMemory with what to lower, UsageError."""
    from edge.models.weights import available_memory
    from edge.training.probing import make_fit

    mlx, config = engine_backend(config, path) == "mlx", with_its_device(config, path)
    free = available_memory if mlx else partial(training_memory, config)
    await make_fit(learner, probe_plan(config, path, estimated=not mlx), free)


def _mlx_learner(config: AgentConfig, path: Path, worker: EngineWorker, weights: MlxWeights) -> MlxLearner:
    from edge.training.mlx_learner import MlxLearner

    spec, settings = learner_settings(config)
    seed, convert = config.learning.seed, _adapter_converter(path)
    return MlxLearner(weights.decoder().twin(), worker, convert, seed=seed, lora_spec=spec, settings=settings)


def _adapter_converter(path: Path) -> Callable[[Path, Path], None]:
    """Writes adapter.gguf for the base model; for an MLX folder there is none to write."""
    if path.is_dir():
        return lambda _peft_folder, _out: None
    from edge.inference.adapters import write_gguf_adapter

    return lambda peft_folder, out: write_gguf_adapter(peft_folder, path, out)


def _open_decoder(config: AgentConfig, path: Path) -> Decoder:
    """The decoder of the file that serves, its weights in memory or left in the file. Raises ModelFileError, UsageError."""
    from edge.models.decoder import load_decoder
    from edge.models.streamed import open_streamed

    opened = load_decoder if weights_held(config, path) == "resident" else open_streamed
    return opened(path, device=training_device(config))


def coordinator_address(config: AgentConfig, folder: Path) -> str:
    """Where the coordinator is: the configured address, or the embedded one's socket."""
    from edge.agent.embedded import socket_path

    return config.coordinator.address or f"unix:{socket_path(folder / 'coordinator')}"


def build_client(config: AgentConfig, address: str, run_id: str) -> CoordinatorClient:
    """The gRPC client. Raises UsageError for an address that cannot be read."""
    from edge.rpc.grpc_client import ClientPolicy, GrpcCoordinatorClient

    coordinator = config.coordinator
    remote_id = coordinator.device_id or f"device-{run_id}"
    return GrpcCoordinatorClient(
        address,
        device_id=remote_id if coordinator.address else "",
        allow_insecure=coordinator.allow_insecure,
        policy=ClientPolicy(control_deadline_s=coordinator.control_deadline_s),
        credentials=build_credentials(config),
    )


def build_credentials(config: AgentConfig) -> ClientCredentials:
    """What this device shows to its coordinator. Raises ConfigError for files that cannot be used."""
    from edge.core.clock import SystemClock
    from edge.rpc.credentials import ClientCredentials, ClientTls, TokenFile

    coordinator = config.coordinator
    if coordinator.address is None:  # the embedded coordinator trusts its socket
        return ClientCredentials()
    tls, token = None, None
    if coordinator.tls is not None:
        cert, key = (Path(name).expanduser() if name else None for name in (coordinator.tls.cert, coordinator.tls.key))
        tls = ClientTls(Path(coordinator.tls.ca).expanduser(), cert, key, coordinator.tls.server_name)
        tls.channel_credentials()
    if coordinator.token_file is not None:
        token = TokenFile(Path(coordinator.token_file).expanduser(), SystemClock())
        token.token()
    return ClientCredentials(tls, token)


def build_embedded(config: AgentConfig, folder: Path, sink: EventSink, clock: Clock) -> EmbeddedCoordinator | None:
    """The coordinator this agent starts for itself, or None when it has an address to go to."""
    if config.coordinator.address is not None:
        return None
    from edge.agent.embedded import EmbeddedCoordinator, embedded_settings
    from edge.rpc.health import is_serving

    address = coordinator_address(config, folder)
    return EmbeddedCoordinator(
        folder / "coordinator",
        embedded_settings(config),
        lambda: is_serving(address),
        sink,
        clock,
        start_timeout_s=config.coordinator.embedded.start_timeout_s,
    )


def agent_settings(config: AgentConfig, run_id: str) -> AgentSettings:
    """The parts of the configuration that the agent itself works with."""
    from edge.agent.draft import AnswerSettings
    from edge.agent.parts import AgentSettings
    from edge.agent.purse import DailyLimits
    from edge.agent.rollout import RolloutSettings
    from edge.dagrpo.advantages import AdvantageScale

    learning, coordinator, serve = config.learning, config.coordinator, config.serve
    cloud_form = cloud_prompt_form(config)
    rollout = RolloutSettings(
        run_id=run_id,
        seed=learning.seed,
        group_size=learning.group_size,
        temperature=learning.temperature,
        max_tokens=learning.max_tokens,
        prompt_form=local_prompt_form(config),
        cloud_prompt_form=cloud_form,
        max_output_tokens=coordinator.max_output_tokens,
        model_alias=coordinator.model_alias,
        skip_unanimous_calls=learning.unanimous_calls == "skip",
        hint_chars=coordinator.hint_chars,
    )
    answers = AnswerSettings(
        mode=config.mode,
        task=serve.task or "",
        temperature=serve.temperature,
        max_tokens=serve.max_tokens,
        max_steps=serve.max_steps,
        prompt_form=local_prompt_form(config),
        cloud_prompt_form=cloud_form,
        max_output_tokens=coordinator.max_output_tokens,
        cloud_deadline_s=serve.cloud_deadline_s,
        model_alias=coordinator.model_alias,
        switched_off=switched_off(config),
        hint_chars=coordinator.hint_chars,
    )
    scale = AdvantageScale(learning.advantage_scale)
    return AgentSettings(
        rollout,
        answers,
        learning.dual_init,
        scale,
        coordinator.call_deadline_s,
        config.budget.dial,
        gate=gate_rules(config),
        daily_limits=DailyLimits(config.budget.learning_calls_per_day, config.budget.learning_spend_per_day_uusd),
        recheck_every=config.gate.recheck_every,
    )


def gate_rules(config: AgentConfig) -> GateRules | None:
    """The promotion gate's rules, None where every step's adapter serves."""
    from edge.training.gate import GateRules

    gate = config.gate
    if gate.enabled is False:
        return None
    return GateRules(
        every=gate.every,
        anchors_per_task=gate.anchors,
        max_drop=gate.max_drop,
        rate_band=gate.rate_band,
        rate_window=gate.rate_window,
        max_refusals=gate.max_refusals,
        keep=gate.keep,
    )


def cloud_prompt_form(config: AgentConfig) -> str:
    """How the cloud LLM is spoken to: the bundled one reads bare questions, every other one a worded prompt."""
    if config.coordinator.prompt_form != "auto":
        return config.coordinator.prompt_form
    bundled = config.coordinator.address is None and config.coordinator.embedded.upstream == "bundled"
    return "compact" if bundled else "full"


def switched_off(config: AgentConfig) -> str:
    """Why the cloud may not be asked at all, or ""."""
    if os.environ.get(NO_CLOUD, "") not in ("", "0"):
        return f"the cloud is switched off by {NO_CLOUD}"
    return "mode local-only" if config.mode == "local-only" else ""


async def measure_hints(config: AgentConfig, sink: EventSink, plan: EvalPlan, hint_chars: int, margin: float) -> HintReport:
    """Whether hints of so many characters pay on the plan's test items; the verdict is kept in the state folder.

    Raises UsageError, TaskFileError, AdapterError, StateError, ConfigError.
    """
    from edge.agent.evaluate import EvalRoles
    from edge.agent.evaluation.hint_trial import HintTrial, hint_report, trial_rng
    from edge.agent.events import EvalProgress
    from edge.core.clock import SystemClock

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
        _keep_measured_hints(config, {**report.to_json(), "measured_at": clock.now()})
    return report


_HINTS_MEASURED = "hints_measured"


def _keep_measured_hints(config: AgentConfig, report: dict[str, Any]) -> None:
    from edge.agent.state import StateFolder

    with StateFolder(state_folder(config)) as state:
        state.set_meta(_HINTS_MEASURED, json.dumps(report))


def measured_hints(config: AgentConfig) -> dict[str, Any] | None:
    """The last verdict on hints, None where none was reached; read-only. Raises StateError."""
    from edge.agent.state_reader import kept_meta

    text = kept_meta(state_folder(config), _HINTS_MEASURED)
    return None if text is None else dict(json.loads(text))


def build_registry(config: AgentConfig) -> Registry:
    """What this person holds to be private. Raises ConfigError for a file of terms that cannot be used, or a country without telephones."""
    from edge.privacy.registry import Registry

    privacy = config.privacy
    return Registry(
        enabled=privacy.enabled,
        kinds=privacy.kinds,
        terms=(*privacy.terms, *_terms_of(privacy.terms_file)),
        never_send=privacy.never_send,
        region=_phone_region(privacy.region),
    )


def guarded_client(config: AgentConfig, registry: Registry, address: str, state: StateFolder, clock: Clock) -> CoordinatorClient:
    """The gRPC client behind the seam that redacts, tests and writes down what leaves. Raises UsageError, ConfigError."""
    from edge.agent.departures import GuardedClient
    from edge.agent.sent import Keep, SentLog

    keep = Keep(config.privacy.keep_days, config.privacy.keep_entries)
    return GuardedClient(build_client(config, address, state.run_id), registry, SentLog(state.database, clock, keep))


def with_hint_cut(settings: AgentSettings, registry: Registry) -> AgentSettings:
    """The settings with hints that this registry cuts."""
    from edge.privacy.cutting import cutter

    cut = cutter(registry)
    return replace(settings, rollout=replace(settings.rollout, hint_cut=cut), answers=replace(settings.answers, hint_cut=cut))


def _terms_of(file: str | None) -> list[str]:
    """The terms of a file, one a line, without comments."""
    from edge.core.privacy_rules import checked_term

    if file is None:
        return []
    path = Path(file).expanduser()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"privacy.terms_file: {path} cannot be read: {error}") from error
    terms = []
    for number, line in enumerate(lines, 1):
        if term := line.partition("#")[0].strip():
            try:
                terms.append(checked_term(term))
            except ValueError as error:
                raise ConfigError(f"{path}:{number}: {error}") from error
    return terms


def _phone_region(region: str | None) -> str | None:
    """The country whose telephone numbers are known without a prefix: the configured one, else the system's where it tells one."""
    import locale

    from phonenumbers import SUPPORTED_REGIONS

    if region is not None and region not in SUPPORTED_REGIONS:
        raise ConfigError(f"privacy.region: {region} is no country with telephone numbers", hint="write two letters, as DE")
    name = locale.setlocale(locale.LC_CTYPE) if region is None else ""
    told = region or name.partition(".")[0].partition("_")[2]
    return told if told in SUPPORTED_REGIONS else None


class _SharedWorker:
    """The one engine worker, started when the first engine needs it."""

    def __init__(self) -> None:
        self._worker: EngineWorker | None = None

    def get(self) -> EngineWorker:
        if self._worker is None:
            from edge.core.worker import EngineWorker

            self._worker = EngineWorker()
        return self._worker

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
