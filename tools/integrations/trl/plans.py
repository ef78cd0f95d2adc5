"""The prompts of each step: those of `edge-agent learn` with the same phases and seed, step for step, without those that do not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from edge.config.schema import AgentConfig
from edge.core.errors import TaskFileError
from edge.core.types import TaskItem
from edge.dagrpo.prompts import prompt_messages
from edge.learning.curriculum import Curriculum, StepPlan
from edge.state.rows import Position
from edge.tasks.source import TaskSource

_READ_FOR_ONE = 1000


class _Fitting:
    """A source without the training items that do not fit; positions count those that do."""

    def __init__(self, source: TaskSource, fits: Callable[[TaskItem], bool]) -> None:
        self.name, self._source, self._fits = source.name, source, fits

    def train(self, seed: int, start: int = 0) -> Iterator[TaskItem]:
        """Raises TaskFileError where nothing fits."""
        return islice(self._fitting(seed), start, None)

    def test(self, limit: int) -> Sequence[TaskItem]:
        """The held-out items, which no step takes."""
        return self._source.test(limit)

    def _fitting(self, seed: int) -> Iterator[TaskItem]:
        found = False
        for read, item in enumerate(self._source.train(seed, 0), 1):
            if self._fits(item):
                found = True
                yield item
            elif not found and read == _READ_FOR_ONE:
                raise TaskFileError(f"{self.name}: no prompt of the first {read} fits", hint="raise trainer.prompt_tokens")


class _InMemory:
    """The Standing of a run that is planned ahead."""

    def __init__(self) -> None:
        self._position, self._cursors = Position(), dict[str, int]()

    def position(self) -> Position:
        return self._position

    def cursor(self, source: str, seed: int) -> int:
        return self._cursors.get(source, 0)

    def move_behind(self, plan: StepPlan) -> None:
        """Go on as if the step were committed."""
        self._position, self._cursors[plan.source] = Position(plan.step, plan.phase, plan.phase_step), plan.cursor_after


def step_plans(
    config: AgentConfig, open_source: Callable[[str], TaskSource], fits: Callable[[TaskItem], bool]
) -> tuple[StepPlan, ...]:
    """The whole run's steps. Raises TaskFileError and UsageError for sources that cannot be read."""
    learning, standing = config.learning, _InMemory()
    curriculum = Curriculum(
        config.phases,
        open_source,
        standing,
        learning.seed,
        learning.prompts_per_step,
        narrowed=lambda source: _Fitting(source, fits),
    )
    plans = list[StepPlan]()
    while (plan := curriculum.next_step()) is not None:
        standing.move_behind(plan)
        plans.append(plan)
    return tuple(plans)


def columns(items: Sequence[TaskItem], prompt_form: str) -> dict[str, list[object]]:
    """TRL's data set: each prompt as messages, and its place in the run."""
    return {
        "prompt": [messages(item, prompt_form) for item in items],
        "position": list(range(len(items))),
    }


def messages(item: TaskItem, prompt_form: str) -> list[dict[str, str]]:
    """A prompt as TRL and chat templates have it."""
    return [{"role": message.role, "content": message.content} for message in prompt_messages(item, prompt_form)]
