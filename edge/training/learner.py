"""The role of a learner, its settings and its report.

Contract (tests/contracts/test_learner.py):
- `update` applies one optimiser step (or as many as its rule sets) for one batch of groups; groups whose advantages are all zero are
  dropped and counted; a batch with no group left leaves the weights and the optimiser as they were.
- `export` writes the current adapter (peft safetensors and adapter.gguf) into a new folder atomically and returns its reference.
- `save`/`load` keep the adapter, the optimiser and the random streams, such that a resumed run is bit-equal to an uninterrupted one.
- Work runs in slices on the shared engine worker at training priority, so that a served request is never kept waiting for a whole update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from edge.core.errors import NotFinite
from edge.core.types import AdapterRef, Demonstration, KeptAnswer, TrainingGroup

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


LOGITS_AT_ONCE = 1 << 21
"""The largest slab of logits in an update that stays near a processor's caches."""


def prompt_budget(tokens_per_slice: int) -> int:
    """Tokens that prompts which are computed together may take; a longer prompt is computed alone.

    What their backward pass needs is held while those of the responses are made. Measured with SmolLM2 and prompts of 200 tokens: half the
    budget of a micro-batch takes 2 % more time than all of it, and 24 % less memory.
    """
    return tokens_per_slice // 2


@dataclass(frozen=True, slots=True)
class LearnerSettings:
    """How an update is made."""

    learning_rate: float
    imitation_rate: float = 5e-4
    """The learning rate of supervised updates."""
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    max_grad_norm: float = 1.0
    """The gradient's norm is clipped to this; 0: never."""
    importance_cap: float = 2.0
    """Importance weights, which correct per token the difference between sampler and trainer, are truncated here."""
    max_mismatch_nats: float = 0.5
    """A batch whose mean |Δ log p| per token exceeds this is rejected."""
    tokens_per_slice: int = 1024
    """Most padded tokens in a micro-batch."""
    vocab_chunk_elements: int = LOGITS_AT_ONCE
    """The largest slab of logits."""
    precision: Precision = "auto"
    prefix_sharing: PrefixSharing = "auto"
    gradient_checkpointing: bool = False
    """Blocks are computed again in the backward pass, not kept."""
    threads: int = 0
    """Number of torch threads; 0: unchanged."""
    rule: UpdateRule = UpdateRule()
    """What is optimised."""


@dataclass(frozen=True, slots=True)
class LearnerReport:
    """What one update did."""

    groups: int
    frac_reward_zero_std: float
    """Share of groups dropped because all advantages were zero."""
    tokens: int
    loss: float
    grad_norm: float
    entropy: float
    mean_abs_logprob_diff: float
    """Nats per token: the sampler's log-probabilities against the trainer's on the same tokens before the step."""
    kl: float
    """Nats per token, behaviour to current."""
    effective_sample_share: float
    """0..1, of the importance weights."""
    clipped_share: float
    """0..1, of the tokens whose weight was truncated."""
    learning_rate: float
    seconds: float
    """Busy time."""
    skipped: str = ""


@dataclass(frozen=True, slots=True)
class Imitation:
    """What was made of demonstrations."""

    updates: int
    nats_before: float
    """Their mean negative log-likelihood (nats a response) before the first update."""
    nats: float
    """The same after the last one."""
    seconds: float


MOST_IMITATIONS = 48
"""Updates on the demonstrations of one step. Measured: 15 facts need 20 to 30 with a public model of 135 million parameters, and five
corrections 40 to 60 with nano-edge."""
SHOWN_AT_ONCE = 16
"""Demonstrations of one step."""
KNOWN_NATS = 0.4
"""Negative log-likelihood at which a response is known: each of its tokens is the likeliest one, and two in three samples are this one."""
CHECKED_EVERY = 4
"""Updates between two checks whether the demonstrations are known."""
ROWS_AT_ONCE = 2 * SHOWN_AT_ONCE
"""Wordings of demonstrations in an update, of which the fewer there are the more are taken of each: few answers that are always shown with
the same words are given to everything else."""
KEPT_AT_ONCE = 24
"""Kept answers in an update. Each weighs as much as one of the demonstrations: where all together weighed as much as these together, few
demonstrations leaked into everything else."""
LIKELIEST = 32
"""Tokens at each place of a kept answer whose probabilities are held one by one."""
LARGEST_WEIGHT = 1e4
"""Beyond it an adapter is of no use; weights of adapters lie far below 1."""


def check_weights(largest: float, step: int) -> None:
    """Raises NotFinite unless the largest magnitude among an adapter's weights is a sensible number."""
    if not largest <= LARGEST_WEIGHT:
        raise NotFinite(
            f"the adapter diverged in update {step} (largest weight {largest:g}); nothing of this step was kept",
            hint="lower learning.optimiser.learning_rate and start again: it goes on from the step before",
        )


class Learner(Protocol):
    """Owns the trainable adapter."""

    async def update(self, groups: Sequence[TrainingGroup]) -> LearnerReport:
        """One optimiser step."""
        ...

    async def nats(self, demonstrations: Sequence[Demonstration]) -> list[float]:
        """The negative log-likelihood (nats) of each of these responses after its prompt; at KNOWN_NATS or less it is known."""
        ...

    async def imitate(self, demonstrations: Sequence[Demonstration], kept: Sequence[KeptAnswer] = ()) -> Imitation:
        """Supervised updates on these right responses until each is known, at least one and at most MOST_IMITATIONS.

        Each update also takes some of the `kept` answers: their loss is how far the model's probabilities at their tokens are from what
        they were before the first update.
        """
        ...

    def scale_steps(self, share: float) -> None:
        """Make optimiser steps with this share of the configured learning rate from now on; it is no part of what `save` writes."""
        ...

    async def export(self, folder: Path, version: int) -> AdapterRef:
        """Write the adapter as `folder` (created; must not exist)."""
        ...

    async def save(self, folder: Path) -> None:
        """Write the learner's whole state into an existing folder."""
        ...

    async def load(self, folder: Path) -> None:
        """Restore what `save` wrote. Raises StateError when it does not fit."""
        ...


@runtime_checkable
class ThreadedLearner(Protocol):
    """A learner that computes with threads of the processor, whose number can be changed between updates."""

    def use_threads(self, threads: int) -> None:
        """Compute with this many from the next update on."""
        ...


@runtime_checkable
class CountingLearner(Protocol):
    """A learner that shows how far its work under way has come."""

    @property
    def progress(self) -> tuple[int, int]:
        """How much of how much is done: tokens of an update, updates of an imitation (which may end sooner)."""
        ...


class Probing(Protocol):
    """A learner whose memory can be tried before the first step, so that it runs out at once or never.

    `checkpointing`: activations of a block are computed again in the backward pass instead of kept; the gradients are the same.
    """

    @property
    def checkpointing(self) -> bool:
        """Whether it does so."""
        ...

    def use_checkpointing(self, on: bool) -> None:
        """Do so from the next update or probe on, or stop it. Raises UsageError where this learner cannot."""
        ...

    async def probe(self, groups: Sequence[TrainingGroup]) -> None:
        """The passes of an update over these groups; weights, optimiser and random streams stay bit for bit as they were.

        Raises EdgeError, with what to lower, when memory runs out.
        """
        ...
