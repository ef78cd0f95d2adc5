"""The help bias of rollouts: the sampler and the learner use the same biased policy."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from edge.core.events import MemorySink
from edge.core.types import BiasedDecision
from edge.training.batching import Row, targets_of
from edge.training.loss import token_scores, with_help_bias
from tests.worlds.mlx_engines import require_mlx
from tests.worlds.tiny_run import learn, tiny_config

VOCAB, WIDTH, HELP = 24, 8, (3, 5, 7)
ROWS = (
    Row((1, 2), (4, 5, 6), (-1.0,) * 3, 0.5, biased=(BiasedDecision(1, 2.5, HELP),)),
    Row((1, 2), (9, 8), (-1.0,) * 2, -0.5),
    Row((1,), (3, 2, 3), (-1.0,) * 3, 0.7, biased=(BiasedDecision(0, -4.0, HELP[:1]), BiasedDecision(2, 12.0, HELP))),
)
AT_90 = "phases=[{source: practice:arith, target_rate: 0.9}]"


def direct(hidden_ND: torch.Tensor, weight_VD: torch.Tensor, ids_N: torch.Tensor) -> torch.Tensor:
    """log softmax of logits to which the bias was added."""
    logits_NV = hidden_ND @ weight_VD.T
    added_NV = torch.zeros_like(logits_NV)
    added_NV[1, list(HELP)], added_NV[5, HELP[0]], added_NV[7, list(HELP)] = 2.5, -4.0, 12.0
    return (logits_NV + added_NV).log_softmax(-1).gather(-1, ids_N[:, None])[:, 0]


def states() -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(8, WIDTH, generator=draw), torch.randn(VOCAB, WIDTH, generator=draw)


def test_log_probabilities_and_gradient_equal_those_of_biased_logits() -> None:
    hidden_ND, weight_VD = states()
    targets = targets_of(ROWS, torch.device("cpu"))
    assert targets.biased is not None and targets.biased.place_M.tolist() == [1, 5, 7]
    found, expected = hidden_ND.clone().requires_grad_(), hidden_ND.clone().requires_grad_()
    plain_N = token_scores(found, weight_VD, targets.ids_N).logprobs_N
    biased_N = with_help_bias(plain_N, found, weight_VD, targets.ids_N, targets.biased)
    expected_N = direct(expected, weight_VD, targets.ids_N)
    assert torch.allclose(biased_N, expected_N, atol=1e-5)
    (biased_N * targets.coefficients_N).sum().backward()
    (expected_N * targets.coefficients_N).sum().backward()
    assert torch.allclose(found.grad, expected.grad, atol=1e-5)


def test_mlx_has_the_same_policy() -> None:
    require_mlx()
    import mlx.core as mx

    from edge.training.mlx_learner import FlatTargets
    from edge.training.mlx_learner import token_scores as mlx_scores
    from edge.training.mlx_learner import with_help_bias as mlx_with_help_bias

    hidden_ND, weight_VD = states()
    targets, weight = FlatTargets.of(ROWS), mx.array(weight_VD.numpy())
    assert targets.biased is not None

    def logits(hidden: mx.array) -> mx.array:
        return hidden @ weight.T

    def total(hidden: mx.array) -> mx.array:
        plain, _ = mlx_scores(logits, hidden, targets.ids_N, VOCAB, 64)
        return (mlx_with_help_bias(plain, logits, hidden, targets.ids_N, targets.biased) * targets.coefficients_N).sum()

    loss, gradient = mx.value_and_grad(total)(mx.array(hidden_ND.numpy()))
    expected = hidden_ND.clone().requires_grad_()
    torch_targets = targets_of(ROWS, torch.device("cpu"))
    (by_hand := (direct(expected, weight_VD, torch_targets.ids_N) * torch_targets.coefficients_N).sum()).backward()
    assert float(loss) == pytest.approx(by_hand.item(), abs=1e-4)
    assert torch.allclose(torch.tensor(gradient.tolist()), expected.grad, atol=1e-4)


@pytest.mark.parametrize(("rule", "least"), [("solved", 4.0), ("integrated", 2.0)])
async def test_sampler_and_learner_agree_under_a_decisive_bias(tmp_path: Path, rule: str, least: float) -> None:
    sets = (AT_90, "learning.prompts_per_step=2", "learning.group_size=4", f"learning.control.help_bias_rule={rule}")
    steps, _ = await learn(tiny_config(tmp_path / "state", *sets), 4, MemorySink())
    assert steps[0].control.help_bias == 0.0
    assert steps[1].control.help_bias >= least and (rule == "solved" or steps[1].control.help_bias == 2.0), (
        "at most 2 nats a step"
    )
    assert steps[-1].control.help_bias >= 4.0 and steps[-1].control.assist_rate >= 0.5
    assert all(step.update.mean_abs_logprob_diff < 0.005 for step in steps), "nats a token; a bias left out would be 0.1"


async def test_paper_rule_has_no_bias(tmp_path: Path) -> None:
    steps, _ = await learn(tiny_config(tmp_path / "state", AT_90, "learning.control.controller=paper"), 2)
    assert [step.control.help_bias for step in steps] == [None, None]
