"""A compact causal decoder in torch for Qwen2-, Qwen3- and Llama-architecture models.

Knows the forward pass; knows nothing of files beyond what the GGUF reader hands it, nothing of LoRA, losses or sampling. Linear
layers carry their usual names (`q_proj` ... `down_proj` under `model.layers.N`), so that peft finds them by name and
`gguf.get_tensor_name_map` names them in a GGUF file.

Axes: B rows, T tokens of this call, P tokens already cached, D model width, H heads, K key/value heads, V vocabulary.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from edge.models.spec import Architecture as Architecture
from edge.models.spec import DecoderSpec as DecoderSpec

LayerCache = tuple[Tensor, Tensor]
"""Keys and values of one layer, both [B, K, P, head_dim]; they carry gradients when the forward did."""
PastKeyValues = tuple[LayerCache, ...]
MAX_PLAIN_SCORES = 512 * 512
"""Largest T x S for which a CPU takes attention in plain matrix products."""


class Hidden(NamedTuple):
    """Final hidden states [B, T, D], after the last norm, and the cache when it was asked for."""

    states_BTD: Tensor
    past: PastKeyValues | None


class RMSNorm(nn.Module):
    """x / rms(x) * weight, computed in float32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """The normalised x, in its own type."""
        x32 = x.float()
        scale = torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + self.eps)
        return (x32 * scale * self.weight.float()).to(x.dtype)


def rope_frequencies(spec: DecoderSpec) -> Tensor:
    """Angular frequency of each rotated pair, [head_dim / 2]."""
    exponents = torch.arange(0, spec.head_dim, 2, dtype=torch.float32) / spec.head_dim
    return spec.rope_base**-exponents


def rotate(x_BHTd: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding in the half-split ("neox") pairing: element j turns with element j + head_dim/2."""
    first, second = x_BHTd.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def attention(q_BHTd: Tensor, k_BHSd: Tensor, v_BHSd: Tensor, attend: Tensor | None) -> Tensor:
    """Scaled dot-product attention [B, H, T, d]; `attend` is true where allowed, None means causal over S = T.

    Short rows on a CPU go through plain matrix products, which train faster there than the fused kernel.
    """
    length, total = q_BHTd.shape[2], k_BHSd.shape[2]
    if q_BHTd.device.type != "cpu" or length * total > MAX_PLAIN_SCORES:
        return F.scaled_dot_product_attention(q_BHTd, k_BHSd, v_BHSd, attn_mask=attend, is_causal=attend is None)
    per_head = (*q_BHTd.shape[:2], length, -1)
    q, k, v = (x.flatten(0, 1) for x in (q_BHTd * q_BHTd.shape[-1] ** -0.5, k_BHSd, v_BHSd))
    if attend is None:
        blocked = torch.full((length, total), -torch.inf, dtype=_product_dtype(q), device=q.device).triu(1)
        scores = torch.baddbmm(blocked, q, k.transpose(1, 2))
    else:
        scores = torch.bmm(q, k.transpose(1, 2)).view(per_head)
        scores = scores.masked_fill(~attend, -torch.inf).flatten(0, 1)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(_product_dtype(v))
    return torch.bmm(weights, v).view(per_head)


def _product_dtype(x: Tensor) -> torch.dtype:
    """The type in which matrix products of `x` are taken: autocast's where it is on."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype


class Attention(nn.Module):
    """Grouped-query causal attention."""

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = spec.heads, spec.kv_heads, spec.head_dim
        self.q_proj = nn.Linear(spec.width, spec.heads * spec.head_dim, bias=spec.qkv_bias)
        self.k_proj = nn.Linear(spec.width, spec.kv_heads * spec.head_dim, bias=spec.qkv_bias)
        self.v_proj = nn.Linear(spec.width, spec.kv_heads * spec.head_dim, bias=spec.qkv_bias)
        self.o_proj = nn.Linear(spec.heads * spec.head_dim, spec.width, bias=False)
        if spec.qk_norm:
            self.q_norm = RMSNorm(spec.head_dim, spec.norm_eps)
            self.k_norm = RMSNorm(spec.head_dim, spec.norm_eps)
        self.qk_norm = spec.qk_norm

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, attend: Tensor | None, past: LayerCache | None
    ) -> tuple[Tensor, LayerCache]:
        """What was attended to [B, T, D], and the keys and values up to here."""
        rows, length, _ = x.shape
        q = self.q_proj(x).view(rows, length, self.heads, self.head_dim)
        k = self.k_proj(x).view(rows, length, self.kv_heads, self.head_dim)
        if self.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = q.transpose(1, 2), k.transpose(1, 2)
        v = self.v_proj(x).view(rows, length, self.kv_heads, self.head_dim).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        mixed = attention(q, self._per_head(k), self._per_head(v), attend)
        return self.o_proj(mixed.transpose(1, 2).reshape(rows, length, -1)), (k, v)

    def _per_head(self, kv_BKTd: Tensor) -> Tensor:
        repeats = self.heads // self.kv_heads
        return kv_BKTd if repeats == 1 else kv_BKTd.repeat_interleave(repeats, dim=1)


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(spec.width, spec.ffn_width, bias=False)
        self.up_proj = nn.Linear(spec.width, spec.ffn_width, bias=False)
        self.down_proj = nn.Linear(spec.ffn_width, spec.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """down(silu(gate x) * up x)."""
        product: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return product


class Layer(nn.Module):
    """Attention and feed-forward, each behind its norm and a residual."""

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(spec.width, spec.norm_eps)
        self.self_attn = Attention(spec)
        self.post_attention_layernorm = RMSNorm(spec.width, spec.norm_eps)
        self.mlp = FeedForward(spec)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, attend: Tensor | None, past: LayerCache | None
    ) -> tuple[Tensor, LayerCache]:
        """The new residual stream [B, T, D], and the layer's keys and values."""
        mixed, cache = self.self_attn(self.input_layernorm(x), cos, sin, attend, past)
        x = x + mixed
        return x + self.mlp(self.post_attention_layernorm(x)), cache


