"""A decoder initialised from another one: larger (nano-cloud), or of the other architecture (nano-edge-llama). New parts read with random
weights and write zeros, so the function is unchanged and every new weight can still learn (the idea is Net2Net's, Chen et al. 2016).
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from edge.models.decoder import Decoder

WRITERS = ("embed_tokens.weight", "o_proj.weight", "down_proj.weight", "lm_head.weight")
"""Weights whose new entries begin at zero: they are all that reaches the residual stream."""


@torch.no_grad()
def grow_into(target: Decoder, source: Decoder) -> Decoder:
    """Fill a freshly initialised `target` so that its logits are those of `source`. Raises ValueError where it is smaller in any size.

    Biases missing in the target's architecture are dropped; their effect must be learned again.
    """
    check_larger(target, source)
    old = dict(source.named_parameters())
    shrink = math.sqrt(source.spec.width / target.spec.width)
    for name, parameter in target.named_parameters():
        if name.endswith(WRITERS):
            parameter.zero_()
        if name in old:
            known = old[name] * shrink if "norm" in name else old[name]
            parameter[tuple(slice(size) for size in known.shape)] = known
    return target


def check_larger(target: Decoder, source: Decoder) -> None:
    """Raises ValueError unless `target` differs from `source` only by more of something or by its biases.

    Both need one key/value head for each head.
    """
    big, small = target.spec, source.spec
    grown = replace(
        small,
        width=big.width,
        layers=big.layers,
        heads=big.heads,
        kv_heads=big.kv_heads,
        ffn_width=big.ffn_width,
        architecture=big.architecture,
        qkv_bias=big.qkv_bias,
        norm_eps=big.norm_eps,  # a GGUF file holds it in single precision
    )
    sizes = zip(sizes_of(target), sizes_of(source), strict=True)
    if grown != big or any(large < little for large, little in sizes):
        raise ValueError(f"{small} cannot be grown into {big}")
    if (small.heads, big.heads) != (small.kv_heads, big.kv_heads):
        raise ValueError("only decoders with one key/value head for each head can be grown")


def sizes_of(decoder: Decoder) -> tuple[int, ...]:
    """The sizes that may grow."""
    spec = decoder.spec
    return spec.width, spec.layers, spec.heads, spec.ffn_width
