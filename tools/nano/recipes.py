"""The recipe of each bundled model: its shape and how it is trained. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from edge.models.decoder import Architecture, DecoderSpec
from tools.nano.data import ModelName

CONTEXT_LENGTH = 1024


@dataclass(frozen=True, slots=True)
class Recipe:
    """Shape, optimiser and schedule; `grown_from` is the bundled model whose weights it starts with (None: from nothing).

    `matrix_lr` is the peak rate of Muon, `peak_lr` that of AdamW. Both rise over `warmup_steps`, hold, and fall over the last
    `decay_share` of `steps`. One step is one batch of 32 chats.
    """

    name: ModelName
    architecture: Architecture
    width: int
    layers: int
    heads: int
    kv_heads: int
    ffn_width: int
    steps: int
    head_dim: int = 64
    matrix_lr: float = 4e-3
    peak_lr: float = 2e-3
    warmup_steps: int = 100
    decay_share: float = 0.5
    final_lr_share: float = 0.05
    weight_decay: float = 0.05
    grad_clip: float = 1.0
    grown_from: ModelName | None = None

    def spec(self, vocab_size: int) -> DecoderSpec:
        """The decoder's shape; the vocabulary is as large as the tokenizer's training made it."""
        return DecoderSpec(
            architecture=self.architecture,
            vocab_size=vocab_size,
            width=self.width,
            layers=self.layers,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            ffn_width=self.ffn_width,
            context_length=CONTEXT_LENGTH,
            qkv_bias=self.architecture == "qwen2",
        )


NANO_EDGE = Recipe(
    "nano-edge",
    "qwen2",
    width=192,
    layers=5,
    heads=3,
    kv_heads=3,
    ffn_width=576,
    steps=5376,
    matrix_lr=2.4e-3,
    peak_lr=1.2e-3,
    decay_share=0.5,
)
RECIPES: Mapping[str, Recipe] = {
    "nano-edge": NANO_EDGE,
    "nano-edge-llama": replace(
        NANO_EDGE,
        name="nano-edge-llama",
        architecture="llama",
        steps=500,
        matrix_lr=1.5e-3,
        peak_lr=1e-3,
        decay_share=0.7,
        grown_from="nano-edge",
    ),
    "nano-cloud": Recipe(
        "nano-cloud",
        "qwen2",
        width=256,
        layers=6,
        heads=4,
        kv_heads=4,
        ffn_width=768,
        steps=4200,
        matrix_lr=3e-3,
        peak_lr=1.5e-3,
        decay_share=0.6,
        grown_from="nano-edge",
    ),
}
"""Heads of 64 numbers: llama.cpp's half-precision dot products fall back to single elements for smaller ones on some CPUs."""
