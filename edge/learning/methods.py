"""How a scored batch becomes something to learn from: DA-GRPO and the methods it is compared with, as strategies of one loop.

The estimator of every method has the form Σ_prompts w Σ_i A_i ∇ log π(y_i) / P, so a method is: which prompts, which A_i, which w.
"""

from __future__ import annotations

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
    scale_advantages,
)
from edge.dagrpo.baselines import PromptOutcome, calls_per_local, gapg_advantages, gapg_kept_prompts, grpo_advantages
from edge.dagrpo.reward import Outcome, hierarchical_reward, task_reward
from edge.dagrpo.turn_start import slope
from edge.learning.rollout import ScoredGroup, ScoredResponse


@dataclass(frozen=True, slots=True)
class GroupAdvantages:
    """One group to learn from. `advantages_G` are those of its unmasked responses, `weight` is w of its sum.

    `cloud_advantage`: of the cloud's answer as one more sample (None: it is not learned from).
    """

    group: ScoredGroup
    advantages_G: Sequence[float]
    weight: float
    cloud_advantage: float | None = None

    def training_group(self) -> TrainingGroup:
        """What the learner gets: the tokens of the samples with their advantages. Of plain responses, whose decision comes before their
        tokens, one sample more: the help phrase. A given answer takes the place of the sampled ones, and is learned by its likelihood."""
        given = self.group.given
        pairs = [(scored.response, advantage) for scored, advantage in zip(self.group.unmasked, self.advantages_G, strict=True)]
        samples = [
            TrainingSample(one.token_ids, one.logprobs, advantage, biased=one.biased, allowed=one.allowed)
            for one, advantage in pairs
            if given is None and (one.start is None or not one.start.asked)
        ]
        if given is not None:
            ids, allowed = given.token_ids, given.allowed
            samples.append(TrainingSample(ids, (0.0,) * len(ids), 1.0 / self.weight, imitated=True, allowed=allowed))
        starts = [(one.start, advantage) for one, advantage in pairs if one.start is not None]
        if starts:
            phrase = starts[0][0]
            pull = sum(advantage * slope(one.phrase_logprobs, one.bias, one.asked, one.among_few) for one, advantage in starts)
            samples.append(TrainingSample(phrase.phrase_ids, phrase.phrase_logprobs, pull))
        if self.cloud_advantage is not None and self.group.cloud_sample is not None:
            turn = self.group.cloud_sample
            ids, allowed = turn.token_ids, turn.allowed
            samples.append(TrainingSample(ids, (0.0,) * len(ids), self.cloud_advantage, off_policy=True, allowed=allowed))
        return TrainingGroup(self.group.prompt_ids, tuple(samples), self.weight)


@dataclass(frozen=True, slots=True)
class StepTerms:
    """What a method may know of a step in addition to its groups and λ: its number, its task label and τ."""

    step: int
    task: str
    target_rate: float


class Method(Protocol):
    """A way to learn. `may_ask`: whether its rollouts may ask for help; where not, asking is a format violation like any other."""

    @property
    def name(self) -> str:
        """As in `learning.method`."""
        ...

    @property
    def may_ask(self) -> bool:
        """False: a request for help is worth what a bad format is."""
        ...

    def advantages(self, groups: Sequence[ScoredGroup], dual: float, terms: StepTerms) -> list[GroupAdvantages]:
        """The groups to learn from, at the step's λ. A group with fewer than two unmasked responses has no baseline and goes."""
        ...


@dataclass(frozen=True, slots=True)
class DaGrpo:
    """Â = (r - mean r) - λ (c - mean c), weight 1/(G-1) (the paper). With a `scale`, λ is no longer in units of reward.

    A given answer is learned whatever the samples are, and they decide when to ask.

    Where a call costs w calls of mean cost, c is w for who asks: one w a group, so that λ w is its λ. A cloud answer that joined its
    group is one more sample, with the group as its baseline.
    """

    scale: AdvantageScale = AdvantageScale.NONE
    name: ClassVar[str] = "da-grpo"
    may_ask: ClassVar[bool] = True

    def advantages(self, groups: Sequence[ScoredGroup], dual: float, terms: StepTerms) -> list[GroupAdvantages]:
        """Dual advantages of every usable group."""
        found = []
        for group in usable_groups(groups):
            rewards_G, costs_G = [one.reward for one in group.unmasked], [one.cost for one in group.unmasked]
            # the cloud's answer is right and well formed, or it would not be there, and free
            cloud = [task_reward(Outcome(correct=True, format_ok=True))] if group.cloud_sample else []
            advantages_G = dual_advantages(rewards_G, costs_G, dual * group.cost_weight, free_rewards=cloud)
            cloud_advantage = advantages_G.pop() if cloud else None
            found.append(GroupAdvantages(group, advantages_G, estimator_weight(len(advantages_G)), cloud_advantage))
        scaled = scale_advantages([one.advantages_G for one in found], self.scale)
        without_a_baseline = [group for group in groups if group.given is not None and len(group.unmasked) < 2]
        return [
            *(replace(one, advantages_G=own) for one, own in zip(found, scaled, strict=True)),
            *(GroupAdvantages(group, [0.0] * len(group.unmasked), 1.0) for group in without_a_baseline),
        ]


