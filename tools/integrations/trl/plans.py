"""The prompts of each step: those of `edge-agent learn` with the same phases and seed, step for step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from edge.config.schema import AgentConfig
from edge.core.errors import TaskFileError
from edge.core.formatting import counted
from edge.core.types import TaskItem
from edge.dagrpo.prompts import prompt_messages
from edge.learning.curriculum import StepPlan
from edge.tasks.source import TaskSource


class _Stream:
    """One source's training stream, read on by every phase that names it. `label`: the task of its first item, which names its λ."""

    def __init__(self, source: TaskSource, seed: int, fits: Callable[[TaskItem], bool]) -> None:
        self._name, self._items, self._fits = source.name, source.train(seed, 0), fits
        self.read = self.passed_over = 0
        first = next(iter(source.train(seed, 0)), None)
        self.label = "" if first is None else first.task

    def take(self, count: int) -> tuple[TaskItem, ...]:
        """The next items that fit. Raises TaskFileError where the stream ends, or nothing fits."""
        taken = tuple(islice(self._fitting(), count))
        if len(taken) < count:
            raise TaskFileError(f"{self._name}: the training stream ended after {counted(self.read, 'item')}")
        return taken

    def _fitting(self) -> Iterator[TaskItem]:
        for item in self._items:
            self.read += 1
            if self._fits(item):
                yield item
                continue
            self.passed_over += 1
            if self.passed_over == self.read >= 1000:
                raise TaskFileError(f"{self._name}: no prompt of the first {self.read} fits", hint="raise trainer.prompt_tokens")


def curriculum(
    config: AgentConfig, open_source: Callable[[str], TaskSource], fits: Callable[[TaskItem], bool]
) -> tuple[StepPlan, ...]:
    """The whole run's steps. Raises TaskFileError and UsageError for sources that cannot be read."""
    learning = config.learning
    streams = {phase.source: _Stream(open_source(phase.source), learning.seed, fits) for phase in config.phases}
    planned, steps = sum(phase.steps or 0 for phase in config.phases), list[StepPlan]()
    for number, phase in enumerate(config.phases):
        stream = streams[phase.source]
        for phase_step in range(1, (phase.steps or 0) + 1):
            items = stream.take(learning.prompts_per_step)
            plan = StepPlan(
                step=len(steps) + 1,
                steps_planned=planned,
                phase=number,
                phase_step=phase_step,
                source=phase.source,
                task=phase.task or stream.label,
                target_rate=phase.target_rate,
                items=items,
                cursor_seed=learning.seed,
                cursor_after=stream.read,
                ends_phase=phase_step == phase.steps,
            )
            steps.append(plan)
    return tuple(steps)


def columns(items: Sequence[TaskItem], prompt_form: str) -> dict[str, list[object]]:
    """TRL's data set: each prompt as messages, and its place in the run."""
    return {
        "prompt": [messages(item, prompt_form) for item in items],
        "position": list(range(len(items))),
    }


def messages(item: TaskItem, prompt_form: str) -> list[dict[str, str]]:
    """A prompt as TRL and chat templates have it."""
    return [{"role": message.role, "content": message.content} for message in prompt_messages(item, prompt_form)]
