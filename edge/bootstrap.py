"""The composition root of the agent: the only place that names concrete classes. Heavy imports happen inside the builders."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import platform
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from edge.config.schema import AgentConfig
from edge.core.errors import AdapterError, ModelFileError, TaskFileError, UsageError
from edge.core.events import EventSink
from edge.core.types import AnswerKind
from edge.sizing import learner_settings, probe_plan, step_measure, weights_held

if TYPE_CHECKING:
    from edge.agent.agent import Agent, AgentSettings
    from edge.agent.cloud import CloudDesk
    from edge.agent.embedded import EmbeddedCoordinator
    from edge.agent.evaluate import Candidate
    from edge.agent.evaluation.cloud import CloudAnswers
    from edge.agent.evaluation.plan import EvalOutcome, EvalPlan
    from edge.agent.rollout import RolloutSettings
    from edge.core.clock import Clock
    from edge.core.worker import EngineWorker
    from edge.inference.backend import InferenceBackend, ModelInfo
    from edge.models.decoder import Decoder
    from edge.models.mlx_decoder import MlxDecoder
    from edge.rpc.client import CoordinatorClient
    from edge.tasks.source import TaskSource
    from edge.training.floor import StepMeasure
    from edge.training.learner import Learner, Probing
    from edge.training.mlx_learner import MlxLearner
    from edge.training.torch_learner import TorchLearner
    from edge.verifiers.sandbox.role import Sandbox
    from edge.verifiers.verifier import Verifier

NO_CLOUD = "EDGE_AGENT_NO_CLOUD"
_LOOKED_AT = 64


def state_folder(config: AgentConfig) -> Path:
    """The state folder this configuration names, or the platform's."""
    if config.state_folder is not None:
        return Path(config.state_folder).expanduser()
    from platformdirs import user_data_path

    return user_data_path("edge-agent", appauthor=False)


def bundled_models() -> Path:
    """The folder of the models that come with the package."""
    from edge import models

    return Path(models.__file__).parent / "files"


def model_file(name: str) -> Path:
    """The GGUF file, or the MLX folder, that a model name or path stands for. Raises ModelFileError."""
    from edge.tasks.names import shown

    files = bundled_models()
    try:
        found = next(filter(_is_model, (files / f"{name}.gguf", Path(name).expanduser())), None)
    except (OSError, RuntimeError, ValueError):  # a name that no file can have, or nobody's home
        found = None
    if found is not None:
        return found
    known = ", ".join(sorted(file.stem for file in files.glob("*.gguf")))
    raise ModelFileError(f"{shown(name)}: no such model file", hint=f"give a .gguf file or a bundled model: {known}")


def _is_model(path: Path) -> bool:
    return path.is_file() or (path / "config.json").is_file()


def check_inputs(config: AgentConfig) -> None:
    """Look at task sources, model file and, for programs, the sandbox; loads and creates nothing.

    Raises UsageError, TaskFileError, ModelFileError.
    """
    from edge.tasks.registry import open_source

    sources = [open_source(phase.source) for phase in config.phases]
    engine_backend(config, model_file(config.model.path))
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


def build_agent(config: AgentConfig, sink: EventSink) -> Agent:
    """An agent, not yet started (`async with`). Raises ModelFileError, StateError, TaskFileError, UsageError."""
    from edge.agent.agent import Agent, AgentParts
    from edge.agent.curriculum import Curriculum
    from edge.agent.failpoint import failpoint_from
    from edge.agent.state import StateFolder
    from edge.core.clock import SystemClock
    from edge.routing.self_offload import SelfOffload
    from edge.tasks.registry import open_source

    clock = SystemClock()
    path = model_file(config.model.path)
    state = StateFolder(state_folder(config))
    try:
        learning = config.learning
        curriculum = Curriculum(config.phases, open_source, state, learning.seed, learning.prompts_per_step)
        worker, weights = _SharedWorker(), MlxWeights(path)
        trainer = Trainer(config, path, lambda: open_learner(config, path, worker.get(), weights))
        address = coordinator_address(config, state.folder)
        parts = AgentParts(
            state=state,
            curriculum=curriculum,
            open_backend=lambda: open_backend(config, path, worker.get(), weights),
            open_learner=trainer.open,
            client=build_client(config, address, state.run_id),
            coordinator=build_embedded(config, state.folder, sink, clock),
            coordinator_name=config.coordinator.address or "embedded",
            verifier=build_verifier(config),
            policy=SelfOffload(),
            sink=sink,
            clock=clock,
            failpoint=failpoint_from(os.environ),
            release=worker.close,
            step_measure=trainer.step_measure,
        )
        return Agent(parts, agent_settings(config, state.run_id))
    except BaseException:
        state.close()
        raise


