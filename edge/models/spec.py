"""The shape of a decoder and the names and layout of its parameters in GGUF files. Importing it needs no torch.

Parameters carry their Hugging Face names (`model.layers.0.self_attn.q_proj.weight`); `stored_name` gives the name in a GGUF file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from edge.core.architectures import FAMILIES, Architecture, Family

if TYPE_CHECKING:
    from torch import Tensor

LAYER_MODULES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
POST_NORM_MODULES = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
"""In place of those above, where a family has post_norms."""
OTHER_MODULES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_STORED_LAYER = {module: stored for stored, module in LAYER_MODULES.items()}
_STORED_POST_NORM = _STORED_LAYER | {module: stored for stored, module in POST_NORM_MODULES.items()}
_STORED_OTHER = {module: stored for stored, module in OTHER_MODULES.items()}


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """The shape of a decoder, as far as a file states it; the rest is its `family`.

    Widths in elements, `rope_base` dimensionless, `norm_eps` added to the mean square. `head_dim` is of its own: heads * head_dim may
    differ from the width.
    """

    architecture: Architecture
    vocab_size: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_width: int
    context_length: int = 1024
    rope_base: float = 10_000.0
    norm_eps: float = 1e-6
    qkv_bias: bool = True
    tied_embeddings: bool = True
    window: int = 0
    """How many tokens one of a local layer attends to, itself among them; 0 where all layers are global."""
    local_rope_base: float = 10_000.0
    rope_divisor: float = 1.0
    """What positions are divided by in global layers."""

    @property
    def family(self) -> Family:
        """What its architecture has built in."""
        return FAMILIES[self.architecture]

    @property
    def score_scale(self) -> float:
        """What the products of queries and keys are multiplied by."""
        wide = self.family.width_scaled == self.layers
        return 1.0 / math.sqrt(self.width // self.heads if wide else self.head_dim)

    @property
    def embedding_scale(self) -> float:
        """What embeddings are multiplied by."""
        return math.sqrt(self.width) if self.family.scaled_embeddings else 1.0

    def is_local(self, layer: int) -> bool:
        """Whether a layer attends to a window alone, with rotary frequencies of its own."""
        every = self.family.global_every
        return bool(every and self.window) and (layer + 1) % every != 0

    def is_rotated(self, layer: int) -> bool:
        """Whether a layer's queries and keys are rotated by their positions."""
        every = self.family.unrotated_every
        return not every or (layer + 1) % every != 0


@lru_cache(maxsize=16)
def parameter_shapes(spec: DecoderSpec) -> Mapping[str, tuple[int, ...]]:
    """Every parameter of the decoder with its shape; the output projection only where it is not tied."""
    q_width, kv_width = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (spec.vocab_size, spec.width)}
    matrices = {
        "self_attn.q_proj": (q_width, spec.width),
        "self_attn.k_proj": (kv_width, spec.width),
        "self_attn.v_proj": (kv_width, spec.width),
        "self_attn.o_proj": (spec.width, q_width),
        "mlp.gate_proj": (spec.ffn_width, spec.width),
        "mlp.up_proj": (spec.ffn_width, spec.width),
        "mlp.down_proj": (spec.width, spec.ffn_width),
    }
    for layer in range(spec.layers):
        prefix = f"model.layers.{layer}."
        shapes |= {f"{prefix}{module}.weight": shape for module, shape in matrices.items()}
        shapes |= {f"{prefix}{norm}.weight": (spec.width,) for norm in ("input_layernorm", "post_attention_layernorm")}
        if spec.family.post_norms:
            shapes |= {
                f"{prefix}{norm}.weight": (spec.width,) for norm in ("pre_feedforward_layernorm", "post_feedforward_layernorm")
            }
        if spec.family.qk_norm:
            shapes |= {f"{prefix}self_attn.{norm}.weight": (spec.head_dim,) for norm in ("q_norm", "k_norm")}
        if spec.qkv_bias:
            shapes |= {f"{prefix}{module}.bias": shape[:1] for module, shape in list(matrices.items())[:3]}
    shapes["model.norm.weight"] = (spec.width,)
    if not spec.tied_embeddings:
        shapes["lm_head.weight"] = (spec.vocab_size, spec.width)
    return shapes


def parameter_count(spec: DecoderSpec) -> int:
    """Every weight of the decoder, norms and biases too."""
    return sum(math.prod(shape) for shape in parameter_shapes(spec).values())


def stored_name(parameter: str, spec: DecoderSpec) -> str:
    """The GGUF name of a decoder parameter: `model.layers.0.mlp.up_proj.weight` -> `blk.0.ffn_up.weight`."""
    module, kind = parameter.rsplit(".", 1)
    if not module.startswith("model.layers."):
        return f"{_STORED_OTHER[module]}.{kind}"
    _, _, layer, rest = module.split(".", 3)
    return f"blk.{layer}.{(_STORED_POST_NORM if spec.family.post_norms else _STORED_LAYER)[rest]}.{kind}"


def rotated_heads(parameter: str, spec: DecoderSpec) -> int:
    """How many heads' rows a GGUF file holds in interleaved order for this parameter; 0 for as they are."""
    if not spec.family.interleaved:
        return 0
    return spec.heads if ".q_proj." in parameter else spec.kv_heads if ".k_proj." in parameter else 0


def permute_rows(rows: Any, heads: int) -> Any:
    """Rows from half-split order into the interleaved order of GGUF files; [heads * head_dim, ...].

    Takes and gives a torch tensor or a numpy array.
    """
    half = rows.shape[0] // heads // 2
    return rows.reshape(heads, 2, half, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def unpermute_rows(rows: Any, heads: int) -> Any:
    """The inverse of `permute_rows`."""
    half = rows.shape[0] // heads // 2
    return rows.reshape(heads, half, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def rope_frequencies(spec: DecoderSpec, *, local: bool = False) -> Tensor:
    """Angular frequency of each rotated pair, [head_dim / 2], of global or of local layers."""
    import torch

    exponents = torch.arange(0, spec.head_dim, 2, dtype=torch.float32) / spec.head_dim
    if local:
        return spec.local_rope_base**-exponents
    return spec.rope_base**-exponents / spec.rope_divisor
