"""r and c of responses sampled by another engine (TRL or verl), judged by the agent's own rollout with its coordinator. Format, request,
call, composition, verifier and reward are those of `edge.learning.rollout`, which gets an engine that returns the given responses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from edge.app.judging import build_policy, build_verifier
from edge.app.settings import switched_off
from edge.cloud.group_calls import GroupCalls
from edge.config.schema import AgentConfig
from edge.core.clock import Clock
from edge.core.rng import derive_seed
from edge.core.types import LocalResponse, Message, PromptGroup, Sampling
from edge.core.worker import Priority
from edge.evaluation.judging import RolloutSettings
from edge.inference.backend import InferenceBackend
from edge.learning.rollout import Batch, Rollout, ScoredGroup
from edge.routing.policy import OffloadPolicy
from edge.rpc.client import CoordinatorClient
from edge.verifiers.verifier import Verifier


@dataclass(frozen=True, slots=True)
class Scorer:
    """Scores groups of responses; at most one cloud call for each prompt. Many may be under way."""

    cloud: GroupCalls
    verifier: Verifier
    policy: OffloadPolicy
    clock: Clock
    settings: RolloutSettings

    async def score(self, batch: Batch, groups: Sequence[Sequence[LocalResponse]]) -> tuple[list[ScoredGroup], float]:
        """The scored groups, one for each item of the batch in its order, and the seconds that were waited for the cloud."""
        sampled = cast(
            InferenceBackend, SampledAlready(self.settings.seed, batch.step, groups)
        )  # a rollout asks for groups alone
        rollout = Rollout(sampled, self.cloud, self.verifier, self.policy, self.clock, self.settings)
        return list(await rollout.collect(batch)), rollout.cloud_s


def scorer_of(agent: AgentConfig, client: CoordinatorClient, clock: Clock, settings: RolloutSettings) -> Scorer:
    """As the agent's configuration judges and asks, over an open client."""
    off = switched_off(agent)
    cloud = GroupCalls(client, agent.coordinator.call_deadline_s, lambda: off)
    return Scorer(cloud, build_verifier(agent), build_policy(agent), clock, settings)


class SampledAlready:
    """The part of an inference backend that a rollout uses: prompt groups. A group is found by the seeds that would have drawn it."""

    def __init__(self, seed: int, step: int, groups: Sequence[Sequence[LocalResponse]]) -> None:
        self._groups = {derive_seed(seed, "rollout", step, index, 0): tuple(group) for index, group in enumerate(groups)}

    async def sample_group(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        seeds: Sequence[int],
        priority: Priority = Priority.ROLLOUT,
    ) -> PromptGroup:
        """The group that was sampled for these seeds."""
        return PromptGroup((), self._groups[seeds[0]])
