"""The expectation over all possible answers: it is the gradient, and what the sampled estimator is in the mean."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest

from edge.core.forms import PlainForm
from edge.core.types import AnswerKind, FinishReason, LocalResponse, TaskItem, TrainingGroup, TurnStart
from edge.dagrpo.expectation import answer_value, answer_weights, ask_weight, assisted_reward
from edge.dagrpo.prompts import HELP_PHRASE
from edge.dagrpo.turn_start import ask_probability, log_odds
from edge.learning.methods import DaGrpo
from edge.learning.rollout import ResponseOutcome, ScoredGroup, ScoredResponse
from tests.worlds.trained import training_groups

OPTIONS = ("Keys", "Old bills", "Seeds")
ITEM = TaskItem("1", "drawer", "csv", 0, "train", "note", "Keys", AnswerKind.CHOICE, 4, OPTIONS, form="plain")
PHRASE, PHRASE_LOGPROBS, BIAS, DUAL = (7, 8), (-1.1, -0.4), 0.35, 0.3
LOGPROBS, REWARDS = tuple(map(math.log, (0.5, 0.3, 0.2))), (1.0, 0.0, 0.0)
ASK = ask_probability(log_odds(PHRASE_LOGPROBS), BIAS)


def test_the_weights_are_the_gradient_of_the_expected_reward() -> None:
    torch = pytest.importorskip("torch")
    logits = torch.tensor([0.3, -0.8, 0.1, 1.2], dtype=torch.float64, requires_grad=True)
    z = torch.tensor(-0.7, dtype=torch.float64, requires_grad=True)
    rewards, helped, dual = torch.tensor([0.0, 1.0, -0.1, 0.0], dtype=torch.float64), 0.9, 0.4
    logprobs, ask = torch.log_softmax(logits, 0), torch.sigmoid(z + BIAS)
    expected = torch.autograd.grad((1 - ask) * (logprobs.exp() * rewards).sum() + ask * (helped - dual), [logits, z])
    chances, q = logprobs.detach().tolist(), float(ask.detach())
    weights = torch.tensor(answer_weights(chances, rewards.tolist(), q), dtype=torch.float64)
    pull = ask_weight(q, helped, dual, answer_value(chances, rewards.tolist()))
    ours = torch.autograd.grad((weights * torch.log_softmax(logits, 0)).sum() + pull * z, [logits, z])
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(("ask", "size"), [(0.02, 8), (0.5, 2), (0.999, 4), (1.0, 8)])
@pytest.mark.parametrize("elsewhere", [0.0, 0.7, 1.0])
def test_the_clouds_reward_is_estimated_without_bias_from_prompts_that_asked(ask: float, size: int, elsewhere: float) -> None:
    seen = 1.0 - (1.0 - ask) ** size
    estimates = assisted_reward(0.6, ask, size, elsewhere), assisted_reward(None, ask, size, elsewhere)
    assert seen * estimates[0] + (1.0 - seen) * estimates[1] == pytest.approx(0.6)


def answer(option: int) -> LocalResponse:
    logprobs = (LOGPROBS[option], 0.0)
    return LocalResponse(
        OPTIONS[option], (option, 9), logprobs, FinishReason.EOS, start=start(asked=False), form=PlainForm(OPTIONS)
    )


def start(*, asked: bool) -> TurnStart:
    return TurnStart(PHRASE, PHRASE_LOGPROBS, BIAS, asked, among_few=True)


def kept(option: int) -> ScoredResponse:
    reward = REWARDS[option]
    return ScoredResponse(answer(option), True, ResponseOutcome.KEPT, reward == 1.0, reward, 0)


def asks(reward: float, outcome: ResponseOutcome = ResponseOutcome.ASKED) -> ScoredResponse:
    response = LocalResponse(HELP_PHRASE, PHRASE, PHRASE_LOGPROBS, FinishReason.EOS, start=start(asked=True))
    return ScoredResponse(response, True, outcome, reward == 1.0, reward, 1)


def group(responses: Sequence[ScoredResponse], *, exact: bool) -> ScoredGroup:
    answers = tuple((answer(option), reward) for option, reward in enumerate(REWARDS)) if exact else ()
    return ScoredGroup(ITEM, (1, 2), tuple(responses), None, answers=answers)


def pulls(trained: TrainingGroup) -> dict[tuple[int, ...], float]:
    """What multiplies the gradient of the log-probability of each text."""
    found: dict[tuple[int, ...], float] = {}
    for sample in trained.samples:
        found[sample.token_ids] = found.get(sample.token_ids, 0.0) + trained.group_weight * sample.advantage
    return found


@pytest.mark.parametrize("helped", [1.0, 0.0])
@pytest.mark.parametrize("size", [2, 3])
def test_it_is_what_the_sampled_estimator_is_in_the_mean(helped: float, size: int) -> None:
    outcomes = [*((1.0 - ASK) * math.exp(logprob) for logprob in LOGPROBS), ASK]
    means: dict[bool, dict[tuple[int, ...], float]] = {}
    for exact, drawn in itertools.product((True, False), itertools.product(range(4), repeat=size)):
        responses = [kept(one) if one < 3 else asks(helped) for one in drawn]
        [trained] = training_groups(DaGrpo(), [group(responses, exact=exact)], DUAL)
        mean = means.setdefault(exact, {})
        for ids, pull in pulls(trained).items():
            mean[ids] = mean.get(ids, 0.0) + math.prod(outcomes[one] for one in drawn) * pull
    # log p of the three answers sums to a constant, so that what is common to all of them, by their chances, moves nothing
    for mean in means.values():
        common = sum(mean[(option, 9)] for option in range(3))
        mean.update({(option, 9): mean[(option, 9)] - common * math.exp(LOGPROBS[option]) for option in range(3)})
    assert means[True] == pytest.approx(means[False])


def test_a_group_of_one_mind_still_teaches_and_other_prompts_say_what_the_cloud_is_worth() -> None:
    of_one_mind, asked = group([kept(1)] * 4, exact=True), group([kept(0), asks(1.0)], exact=True)
    alone, _ = training_groups(DaGrpo(), [of_one_mind, group([kept(0)] * 2, exact=True)], DUAL)
    beside, _ = training_groups(DaGrpo(), [of_one_mind, asked], DUAL)
    assert pulls(alone)[(0, 9)] == pulls(beside)[(0, 9)] > 0.0 > pulls(alone)[(1, 9)]
    assert pulls(alone)[PHRASE] < 0.0 < pulls(beside)[PHRASE]


@pytest.mark.parametrize("outcome", [ResponseOutcome.MASKED, ResponseOutcome.UNSENT])
def test_where_the_cloud_did_not_answer_the_decision_is_not_learned_and_the_answers_are(outcome: ResponseOutcome) -> None:
    [trained] = training_groups(DaGrpo(), [group([kept(0), asks(0.0, outcome)], exact=True)], DUAL)
    assert pulls(trained)[PHRASE] == 0.0 < pulls(trained)[(0, 9)]
