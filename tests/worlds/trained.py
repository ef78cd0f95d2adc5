"""The learner's input of a method for scored groups, and responses of every outcome, for tests."""

from __future__ import annotations

from collections.abc import Sequence

from edge.core.types import LocalResponse, TrainingGroup
from edge.learning.methods import Method, StepTerms
from edge.learning.rollout import ResponseOutcome, ScoredGroup, ScoredResponse

TERMS = StepTerms(step=3, task="sums", target_rate=0.3)


def training_groups(
    method: Method, groups: Sequence[ScoredGroup], dual: float = 0.5, terms: StepTerms = TERMS
) -> list[TrainingGroup]:
    """The method's advantages at this λ, as the learner gets them."""
    return [one.training_group() for one in method.advantages(groups, dual, terms)]


def scored(local: LocalResponse, *, asked: bool, correct: bool, reward: float, cost: int) -> ScoredResponse:
    """A well-formed response that was kept, or asked and was answered."""
    return ScoredResponse(local, True, ResponseOutcome.ASKED if asked else ResponseOutcome.KEPT, correct, reward, cost)
