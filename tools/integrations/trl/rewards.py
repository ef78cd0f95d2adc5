"""TRL's entry points: two reward functions, and the callback that moves the second one's weight.

In a step TRL calls on_step_begin, the sampler, the reward functions, the updates, on_step_end, on_log.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from transformers import TrainerCallback

from edge.core.errors import EdgeError
from edge.training.learner import LearnerReport
from tools.integrations.loop_thread import LoopThread
from tools.integrations.trl.processes import TrainingProcesses
from tools.integrations.trl.steps import ResponseReader, ResponseVerdict, TrlSteps, report_of

T = TypeVar("T")
COST_WEIGHT = 1
"""Place of the cost in `reward_weights` = [1, -λ]."""


class SharedSteps:
    """The main process's steps, for all processes, which wait for them. A trainer is built with it before the coordinator is open."""

    def __init__(self, processes: TrainingProcesses) -> None:
        self._processes = processes
        self._main: tuple[TrlSteps, LoopThread] | None = None

    def give(self, steps: TrlSteps, loop: LoopThread) -> None:
        """In the main process: from now on these are asked, on their loop."""
        self._main = steps, loop

    def open(self, step: int) -> float:
        """λ of the step, in every process."""
        return self._of_main(lambda steps: steps.open(step))

    def score(
        self, reader: ResponseReader, positions: Sequence[int], ids: Sequence[Sequence[int]]
    ) -> list[ResponseVerdict | None]:
        """The scores of this process's own responses; those of all processes are judged together."""
        own = [(position, reader.read(token_ids)) for position, token_ids in zip(positions, ids, strict=True)]
        everybodys = self._processes.gather(own)
        verdicts = self._of_main(lambda steps: steps.score(everybodys))
        first = self._processes.index * len(own)
        return verdicts[first : first + len(own)]

    def close(self, update: LearnerReport) -> None:
        """Report the step and store its result."""
        self._of_main(lambda steps: steps.close(update))

    def _of_main(self, ask: Callable[[TrlSteps], Coroutine[Any, Any, T]]) -> T:
        def asked() -> T:
            if self._main is None:
                raise EdgeError("no coordinator is open in this process")
            steps, loop = self._main
            return loop.run(ask(steps))

        return self._processes.from_main(asked)


class GroupRewards:
    """Both reward functions over one scoring: the first call scores the step's responses, the second reuses the scores.

    None for a response that leaves its group: where all functions return it, TRL leaves the response out of the mean and gives it no
    advantage.
    """

    def __init__(self, steps: SharedSteps, reader: ResponseReader) -> None:
        self._steps = steps
        self.reader = reader
        self._scored: tuple[int, ...] = ()
        self._verdicts: list[ResponseVerdict | None] = []

    def task_reward(self, *, completion_ids: Sequence[Sequence[int]], position: Sequence[int], **_: Any) -> list[float | None]:
        """r of the composed responses."""
        return [None if one is None else one.reward * one.weight for one in self._of(position, completion_ids)]

    def help_cost(self, *, completion_ids: Sequence[Sequence[int]], position: Sequence[int], **_: Any) -> list[float | None]:
        """c: 1 for a response that validly asks for help."""
        return [None if one is None else one.cost * one.weight for one in self._of(position, completion_ids)]

    def _of(self, position: Sequence[int], ids: Sequence[Sequence[int]]) -> list[ResponseVerdict | None]:
        """A prompt's place in the run belongs to one step, which generates once, so the places name its responses."""
        if tuple(position) != self._scored:
            self._verdicts, self._scored = self._steps.score(self.reader, position, ids), tuple(position)
        return self._verdicts


class DualCallback(TrainerCallback):
    """Opens each step and sets the weight of the cost to -λ; closes it when TRL logs it, after the update and before a checkpoint."""

    def __init__(self, steps: SharedSteps, factor: float, weights: Any) -> None:
        """`factor`: from TRL's loss and gradient to the paper's, see `trainer.paper_scale`. `weights`: the trainer's `reward_weights`, a
        tensor, whose second entry is moved."""
        self._steps = steps
        self._factor = factor
        self._weights = weights
        self._updated = 0

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """λ for the whole step."""
        self._weights[COST_WEIGHT] = -self._steps.open(state.global_step + 1)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The update is done; `global_step` counts it."""
        self._updated = state.global_step

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
        """TRL logs once a step; the summary at the end belongs to no step."""
        step, self._updated = self._updated, 0
        if not step:
            return
        norm = float((logs or {}).get("grad_norm") or 0.0)
        if not math.isfinite(norm):  # this step's weights are no numbers any more, those of the last checkpoint are
            raise EdgeError(
                f"step {step}: the gradient's norm is {norm}, and so no weight is a number any more",
                hint="the same command goes on from the last checkpoint; if it comes again, lower the learning rate in another folder",
            )
        self._steps.close(report_of(logs or {}, self._factor))
