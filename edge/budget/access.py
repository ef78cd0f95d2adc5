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
    serving_task: str
    """The label whose budget people's questions use."""
    learned: LearnedTasks
    adapter_version: Callable[[], int]
    """Of the adapter that serves now, to which what a dial has seen belongs."""
    sink: EventSink
    clock: Clock

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that have a budget here: the one that serving uses, those that are or were learned, and those with a dial."""
        return tuple(dict.fromkeys([self.serving_task, *self.learned.tasks, *self.quotas.learned, *self.dials.tasks]))

    def quota(self, task: str | None = None) -> Quota:
        """What a task (None: the one that serving uses) may still ask, from what is known; asks nobody."""
        return self.quotas.now(task or self.serving_task, self.adapter_version())

    def dial(self, task: str | None = None) -> DialSnapshot:
        """The dial of a task (None: the one that serving uses)."""
        return self.dials.of(task or self.serving_task).snapshot(self.adapter_version())

    def is_known(self, task: str) -> bool:
        """Whether a label is in use: serving uses it, it is learned, or its dial was set."""
        named = task in (self.serving_task, *self.learned.tasks) or self.quotas.is_learned(task)
        return named or (task in self.dials.tasks and self.dials.of(task).own)

    def pause_cloud(self, paused: bool) -> None:
        """Ask no cloud, for people or for learning, until it is resumed. Kept over restarts."""
        now = self.clock.now()
        failure = self.switch.pause(paused, now)
        text = "the cloud is paused; answers come from this device" if paused else "the cloud may be asked again"
        self.sink.emit(Notice(f"{text}; only until this agent stops: {failure}" if failure else text, now))
