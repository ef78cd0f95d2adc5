"""How a scored batch becomes something to learn from: DA-GRPO and the methods it is compared with, as strategies of one loop.

Knows rewards, advantages and which prompts count; knows nothing of tokens' gradients, engines or λ's motion. What a method asks of the
learner's objective (edge.training.settings) and of sampling is chosen with it in edge.app.

The estimator of every method has the form Σ_prompts w Σ_i A_i ∇ log π(y_i) / P, so a method is: which prompts, which A_i, which w.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

from edge.core.rng import stream
from edge.core.types import TrainingGroup, TrainingSample
from edge.dagrpo.advantages import (
    AdvantageScale,
    centred,
    dual_advantages,
    estimator_weight,
    outside_advantage,
    scale_advantages,
)
from edge.dagrpo.baselines import PromptOutcome, calls_per_local, gapg_advantages, gapg_kept_prompts, grpo_advantages
from edge.dagrpo.reward import Outcome, hierarchical_reward, task_reward
from edge.learning.rollout import ScoredGroup, ScoredResponse


@dataclass(frozen=True, slots=True)
class StepTerms:
    """What a method may know of a step beside its groups: its number, its task label, λ and τ."""

    step: int
    task: str
    dual: float
    target_rate: float


class Method(Protocol):
    """A way to learn. `may_ask`: whether its rollouts may ask for help; where not, asking is a format violation like any other."""

    @property
    def name(self) -> str:
        """As `learning.method` says it."""
        ...

    @property
    def may_ask(self) -> bool:
        """False: a request for help is worth what a bad format is."""
        ...

    def training_groups(self, groups: Sequence[ScoredGroup], terms: StepTerms) -> list[TrainingGroup]:
        """What the learner gets. Masked responses are left out; a group with fewer than two left has no baseline and goes."""
        ...


@dataclass(frozen=True, slots=True)
class DaGrpo:
    """Â = A^r - λ A^c, weight 1/(G-1) (the paper). With a `scale`, λ stops being a price in units of reward (decision 5).

    λ is the price that a group's prompt told, where it told one. A cloud answer that joined its group is one more sample, with the group
    as its baseline (edge.dagrpo.advantages.outside_advantage).
    """

    scale: AdvantageScale = AdvantageScale.NONE
    name: ClassVar[str] = "da-grpo"
    may_ask: ClassVar[bool] = True

    def training_groups(self, groups: Sequence[ScoredGroup], terms: StepTerms) -> list[TrainingGroup]:
        """Groups with dual advantages at the step's λ, or at their own prices."""
        usable = usable_groups(groups)
        advantages_B_G = [dual_advantages(*_rewards_and_costs(group), _price(group, terms)) for group in usable]
        scaled_B_G = scale_advantages(advantages_B_G, self.scale)
        trained = [_unscaled(group, advantages_G) for group, advantages_G in zip(usable, scaled_B_G, strict=True)]
        return [_with_cloud_sample(one, group, _price(group, terms)) for one, group in zip(trained, usable, strict=True)]


@dataclass(frozen=True, slots=True)
class EdgeOnly:
    """Nobody is asked: the centred task reward with DA-GRPO's estimator, so that only the decision differs."""

    name: ClassVar[str] = "edge-only"
    may_ask: ClassVar[bool] = False

    def training_groups(self, groups: Sequence[ScoredGroup], terms: StepTerms) -> list[TrainingGroup]:
        """Groups with centred task rewards."""
        return [_unscaled(group, centred([one.reward for one in group.unmasked])) for group in usable_groups(groups)]


@dataclass(frozen=True, slots=True)
class FixedReward:
    """What asking and being helped is worth to the methods without a dual variable: `default`, or a task's own."""

    default: float
    by_task: Mapping[str, float] = field(default_factory=dict)

    def rewards(self, group: ScoredGroup, task: str) -> list[float]:
        """The hierarchical reward of every unmasked response."""
        worth = self.by_task.get(task, self.default)
        return [
            hierarchical_reward(Outcome(one.correct, one.format_ok, one.asked), worth) if one.judged else 0.0
            for one in group.unmasked
        ]


