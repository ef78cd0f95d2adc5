"""Settings of the learner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Precision = Literal["auto", "fp32", "bf16"]
PrefixSharing = Literal["auto", "shared", "plain"]

LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Every linear layer of a decoder block; never the embeddings or the output projection."""

Objective = Literal["policy", "clipped", "gvpo"]


@dataclass(frozen=True, slots=True)
class UpdateRule:
    """What is optimised, and how often on one batch.

    `policy`: ρ A log π, ρ held constant. `clipped`: min(ρA, clip(ρ, 1 ± ratio_clip) A) a token (GRPO). `gvpo`: A log π without ρ, A moved
    by β(ℓ - mean ℓ) before each further update, ℓ what a response's log-probability has gained since the first.
    """

    objective: Objective = "policy"
    updates: int = 1
    ratio_clip: float = 0.2
    gvpo_beta: float = 0.1


@dataclass(frozen=True, slots=True)
class LoraSpec:
    """Shape of the adapter: W x + (alpha / rank) B A x."""

    rank: int = 16
    alpha: float = 32.0
    targets: tuple[str, ...] = LORA_TARGETS


@dataclass(frozen=True, slots=True)
class LearnerSettings:
    """How an update is made.

    `max_grad_norm` clips the norm (0: never). Importance weights correct the difference between the sampler's and the trainer's
    log-probabilities per token, truncated at `importance_cap`. A batch whose mean |Δ log p| exceeds `max_mismatch_nats` (per token) is
    rejected. `tokens_per_slice` bounds a micro-batch in padded tokens, `vocab_chunk_elements`
    the largest slab of logits. `gradient_checkpointing`: blocks are computed again in the backward pass, not kept. `threads` is the
    number of torch threads (0: leave it alone). `rule` is what is optimised.
    """

    learning_rate: float = 3e-4
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    max_grad_norm: float = 1.0
    importance_cap: float = 2.0
    max_mismatch_nats: float = 0.5
    tokens_per_slice: int = 1024
    vocab_chunk_elements: int = 1 << 21
    precision: Precision = "auto"
    prefix_sharing: PrefixSharing = "auto"
    gradient_checkpointing: bool = False
    threads: int = 0
    rule: UpdateRule = UpdateRule()
