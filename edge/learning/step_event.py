"""The event of a finished step, counted from its groups. Every accuracy travels with its rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edge.core.types import FinishReason
from edge.dagrpo.advantages import mean, standard_deviation
from edge.dagrpo.costs import weighted_rate
from edge.dagrpo.dual import asking_slope
from edge.dagrpo.metrics import ResponseTally, tally
from edge.dagrpo.ranking import RankedAnswers, ranked
from edge.learning.curriculum import StepPlan
from edge.learning.imitation import NOTHING_GIVEN, ImitationBatch
from edge.learning.methods import GroupAdvantages
from edge.learning.rollout import ResponseOutcome, ScoredGroup, ScoredResponse, asked_share
from edge.learning.step_reporter import OpenStep
from edge.state.events import (
    BandShares,
    DrawnQuestion,
    FamilyScores,
    StepAdapter,
    StepCloud,
    StepControl,
    StepFinished,
    StepScores,
    StepSeconds,
    StepTime,
    StepUpdate,
)
from edge.state.rows import HelpRecord
from edge.tasks.practice import FAMILIES
from edge.training.floor import StepMeasure
from edge.training.learner import Imitation, LearnerReport

MOST_LOG_ODDS = 60.0
"""Nats to which recorded log-odds are cut, so that they are numbers also where a decision is certain."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """All that a step made up to its update. `given` and `imitation`: the given answers, and what was made of them (None: there were none).
    `by_cost`: λ acts on what calls cost."""

    plan: StepPlan
    opened: OpenStep
    groups: Sequence[ScoredGroup]
    advantages: Sequence[GroupAdvantages]
    report: LearnerReport
    given: ImitationBatch = NOTHING_GIVEN
    imitation: Imitation | None = None
    by_cost: bool = False
    beyond_limit: frozenset[int] = frozenset()
    """Places in the plan of the prompts that came after the step's limit of tokens was reached."""


