"""What people may ask of the cloud, task by task: pause, dials and quotas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edge.budget.dial import Dials, DialSnapshot
from edge.budget.quota import Quota, Quotas
from edge.cloud.client import LearnedTasks
from edge.cloud.switch import CloudSwitch
from edge.cloud.unconfirmed import AnswerCalls
from edge.core.clock import Clock
from edge.core.events import EventSink
from edge.state.events import Notice


@dataclass(frozen=True, slots=True)
class CloudAccess:
    """What decides whether the cloud is asked for people, and counts it: switch, dials, quotas, unconfirmed calls."""

    switch: CloudSwitch
    dials: Dials
    quotas: Quotas
    unconfirmed: AnswerCalls


class TaskBudgets:
    """The budgets of a running agent. `serving_task` is the label whose budget people's questions use."""

    def __init__(
        self,
        access: CloudAccess,
        serving_task: str,
        learned: LearnedTasks,
        adapter_version: Callable[[], int],
        sink: EventSink,
        clock: Clock,
    ) -> None:
        """`adapter_version`: of the adapter that serves now, to which what a dial has seen belongs."""
        self.serving_task = serving_task
        self.switch = access.switch
        self.unconfirmed = access.unconfirmed
        self._dials = access.dials
        self._quotas = access.quotas
        self._learned = learned
        self._adapter_version = adapter_version
        self._sink = sink
        self._clock = clock

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that have a budget here: the one that serving uses, those that are or were learned, and those with a dial."""
        return tuple(dict.fromkeys([self.serving_task, *self._learned.tasks, *self._quotas.learned, *self._dials.tasks]))

    def quota(self, task: str | None = None) -> Quota:
        """What a task (None: the one that serving uses) may still ask, from what is known; asks nobody."""
        return self._quotas.now(task or self.serving_task, self._adapter_version())

    def dial(self, task: str | None = None) -> DialSnapshot:
        """The dial of a task (None: the one that serving uses)."""
        return self._dials.of(task or self.serving_task).snapshot(self._adapter_version())

    @property
    def default_dial_rate(self) -> float | None:
        """The dial's τ of tasks without one of their own."""
        return self._dials.default_rate

    def set_dial(self, rate: float | None, task: str | None = None) -> None:
        """The share of served questions that may ask, from the next one on (None: the model decides alone), of one task or of every one.

        Kept over restarts. Raises UsageError outside [0, 1].
        """
        self._dials.set(rate, task)

    def forget(self, task: str) -> None:
        """Strike out the dial of a label and what is known of its budget; what it spent stays spent. Raises NotFound."""
        self._dials.forget(task)

    def is_known(self, task: str) -> bool:
        """Whether a label is in use: serving uses it, it is learned, or its dial was set."""
        named = task in (self.serving_task, *self._learned.tasks) or self._quotas.is_learned(task)
        return named or (task in self._dials.tasks and self._dials.of(task).own)

    def pause_cloud(self, paused: bool) -> None:
        """Ask no cloud, for people or for learning, until it is resumed. Kept over restarts."""
        now = self._clock.now()
        failure = self.switch.pause(paused, now)
        text = "the cloud is paused; answers come from this device" if paused else "the cloud may be asked again"
        self._sink.emit(Notice(f"{text}; only until this agent stops: {failure}" if failure else text, now))
