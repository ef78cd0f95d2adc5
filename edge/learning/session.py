"""What is being trained: a learner, and the engine that samples for it, on one version of the adapter. Knows which version they hold and
how they are brought to the head of the line; knows nothing of steps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace

from edge.core.clock import Clock
from edge.core.errors import AdapterError, StateError, UsageError
from edge.core.events import EventSink
from edge.inference.backend import InferenceBackend
from edge.learning.checkpoints import Checkpoint, Checkpoints
from edge.state.events import Notice
from edge.state.folder import StateFolder
from edge.training.learner import Learner


class TrainingSession:
    """Opened when learning begins, and closed with the agent. `version` is what the learner holds (-1: there is none yet)."""

    def __init__(
        self,
        serving: InferenceBackend,
        open_learner: Callable[[], Awaitable[Learner]],
        open_engine: Callable[[InferenceBackend], Awaitable[InferenceBackend]] | None,
        state: StateFolder,
        checkpoints: Checkpoints,
        sink: EventSink,
        clock: Clock,
        closing: AsyncExitStack,
    ) -> None:
        """`open_engine`: a second engine beside the one that serves; None: learning samples with that one. `closing` closes it."""
        self.version = -1
        self._serving = serving
        self._open_learner = open_learner
        self._open_engine = open_engine
        self._state = state
        self._checkpoints = checkpoints
        self._sink = sink
        self._clock = clock
        self._closing = closing
        self._engine: InferenceBackend | None = None
        self._learner: Learner | None = None

    @property
    def present_engine(self) -> InferenceBackend:
        """The engine for learning where it is open, else the one that serves."""
        return self._engine or self._serving

    async def engine(self) -> InferenceBackend:
        """The engine for learning: the one that serves, or a second one, opened when it is first needed."""
        if self._open_engine is None:
            return self._serving
        if self._engine is None:
            self._engine = await self._open_engine(self._serving)
            self._closing.push_async_callback(self._engine.aclose)
        return self._engine

    def learner(self) -> Learner:
        """The learner of now: going back to the bare model opens another one. Raises UsageError where there is none."""
        if self._learner is None:
            raise UsageError("this agent is not learning")
        return self._learner

    async def prepare(self) -> None:
        """Bring learner and engine to the head of the line. Raises StateError when no checkpoint of the line is intact."""
        engine, head = await self.engine(), self._state.lineage().latest
        if self._learner is None or head == 0:
            self._learner = None  # a fresh one is the bare model; the old one's memory is free before
            self._learner = await self._open_learner()
        if head == 0:
            await engine.swap_adapter(None)
        else:
            await self._load_newest(self._learner, engine)
        self.version = self._state.lineage().latest

    async def follow_line(self) -> None:
        """Where training went back to another version, load that one."""
        if self.version != self._state.lineage().latest:
            await self.prepare()

    async def load_head(self) -> None:
        """What an exam has left in the engine makes room for the adapter that is trained."""
        head = self._checkpoints.at(self._state.lineage().latest)
        await (await self.engine()).swap_adapter(head.adapter if head else None)

    async def _load_newest(self, learner: Learner, engine: InferenceBackend) -> None:
        """Load the state that belongs to the head of the line, or an older one with its adapter. Raises StateError when none is intact.

        Step numbers, λ and the data cursor stay where they are; only what the lost steps had learned is learned again.
        """
        refusal = self._nothing_intact()
        for number, checkpoint in enumerate(self._candidates()):
            try:
                await learner.load(checkpoint.learner_folder)
                await engine.swap_adapter(checkpoint.adapter)
            except (AdapterError, StateError) as error:
                refusal = error if number == 0 and isinstance(error, StateError) else refusal
                continue
            if number:
                text = f"{refusal}; learning goes on from the checkpoint of step {checkpoint.step}"
                self._sink.emit(Notice(text, self._clock.now()))
            self._move_line(checkpoint)
            return
        raise refusal

    def _candidates(self) -> list[Checkpoint]:
        """Checkpoints to go on from, newest first; where one version is served and trained, that which the engine could load."""
        line = self._state.lineage()
        start = self._serving.adapter_version if line.latest == line.serving else line.latest
        return self._checkpoints.among(self._state.ancestors(start))

    def _move_line(self, checkpoint: Checkpoint) -> None:
        """The line goes on from what was loaded."""
        line = self._state.lineage()
        if checkpoint.step != line.latest:
            serving = checkpoint.step if line.serving == line.latest else line.serving
            self._state.set_lineage(replace(line, latest=checkpoint.step, serving=serving))

    def _nothing_intact(self) -> StateError:
        return StateError(
            f"{self._state.folder / 'checkpoints'}: no checkpoint is intact, so learning cannot go on from here",
            hint="restore the folder from a backup, or learn in another one with --state",
        )
