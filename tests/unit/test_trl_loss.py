"""TRL's own loss and advantages, compared with the paper's: gradients, masked responses, and the GRPO baseline on the same numbers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("trl", reason="trl is not installed: pip install -c constraints.txt -e '.[trl]'")

from edge.app.settings import model_file
from edge.config.schema import LearningConfig
from edge.dagrpo.advantages import dual_advantages, estimator_weight
from edge.dagrpo.baselines import grpo_advantages
from edge.training.loss import policy_loss
from tests.worlds.trl import trl_config
from tools.integrations.trl.bundled import write_hf_folder
from tools.integrations.trl.config import TrlConfig
from tools.integrations.trl.processes import TrainingProcesses
from tools.integrations.trl.rewards import DualCallback, SharedSteps
from tools.integrations.trl.steps import ResponseVerdict
from tools.integrations.trl.trainer import build_trainer, config_fields, paper_scale

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:transformers.*"),
]
G, PROMPTS, MOST = 4, 2, 16
LENGTHS = (3, 9, 5, 1, 7, 2, 16, 4)
REWARDS = (1.0, 0.0, -0.1, 1.0, 0.0, 1.0, 1.0, 0.0)
COSTS = (1, 0, 0, 1, 0, 0, 1, 0)


class FixedSteps:
    """Returns fixed scores."""

    def __init__(self, verdicts: Sequence[ResponseVerdict | None], dual: float) -> None:
        self.given, self.dual = list(verdicts), dual

    async def open(self, step: int) -> float:
        return self.dual

    async def score(self, sampled: Any) -> list[ResponseVerdict | None]:
        return self.given

    async def close(self, update: Any) -> None: ...


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf_folder(model_file("nano-edge"), tmp_path_factory.mktemp("trl") / "model")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def config_of(out: Path, **trainer: Any) -> TrlConfig:
    learning = LearningConfig(group_size=G, prompts_per_step=PROMPTS, max_tokens=MOST)
    return trl_config(learning, out=str(out), rows_per_pass=G * PROMPTS, tuning="full", **trainer)


def trainer_of(config: TrlConfig, folder: Path, tokenizer: Any, given: FixedSteps) -> Any:
    from datasets import Dataset

    steps = SharedSteps(TrainingProcesses(wait_s=60))
    steps.give(given, SimpleNamespace(run=asyncio.run))
    rows = {"prompt": [[{"role": "user", "content": f"What is {n} + 1?"}] for n in range(4)], "position": list(range(4))}
    trainer = build_trainer(config, str(folder), tokenizer, Dataset.from_dict(rows), 1, steps)
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    return trainer


def batch(advantages: Sequence[float]) -> dict[str, torch.Tensor]:
    """Eight responses of different lengths to two prompts, padded as TRL pads."""
    generator = torch.Generator().manual_seed(5)
    prompt = torch.randint(10, 1500, (PROMPTS, 6), generator=generator).repeat_interleave(G, 0)
    ids = torch.randint(10, 1500, (len(LENGTHS), max(LENGTHS)), generator=generator)
    mask = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).long()
    return {
        "prompt_ids": prompt,
        "prompt_mask": torch.ones_like(prompt),
        "completion_ids": ids * mask,
        "completion_mask": mask,
        "advantages": torch.tensor(advantages),
        "num_items_in_batch": mask.sum(),
    }


def own_loss(
    model: Any, inputs: dict[str, torch.Tensor], coefficients: Sequence[float], weights_N: torch.Tensor | None = None
) -> torch.Tensor:
    """The project's own objective on the same tokens: edge.training.loss with these importance weights (None: 1)."""
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
    keep = inputs["completion_ids"].shape[1]
    logits = model(ids).logits[:, -keep - 1 : -1]
    logprobs = torch.log_softmax(logits, -1).gather(-1, inputs["completion_ids"][..., None]).squeeze(-1)
    mask = inputs["completion_mask"].bool()
    coefficients_N = torch.tensor(coefficients).repeat_interleave(mask.sum(1))
    return policy_loss(logprobs[mask], coefficients_N, torch.ones_like(coefficients_N) if weights_N is None else weights_N)


