"""Opening the learner of the engine in use, its memory tried. Knows the learners; knows nothing of agents."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from edge.app.engines import MlxWeights, engine_backend, with_its_device
from edge.config.schema import AgentConfig
from edge.sizing import learner_settings, probe_plan, step_measure, training_device, training_memory, weights_held

if TYPE_CHECKING:
    from edge.core.worker import EngineWorker
    from edge.models.decoder import Decoder
    from edge.training.floor import StepMeasure
    from edge.training.learner import Learner, Probing
    from edge.training.mlx_learner import MlxLearner
    from edge.training.torch_learner import TorchLearner


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
