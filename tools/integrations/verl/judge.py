"""Scoring one response of verl.

verl scores the responses of a group one by one, on any of several workers. So each is judged as a group of that response alone. The call's
key is made of run, task, step and the item's content, and what is asked is the same whoever of the group asks, so the coordinator answers
all of them with one call, paid once.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace

from edge.core.types import FinishReason, LocalResponse, TaskItem
from edge.learning.rollout import Batch, ScoredResponse
from tools.integrations.scoring import Scorer

OUTSIDE_TRAINING = -1
"""The coordinator's number for calls that belong to no learning step: validation."""


async def score_one(
    scorer: Scorer, item: TaskItem, text: str, *, cut: bool, task: str, task_step: int, ask_cloud: bool = True
) -> ScoredResponse:
    """r, c and what became of the request. `cut`: the response ended at the limit of tokens, which violates the format.

    The scorer's settings must be of a group of one, without hints. `task_step` is the coordinator's number of the step, or
    OUTSIDE_TRAINING. With `ask_cloud` False a request for help is masked.
    """
    response = LocalResponse(text, (), (), FinishReason.LENGTH if cut else FinishReason.EOS)
    batch = Batch(step=max(0, task_step), task=task, task_step=task_step, items=(_by_content(item),), offline=not ask_cloud)
    (group,), _ = await scorer.score(batch, [[response]])
    return group.responses[0]


def _by_content(item: TaskItem) -> TaskItem:
    """The item under an id of its own. A judge sees one item at a time, so items of two sources that share an id would share a call."""
    digest = hashlib.blake2b(json.dumps(asdict(item)).encode(), digest_size=4).hexdigest()
    return replace(item, id=f"{item.id}:{digest}")