def gradient_of(model: Any, loss: torch.Tensor) -> torch.Tensor:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.cat([grad.flatten() for grad in torch.autograd.grad(loss, parameters)])


def per_group(values: Sequence[Any]) -> list[list[Any]]:
    return [list(values[start : start + G]) for start in range(0, len(values), G)]


@pytest.mark.parametrize("loss_type", ["luspo", "dr_grpo"])
def test_trl_gradient_is_the_papers_up_to_the_recorded_constant(loss_type, folder, tokenizer, tmp_path):
    trainer = trainer_of(config_of(tmp_path, loss_type=loss_type), folder, tokenizer, FixedSteps([], 0.4))
    groups = zip(per_group(REWARDS), per_group(COSTS), strict=True)
    advantages = [value for rewards, costs in groups for value in dual_advantages(rewards, costs, 0.4)]
    inputs = batch(advantages)
    theirs = gradient_of(trainer.model, trainer._compute_loss(trainer.model, inputs))
    coefficients = [advantage * estimator_weight(G) / PROMPTS for advantage in advantages]
    ours = gradient_of(trainer.model, own_loss(trainer.model, inputs, coefficients))
    constant = {"luspo": G / (G - 1), "dr_grpo": G * MOST / (G - 1)}[loss_type]
    assert paper_scale(loss_type, G, MOST) == pytest.approx(constant)
    assert float((constant * theirs - ours).norm() / ours.norm()) < 1e-5


@pytest.mark.parametrize("loss_type", ["luspo", "dr_grpo"])
def test_with_vllm_every_token_has_its_own_weight_as_in_the_projects_own_objective(loss_type, folder, tokenizer, tmp_path):
    config = config_of(tmp_path, loss_type=loss_type, options={"use_vllm": True})
    trainer = trainer_of(config_of(tmp_path, loss_type=loss_type), folder, tokenizer, FixedSteps([], 0.4))
    trainer.use_vllm, trainer.vllm_importance_sampling_correction = True, True
    trainer.importance_sampling_level = config_fields(config, 1)["importance_sampling_level"]
    inputs = batch([value for rewards in per_group(REWARDS) for value in dual_advantages(rewards, [0] * G, 0.0)])
    mask = inputs["completion_mask"].bool()
    weights = torch.rand(mask.shape, generator=torch.Generator().manual_seed(6)) * 2
    theirs = gradient_of(trainer.model, trainer._compute_loss(trainer.model, {**inputs, "importance_sampling_ratio": weights}))
    coefficients = [float(one) * estimator_weight(G) / PROMPTS for one in inputs["advantages"]]
    ours = gradient_of(trainer.model, own_loss(trainer.model, inputs, coefficients, weights[mask]))
    assert float((paper_scale(loss_type, G, MOST) * theirs - ours).norm() / ours.norm()) < 1e-5


