"""The paper's numbers; those of a device are the defaults of its configuration (`edge/config/schema.py`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """Settings of DA-GRPO; the defaults are the paper's (full fine-tuning; `learning_rate` in AdamW's units, rates per step)."""

    group_size: int = 8
    prompts_per_step: int = 128
    learning_rate: float = 2e-6
    dual_init: float = 0.5
    dual_lr: float = 0.01
    rollout_temperature: float = 1.0
    prompt_tokens: int = 1024
    response_tokens: int = 1024
    importance_weight_cap: float = 2.0


PAPER = Hyperparameters()
"""The paper's table: 128 prompts a step, full fine-tuning at 2e-6, 840 steps on the first group and 400 on the second."""

GVPO_UPDATES = 4
"""Updates of one rollout in GVPO, as its authors make; with one it is the unscaled policy gradient."""

STEP_LIMITS: dict[str, int] = {"math": 4, "code": 6, "qa": 4}
"""Reasoning steps allowed per task label (paper)."""
