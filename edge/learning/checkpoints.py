"""Checkpoints of learning on disk: atomic folders, each with the manifest of its step.

`checkpoints/step-000012/` holds `learner/`, `adapter/` and `manifest.json`. A folder with that name is complete: it is written under
another name, synced, and renamed. After a crash, left-over temporary folders are removed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterable
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

from edge.core.errors import EdgeError, StateError
from edge.core.files import replacing_folder
from edge.core.types import AdapterRef
from edge.learning.step_reporter import OpenStep
from edge.rpc.client import StepUnits
from edge.state.events import StepFinished
from edge.state.rows import HelpRecord, Position, SimilarAnswer
from edge.training.learner import Learner

_PREFIX = "step-"


@dataclass(frozen=True, slots=True)
class StepManifest:
    """All that reporting and committing a step needs, so that a restart can do it."""

    opened: OpenStep
    units: StepUnits
    position: Position
    source: str
    cursor_seed: int
    cursor_after: int
    used: tuple[str, ...]
    """Keys of one's own items in it."""
    demonstrated: tuple[str, ...]
    """Keys of those whose answer had to be shown."""
    kept: tuple[SimilarAnswer, ...]
    """Similar questions that the model goes on answering."""
    draft: StepFinished
    """The step's event before it is closed."""
    base: int
    """The version that it trained on."""
    gate_due: bool
    help_record: HelpRecord | None = None
    """How much the responses wished to ask; None: of a version that did not write it down."""

    def to_json(self) -> dict[str, Any]:
        """As it is in manifest.json."""
        return {
            "opened": asdict(self.opened),
            "total_units": self.units.total,
            "help_units": self.units.help,
            "uncalled_units": self.units.uncalled,
            "own_rate": self.units.own_rate,
            "position": asdict(self.position),
            "source": self.source,
            "cursor_seed": self.cursor_seed,
            "cursor_after": self.cursor_after,
            "used": list(self.used),
            "demonstrated": list(self.demonstrated),
            "kept": [astuple(one) for one in self.kept],
            "draft": self.draft.to_json(),
            "base": self.base,
            "gate_due": self.gate_due,
            "help_record": None if self.help_record is None else astuple(self.help_record),
        }

    @classmethod
    def from_json(cls, step: int, data: dict[str, Any]) -> StepManifest:
        """Of what `to_json` made."""
        recorded = data.get("help_record")
        return cls(
            opened=OpenStep(**data["opened"]),
            units=StepUnits(data["total_units"], data["help_units"], data["uncalled_units"], data["own_rate"]),
            position=Position(**data["position"]),
            source=data["source"],
            cursor_seed=data["cursor_seed"],
            cursor_after=data["cursor_after"],
            used=tuple(data["used"]),
            demonstrated=tuple(data["demonstrated"]),
            kept=tuple(SimilarAnswer(*one) for one in data["kept"]),
            draft=StepFinished.from_json(data["draft"]),
            base=data["base"],
            gate_due=data["gate_due"],
            help_record=None if recorded is None else HelpRecord(*map(tuple, recorded)),
        )


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint after `step`; the adapter's version is the step's number."""

    step: int
    folder: Path

    @property
    def adapter(self) -> AdapterRef:
        """The adapter this step left."""
        return AdapterRef(self.step, str(self.folder / "adapter"))

    @property
    def learner_folder(self) -> Path:
        """What `Learner.load` reads."""
        return self.folder / "learner"

    def manifest(self) -> StepManifest:
        """The manifest. Raises StateError when it is damaged."""
        try:
            data = json.loads((self.folder / "manifest.json").read_text(encoding="utf-8"))
            return StepManifest.from_json(self.step, data)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StateError(
                f"{self.folder}: damaged checkpoint: {error}", hint="remove the folder to use the one before"
            ) from error


class Checkpoints:
    """The checkpoints of one state folder; the newest two are kept, and those that somebody needs."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        """Raises StateError for a folder that cannot be written."""
        self._folder = folder
        self._keep = keep
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for left_over in folder.glob(".*.draft"):
                shutil.rmtree(left_over)
        except OSError as error:
            raise StateError(
                f"{folder}: cannot be written: {error.strerror}", hint="set its permissions right, or choose another with --state"
            ) from error

    def all(self) -> list[Checkpoint]:
        """Complete checkpoints, oldest first."""
        steps = [(path.name.removeprefix(_PREFIX), path) for path in self._folder.glob(f"{_PREFIX}*") if path.is_dir()]
        found = [Checkpoint(int(step), path) for step, path in steps if step.isdecimal()]
        return sorted(found, key=lambda checkpoint: checkpoint.step)

    def at(self, step: int) -> Checkpoint | None:
        """The checkpoint after `step`, or None."""
        return next((checkpoint for checkpoint in self.all() if checkpoint.step == step), None)

    def among(self, versions: Iterable[int]) -> list[Checkpoint]:
        """The complete checkpoints among these versions, in their order; stops looking when all on disk are found."""
        on_disk = {checkpoint.step: checkpoint for checkpoint in self.all()}
        found: list[Checkpoint] = []
        for version in versions:
            if version in on_disk:
                found.append(on_disk.pop(version))
            if not on_disk:
                break
        return found

    async def write(self, step: int, learner: Learner, manifest: StepManifest) -> Checkpoint:
        """Write the checkpoint of a step, atomically; one of the same number is replaced. Raises StateError where that cannot be done."""
        final = self._folder / f"{_PREFIX}{step:06d}"
        try:
            with replacing_folder(final) as draft:
                (draft / "learner").mkdir()
                await learner.save(draft / "learner")
                await learner.export(draft / "adapter", step)
                (draft / "manifest.json").write_text(json.dumps(manifest.to_json(), allow_nan=False), encoding="utf-8")
        except EdgeError:
            raise
        except Exception as error:  # each format's writer has a kind of its own for a full disk
            raise StateError(f"{final}: the checkpoint cannot be written ({error})", hint="make room on the disk") from error
        return Checkpoint(step, final)

    def prune(self, needed: Collection[int] = ()) -> None:
        """Remove all but the newest and those that are needed."""
        for checkpoint in self.all()[: -self._keep]:
            if checkpoint.step not in needed:
                shutil.rmtree(checkpoint.folder)
