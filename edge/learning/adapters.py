"""Adapter versions on disk, which one answers people, and going back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edge.core.clock import Clock
from edge.core.errors import AdapterError, NotFound, StateError
from edge.core.events import EventSink
from edge.core.types import AdapterRef
from edge.inference.backend import InferenceBackend
from edge.learning.checkpoints import Checkpoint, Checkpoints
from edge.state.events import AdapterSwapped, Notice
from edge.state.folder import StateFolder
from edge.state.rows import Lineage, WentBackRow, version_name

HINT = "see edge-agent adapters list"


@dataclass(frozen=True, slots=True)
class Version:
    """One version on disk. None where nothing is known (a step that was cut before its commit)."""

    version: int
    folder: str
    at: float | None
    """Seconds since the epoch."""
    phase: int | None
    task: str | None
    source: str | None
    base: int | None
    size_bytes: int
    """Of its whole folder."""
    gate: str
    """As in StepAdapter."""
    gate_reason: str
    gate_before: float | None
    gate_after: float | None
    kept_accuracy: float | None
    joint_accuracy: float | None
    assist_rate: float | None
    serving: bool
    """It answers people (by the state folder)."""
    head: bool
    """Training goes on from it."""
    on_line: bool
    """The version in training came from it."""
    damage: str
    """One line; "" when all can be read."""


def unknown_version(version: int, known: Sequence[int]) -> NotFound:
    """That a version is not among those known."""
    text = f"there is no adapter version {version} here"
    if not known:
        return NotFound(f"{text}: nothing was learned yet, or nothing was kept")
    return NotFound(f"{text}; there {'is' if len(known) == 1 else 'are'} {', '.join(map(str, known))}", hint=HINT)


@dataclass(slots=True)
class Versions:
    """The versions of one state folder.

    `sound` reads an adapter folder through and raises AdapterError for a damaged one.
    """

    state: StateFolder
    checkpoints: Checkpoints
    sound: Callable[[Path], None]

    def all(self) -> list[Version]:
        """What is on disk, oldest first."""
        lineage = self.state.lineage()
        on_line = {checkpoint.step for checkpoint in self.checkpoints.among(self.state.ancestors(lineage.latest))}
        return [self._version(checkpoint, lineage, checkpoint.step in on_line) for checkpoint in self.checkpoints.all()]

    def one(self, version: int) -> Version:
        """One version on disk. Raises NotFound."""
        found = next((known for known in self.all() if known.version == version), None)
        if found is None:
            raise self._unknown(version)
        return found

    def checkpoint(self, version: int) -> Checkpoint | None:
        """The checkpoint to go back to, None for the bare model (0). Raises NotFound, StateError or AdapterError."""
        if version == 0:
            return None
        checkpoint = self.checkpoints.at(version)
        if checkpoint is None or version > self.state.position().steps_done:
            raise self._unknown(version)
        if damage := self._damage(checkpoint):
            raise StateError(damage, hint=HINT)
        return checkpoint

    def go_back(self, version: int, at: float, by: str = "person", reason: str = "") -> Lineage:
        """Serve and learn on from a version that `checkpoint` has found sound; one transaction. `by`: a person, or what found it worse."""
        lineage = self.state.lineage()
        self.state.set_lineage(lineage.back_to(version), WentBackRow(at, lineage.serving, version, by, reason))
        return lineage.back_to(version)

    def _version(self, checkpoint: Checkpoint, lineage: Lineage, on_line: bool) -> Version:
        step = self.state.step_at(checkpoint.step)
        base = None if step is None else step.adapter.base_version if step.adapter.base_version >= 0 else step.step - 1
        return Version(
            version=checkpoint.step,
            folder=str(checkpoint.folder / "adapter"),
            at=step.at if step else None,
            phase=step.phase if step else None,
            task=step.task if step else None,
            source=step.source if step else None,
            base=base,
            size_bytes=sum(file.stat().st_size for file in checkpoint.folder.rglob("*") if file.is_file()),
            gate=step.adapter.gate if step else "",
            gate_reason=step.adapter.gate_reason if step else "",
            gate_before=step.adapter.gate_before if step else None,
            gate_after=step.adapter.gate_after if step else None,
            kept_accuracy=step.scores.kept_accuracy if step else None,
            joint_accuracy=step.scores.joint_accuracy if step else None,
            assist_rate=step.control.assist_rate if step else None,
            serving=checkpoint.step == lineage.serving,
            head=checkpoint.step == lineage.latest,
            on_line=on_line,
            damage=self._damage(checkpoint),
        )

    def _damage(self, checkpoint: Checkpoint) -> str:
        try:
            checkpoint.manifest()
            if not any(file.stat().st_size for file in checkpoint.learner_folder.glob("*")):
                return f"{checkpoint.learner_folder}: the learner's state is missing"
            if not Path(checkpoint.adapter.folder).is_dir():
                return f"{checkpoint.adapter.folder}: the adapter is missing"
            self.sound(Path(checkpoint.adapter.folder))
        except (StateError, AdapterError, OSError) as error:
            return str(error)
        return ""

    def _unknown(self, version: int) -> NotFound:
        return unknown_version(version, [checkpoint.step for checkpoint in self.checkpoints.all()])


@dataclass(slots=True)
class ServingAdapter:
    """The adapter of the engine that serves. `switching` is held by whoever changes it."""

    backend: InferenceBackend
    state: StateFolder
    checkpoints: Checkpoints
    versions: Versions
    sink: EventSink
    clock: Clock
    switching: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

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

    async def rollback(self, version: int, by: str = "person", reason: str = "") -> Lineage:
        """Serve this version immediately, and go on learning from it (a step under way is finished first, and left). 0 is the bare model.

        `by`: a person, or what found the version in use worse, with its `reason` in one line.

        Raises NotFound, and AdapterError or StateError for a damaged one; everything stays as it was then.
        """
        async with self.switching:
            checkpoint = await asyncio.to_thread(self.versions.checkpoint, version)
            await self.backend.swap_adapter(checkpoint.adapter if checkpoint else None)
            lineage = self.versions.go_back(version, self.clock.now(), by, reason)
        why = f" ({reason})" if reason else ""
        self._notice(f"rolled back to {version_name(version)}{why}; it is active, and learning goes on from it")
        self.sink.emit(AdapterSwapped(version, checkpoint.adapter.folder if checkpoint else ""))
        return lineage

    async def serve_newest(self) -> None:
        """Activate the lineage's active version; or else, with a notice, the newest undamaged one it came from, or the bare model."""
        serving = self.state.lineage().serving
        used, problem = "the bare model", f"the checkpoint of step {serving} is missing"
        for checkpoint in self.checkpoints.among(self.state.ancestors(serving)):
            try:
                checkpoint.manifest()
                await self.backend.swap_adapter(checkpoint.adapter)
            except (AdapterError, StateError) as error:
                problem = str(error) if checkpoint.step == serving else problem
                continue
            if checkpoint.step == serving:
                return
            used = f"the adapter of step {checkpoint.step}"
            break
        if serving:
            self._notice(f"{problem}; going on with {used}")

    def _notice(self, text: str) -> None:
        self.sink.emit(Notice(text, self.clock.now()))
