"""Which adapter answers people. Knows the versions on disk, which one is in the engine, and the way back; knows nothing of how one is
made or judged."""

from __future__ import annotations

import asyncio

from edge.agent.checkpoints import Checkpoint, Checkpoints
from edge.agent.events import AdapterSwapped, Notice
from edge.agent.line import Line
from edge.agent.state import StateFolder
from edge.agent.step import version_name
from edge.agent.versions import Versions
from edge.core.clock import Clock
from edge.core.errors import AdapterError, NotFound, StateError
from edge.core.events import EventSink
from edge.core.types import AdapterRef
from edge.inference.backend import InferenceBackend


class ServingAdapter:
    """The adapter of the engine that serves. `switching` is held by whoever changes it."""

    def __init__(
        self,
        backend: InferenceBackend,
        state: StateFolder,
        checkpoints: Checkpoints,
        versions: Versions,
        sink: EventSink,
        clock: Clock,
    ) -> None:
        self.backend = backend
        self.checkpoints = checkpoints
        self.versions = versions
        self.switching = asyncio.Lock()
        self._state = state
        self._sink = sink
        self._clock = clock

    def in_use(self) -> AdapterRef | None:
        """The adapter in use, None for the bare model."""
        checkpoint = self.checkpoints.at(self.backend.adapter_version)
        return checkpoint.adapter if checkpoint else None

    async def is_sound(self, version: int) -> bool:
        """Whether a version's files can be used."""
        try:
            await asyncio.to_thread(self.versions.checkpoint, version)
        except (AdapterError, StateError, NotFound):
            return False
        return True

    async def rollback(self, version: int, by: str = "person", reason: str = "") -> Line:
        """Serve this version at once, and go on learning from it (a step under way is finished first, and left). 0 is the bare model.

        `by`: a person, or what found the version in use worse, with its `reason` in one line.

        Raises NotFound, and AdapterError or StateError for a damaged one; everything stays as it was then.
        """
        async with self.switching:
            checkpoint = await asyncio.to_thread(self.versions.checkpoint, version)
            await self.backend.swap_adapter(checkpoint.adapter if checkpoint else None)
            line = self.versions.go_back(version, self._clock.now(), by, reason)
        told = f" ({reason})" if reason else ""
        self._notice(f"went back to {version_name(version)}{told}; serving and learning go on from there")
        self._sink.emit(AdapterSwapped(version, checkpoint.adapter.folder if checkpoint else ""))
        return line

    async def serve_newest(self) -> None:
        """Serve the version that shall serve or else the newest undamaged one it was trained from, or the bare model; say so then."""
        serving = self._state.line().serving
        chosen, problem = await self._first_usable(serving)
        if (chosen.step if chosen else 0) != serving:
            used = f"the adapter of step {chosen.step}" if chosen else "the bare model"
            self._notice(f"{problem}; going on with {used}")

    async def _first_usable(self, serving: int) -> tuple[Checkpoint | None, str]:
        """The checkpoint that is loaded now, and what was wrong with the one that should serve."""
        problem = f"the checkpoint of step {serving} is missing"
        for checkpoint in self.checkpoints.among(self._state.line_of(serving)):
            try:
                checkpoint.manifest()
                await self.backend.swap_adapter(checkpoint.adapter)
            except (AdapterError, StateError) as error:
                problem = str(error) if checkpoint.step == serving else problem
                continue
            return checkpoint, problem
        return None, problem

    def _notice(self, text: str) -> None:
        self._sink.emit(Notice(text, self._clock.now()))
