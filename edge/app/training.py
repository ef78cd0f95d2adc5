"""Opening the learner of the engine in use, its memory tried."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from edge.app.engines import choose_engine, with_its_device
from edge.app.openers import SharedWeights
from edge.config.schema import AgentConfig
from edge.core.plugins import load
from edge.sizing import probe_plan, step_measure, training_memory

if TYPE_CHECKING:
    from edge.core.worker import EngineWorker
    from edge.training.floor import StepMeasure
    from edge.training.learner import Learner, Probing
    from edge.training.lora_learner import LoraLearner


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

    The estimate is made for torch: for another learner it only says what is certain to fit.
    """
    from edge.models.weights import available_memory
    from edge.training.memory import make_fit

    in_torch, config = choose_engine(config, path).trains_in_torch, with_its_device(config, path)
    free = partial(training_memory, config) if in_torch else available_memory
    await make_fit(learner, probe_plan(config, path, estimated=in_torch), free)
