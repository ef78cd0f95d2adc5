"""The loss, compared with plainly written formulas."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.core.types import TrainingGroup, TrainingSample
from edge.training.batching import AllowedTargets, live_rows, plain_chunks, shared_bundles, targets_of, whole_length
from edge.training.loss import (
    NO_TOKENS,
    DenseProjection,
    TokenScores,
    clipped_loss,
    importance_weights,
    mismatch_sums,
    policy_loss,
    token_scores,
)

CPU = torch.device("cpu")


def _problem(tokens: int = 11, width: int = 6, vocab: int = 13) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(5)
    hidden = torch.randn(tokens, width, generator=draw, requires_grad=True)
    weight = torch.randn(vocab, width, generator=draw)
    return hidden, weight, torch.randint(0, vocab, (tokens,), generator=draw)


@pytest.mark.parametrize("chunk_elements", [1, 13, 30, 10_000])
def test_chunked_log_probabilities_and_entropy_equal_the_plain_softmax(chunk_elements: int) -> None:
    hidden, weight, targets = _problem()
    scores = token_scores(hidden, weight, targets, chunk_elements)
    log_softmax = torch.log_softmax(hidden @ weight.T, dim=-1)
    torch.testing.assert_close(scores.logprobs_N, log_softmax[torch.arange(11), targets])
    torch.testing.assert_close(scores.entropy_N, -(log_softmax.exp() * log_softmax).sum(-1))


@pytest.mark.parametrize("chunk_elements", [1, 30, 10_000])
def test_gradient_of_the_chunked_softmax_equals_autograd(chunk_elements: int) -> None:
    hidden, weight, targets = _problem()
    slopes = torch.linspace(-2, 3, 11)
    (plain,) = torch.autograd.grad((slopes * torch.log_softmax(hidden @ weight.T, -1)[torch.arange(11), targets]).sum(), hidden)
    (ours,) = torch.autograd.grad((slopes * token_scores(hidden, weight, targets, chunk_elements).logprobs_N).sum(), hidden)
    torch.testing.assert_close(ours, plain)


@pytest.mark.parametrize("chunk_elements", [3_000, 1 << 20])
def test_in_bf16_the_target_logit_is_exact_and_other_errors_average_out(chunk_elements: int) -> None:
    draw = torch.Generator().manual_seed(6)
    hidden = torch.randn(40, 64, generator=draw, requires_grad=True)
    weight = torch.randn(700, 64, generator=draw) * 0.5
    logits = (hidden @ weight.T).detach()
    likely, drawn = logits.argmax(-1), torch.randint(0, 700, (40,), generator=draw)
    for targets in (likely, drawn):
        exact = token_scores(hidden, weight, targets, chunk_elements)
        rounded = token_scores(hidden, weight, targets, chunk_elements, torch.bfloat16)
        careless = torch.log_softmax((hidden.bfloat16() @ weight.bfloat16().T).float(), -1).gather(-1, targets[:, None])[:, 0]
        error, careless_error = (
            float((found - exact.logprobs_N).detach().abs().mean()) for found in (rounded.logprobs_N, careless)
        )
        assert error < min(0.01, 0.75 * careless_error)
        (mine,) = torch.autograd.grad(rounded.logprobs_N.sum(), hidden)
        (theirs,) = torch.autograd.grad(exact.logprobs_N.sum(), hidden)
        assert float((mine - theirs).norm()) < 0.01 * float(theirs.norm())


def test_in_bf16_the_gradient_of_a_nearly_certain_token_does_not_drown_in_the_rounding_of_its_own_row() -> None:
    draw = torch.Generator().manual_seed(7)
    weight = torch.randn(300, 64, generator=draw) * 0.5
    targets = torch.randint(0, 300, (20,), generator=draw)
    hidden = (weight[targets] * 0.8).requires_grad_()
    exact, rounded = (token_scores(hidden, weight, targets, 2_000, dtype) for dtype in (None, torch.bfloat16))
    assert 0.99 < float(exact.logprobs_N.detach().exp().median()) < 0.999
    theirs, mine = (torch.autograd.grad(scores.logprobs_N.sum(), hidden)[0] for scores in (exact, rounded))
    assert float(((mine - theirs).norm(dim=-1) / theirs.norm(dim=-1)).max()) < 0.03


def _groups() -> list[TrainingGroup]:
    first = (TrainingSample((3, 4, 5), (-1.0, -2.0, -0.5), 0.75), TrainingSample((7,), (-3.0,), -0.75))
    second = (TrainingSample((1, 2), (-0.1, -0.2), 0.0), TrainingSample((9, 9), (-0.1, -0.2), 1e-17))
    third = (TrainingSample((8, 2), (-2.0, -2.0), -0.5), TrainingSample((), (), 0.5))
    return [TrainingGroup((1, 2), first, 1.0), TrainingGroup((1,), second, 1.0), TrainingGroup((5, 6, 7), third, 0.5)]


def test_gradient_of_the_loss_is_the_advantage_weighted_sum_of_score_functions() -> None:
    rows = live_rows(_groups())
    targets = targets_of(rows, CPU)
    draw = torch.Generator().manual_seed(2)
    hidden = torch.randn(len(targets.ids_N), 4, generator=draw, requires_grad=True)
    weight = torch.randn(12, 4, generator=draw)
    scores = token_scores(hidden, weight, targets.ids_N)
    rho = importance_weights(scores.logprobs_N, targets.behaviour_N, 2.0)
    (ours,) = torch.autograd.grad(policy_loss(scores.logprobs_N, targets.coefficients_N, rho), hidden)
    naive = torch.zeros_like(hidden)
    place = 0
    for group in _groups():
        for sample in group.samples:
            if abs(sample.advantage) < 1e-8:
                continue
            for token, behaviour in zip(sample.token_ids, sample.behaviour_logprobs, strict=True):
                distribution = torch.softmax(weight @ hidden[place].detach(), dim=0)
                score = weight[token] - distribution @ weight
                ratio = min(float(distribution[token]) / math.exp(behaviour), 2.0)
                naive[place] = -sample.advantage * group.group_weight / 3 * ratio * score
                place += 1
    torch.testing.assert_close(ours, naive)


def test_importance_weights_are_ratios_cut_at_the_cap_and_carry_no_gradient() -> None:
    logprobs = torch.tensor([-1.0, -1.0, -1.0], requires_grad=True)
    weights = importance_weights(logprobs, torch.tensor([-1.0, -0.5, -4.0]), cap=2.0)
    torch.testing.assert_close(weights, torch.tensor([1.0, math.exp(-0.5), 2.0]))
    assert not weights.requires_grad


def test_mismatch_of_known_ratios_is_as_computed_by_hand() -> None:
    scores = TokenScores(torch.log(torch.tensor([0.6, 0.1])), torch.zeros(2))
    sums = mismatch_sums(scores, torch.log(torch.tensor([0.2, 0.2])), cap=2.0)
    assert sums.per_token(sums.abs_diff) == pytest.approx((math.log(3) + math.log(2)) / 2, rel=1e-6)
    assert sums.effective_sample_share == pytest.approx(3.5**2 / (2 * 9.25), rel=1e-6)
    assert sums.kl == pytest.approx((3 - 1 - math.log(3)) + (0.5 - 1 - math.log(0.5)), rel=1e-6)
    assert sums.clipped == 1


def test_micro_batch_sums_add_up() -> None:
    scores = TokenScores(torch.tensor([-1.0, -2.0, -0.3]), torch.tensor([0.5, 1.5, 0.1]))
    behaviour = torch.tensor([-1.2, -0.7, -0.3])
    parts = [TokenScores(scores.logprobs_N[:1], scores.entropy_N[:1]), TokenScores(scores.logprobs_N[1:], scores.entropy_N[1:])]
    summed = mismatch_sums(parts[0], behaviour[:1], 2.0) + mismatch_sums(parts[1], behaviour[1:], 2.0)
    assert summed == pytest.approx(mismatch_sums(scores, behaviour, 2.0))
    assert NO_TOKENS.per_token(0.0) == NO_TOKENS.effective_sample_share == 0.0


@pytest.mark.parametrize(
    "sample",
    [
        TrainingSample((1, 2), (-1.0,), 1.0),
        TrainingSample((1,), (float("nan"),), 1.0),
        TrainingSample((1,), (float("-inf"),), 1.0),
        TrainingSample((1,), (-1.0,), float("nan")),
    ],
)
def test_non_finite_samples_or_unequal_lengths_are_refused(sample: TrainingSample) -> None:
    with pytest.raises(ValueError):
        live_rows([TrainingGroup((1,), (sample,), 1.0)])


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="prompt"):
        live_rows([TrainingGroup((), (TrainingSample((1,), (-1.0,), 1.0),), 1.0)])


lengths = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 12)), min_size=1, max_size=20)


@settings(max_examples=60, deadline=None)
@given(lengths, st.integers(1, 40))
def test_every_response_is_in_exactly_one_micro_batch_and_none_exceeds_the_budget(shapes, budget) -> None:
    groups = [
        TrainingGroup((7,) * prompt, (TrainingSample((index + 1,) * response, (-1.0,) * response, 1.0),), 1.0)
        for index, (prompt, response) in enumerate(shapes)
    ]
    rows = live_rows(groups)
    plain = plain_chunks(rows, budget)
    assert sorted(row.token_ids for chunk in plain for row in chunk) == sorted(row.token_ids for row in rows)
    assert all(len(chunk) == 1 or len(chunk) * max(map(whole_length, chunk)) <= budget for chunk in plain)
    bundles = shared_bundles(rows, budget)
    seen = [(bundle.prompts[index], row) for bundle in bundles for chunk in bundle.chunks for index, row in chunk]
    assert sorted(row.token_ids for _, row in seen) == sorted(row.token_ids for row in rows)
    assert all(prompt == row.prompt_ids for prompt, row in seen)
    assert all(len(bundle.prompts) == 1 or sum(map(len, bundle.prompts)) <= budget / 2 for bundle in bundles)
    prompts = [prompt for bundle in bundles for prompt in bundle.prompts]
    assert len(prompts) == len(set(prompts)) == len({row.prompt_ids for row in rows})


def test_the_clipped_loss_is_grpos_token_objective() -> None:
    """min(ρA, clip(ρ, 1-ε, 1+ε) A): ρ of 2 with A > 0 is cut to 1.2, with A < 0 it counts; ρ of 0.5 the other way round."""
    ratios = [2.0, 2.0, 0.5, 0.5, 1.0]
    coefficients = [1.0, -1.0, 1.0, -1.0, 0.3]
    by_hand = 1.2 - 2.0 + 0.5 - 0.8 + 0.3
    behaviour_N = torch.full((5,), -1.0)
    logprobs_N = (behaviour_N + torch.tensor(ratios).log()).requires_grad_()
    loss = clipped_loss(logprobs_N, behaviour_N, torch.tensor(coefficients), 0.2)
    assert float(loss.detach()) == pytest.approx(-by_hand, rel=1e-6)
    loss.backward()
    assert logprobs_N.grad is not None
    assert logprobs_N.grad.tolist() == pytest.approx([0.0, 2.0, -0.5, 0.0, -0.3]), "no push beyond the clip"


def test_targets_among_few_tokens_make_no_logits_of_the_whole_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 13 tokens: two and three allowed, then nearly all."""
    made: list[int] = []

    class Counted(DenseProjection):
        def block(self, start: int, stop: int, dtype: torch.dtype | None = None) -> torch.Tensor:
            made.append(stop - start)
            return super().block(start, stop, dtype)

    hidden, weight, _ = _problem(tokens=4)
    excluded = torch.ones(3, 13, dtype=torch.bool)
    for one, allowed in enumerate(((3, 7), (0, 1, 12), range(12))):
        excluded[one, list(allowed)] = False
    monkeypatch.setattr("edge.training.loss.FEW", 3)
    for sets, targets, blocks in (([1, 0, 1, 0], [12, 3, 0, 7], []), ([2, 0, 1, 2], [11, 7, 1, 0], [5, 5, 3])):
        drawn_from = AllowedTargets(excluded, torch.tensor(sets))
        scores = token_scores(hidden, Counted(weight), torch.tensor(targets), 10, allowed=drawn_from)
        expected = (hidden @ weight.T).masked_fill(excluded[sets], -torch.inf).log_softmax(-1)
        torch.testing.assert_close(scores.logprobs_N, expected[torch.arange(4), targets])
        assert made == blocks
        made.clear()
