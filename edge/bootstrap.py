"""The composition root of the agent: the only place that names concrete classes. Heavy imports happen inside the builders."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from edge.config.schema import AgentConfig
from edge.core.errors import ModelFileError
from edge.core.events import EventSink
from edge.core.types import AnswerKind

if TYPE_CHECKING:
    from edge.agent.agent import Agent, AgentSettings
    from edge.agent.cloud import CloudDesk
    from edge.agent.embedded import EmbeddedCoordinator
    from edge.agent.evaluate import EvalReport
    from edge.agent.rollout import RolloutSettings
    from edge.agent.state import StateFolder
    from edge.core.clock import Clock
    from edge.core.worker import EngineWorker
    from edge.inference.backend import InferenceBackend
    from edge.rpc.client import CoordinatorClient
    from edge.tasks.source import TaskSource
    from edge.training.learner import Learner
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
    """The GGUF file that a model name or path stands for. Raises ModelFileError."""
    files = bundled_models()
    bundled = files / f"{name}.gguf"
    if bundled.is_file():
        return bundled
    path = Path(name).expanduser()
    if path.is_file():
        return path
    known = ", ".join(sorted(file.stem for file in files.glob("*.gguf")))
    raise ModelFileError(f"{name}: no such model file", hint=f"give a .gguf file or a bundled model: {known}")


def check_inputs(config: AgentConfig) -> None:
    """Look at task sources, model file and, for programs, the sandbox; loads and creates nothing.

    Raises UsageError, TaskFileError, ModelFileError.
    """
    from edge.tasks.registry import open_source

    sources = [open_source(phase.source) for phase in config.phases]
    model_file(config.model.path)
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
    """What judges answers. The sandbox for programs is looked for when the first program comes."""
    from edge.verifiers.by_kind import VerifierByKind
    from edge.verifiers.program import ProgramJudge, ProgramVerifier
    from edge.verifiers.sandbox.role import Limits

    limits = Limits(wall_s=config.programs.timeout_s, memory_mib=config.programs.memory_mib)
    return VerifierByKind(programs=ProgramVerifier(ProgramJudge(lambda: program_sandbox(config), limits)))


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
    from edge.verifiers.by_kind import VerifierByKind
    from edge.verifiers.math_answer import MathAnswer

    clock = SystemClock()
    path = model_file(config.model.path)
    state = StateFolder(state_folder(config))
    try:
        learning = config.learning
        curriculum = Curriculum(config.phases, open_source, state, learning.seed, learning.prompts_per_step)
        worker = _SharedWorker()
        address = coordinator_address(config, state.folder)
        parts = AgentParts(
            state=state,
            curriculum=curriculum,
            open_backend=lambda: open_backend(config, path, worker.get()),
            open_learner=lambda: open_learner(config, path, worker.get()),
            client=build_client(config, address, state.run_id),
            coordinator=build_embedded(config, state.folder, sink, clock),
            coordinator_name=config.coordinator.address or "embedded",
            verifier=VerifierByKind(math=MathAnswer(learning.answer_match)),
            policy=SelfOffload(),
            sink=sink,
            clock=clock,
            failpoint=failpoint_from(os.environ),
            release=worker.close,
        )
        return Agent(parts, agent_settings(config, state))
    except BaseException:
        state.close()
        raise


async def evaluate(
    config: AgentConfig, sink: EventSink, *, items: int, adapter_folder: Path | None, with_cloud: bool
) -> EvalReport:
    """Evaluate an adapter (None: the bare model) on the test split of the first phase's source."""
    from edge.agent.evaluate import Evaluation, with_seconds
    from edge.agent.events import EvalProgress
    from edge.core.clock import SystemClock
    from edge.routing.self_offload import SelfOffload
    from edge.tasks.registry import open_source

    clock = SystemClock()
    source = open_source(config.phases[0].source)
    test = source.test(items)
    async with _evaluation_parts(config, sink, clock, adapter_folder, with_cloud) as (backend, cloud, rollout, tag):
        evaluation = Evaluation(backend, build_verifier(config), SelfOffload(), rollout, cloud)
        began = clock.monotonic()
        report = await evaluation.run(source.name, test, tag, lambda done: sink.emit(EvalProgress(done, len(test))))
        return with_seconds(report, clock.monotonic() - began)


