"""TRL's entry points: two reward functions, and the callback that moves the second one's weight.

In a step TRL calls on_step_begin, the sampler, the reward functions, the updates, on_step_end, on_log.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from transformers import TrainerCallback

from edge.core.errors import EdgeError
from tools.integrations.loop_thread import LoopThread
from tools.integrations.trl.desk import Desk, Reader, TrainerNumbers, Verdict
from tools.integrations.trl.processes import Processes

T = TypeVar("T")
COST_WEIGHT = 1
"""Place of the cost in `reward_weights` = [1, -λ]."""


class SharedSteps:
    """The desk of the main process, for all processes, which wait for it. A trainer is built with it before the desk is open."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._desk: tuple[Desk, LoopThread] | None = None
        self.step = 0

    def give(self, desk: Desk, loop: LoopThread) -> None:
        """In the main process: from now on this desk is asked, on its loop."""
        self._desk = desk, loop

    def open(self, step: int) -> float:
        """λ of the step, in every process."""
        self.step = step
        return self._of_main(lambda desk: desk.open(step))

    def verdicts(self, reader: Reader, positions: Sequence[int], ids: Sequence[Sequence[int]]) -> list[Verdict | None]:
        """The scores of this process's own responses; those of all processes are judged together."""
        own = [reader.read(position, token_ids) for position, token_ids in zip(positions, ids, strict=True)]
        everybodys = self._processes.gather(own)
        verdicts = self._of_main(lambda desk: desk.verdicts(self.step, everybodys))
        first = self._processes.index * len(own)
        return verdicts[first : first + len(own)]

    def close(self, step: int) -> None:
        """Report the step."""
        self._of_main(lambda desk: desk.close(step))

    def write_down(self, step: int, numbers: TrainerNumbers) -> None:
        """Store the step's result."""
        self._of_main(lambda desk: desk.write_down(step, numbers))

    def _of_main(self, ask: Callable[[Desk], Coroutine[Any, Any, T]]) -> T:
        def asked() -> T:
            if self._desk is None:
                raise EdgeError("no coordinator is open in this process")
            desk, loop = self._desk
            return loop.run(ask(desk))

        return self._processes.from_main(asked)


class GroupRewards:
    """Both reward functions over one scoring: the first call scores the step's responses, the second reuses the scores.

    None for a response that leaves its group: where all functions return it, TRL leaves the response out of the mean and gives it no
    advantage.
    """

    def __init__(self, steps: SharedSteps, reader: Reader) -> None:
        self._steps = steps
        self.reader = reader
        self._scored: tuple[int, tuple[int, ...]] | None = None
        self._verdicts: list[Verdict | None] = []

    def task_reward(self, *, completion_ids: Sequence[Sequence[int]], position: Sequence[int], **_: Any) -> list[float | None]:
        """r of the composed responses."""
        verdicts = self._of(position, completion_ids)
        return [None if one is None else one.reward * one.weight for one in verdicts]

    def help_cost(self, *, completion_ids: Sequence[Sequence[int]], position: Sequence[int], **_: Any) -> list[float | None]:
        """c: 1 for a response that validly asks for help."""
        verdicts = self._of(position, completion_ids)
        return [None if one is None else one.cost * one.weight for one in verdicts]

    def _of(self, position: Sequence[int], ids: Sequence[Sequence[int]]) -> list[Verdict | None]:
        """A step generates once, so its number and places name its responses."""
        key = (self._steps.step, tuple(position))
        if key != self._scored:
            self._verdicts, self._scored = self._steps.verdicts(self.reader, position, ids), key
        return self._verdicts


class DualCallback(TrainerCallback):
    """Opens each step and sets the weight of the cost to -λ, reports it after the update, and records TRL's log of it."""

    def __init__(self, steps: SharedSteps, factor: float) -> None:
        """`factor`: from TRL's loss and gradient to the paper's, see `trainer.paper_scale`."""
        self._steps = steps
        self._factor = factor
        self._weights: Any = None
        self._closed = 0

    def move(self, weights: Any) -> None:
        """Whose second entry is moved: the trainer's `reward_weights`, a tensor."""
        self._weights = weights

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """λ for the whole step."""
        if self._weights is None:
            raise EdgeError("the callback moves no weights; call move(trainer.reward_weights)")
        self._weights[COST_WEIGHT] = -self._steps.open(state.global_step + 1)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The update is done; `global_step` counts it."""
        self._steps.close(state.global_step)
        self._closed = state.global_step

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
        """TRL logs once a step, before it writes a checkpoint; the summary at the end belongs to no step."""
        if self._closed:
            step, self._closed = self._closed, 0
            if not getattr(args, "fp16", False):  # there the scaler leaves such an update out
                _require_finite(step, logs or {})
            self._steps.write_down(step, numbers_of(logs or {}, self._factor))


def numbers_of(logs: Mapping[str, Any], factor: float) -> TrainerNumbers:
    """TRL's logged numbers of an update, in the paper's scale."""
    return TrainerNumbers(
        loss=_number(logs, "loss") * factor,
        grad_norm=_number(logs, "grad_norm") * factor,
        entropy=_number(logs, "entropy"),
        clipped_share=_number(logs, "clip_ratio/region_mean"),
        learning_rate=_number(logs, "learning_rate"),
        sampler_gap=_number(logs, "sampling/sampling_logp_difference/mean"),
    )


def _require_finite(step: int, logs: Mapping[str, Any]) -> None:
    """Raises EdgeError before the checkpoint is written: this step's weights are no numbers any more, those of the last checkpoint are."""
    norm = float(logs.get("grad_norm") or 0.0)
    if not math.isfinite(norm):
        raise EdgeError(
            f"step {step}: the gradient's norm is {norm}, and so no weight is a number any more",
            hint="the same command goes on from the last checkpoint; if it comes again, begin another folder with a lower learning rate",
        )


def _number(logs: Mapping[str, Any], key: str) -> float:
    """0 where TRL reported nothing, or nothing finite."""
    value = logs.get(key)
    number = float(value) if value is not None else 0.0
    return number if abs(number) < float("inf") else 0.0
