"""Scoring one response that another engine sampled. Knows how to hand it to the project's own rollout; knows nothing of verl.

verl scores the responses of a group one by one, on any of several workers. So each is judged as a rollout whose group is that response
alone: format, request, call, composition, verifier and reward are the ones of `edge.learning.rollout`. The call's key is made of run,
task, step and the item's content, and what is asked is the same whoever of the group asks, so the coordinator answers all of them with one
call, paid once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import cast

from edge.cloud.group_calls import GroupCalls
from edge.core.clock import Clock
from edge.core.types import FinishReason, LocalResponse, Message, PromptGroup, Sampling, TaskItem
from edge.evaluation.judging import RolloutSettings
from edge.inference.backend import InferenceBackend
from edge.learning.rollout import Batch, Rollout, ScoredResponse
from edge.routing.policy import SelfOffload
from edge.verifiers.verifier import Verifier

OUTSIDE_TRAINING = -1
"""The coordinator's number for calls that belong to no learning step: validation."""


class ResponseJudge:
    """Scores responses one at a time; many may be under way."""

    def __init__(self, desk: GroupCalls, verifier: Verifier, clock: Clock, settings: RolloutSettings) -> None:
        """`settings` must be of a group of one, without hints: see `tools.integrations.verl.settings`."""
        self._desk = desk
        self._verifier = verifier
        self._clock = clock
        self._settings = settings

    async def score(
        self, item: TaskItem, text: str, *, cut: bool, task: str, task_step: int, ask_cloud: bool = True
    ) -> ScoredResponse:
        """r, c and what became of the request. `cut`: the response ended at the limit of tokens, which violates the format.

        `task_step` is the coordinator's number of the step, or OUTSIDE_TRAINING. With `ask_cloud` False a request for help is masked.
        """
        response = LocalResponse(text, (), (), FinishReason.LENGTH if cut else FinishReason.EOS)
        sampled = cast(InferenceBackend, _Sampled(response))
        rollout = Rollout(sampled, self._desk, self._verifier, SelfOffload(), self._clock, self._settings)
        batch = Batch(step=max(0, task_step), task=task, task_step=task_step, items=(_by_content(item),), offline=not ask_cloud)
        (group,) = await rollout.collect(batch)
        return group.responses[0]


def _by_content(item: TaskItem) -> TaskItem:
    """The item under an id of its own. A judge sees one item at a time, so items of two sources that share an id would share a call."""
    digest = hashlib.blake2b(json.dumps(asdict(item)).encode(), digest_size=4).hexdigest()
    return replace(item, id=f"{item.id}:{digest}")


class _Sampled:
    """The part of an engine that a rollout asks for: here the response is there already."""

    def __init__(self, response: LocalResponse) -> None:
        self._response = response

    async def sample_group(self, messages: Sequence[Message], sampling: Sampling, seeds: Sequence[int]) -> PromptGroup:
        """The response, as a group of its own."""
        return PromptGroup((), (self._response,))