class Body(nn.Module):
    """Everything but the output projection."""

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(spec.vocab_size, spec.width)
        self.layers = nn.ModuleList(Layer(spec) for _ in range(spec.layers))
        self.norm = RMSNorm(spec.width, spec.norm_eps)


class Decoder(nn.Module):
    """The whole model. Without `tied_embeddings` the output projection has weights of its own.

    With `checkpointing`, autograd keeps of a layer what goes in and comes out, and computes the rest again in the backward pass.
    """

    inverse_freqs: Tensor
    checkpointing = False

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.spec = spec
        self.model = Body(spec)
        self.lm_head = nn.Linear(spec.width, spec.vocab_size, bias=False)
        if spec.tied_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.register_buffer("inverse_freqs", rope_frequencies(spec), persistent=False)

    def hidden_states(
        self,
        ids_BT: Tensor,
        mask_BS: Tensor | None = None,
        past: PastKeyValues | None = None,
        use_cache: bool = False,
    ) -> Hidden:
        """Hidden states of `ids_BT`, continuing `past` where given.

        `mask_BS` is true where a token is real and covers the cached tokens too (S = P + T); rows are padded on the right, both
        within the cache and within this call. None means that every token is real. A real token's position is the number of
        real tokens before it. Outputs at padded places are finite and meaningless.
        """
        cached = 0 if past is None else past[0][0].shape[2]
        cos, sin = self._angles(ids_BT, mask_BS, cached)
        attend = attention_mask(ids_BT, mask_BS, cached)
        x = self.model.embed_tokens(ids_BT)
        caches: list[LayerCache] = []
        for index, layer in enumerate(self.model.layers):
            x, cache = self._through(layer, x, cos.to(x.dtype), sin.to(x.dtype), attend, None if past is None else past[index])
            caches.append(cache)
        return Hidden(self.model.norm(x), tuple(caches) if use_cache else None)

    def forward(self, ids_BT: Tensor, mask_BS: Tensor | None = None, past: PastKeyValues | None = None) -> Tensor:
        """Logits [B, T, V]. For long rows or large vocabularies use `hidden_states` and apply `lm_head` in chunks."""
        logits: Tensor = self.lm_head(self.hidden_states(ids_BT, mask_BS, past).states_BTD)
        return logits

    def _through(self, layer: nn.Module, *inputs: Tensor | LayerCache | None) -> tuple[Tensor, LayerCache]:
        """The layer's outputs; there is no randomness inside, so no generator's state has to be kept."""
        if self.checkpointing and torch.is_grad_enabled():
            made = checkpoint(layer, *inputs, use_reentrant=False, preserve_rng_state=False)
        else:
            made = layer(*inputs)
        states, cache = made
        return states, cache

    def _angles(self, ids_BT: Tensor, mask_BS: Tensor | None, cached: int) -> tuple[Tensor, Tensor]:
        """Cosine and sine of every rotation, float32, broadcastable to [B, H, T, head_dim / 2]."""
        if mask_BS is None:
            steps = torch.arange(cached, cached + ids_BT.shape[1], device=ids_BT.device)
            positions = steps.unsqueeze(0)
        else:
            positions = (mask_BS.long().cumsum(-1) - 1).clamp_min(0)[:, cached:]
        angles = positions[:, None, :, None].float() * self.inverse_freqs
        return angles.cos(), angles.sin()


def attention_mask(ids_BT: Tensor, mask_BS: Tensor | None, cached: int) -> Tensor | None:
    """Who may look at whom, true where allowed: [1 or B, 1, T, P + T]; None where plain causal attention says it all.

    Without a cache it always does: rows are padded on the right, so no real token can look at padding.
    """
    length = ids_BT.shape[1]
    if cached == 0:
        return None
    total = cached + length
    causal = torch.ones(length, total, dtype=torch.bool, device=ids_BT.device).tril(cached)
    if mask_BS is None:
        return causal[None, None]
    return causal[None, None] & mask_BS.bool()[:, None, None, :]


def load_decoder(path: str | Path, dtype: torch.dtype = torch.float32) -> Decoder:
    """The decoder of a GGUF file with its dequantised weights. Raises ModelFileError where the file cannot be used."""
    from edge.models.gguf_reader import open_gguf

    source = open_gguf(path)
    spec = source.decoder_spec()
    with torch.device("meta"):
        decoder = Decoder(spec)
    decoder.to_empty(device="cpu")
    decoder.inverse_freqs = source.rope_frequencies(spec)
    state = {name: tensor.to(dtype) for name, tensor in source.decoder_state(spec)}
    if spec.tied_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    decoder.load_state_dict(state, assign=True)
    if spec.tied_embeddings:
        decoder.lm_head.weight = decoder.model.embed_tokens.weight
    return decoder.eval()