async def evaluate(config: AgentConfig, sink: EventSink, plan: EvalPlan) -> EvalOutcome:
    """Measure a model or adapter on test splits. Raises UsageError, TaskFileError, AdapterError, StateError, ConfigError."""
    from edge.agent.evaluate import EvalRoles
    from edge.agent.evaluation.cloud import ReplayedAnswers
    from edge.agent.evaluation.plan import EvalRun
    from edge.core.clock import SystemClock
    from edge.routing.self_offload import SelfOffload
    from edge.verifiers.math_answer import both_verdicts

    clock = SystemClock()
    path, candidates = model_file(config.model.path), eval_candidates(plan)
    async with AsyncExitStack() as stack:
        cloud, run_id = await _cloud_answers(config, sink, clock, plan, candidates, stack)
        backend, adapter = await _eval_backend(config, path, sink, clock, plan, stack)
        math = both_verdicts()
        stack.callback(math.close)
        roles = EvalRoles(backend, build_verifier(config), SelfOffload(), cloud, math)
        settings = _eval_settings(config, run_id, backend.model, plan)
        if isinstance(cloud, ReplayedAnswers):
            settings = cloud.asked_as(settings)
        return await EvalRun(plan, roles, settings, adapter, sink, clock).outcome(candidates)


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
    from edge.agent.agent import with_prompt_form

    settings = with_prompt_form(agent_settings(config, run_id), model).rollout
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
            await backend.swap_adapter(AdapterRef(adapter_version(folder), str(folder)))
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

    state = stack.enter_context(StateFolder(state_folder(config)))
    if (embedded := build_embedded(config, state.folder, sink, clock)) is not None:
        stack.push_async_callback(embedded.aclose)
        await embedded.start()
    client = build_client(config, coordinator_address(config, state.folder), state.run_id)
    stack.push_async_callback(client.aclose)
    if plan.cloud_all:
        await announce_cost(client, candidates, config.coordinator, sink, clock)
    return CloudDesk(client, config.coordinator.call_deadline_s, switched_off(config)), state.run_id


def adapter_version(folder: Path) -> int:
    """The version of an adapter by its folder `step-000012/adapter`; 1 where it tells none."""
    digits = folder.resolve().parent.name.removeprefix("step-")
    return int(digits) if digits.isdigit() else 1


def latest_adapters(config: AgentConfig) -> tuple[Path, ...]:
    """The folders of the adapters in the state folder, newest first; () before the first step."""
    return tuple(sorted((state_folder(config) / "checkpoints").glob("step-*/adapter"), reverse=True))


def engine_backend(config: AgentConfig, path: Path) -> Literal["llamacpp", "mlx"]:
    """Which engine serves and trains this model on this machine. Raises UsageError where it is not installed or cannot."""
    chosen, folder, installed = config.engine.backend, path.is_dir(), mlx_installed()
    if chosen == "llamacpp" and folder:
        raise UsageError(f"{path}: llama.cpp reads GGUF files only", hint="give a .gguf file, or set engine.backend to mlx")
    if chosen == "mlx" or folder:
        if not installed:
            why = f"{path} is a folder" if folder else "engine.backend is mlx"
            raise UsageError(
                f"{why}, but MLX is not installed", hint="pip install 'edge-agent[mlx]', or use llama.cpp with a .gguf file"
            )
        return "mlx"
    return "mlx" if chosen == "auto" and apple_silicon() and installed else "llamacpp"


def mlx_installed() -> bool:
    """Whether both packages of the MLX path are there; they are looked up, not imported."""
    return all(importlib.util.find_spec(package) is not None for package in ("mlx", "mlx_lm"))


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
    config: AgentConfig, path: Path, worker: EngineWorker, weights: MlxWeights | None = None
) -> InferenceBackend:
    """The inference engine with the model loaded (on a thread: loading takes a while). Raises ModelFileError, UsageError."""
    if engine_backend(config, path) == "mlx":
        return await asyncio.to_thread(_mlx_backend, config, path, worker, weights or MlxWeights(path))
    from edge.inference.llamacpp import LlamaCppBackend

    engine = config.engine
    return await asyncio.to_thread(
        LlamaCppBackend,
        path,
        worker,
        n_threads=engine.threads or None,
        n_ctx=config.model.context_tokens,
        max_rows=engine.max_rows or None,
    )


def _mlx_backend(config: AgentConfig, path: Path, worker: EngineWorker, weights: MlxWeights) -> InferenceBackend:
    from edge.inference.mlx_backend import MlxBackend

    rows, tokens = config.engine.max_rows or None, config.model.context_tokens
    return MlxBackend(path, weights.decoder(), worker, n_ctx=tokens, max_rows=rows)


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
        self._config, self._path, self._opened = config, path, opened
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

    await make_fit(learner, probe_plan(config, path, estimated=engine_backend(config, path) == "llamacpp"), available_memory)


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
    """The decoder of the file that serves, its weights in memory or left in the file. Raises ModelFileError."""
    from edge.models.decoder import load_decoder
    from edge.models.streamed import open_streamed

    return load_decoder(path) if weights_held(config, path) == "resident" else open_streamed(path)


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
    )


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
    from edge.agent.agent import AgentSettings
    from edge.agent.answer import AnswerSettings
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
    )
    scale = AdvantageScale(learning.advantage_scale)
    return AgentSettings(rollout, answers, learning.dual_init, scale, coordinator.call_deadline_s, config.budget.dial)


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