def scored(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    """TRL's own scoring of eight given completions: through the reward functions to advantages."""
    ids = [[20 + row, 2] for row in range(G * PROMPTS)]
    texts = [[{"role": "assistant", "content": "x"}] for _ in ids]
    given = ([[5, 6, 7]] * len(ids), ids, None, texts, None, {}, None, [])
    monkeypatch.setattr(trainer, "_generate", lambda prompts: given)
    inputs = [{**trainer.train_dataset[row // G]} for row in range(G * PROMPTS)]
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, DualCallback):
            callback.on_step_begin(trainer.args, trainer.state, None)
    return trainer._generate_and_score_completions(inputs)


def test_trls_advantages_are_the_dual_advantages_at_the_callbacks_lambda(folder, tokenizer, tmp_path, monkeypatch):
    verdicts = [ResponseVerdict(reward, cost, 1.0) for reward, cost in zip(REWARDS, COSTS, strict=True)]
    trainer = trainer_of(config_of(tmp_path), folder, tokenizer, FixedSteps(verdicts, 0.37))
    advantages = scored(trainer, monkeypatch)["advantages"]
    assert trainer.reward_weights.tolist() == pytest.approx([1.0, -0.37])
    groups = zip(per_group(REWARDS), per_group(COSTS), strict=True)
    expected = [value for rewards, costs in groups for value in dual_advantages(rewards, costs, 0.37)]
    assert advantages.tolist() == pytest.approx(expected, abs=1e-6)


def test_masked_responses_leave_trls_baseline_and_the_rest_counts_as_in_the_agent(
    folder, tokenizer, tmp_path, monkeypatch, caplog
):
    weight = (G - 1) / (G - 2)
    verdicts: list[ResponseVerdict | None] = [
        ResponseVerdict(reward, cost, weight if row < G else 1.0)
        for row, (reward, cost) in enumerate(zip(REWARDS, COSTS, strict=True))
    ]
    verdicts[1] = None
    trainer = trainer_of(config_of(tmp_path), folder, tokenizer, FixedSteps(verdicts, 0.37))
    advantages = scored(trainer, monkeypatch)["advantages"].tolist()
    left = dual_advantages([REWARDS[0], *REWARDS[2:G]], [COSTS[0], *COSTS[2:G]], 0.37)
    whole = dual_advantages(REWARDS[G:], COSTS[G:], 0.37)
    own = [value * estimator_weight(G - 1) for value in left]
    assert advantages[1] == 0.0
    assert [advantages[row] * estimator_weight(G) for row in (0, 2, 3)] == pytest.approx(own, abs=1e-6)
    assert advantages[G:] == pytest.approx(whole, abs=1e-6)
    assert "What is" not in caplog.text


def test_dropped_group_moves_nothing(folder, tokenizer, tmp_path, monkeypatch):
    verdicts: list[ResponseVerdict | None] = [None] * G
    verdicts += [ResponseVerdict(reward, cost, 2.0) for reward, cost in zip(REWARDS[G:], COSTS[G:], strict=True)]
    trainer = trainer_of(config_of(tmp_path), folder, tokenizer, FixedSteps(verdicts, 0.37))
    output = scored(trainer, monkeypatch)
    assert output["advantages"][:G].tolist() == [0.0] * G
    assert torch.isfinite(trainer._compute_loss(trainer.model, output))


def test_advantages_of_the_grpo_baseline_are_trls_with_group_scaling(folder, tokenizer, tmp_path, monkeypatch):
    verdicts = [ResponseVerdict(reward, 0, 1.0) for reward in REWARDS]
    trainer = trainer_of(config_of(tmp_path), folder, tokenizer, FixedSteps(verdicts, 0.0))
    trainer.scale_rewards = "group"
    advantages = scored(trainer, monkeypatch)["advantages"]
    expected = [value for rewards in per_group(REWARDS) for value in grpo_advantages(rewards)]
    assert advantages.tolist() == pytest.approx(expected, rel=1e-5)


def token_objective(log_ratio: float, advantage: float) -> float:
    """min(ρA, clip(ρ, 1-ε, 1+ε) A) with ε = 0.2."""
    ratio = math.exp(log_ratio)
    return min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage)


def test_objective_of_the_grpo_baseline_is_trls_loss_inside_and_outside_the_clip(folder, tokenizer, tmp_path):
    trainer = trainer_of(config_of(tmp_path), folder, tokenizer, FixedSteps([], 0.0))
    trainer.loss_type, trainer.importance_sampling_level = "grpo", "token"
    advantages = [value for rewards in per_group(REWARDS) for value in grpo_advantages(rewards)]
    inputs = batch(advantages)
    with torch.no_grad():
        now = trainer._get_per_token_logps_and_entropies(
            trainer.model,
            torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1),
            torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1),
            inputs["completion_ids"].shape[1],
        )[0]
        noise = torch.rand(now.shape, generator=torch.Generator().manual_seed(9)) - 0.5  # ratios from 0.6 to 1.6
        inputs["old_per_token_logps"] = now - noise
        loss = float(trainer._compute_loss(trainer.model, inputs))
    rows = [
        sum(token_objective(float(noise[row, token]), advantages[row]) for token in range(length)) / length
        for row, length in enumerate(LENGTHS)
    ]
    assert loss == pytest.approx(-sum(rows) / len(rows), rel=1e-5)
