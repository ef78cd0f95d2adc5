"""Saying why steps are slow where other programs keep the processors busy. Knows steps' events and one reading of the machine; knows
nothing of sensors or of how steps are made.

Threads that share one product wait for each other at its end. Where another program has the core of one of them all wait for it, and a
step takes ten times as long and more; a single thread waits for nobody.
"""

from __future__ import annotations

from collections.abc import Sequence

from edge.agent.conditions import Probe
from edge.agent.events import LearningResumed, Notice, RunStarted, StepFinished, StepProgress
from edge.core.clock import Clock
from edge.core.events import Event, EventSink

SLOW_S = 10.0
"""A step that takes as long is worth a word."""
CROWDED = 0.25
"""Share of the processors that other programs use, from which threads wait for each other."""


def thread_settings(engine_threads: int, torch_threads: int, cores: int) -> tuple[str, ...]:
    """The settings that would help where other programs have the processors: those by which several threads compute (0: all `cores`)."""
    threads = {"engine.threads": engine_threads or cores, "learning.torch_threads": torch_threads or cores}
    return tuple(f"{name}=1" for name, count in threads.items() if count > 1)


def crowded_line(other_load: float, settings: Sequence[str]) -> str:
    """What is in the way and what helps."""
    sets = " ".join(f"--set {one}" for one in settings)
    why = "and threads that wait for each other get many times slower"
    return f"other programs use {100 * other_load:.0f} % of the processors, {why}: try {sets}"


class CrowdWatch:
    """Hands events on, and says once in a run that a step is slow because of other programs."""

    def __init__(self, inner: EventSink, probe: Probe, clock: Clock, settings: Sequence[str]) -> None:
        """`settings`: what would help, see `thread_settings`; nothing is said without any."""
        self._inner = inner
        self._probe = probe
        self._clock = clock
        self._settings = tuple(settings)
        self._since: float | None = None

    def emit(self, event: Event) -> None:
        """Hand one event on, and look at the machine where a step took long."""
        self._inner.emit(event)
        if isinstance(event, (StepProgress, StepFinished)) and self._is_slow():
            self._look()
        if isinstance(event, (RunStarted, LearningResumed, StepFinished)):
            self._begin()

    def _begin(self) -> None:
        """The load is read from here on."""
        if self._settings:
            self._probe.read()
            self._since = self._clock.monotonic()

    def _is_slow(self) -> bool:
        return self._since is not None and self._clock.monotonic() - self._since >= SLOW_S

    def _look(self) -> None:
        load = self._probe.read().other_load
        self._since = self._clock.monotonic()
        if load is not None and load >= CROWDED:
            self._inner.emit(Notice("this step is slow: " + crowded_line(load, self._settings), self._clock.now()))
            self._settings, self._since = (), None
