"""A learner without a model, for tests and dry runs. No torch."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from edge.core.errors import StateError
from edge.core.types import AdapterRef, Demonstration, KeptAnswer, TrainingGroup
from edge.training.learner import Imitation, LearnerReport

STATE_FILE = "learner.json"


class ScriptedLearner:
    """Records every update, and the share of the learning rate that it was made with; its "adapter" is the number of steps made. With
    `refuse`, every update is skipped for that reason."""

    def __init__(self, refuse: str = "") -> None:
        self.updates: list[tuple[TrainingGroup, ...]] = []
        self.demonstrations: list[tuple[Demonstration, ...]] = []
        self.kept: list[tuple[KeptAnswer, ...]] = []
        self.exports: list[AdapterRef] = []
        self.shares: list[float] = []
        self.step = 0
        self._share = 1.0
        self._refuse = refuse

    def scale_steps(self, share: float) -> None:
        """Remembered with each update."""
        self._share = share

    async def update(self, groups: Sequence[TrainingGroup]) -> LearnerReport:
        """Record the batch; count a step when any advantage is not zero."""
        self.updates.append(tuple(groups))
        self.shares.append(self._share)
        live = [group for group in groups if any(sample.advantage for sample in group.samples)]
        skipped = self._refuse if live else "no group with an advantage"
        self.step += not skipped
        return LearnerReport(
            groups=len(groups),
            frac_reward_zero_std=1 - len(live) / len(groups) if groups else 0.0,
            tokens=sum(len(sample.token_ids) for group in live for sample in group.samples),
            loss=0.0,
            grad_norm=0.0,
            entropy=0.0,
            mean_abs_logprob_diff=0.0,
            kl=0.0,
            effective_sample_share=1.0 if live else 0.0,
            clipped_share=0.0,
            learning_rate=0.0,
            seconds=0.0,
            skipped=skipped,
        )

    async def nats(self, demonstrations: Sequence[Demonstration]) -> list[float]:
        """None is known."""
        return [math.inf for _ in demonstrations]

    async def imitate(self, demonstrations: Sequence[Demonstration], kept: Sequence[KeptAnswer] = ()) -> Imitation:
        """Record the demonstrations and the kept answers; one update, of all of them."""
        self.demonstrations.append(tuple(demonstrations))
        self.kept.append(tuple(kept))
        self.step += 1
        return Imitation(1, 0.0, 0.0, 0.0)

    async def export(self, folder: Path, version: int) -> AdapterRef:
        """Write a folder with the step in it. Raises StateError when it exists."""
        _write_new(folder, self.step)
        self.exports.append(AdapterRef(version, str(folder)))
        return self.exports[-1]

    async def save(self, folder: Path) -> None:
        """Write the step into an existing folder."""
        (folder / STATE_FILE).write_text(json.dumps({"step": self.step}), encoding="utf-8")

    async def load(self, folder: Path) -> None:
        """Restore the step. Raises StateError when the file is missing or damaged."""
        try:
            self.step = int(json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))["step"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StateError(f"cannot read {STATE_FILE}: {error}") from error


def _write_new(folder: Path, step: int) -> None:
    if folder.exists():
        raise StateError(f"{folder.name} exists already", hint="export into a folder that does not exist yet")
    folder.mkdir(parents=True)
    (folder / STATE_FILE).write_text(json.dumps({"step": step}), encoding="utf-8")