@dataclass(frozen=True, slots=True)
class EdgeOnly:
    """Nobody is asked: the centred task reward with DA-GRPO's estimator, so that only the decision differs."""

    name: ClassVar[str] = "edge-only"
    may_ask: ClassVar[bool] = False

    def advantages(self, groups: Sequence[ScoredGroup], dual: float, terms: StepTerms) -> list[GroupAdvantages]:
        """Centred task rewards; λ plays no part."""
        return [_unbiased(group, centred([one.reward for one in group.unmasked])) for group in usable_groups(groups)]


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

    def advantages(self, groups: Sequence[ScoredGroup], dual: float, terms: StepTerms) -> list[GroupAdvantages]:
        """The mean over a response's tokens lies in its advantage, the mean over the group in the group's weight."""
        found = []
        for group in usable_groups(groups):
            advantages_G = grpo_advantages(self.assist.rewards(group, terms.task))
            lengths_G = [max(1, len(one.response.token_ids)) for one in group.unmasked]
            per_token_G = [advantage / length for advantage, length in zip(advantages_G, lengths_G, strict=True)]
            found.append(GroupAdvantages(group, per_token_G, 1.0 / len(per_token_G)))
        return found


@dataclass(frozen=True, slots=True)
class Gvpo:
    """GVPO (Zhang et al. 2025): β/(G-1) Σ_i w_i ∇ log π(y_i); the learner takes β(ℓ_i - mean ℓ) off before each further update."""

    assist: FixedReward
    beta: float = 0.1
    name: ClassVar[str] = "gvpo"
    may_ask: ClassVar[bool] = True

    def advantages(self, groups: Sequence[ScoredGroup], dual: float, terms: StepTerms) -> list[GroupAdvantages]:
        """Groups with centred fixed rewards, their weight β/(G-1)."""
        return [
            GroupAdvantages(
                group, centred(self.assist.rewards(group, terms.task)), self.beta * estimator_weight(len(group.unmasked))
            )
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

    def advantages(self, groups: Sequence[ScoredGroup], dual: float, terms: StepTerms) -> list[GroupAdvantages]:
        """The groups that the filter leaves; the batch's mean is over these."""
        usable = usable_groups(groups)
        # calls per local answer; more than any batch holds where everything may be asked
        quota = calls_per_local(terms.target_rate) if terms.target_rate < 1.0 else float(2**31)
        rng = stream(self.seed, "gapg", terms.task, terms.step)
        kept = gapg_kept_prompts([prompt_outcome(group) for group in usable], quota, rng)
        return [_unbiased(usable[index], gapg_advantages(self.assist.rewards(usable[index], terms.task))) for index in kept]


def usable_groups(groups: Sequence[ScoredGroup]) -> list[ScoredGroup]:
    """Groups with at least two responses that count."""
    return [group for group in groups if len(group.unmasked) >= 2]


def prompt_outcome(group: ScoredGroup) -> PromptOutcome:
    """What GAPG's filter asks of a prompt."""
    return PromptOutcome(
        any_local_correct=any(_right(one) and not one.asked for one in group.unmasked),
        cloud_correct=any(_right(one) and one.asked for one in group.unmasked),
    )


def _right(one: ScoredResponse) -> bool:
    return one.judged and one.correct and one.format_ok


def _unbiased(group: ScoredGroup, advantages_G: Sequence[float]) -> GroupAdvantages:
    return GroupAdvantages(group, advantages_G, estimator_weight(len(advantages_G)))
