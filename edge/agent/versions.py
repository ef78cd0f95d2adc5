"""The adapter versions in a state folder: what there is, which serve, which are damaged, and going back to one.

Knows checkpoints and their line; knows nothing of engines or HTTP. Works on the folder of a running agent (which hands in its own) and on
one that nobody uses. Nothing is deleted here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edge.agent.checkpoints import Checkpoint, Checkpoints
from edge.agent.line import Line
from edge.agent.state import StateFolder
from edge.agent.state_rows import WentBackRow
from edge.core.errors import AdapterError, NotFound, StateError

HINT = "see edge-agent adapters list"


@dataclass(frozen=True, slots=True)
class Version:
    """One version on disk. `at` seconds since the epoch; `gate` as in StepFinished; `size_bytes` of its whole folder.

    `serving`: it answers people (as the state has it); `head`: training goes on from it; `on_line`: what is trained now came from it.
    `damage` is one line, "" when all can be read. None where nothing is known (a step that was cut before its commit).
    """

    version: int
    folder: str
    at: float | None
    phase: int | None
    task: str | None
    source: str | None
    base: int | None
    size_bytes: int
    gate: str
    gate_reason: str
    gate_before: float | None
    gate_after: float | None
    kept_accuracy: float | None
    joint_accuracy: float | None
    assist_rate: float | None
    serving: bool
    head: bool
    on_line: bool
    damage: str

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


def unknown_version(version: int, known: Sequence[int]) -> NotFound:
    """That a version is not among those known."""
    text = f"there is no adapter version {version} here"
    if not known:
        return NotFound(f"{text}: nothing was learned yet, or nothing was kept")
    return NotFound(f"{text}; there {'is' if len(known) == 1 else 'are'} {', '.join(map(str, known))}", hint=HINT)


class Versions:
    """The versions of one state folder."""

    def __init__(self, state: StateFolder, checkpoints: Checkpoints, sound: Callable[[Path], None]) -> None:
        """`sound` reads an adapter folder through and raises AdapterError for a damaged one."""
        self._state = state
        self._checkpoints = checkpoints
        self._sound = sound

    def all(self) -> list[Version]:
        """What is on disk, oldest first."""
        line = self._state.line()
        on_line = {checkpoint.step for checkpoint in self._checkpoints.among(self._state.line_of(line.head))}
        return [self._version(checkpoint, line, checkpoint.step in on_line) for checkpoint in self._checkpoints.all()]

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
        checkpoint = self._checkpoints.at(version)
        if checkpoint is None or version > self._state.position().steps_done:
            raise self._unknown(version)
        if damage := self._damage(checkpoint):
            raise StateError(damage, hint=HINT)
        return checkpoint

    def go_back(self, version: int, at: float, by: str = "person", reason: str = "") -> Line:
        """Serve and learn on from a version that `checkpoint` has found sound; one transaction. `by`: a person, or what found it worse."""
        line = self._state.line()
        self._state.set_line(line.back_to(version), WentBackRow(at, line.serving, version, by, reason))
        return line.back_to(version)

    def _version(self, checkpoint: Checkpoint, line: Line, on_line: bool) -> Version:
        step = self._state.step_at(checkpoint.step)
        base = None if step is None else step.base_version if step.base_version >= 0 else step.step - 1
        return Version(
            version=checkpoint.step,
            folder=str(checkpoint.folder / "adapter"),
            at=step.at if step else None,
            phase=step.phase if step else None,
            task=step.task if step else None,
            source=step.source if step else None,
            base=base,
            size_bytes=sum(file.stat().st_size for file in checkpoint.folder.rglob("*") if file.is_file()),
            gate=step.gate if step else "",
            gate_reason=step.gate_reason if step else "",
            gate_before=step.gate_before if step else None,
            gate_after=step.gate_after if step else None,
            kept_accuracy=step.kept_accuracy if step else None,
            joint_accuracy=step.joint_accuracy if step else None,
            assist_rate=step.assist_rate if step else None,
            serving=checkpoint.step == line.serving,
            head=checkpoint.step == line.head,
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
            self._sound(Path(checkpoint.adapter.folder))
        except (StateError, AdapterError, OSError) as error:
            return str(error)
        return ""

    def _unknown(self, version: int) -> NotFound:
        return unknown_version(version, [checkpoint.step for checkpoint in self._checkpoints.all()])