def step_event(
    result: StepResult, seconds: StepSeconds, before: StepFinished | None, measure: StepMeasure | None = None
) -> StepFinished:
    """The step's event. λ after the step, `offline`, the end time and `times_floor` are filled in when it is closed.

    `before`: the last committed step, whose totals this one adds to. A number more is a field of one of the event's parts
    (edge.state.events), and is counted here: the event's JSON and metrics.csv follow.
    """
    plan, opened, groups, report = result.plan, result.opened, result.groups, result.report
    from_cloud = [
        one.group.cloud_sample for one in result.advantages if one.cloud_advantage is not None and one.group.cloud_sample
    ]
    responses = [scored for group in groups for scored in group.responses]
    judged = [scored for scored in responses if scored.judged]
    counts = _tally(responses)
    rewards = [scored.reward for scored in judged]
    asked = sum(scored.asked for scored in responses)
    tokens = sum(len(scored.response.token_ids) for scored in responses)
    calls, cloud_tokens, spend_uusd = cloud_use(groups)
    slopes, drawn = ask_slopes(groups), drawn_questions(groups)
    return StepFinished(
        step=plan.step,
        steps_planned=plan.steps_planned,
        phase=plan.phase,
        phase_step=plan.phase_step,
        source=plan.source,
        task=plan.task,
        at=0.0,
        control=StepControl(
            asked / len(responses),
            opened.target_rate,
            opened.step_dual,
            opened.step_dual,
            offline=False,
            help_bias=opened.help_bias,
            help_gain=help_gain(groups),
            cost_rate=asked_share(groups) if result.by_cost else None,
            source_rate=asked_share(groups) if drawn and not result.by_cost else None,
            expected_rate=opened.expected_rate,
            ask_covariance=sum(along for along, _ in slopes),
            ask_variance=sum(squares for _, squares in slopes),
        ),
        scores=StepScores(
            prompts=len(groups),
            responses=len(responses),
            kept_accuracy=counts.kept_accuracy if counts.kept else None,
            coverage=1.0 - asked / len(responses),
            joint_accuracy=counts.joint_accuracy if judged else None,
            reward_mean=mean(rewards) if rewards else 0.0,
            reward_std=standard_deviation(rewards),
            format_ok=sum(scored.format_ok for scored in responses) / len(responses),
            truncated=sum(scored.response.finish is FinishReason.LENGTH for scored in responses) / len(responses),
            masked=sum(scored.masked for scored in responses),
            refused=sum(scored.outcome is ResponseOutcome.REFUSED for scored in responses),
            uncalled=sum(scored.outcome is ResponseOutcome.UNCALLED for scored in responses),
            families=family_scores(groups),
            bands=band_shares(groups),
            beyond_limit=len(result.beyond_limit),
            ranked=ranked_responses(groups),
            drawn=drawn,
            source_right=source_right(groups) if drawn else None,
        ),
        cloud=StepCloud(
            cloud_calls=calls,
            cloud_tokens=cloud_tokens,
            spend_uusd=spend_uusd,
            total_cloud_calls=calls + (before.cloud.total_cloud_calls if before else 0),
            total_cloud_tokens=cloud_tokens + (before.cloud.total_cloud_tokens if before else 0),
            total_spend_uusd=spend_uusd + (before.cloud.total_spend_uusd if before else 0),
            cloud_samples=len(from_cloud),
            cloud_sample_tokens=sum(len(turn.token_ids) for turn in from_cloud),
        ),
        update=StepUpdate(
            groups_trained=report.groups,
            frac_reward_zero_std=report.frac_reward_zero_std,
            loss=report.loss,
            grad_norm=report.grad_norm,
            entropy=report.entropy,
            mean_abs_logprob_diff=report.mean_abs_logprob_diff,
            kl=report.kl,
            effective_sample_share=report.effective_sample_share,
            clipped_share=report.clipped_share,
            learning_rate=report.learning_rate,
            learner_skipped=report.skipped,
            demonstrations=len(result.given.demonstrations),
            given_known=result.given.known,
            imitation_updates=result.imitation.updates if result.imitation else 0,
        ),
        adapter=StepAdapter(plan.step),
        time=StepTime(
            tokens=tokens,
            tokens_per_s=tokens / seconds.rollout if seconds.rollout > 0 else 0.0,
            seconds=seconds.rollout + seconds.update,
            seconds_by_part=seconds,
            floor_s=None if measure is None else floor_s(groups, report, measure),
        ),
    )


def drawn_questions(groups: Sequence[ScoredGroup]) -> tuple[DrawnQuestion, ...]:
    """The questions that were drawn by what they can teach, with the responses to each that count; () where they come from a stream."""
    return tuple(
        DrawnQuestion(group.item.id, group.draw.probability, len(group.unmasked), round(group.right_alone * len(group.responses)))
        for group in groups
        if group.draw is not None
    )


def source_right(groups: Sequence[ScoredGroup]) -> float:
    """Share of the responses right alone over all questions of the source that these were drawn from."""
    return weighted_rate([group.right_alone for group in groups], [group.draw_weight * len(group.responses) for group in groups])


def band_shares(groups: Sequence[ScoredGroup]) -> tuple[BandShares, ...]:
    """What became of practice questions, by band; () where there were none."""
    by_band: dict[str, list[ScoredResponse]] = {}
    for group in groups:
        family = FAMILIES.get(group.item.family)
        band = family.bands.get(group.item.level) if family else None
        if band:
            by_band.setdefault(band, []).extend(group.responses)
    shares = []
    for name in ("known", "learnable", "beyond"):
        if responses := by_band.get(name):
            right = sum(scored.outcome is ResponseOutcome.KEPT and scored.correct and scored.format_ok for scored in responses)
            asked = sum(scored.asked for scored in responses)
            count = len(responses)
            shares.append(BandShares(name, count, right / count, asked / count, (count - right - asked) / count))
    return tuple(shares)


def ranked_responses(groups: Sequence[ScoredGroup]) -> RankedAnswers:
    """How the help log-odds order the responses that did not ask, which the verifier judged as they are."""
    return ranked(
        (number, scored.response.help_log_odds, scored.correct)
        for number, group in enumerate(groups)
        for scored in group.responses
        if scored.outcome is ResponseOutcome.KEPT and scored.response.help_log_odds is not None
    )


