"""What the local model answered, and whether it was right: examples for a router.

Features come from the free response, the label from the answer with asking made impossible, as a router would meet them: a response
that asks for help by itself tells nothing of whether the model could have answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from edge.core.types import LocalResponse, TaskItem
from edge.evaluation.evaluate import EvalRoles, Evaluation, candidates_of
from edge.evaluation.judging import RolloutSettings


@dataclass(frozen=True, slots=True)
class Example:
    """One item, the free response to it, and whether the local model fails on it."""

    item: TaskItem
    response: LocalResponse
    failed: bool


class _Notes:
    """Implements `OffloadPolicy`: keeps everything here and remembers what it was asked about."""

    def __init__(self) -> None:
        self.responses: dict[TaskItem, LocalResponse] = {}

    def wants_cloud(self, item: TaskItem, response: LocalResponse) -> bool:
        """Never."""
        self.responses[item] = response
        return False


async def examples_of(
    roles: EvalRoles, settings: RolloutSettings, items: Iterable[TaskItem], on_item: Callable[[int, int], None]
) -> list[Example]:
    """One example of each different item whose response came to an end. `on_item` is told how many of how many are done."""
    notes, candidates = _Notes(), candidates_of((item, 1.0) for item in items)
    done = 0

    def count(*_: object) -> None:
        nonlocal done
        done += 1
        on_item(done, len(candidates))

    evaluation = Evaluation(replace(roles, policy=notes, cloud=None), settings)
    judged = await evaluation.judge_all(candidates, "router", on_judged=count)
    return [
        Example(one.item, notes.responses[one.item], not one.judged.forced.right) for one in judged if one.item in notes.responses
    ]