@asynccontextmanager
async def _evaluation_parts(
    config: AgentConfig, sink: EventSink, clock: Clock, adapter_folder: Path | None, with_cloud: bool
) -> AsyncIterator[tuple[InferenceBackend, CloudDesk | None, RolloutSettings, str]]:
    """Engine with the adapter, cloud desk, settings, and a tag for this evaluation's cloud calls; closed afterwards."""
    from edge.agent.agent import with_prompt_form
    from edge.agent.cloud import CloudDesk
    from edge.agent.state import StateFolder
    from edge.core.types import AdapterRef

    path, worker = model_file(config.model.path), _SharedWorker()
    async with AsyncExitStack() as stack:
        state = stack.enter_context(StateFolder(state_folder(config)))
        stack.callback(worker.close)
        backend = await open_backend(config, path, worker.get())
        stack.push_async_callback(backend.aclose)
        if adapter_folder is not None:
            await backend.swap_adapter(AdapterRef(adapter_version(adapter_folder), str(adapter_folder)))
        settings = with_prompt_form(agent_settings(config, state), backend.model)
        cloud = None
        if with_cloud:
            if (embedded := build_embedded(config, state.folder, sink, clock)) is not None:
                stack.push_async_callback(embedded.aclose)
                await embedded.start()
            client = build_client(config, coordinator_address(config, state.folder), state.run_id)
            stack.push_async_callback(client.aclose)
            cloud = CloudDesk(client, settings.call_deadline_s, switched_off(config))
        yield backend, cloud, settings.rollout, f"{int(clock.now() * 1000)}"


def adapter_version(folder: Path) -> int:
    """The version of an adapter by its folder `step-000012/adapter`; 1 where it tells none."""
    digits = folder.resolve().parent.name.removeprefix("step-")
    return int(digits) if digits.isdigit() else 1


def latest_adapter(config: AgentConfig) -> Path | None:
    """The folder of the newest adapter in the state folder, or None before the first step."""
    folders = sorted((state_folder(config) / "checkpoints").glob("step-*/adapter"))
    return folders[-1] if folders else None


async def open_backend(config: AgentConfig, path: Path, worker: EngineWorker) -> InferenceBackend:
    """The inference engine with the model loaded (on a thread: loading takes a while). Raises ModelFileError."""
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


async def open_learner(config: AgentConfig, path: Path, worker: EngineWorker) -> Learner:
    """The torch learner on the same GGUF file (on a thread: importing torch takes seconds). Raises ModelFileError."""
    return await asyncio.to_thread(_torch_learner, config, path, worker)


def _torch_learner(config: AgentConfig, path: Path, worker: EngineWorker) -> Learner:
    from edge.inference.adapters import write_gguf_adapter
    from edge.models.decoder import load_decoder
    from edge.training.settings import LearnerSettings, LoraSpec
    from edge.training.torch_learner import TorchLearner

    learning, adapter = config.learning, config.adapter
    return TorchLearner(
        load_decoder(path),
        worker,
        lambda peft_folder, out: write_gguf_adapter(peft_folder, path, out),
        seed=learning.seed,
        lora_spec=LoraSpec(adapter.rank, adapter.alpha, adapter.targets),
        settings=LearnerSettings(
            learning_rate=learning.learning_rate,
            weight_decay=learning.weight_decay,
            max_grad_norm=learning.max_grad_norm,
            importance_cap=learning.importance_cap,
            tokens_per_slice=learning.micro_batch_tokens,
            threads=learning.torch_threads,
        ),
    )


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


def agent_settings(config: AgentConfig, state: StateFolder) -> AgentSettings:
    """The parts of the configuration that the agent itself works with."""
    from edge.agent.agent import AgentSettings
    from edge.agent.answer import AnswerSettings
    from edge.agent.rollout import RolloutSettings
    from edge.dagrpo.advantages import AdvantageScale

    learning, coordinator, serve = config.learning, config.coordinator, config.serve
    cloud_form = cloud_prompt_form(config)
    rollout = RolloutSettings(
        run_id=state.run_id,
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
