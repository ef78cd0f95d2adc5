"""Which engine serves a model here, opening it and its learner; the engines themselves are the table edge/core/engines.py."""

from __future__ import annotations

import asyncio
import importlib.util
import platform
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from edge.app.openers import SharedWeights
from edge.config.schema import AgentConfig
from edge.core.engines import ENGINES, EngineInfo
from edge.core.errors import UsageError
from edge.core.gguf_header import read_header
from edge.core.install import install_extra
from edge.core.plugins import load
from edge.sizing import probe_plan, step_measure, training_memory

if TYPE_CHECKING:
    from edge.core.worker import EngineWorker
    from edge.inference.backend import InferenceBackend
    from edge.training.floor import StepMeasure
    from edge.training.learner import Learner, Probing
    from edge.training.lora_learner import LoraLearner


_SERVING_ONLY_ROWS = 1


def choose_engine(config: AgentConfig, path: Path) -> EngineInfo:
    """Which engine serves this model on this machine. Raises UsageError where it is not installed or cannot read the model, and
    ModelFileError for a damaged one."""
    folder = path.is_dir()
    engine = _best_engine(path) if config.engine.backend == "auto" else ENGINES[config.engine.backend]
    if folder and not engine.reads_folders:
        readers = " or ".join(each.name for each in ENGINES.values() if each.reads_folders)
        raise UsageError(
            f"{path}: {engine.title} reads GGUF files only", hint=f"give a .gguf file, or set engine.backend to {readers}"
        )
    if not installed(engine):
        why = f"{path} is a folder" if folder else f"engine.backend is {engine.name}"
        hint = f"{install_extra(engine.extra)}, or use llama.cpp with a .gguf file"
        raise UsageError(f"{why}, but {engine.title} is not installed", hint=hint)
    return engine


def _best_engine(path: Path) -> EngineInfo:
    """What `auto` means: the installed engine that is made for this machine and computes the model, else the one for any."""
    folder = path.is_dir()
    readers = [engine for engine in ENGINES.values() if engine.auto != "never" and (engine.reads_folders or not folder)]
    usable = [engine for engine in readers if installed(engine) and (engine.auto == "anywhere" or folder or apple_silicon())]
    if not folder and path.is_file() and any(engine.architectures for engine in usable):
        architecture = read_header(path).architecture
        usable = [engine for engine in usable if not engine.architectures or architecture in engine.architectures]
    return min(usable or readers, key=lambda engine: engine.auto == "anywhere")


def with_its_device(config: AgentConfig, path: Path) -> AgentConfig:
    """The configuration without `learning.device`, which is torch's, where another learner trains. Raises UsageError."""
    if config.learning.device == "auto" or choose_engine(config, path).trains_in_torch:
        return config
    return config.model_copy(update={"learning": config.learning.model_copy(update={"device": "auto"})})


def installed(engine: EngineInfo) -> bool:
    """Whether the packages that an engine needs are there; they are looked up, not imported."""
    return all(importlib.util.find_spec(package) is not None for package in engine.packages)


def require_onnx(why: str) -> None:
    """Raises UsageError that begins with `why` where ONNX is not installed."""
    if not installed(ENGINES["onnx"]):
        raise UsageError(f"{why}, but ONNX is not installed", hint=install_extra("onnx"))


def apple_silicon() -> bool:
    """Whether this is a Mac with Apple's own processor."""
    return (platform.system(), platform.machine()) == ("Darwin", "arm64")


async def open_backend(
    config: AgentConfig, path: Path, worker: EngineWorker, weights: SharedWeights | None = None, *, serves_only: bool = False
) -> InferenceBackend:
    """The inference engine with the model loaded (on a thread: loading takes a while). Raises ModelFileError, UsageError.

    `serves_only`: with no more memory for rollouts than one row, because learning has an engine of its own.
    """
    rows = _SERVING_ONLY_ROWS if serves_only else config.engine.max_rows or None
    opener = load(choose_engine(config, path).open_backend)
    opened = await asyncio.to_thread(opener, config, path, worker, weights or SharedWeights(path), rows)
    return cast("InferenceBackend", opened)


async def open_rollouts(config: AgentConfig, serving: InferenceBackend) -> InferenceBackend:
    """A second engine over the weights of the one that serves, with rows and an adapter of its own. Close it before that one."""
    from edge.inference.batched import BatchedBackend

    if not isinstance(serving, BatchedBackend):
        raise UsageError("the engine that serves has no second one over its weights")
    return await asyncio.to_thread(serving.sharing_weights, max_rows=config.engine.max_rows or None)


def sound_adapter(folder: Path) -> None:
    """Read an adapter folder through. Raises AdapterError with one line for what is missing, cut short or not finite."""
    from edge.inference.adapters import check_adapter

    check_adapter(folder)


class SharedWorker:
    """The one engine worker, started when the first engine needs it."""

    def __init__(self) -> None:
        self._worker: EngineWorker | None = None

    def get(self) -> EngineWorker:
        """The worker; the first call starts it."""
        if self._worker is None:
            from edge.core.worker import EngineWorker

            self._worker = EngineWorker()
        return self._worker

    def close(self) -> None:
        """Stop it where it was started."""
        if self._worker is not None:
            self._worker.close()


async def open_learner(
    config: AgentConfig, path: Path, worker: EngineWorker, weights: SharedWeights | None = None
) -> LoraLearner:
    """The learner of the engine in use on the same file (on a thread: importing torch takes seconds).

    Its memory is tried before it is handed out. Raises ModelFileError, UsageError, EdgeError when it does not fit.
    """
    opener = load(choose_engine(config, path).open_learner)
    opened = await asyncio.to_thread(opener, config, path, worker, weights or SharedWeights(path))
    learner = cast("LoraLearner", opened)
    await probe_memory(config, path, learner)
    return learner


class Trainer:
    """Opens the learner, and gives afterwards the floor that its steps are measured against: one that recomputes has a higher one."""

    def __init__(self, config: AgentConfig, path: Path, opened: Callable[[], Awaitable[LoraLearner]]) -> None:
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


async def probe_memory(config: AgentConfig, path: Path, learner: Probing) -> None:
    """Try the longest micro-batch that this configuration allows. Raises OutOfMemory with what to lower, UsageError.

    The estimate is made for torch: for another learner it is only what is certain to fit.
    """
    from edge.models.weights import available_memory
    from edge.training.memory import make_fit

    in_torch, config = choose_engine(config, path).trains_in_torch, with_its_device(config, path)
    free = partial(training_memory, config) if in_torch else available_memory
    await make_fit(learner, probe_plan(config, path, estimated=in_torch), free)