def help_gain(groups: Sequence[ScoredGroup]) -> float | None:
    """Mean reward of the responses that asked less that of the others, over the groups that hold both; None without such a group.

    A group in which all are right is left out: nothing was to be gained there, which is no evidence against asking. At a high τ these are
    soon all groups that hold both, since where asking is needed all ask.
    """
    gains = []
    for group in groups:
        judged = [scored for scored in group.responses if scored.judged]
        asked = [scored.reward for scored in judged if scored.outcome is ResponseOutcome.ASKED]
        local = [scored.reward for scored in judged if scored.outcome is ResponseOutcome.KEPT]
        if asked and local and min(*asked, *local) < 1.0:
            gains.append(mean(asked) - mean(local))
    return mean(gains) if gains else None


def ask_slopes(groups: Sequence[ScoredGroup]) -> list[tuple[float, float]]:
    """How the reward goes with the cost in each group that has a baseline (edge.dagrpo.dual.asking_slope)."""
    usable = [(group, group.unmasked) for group in groups if len(group.unmasked) >= 2]
    return [
        asking_slope([one.reward for one in responses], [group.cost_weight * one.cost for one in responses])
        for group, responses in usable
    ]


def help_record(groups: Sequence[ScoredGroup]) -> HelpRecord:
    """How much the responses wished to ask, rounded."""
    responses = [(scored.response.help_log_odds, group.rate_weight) for group in groups for scored in group.responses]
    log_odds = [None if one is None else round(min(MOST_LOG_ODDS, max(-MOST_LOG_ODDS, one)), 4) for one, _ in responses]
    return HelpRecord(tuple(log_odds), tuple(weight for _, weight in responses))


def cloud_use(groups: Sequence[ScoredGroup]) -> tuple[int, int, int]:
    """Billed calls, their tokens and micro-USD, with calls that were charged and brought no answer. A cached answer is no call."""
    lost = [group.lost_uusd for group in groups if group.lost_uusd is not None]
    billed = [group.completion for group in groups if group.completion is not None and not group.completion.cached]
    tokens = sum(completion.usage.input_tokens + completion.usage.output_tokens for completion in billed)
    return len(billed) + len(lost), tokens, sum(completion.charged_uusd for completion in billed) + sum(lost)


def floor_s(groups: Sequence[ScoredGroup], report: LearnerReport, measure: StepMeasure) -> float | None:
    """The least seconds these groups could have taken on the measured device; None when nothing was sampled."""
    lengths = [len(scored.response.token_ids) for group in groups for scored in group.responses]
    floor = measure.floor(
        prompts=len(groups),
        responses=len(lengths),
        prompt_tokens=mean([len(group.prompt_ids) for group in groups]) if groups else 0.0,
        response_tokens=mean(lengths) if lengths else 0.0,
        dropped_share=report.frac_reward_zero_std,
    )
    return None if floor is None or floor.total_s <= 0.0 else floor.total_s


def family_scores(groups: Sequence[ScoredGroup]) -> tuple[FamilyScores, ...]:
    """The shares of each family among the groups, by name."""
    by_family: dict[str, list[ScoredGroup]] = {}
    for group in groups:
        by_family.setdefault(group.item.family, []).append(group)
    scores = []
    for family, own in sorted(by_family.items()):
        responses = [scored for group in own for scored in group.responses]
        counts, asked = _tally(responses), sum(scored.asked for scored in responses)
        kept, joint = counts.kept_accuracy if counts.kept else None, counts.joint_accuracy if counts.responses else None
        scores.append(FamilyScores(family, len(own), asked / len(responses), kept, joint))
    return tuple(scores)


def _tally(responses: Sequence[ScoredResponse]) -> ResponseTally:
    """Counts over the responses whose correctness is known."""
    return tally((scored.asked, scored.correct) for scored in responses if scored.judged)