@dataclass(frozen=True, slots=True)
class Grpo:
    """DeepSeekMath's GRPO: A = (r - mean)/(std + 1e-4), 1/G Σ_i 1/|y_i| Σ_t; the learner clips ratios."""

    assist: FixedReward
    name: ClassVar[str] = "grpo"
    may_ask: ClassVar[bool] = True

    def training_groups(self, groups: Sequence[ScoredGroup], terms: StepTerms) -> list[TrainingGroup]:
        """The mean over a response's tokens lies in its advantage, the mean over the group in the group's weight."""
        return [self._group(group, terms.task) for group in usable_groups(groups)]

    def _group(self, group: ScoredGroup, task: str) -> TrainingGroup:
        advantages_G = grpo_advantages(self.assist.rewards(group, task))
        lengths_G = [max(1, len(one.response.token_ids)) for one in group.unmasked]
        per_token_G = [advantage / length for advantage, length in zip(advantages_G, lengths_G, strict=True)]
        return _group(group, per_token_G, 1.0 / len(per_token_G))


@dataclass(frozen=True, slots=True)
class Gvpo:
    """GVPO (Zhang et al. 2025): β/(G-1) Σ_i w_i ∇ log π(y_i); the learner takes β(ℓ_i - mean ℓ) off before each further update."""

    assist: FixedReward
    beta: float = 0.1
    name: ClassVar[str] = "gvpo"
    may_ask: ClassVar[bool] = True

    def training_groups(self, groups: Sequence[ScoredGroup], terms: StepTerms) -> list[TrainingGroup]:
        """Groups with centred fixed rewards, their weight β/(G-1)."""
        return [
            _group(group, centred(self.assist.rewards(group, terms.task)), self.beta * estimator_weight(len(group.unmasked)))
            for group in usable_groups(groups)
        ]


@dataclass(frozen=True, slots=True)
class Gapg:
    """GAPG (Fang et al. 2025): centred fixed rewards on prompts solved locally, and on few of those that only the cloud solves.

    Whether the cloud solves a prompt is known where somebody asked; a prompt that neither solved nor asked teaches nothing and goes.
    """

    assist: FixedReward
    seed: int = 0
    name: ClassVar[str] = "gapg"
    may_ask: ClassVar[bool] = True

    def training_groups(self, groups: Sequence[ScoredGroup], terms: StepTerms) -> list[TrainingGroup]:
        """The kept groups; the batch's mean is over these."""
        usable = usable_groups(groups)
        kept = gapg_kept_prompts([prompt_outcome(group) for group in usable], _quota(terms.target_rate), self._rng(terms))
        return [_unscaled(usable[index], gapg_advantages(self.assist.rewards(usable[index], terms.task))) for index in kept]

    def _rng(self, terms: StepTerms) -> random.Random:
        return stream(self.seed, "gapg", terms.task, terms.step)


def usable_groups(groups: Sequence[ScoredGroup]) -> list[ScoredGroup]:
    """Groups with at least two responses that count."""
    return [group for group in groups if len(group.unmasked) >= 2]


def prompt_outcome(group: ScoredGroup) -> PromptOutcome:
    """What GAPG's filter asks of a prompt."""
    return PromptOutcome(
        any_local_correct=any(_right(one) and not one.asked for one in group.unmasked),
        cloud_correct=any(_right(one) and one.asked for one in group.unmasked),
    )


def _rewards_and_costs(group: ScoredGroup) -> tuple[list[float], list[int]]:
    return [one.reward for one in group.unmasked], [one.cost for one in group.unmasked]


def _price(group: ScoredGroup, terms: StepTerms) -> float:
    return terms.dual if group.price is None else group.price


def _with_cloud_sample(trained: TrainingGroup, group: ScoredGroup, price: float) -> TrainingGroup:
    """The group with its cloud answer: right and well formed, or it would not be there, and free."""
    ids = group.cloud_sample
    if not ids:
        return trained
    advantage = outside_advantage(task_reward(Outcome(correct=True, format_ok=True)), *_rewards_and_costs(group), price)
    return replace(trained, samples=(*trained.samples, TrainingSample(ids, (0.0,) * len(ids), advantage, off_policy=True)))


def _right(one: ScoredResponse) -> bool:
    return one.judged and one.correct and one.format_ok


def _quota(target_rate: float) -> float:
    """Calls per local answer; more than any batch holds where everything may be asked."""
    return calls_per_local(target_rate) if target_rate < 1.0 else float(2**31)


def _unscaled(group: ScoredGroup, advantages_G: Sequence[float]) -> TrainingGroup:
    return _group(group, advantages_G, estimator_weight(len(group.unmasked)))


def _group(group: ScoredGroup, advantages_G: Sequence[float], weight: float) -> TrainingGroup:
    samples = tuple(
        TrainingSample(scored.response.token_ids, scored.response.logprobs, advantage)
        for scored, advantage in zip(group.unmasked, advantages_G, strict=True)
    )
    return TrainingGroup(group.prompt_ids, samples, weight)
