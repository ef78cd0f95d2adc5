"""Scores one response of verl, and passes its outcome from the reward workers to the driver. Imports nothing of verl.

verl scores the responses of a group one by one, on any of several workers. So each is judged as a group of that response alone. The call's
key is made of run, task, step and the item's content, and is the same for every response of the group, so the coordinator answers all of
them with one call, paid once.

A reward worker adds `as_info` to the score; the driver reads it back with `Outcomes.of` in the order of the batch. All values are
numbers, so that verl averages them in its validation metrics: `acc` is joint accuracy, `cost` the assist rate.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from edge.core.types import FinishReason, LocalResponse, TaskItem
from edge.dagrpo.advantages import has_signal
from edge.dagrpo.metrics import tally
from edge.learning.rollout import Batch, ResponseOutcome, ScoredResponse
from edge.learning.step_reporter import OpenStep
from edge.rpc.client import StepUnits
from tools.integrations.scoring import Scorer
from tools.integrations.verl.estimator import row_advantages, usable_groups

OUTSIDE_TRAINING = -1
"""The coordinator's number for calls that belong to no learning step: validation."""


async def score_one(
    scorer: Scorer, item: TaskItem, text: str, *, cut: bool, task: str, task_step: int, ask_cloud: bool = True
) -> ScoredResponse:
    """r, c and the outcome of the request. `cut`: the response ended at the token limit, which violates the format.

    The scorer's settings must be of a group of one, without hints. `task_step` is the coordinator's number of the step, or
    OUTSIDE_TRAINING. With `ask_cloud` False a request for help is masked.
    """
    response = LocalResponse(text, (), (), FinishReason.LENGTH if cut else FinishReason.EOS)
    # the driver opens steps; only task, number and `offline` are read here
    opened = OpenStep(task, task_step, dual=0.0, target_rate=0.0, planned_prompts=1, group_size=1, offline=not ask_cloud)
    (group,), _ = await scorer.score(Batch(max(0, task_step), (_by_content(item),), opened), [[response]])
    return group.responses[0]


def _by_content(item: TaskItem) -> TaskItem:
    """The item with an id made from its content. A judge sees one item at a time, so items of two sources that share an id would share a
    call."""
    digest = hashlib.blake2b(json.dumps(asdict(item)).encode(), digest_size=4).hexdigest()
    return replace(item, id=f"{item.id}:{digest}")


def as_info(scored: ScoredResponse) -> dict[str, float]:
    """The numbers in addition to the score of one response."""
    return {
        "acc": float(scored.correct),
        "cost": float(scored.cost),
        "asked": float(scored.asked),
        "masked": float(scored.masked),
        "refused": float(scored.outcome is ResponseOutcome.REFUSED),
        "unsent": float(scored.outcome is ResponseOutcome.UNSENT),
        "format_ok": float(scored.format_ok),
        "kept_correct": float(scored.correct and not scored.asked),
    }


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The outcomes of a batch's rows, in its order. `padding` rows were added by verl and are no responses."""

    infos: tuple[Mapping[str, float], ...]
    padding: tuple[bool, ...]

    @classmethod
    def of(cls, extra_fields: Sequence[Any], padding: Sequence[bool]) -> Outcomes:
        """From the `extra_fields` that verl keeps of each row. Raises ValueError where they hold no outcome."""
        if len(extra_fields) != len(padding):
            raise ValueError(f"{len(extra_fields)} rows of outcomes for a batch of {len(padding)}")
        return cls(tuple(_info(fields) for fields in extra_fields), tuple(padding))

    @property
    def costs(self) -> list[float]:
        """c of each row; 0 for padding."""
        return [0.0 if pad else info["cost"] for info, pad in zip(self.infos, self.padding, strict=True)]

    @property
    def left_out(self) -> list[bool]:
        """Rows outside every group: padding, and responses whose call failed."""
        return [pad or bool(info["masked"]) for info, pad in zip(self.infos, self.padding, strict=True)]

    @property
    def units(self) -> StepUnits:
        """The units of Ĵ_c. Failed and refused requests are demand and count; those this side did not send count as not called."""
        real = self._real
        return StepUnits(len(real), _count(real, "asked"), _count(real, "unsent"))

    def metrics(self, rewards_N: Sequence[float], groups_N: Sequence[Hashable], dual: float) -> dict[str, float]:
        """Shares over the responses, for verl's log. Accuracies are of the responses that could be judged."""
        real, units = self._real, self.units
        counts = tally((bool(info["asked"]), bool(info["acc"])) for info in real if not info["masked"])
        advantages_N = row_advantages(rewards_N, self.costs, self.left_out, groups_N, dual)
        groups = usable_groups(self.left_out, groups_N)
        silent = sum(not has_signal([advantages_N[row] for row in rows]) for rows in groups)
        return {
            "assist_rate": units.help / max(1, units.total),
            "joint_accuracy": counts.joint_accuracy,
            "kept_accuracy": counts.kept_accuracy,
            "format_ok": _count(real, "format_ok") / max(1, units.total),
            "masked": _count(real, "masked") / max(1, units.total),
            "refused": _count(real, "refused") / max(1, units.total),
            "groups_used": float(len(groups)),
            "groups_without_signal": silent / max(1, len(groups)),
        }

    @property
    def _real(self) -> list[Mapping[str, float]]:
        return [info for info, pad in zip(self.infos, self.padding, strict=True) if not pad]


def _info(fields: Any) -> Mapping[str, float]:
    info = fields.get("reward_extra_info") if isinstance(fields, Mapping) else None
    if not isinstance(info, Mapping) or not {"acc", "cost", "asked", "masked", "unsent", "refused", "format_ok"} <= set(info):
        raise ValueError("a response came without its cost: set reward.reward_manager to tools.integrations.verl.reward")
    return {str(name): float(value) for name, value in info.items() if isinstance(value, int | float)}


def _count(infos: Sequence[Mapping[str, float]], name: str) -> int:
    return sum(bool(info[name]) for info in infos)
