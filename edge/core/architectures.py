"""The architectures that the decoders here compute, and where they differ. Importing it needs no package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Architecture = Literal["qwen2", "qwen3", "llama", "smollm3", "gemma3"]
Activation = Literal["silu", "gelu"]
"""gelu by the tanh formula."""


@dataclass(frozen=True, slots=True)
class Family:
    """What sets an architecture apart from a plain decoder. llama.cpp has this in its code, so it is in no GGUF file.

    A new architecture is a row in FAMILIES; what no field here says is added to the decoder first. docs/extending.md has the rest.
    """

    interleaved: bool = False
    """GGUF files hold the rows of q and k with the two of a rotary pair side by side."""
    qk_norm: bool = False
    """Queries and keys are normalised head by head before they are rotated."""
    rope_factors: bool = False
    """GGUF files may hold factors that rotary frequencies are divided by (Llama 3)."""
    linear_rope: bool = False
    """GGUF files may divide the positions of global layers by a factor."""
    unrotated_every: int = 0
    """Of so many layers the last is not rotated; 0: all are."""
    global_every: int = 0
    """Of so many layers the last attends to all tokens before, the others to a window, with a rotary base of their own; 0: all are
    global."""
    post_norms: bool = False
    """What attention and feed-forward give is normalised, too, before it is added."""
    activation: Activation = "silu"
    scaled_embeddings: bool = False
    """Embeddings are multiplied by the square root of their width."""
    width_scaled: int = 0
    """With this many layers (one size of the family) scores are scaled by width / heads in place of the head's width."""
    default_rope_base: float = 10_000.0
    """Where config.json states none."""
    norm_offset: float = 0.0
    """What GGUF files have added to the weights of norms in safetensors."""
    model_type: str = ""
    """Its name in config.json, where it is another one than in GGUF files."""


FAMILIES: Mapping[Architecture, Family] = {
    "qwen2": Family(),
    "qwen3": Family(qk_norm=True),
    "llama": Family(interleaved=True, rope_factors=True),
    "smollm3": Family(interleaved=True, unrotated_every=4),
    "gemma3": Family(
        qk_norm=True,
        linear_rope=True,
        global_every=6,
        post_norms=True,
        activation="gelu",
        scaled_embeddings=True,
        width_scaled=62,
        default_rope_base=1_000_000.0,
        norm_offset=1.0,
        model_type="gemma3_text",
    ),
}
ARCHITECTURES: tuple[Architecture, ...] = tuple(FAMILIES)
