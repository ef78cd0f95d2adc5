"""A compact causal decoder in torch for the architectures in edge/models/spec.py.

Linear layers carry their usual names (`q_proj` ... `down_proj` under `model.layers.N`), so that adapters are placed by name and
`gguf.get_tensor_name_map` names them in a GGUF file.

Rows are padded for attention alone: everything else sees the real tokens in a flat list.

Axes: B rows, T tokens of this call, P tokens already cached, N real tokens of all rows, D model width, H heads, K key/value heads,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, noop_context_fn

from edge.core.architectures import Activation
from edge.core.architectures import Architecture as Architecture
from edge.models.gguf_reader import open_gguf
from edge.models.spec import DecoderSpec as DecoderSpec
from edge.models.spec import rope_frequencies

LayerCache = tuple[Tensor, Tensor]
"""Keys and values of one layer, both [B, K, P, head_dim]; they carry gradients when the forward did."""
PastKeyValues = tuple[LayerCache, ...]
CPU = torch.device("cpu")
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

    def forward(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """The normalised x, in its own type unless given."""
        dtype = dtype or x.dtype
        if self.weight.requires_grad:
            return _normalised(x.float(), self.weight, self.eps)[0].to(dtype)
        normalised: Tensor = _FrozenNorm.apply(x, self.weight, self.eps, dtype)  # type: ignore[no-untyped-call]
        return normalised


def _normalised(x32: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x / rms(x) * weight, and 1 / rms(x)."""
    scale = torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)
    return x32 * scale * weight.float(), scale


class _FrozenNorm(torch.autograd.Function):
    """RMSNorm whose weight is not trained: keeps its input alone, and goes back in five passes where autograd takes ten."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        normalised, scale = _normalised(x.float(), weight, eps)
        ctx.save_for_backward(x, weight, scale)
        return normalised.to(dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        x, weight, scale = ctx.saved_tensors
        x32, along = x.float(), grad.float() * weight.float()
        pull = (along * x32).mean(-1, keepdim=True).mul_(scale**3)
        return along.mul_(scale).addcmul_(x32, pull, value=-1.0).to(x.dtype), None, None, None


def rotate(x_NHd: Tensor, cos_N1d: Tensor, sin_N1h: Tensor) -> Tensor:
    """Rotary embedding in the half-split ("neox") pairing: element j turns with element j + head_dim/2. In the type of x."""
    rotated: Tensor = _Rotation.apply(x_NHd, cos_N1d, sin_N1h)  # type: ignore[no-untyped-call]
    return rotated


class _Rotation(torch.autograd.Function):
    """Its gradient is the rotation back."""

    @staticmethod
    def forward(ctx: Any, x_NHd: Tensor, cos_N1d: Tensor, sin_N1h: Tensor) -> Tensor:
        ctx.save_for_backward(cos_N1d, sin_N1h)
        return _turned(x_NHd, cos_N1d, sin_N1h, 1.0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        cos_N1d, sin_N1h = ctx.saved_tensors
        return _turned(grad, cos_N1d, sin_N1h, -1.0), None, None


def _turned(x_NHd: Tensor, cos_N1d: Tensor, sin_N1h: Tensor, way: float) -> Tensor:
    x, half = x_NHd.to(cos_N1d.dtype), x_NHd.shape[-1] // 2
    turned = x * cos_N1d
    turned[..., :half].addcmul_(x[..., half:], sin_N1h, value=-way)
    turned[..., half:].addcmul_(x[..., :half], sin_N1h, value=way)
    return turned.to(x_NHd.dtype)


class Places(NamedTuple):
    """N chosen ones among M places: where they are, which of them each place takes when they are spread out again, and the places without
    one of their own."""

    chosen_N: Tensor
    taken_M: Tensor
    empty_E: Tensor

    @staticmethod
    def of(mask_M: Tensor) -> Places | None:
        """Where the mask is true; None where it is everywhere, or nowhere."""
        chosen_N = mask_M.nonzero().flatten()
        if len(chosen_N) in (0, len(mask_M)):
            return None
        return Places(chosen_N, (mask_M.cumsum(0) - 1).clamp_min(0), (~mask_M).nonzero().flatten())

    def packed(self, x_MX: Tensor) -> Tensor:
        """The chosen ones [N, ...]."""
        packed: Tensor = _Packed.apply(x_MX, self)  # type: ignore[no-untyped-call]
        return packed


class Padding:
    """Where N real tokens lie in B rows of T places that are padded on the right; without padding the two are the same."""

    def __init__(self, mask_BT: Tensor | None, rows: int, length: int) -> None:
        self.rows, self.length = rows, length
        self._places = None if mask_BT is None else Places.of(mask_BT.flatten())

    def packed(self, x_BTX: Tensor) -> Tensor:
        """The real tokens [N, ...] of rows [B, T, ...]."""
        flat = x_BTX.flatten(0, 1)
        return flat if self._places is None else self._places.packed(flat)

    def padded(self, x_NX: Tensor) -> Tensor:
        """Rows [B, T, ...] of the tokens; what stands elsewhere is finite and means nothing."""
        if self._places is not None:
            x_NX = _Spread.apply(x_NX, self._places)  # type: ignore[no-untyped-call]
        return x_NX.view(self.rows, self.length, *x_NX.shape[1:])


class Wanted(NamedTuple):
    """The tokens whose states are wanted, among all places of the rows and among the real tokens."""

    of_rows: Padding
    of_tokens: Places


class _Packed(torch.autograd.Function):
    """Autograd would add up where there is nothing to add to, and index_copy takes four times as long as index_select on a processor."""

    @staticmethod
    def forward(ctx: Any, x_MX: Tensor, places: Places) -> Tensor:
        ctx.places = places
        return x_MX.index_select(0, places.chosen_N)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return grad.index_select(0, ctx.places.taken_M).index_fill_(0, ctx.places.empty_E, 0), None


class _Spread(torch.autograd.Function):
    """The other way round."""

    @staticmethod
    def forward(ctx: Any, x_NX: Tensor, places: Places) -> Tensor:
        ctx.places = places
        return x_NX.index_select(0, places.taken_M)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return grad.index_select(0, ctx.places.chosen_N), None


def attention(q_BHTd: Tensor, k_BKSd: Tensor, v_BKSd: Tensor, attend: Tensor | None, scale: float | None = None) -> Tensor:
    """Scaled dot-product attention [B, H, T, d], H/K heads to a key; `attend` is true where allowed, None means causal over S = T.
    Scores are multiplied by `scale` (None: by d**-0.5).

    Short rows on a CPU go through plain matrix products, which train faster there than the fused kernel.
    """
    length, total = q_BHTd.shape[2], k_BKSd.shape[2]
    if q_BHTd.device.type == "cpu" and length * total <= MAX_PLAIN_SCORES:
        if attend is None:
            attend = torch.ones(length, total, dtype=torch.bool).tril()[None, None]
        mixed: Tensor = _PlainAttention.apply(q_BHTd, k_BKSd, v_BKSd, attend, scale or q_BHTd.shape[-1] ** -0.5)  # type: ignore[no-untyped-call]
        return mixed
    repeats, dtype = q_BHTd.shape[1] // k_BKSd.shape[1], product_dtype(q_BHTd)
    k, v = (x.to(dtype) if repeats == 1 else x.to(dtype).repeat_interleave(repeats, dim=1) for x in (k_BKSd, v_BKSd))
    return F.scaled_dot_product_attention(q_BHTd.to(dtype), k, v, attn_mask=attend, is_causal=attend is None, scale=scale)


class _PlainAttention(torch.autograd.Function):
    """Attention in matrix products, the queries of all heads that share a key in one: keys and values are never repeated.

    Autograd would carry the gradient through the mask, where it is zero already. Axes: N = B K products, M = T H/K queries.
    """

    @staticmethod
    def forward(ctx: Any, q_BHTd: Tensor, k_BKSd: Tensor, v_BKSd: Tensor, attend: Tensor, scale: float) -> Tensor:
        dtype = product_dtype(q_BHTd)
        with torch.autocast("cpu", enabled=False):
            rows, heads, length, width = q_BHTd.shape
            kv_heads, total = k_BKSd.shape[1:3]
            q_NMd = (q_BHTd * scale).to(dtype).reshape(rows * kv_heads, -1, width)
            k_NSd, v_NSd = (x.to(dtype).flatten(0, 1) for x in (k_BKSd, v_BKSd))
            scores_NMS = torch.bmm(q_NMd, k_NSd.transpose(1, 2))
            barred = torch.zeros(attend.shape, dtype=dtype).masked_fill_(~attend, -torch.inf)  # adding it takes a third of a fill
            scores_NMS.view(rows, heads, length, total).add_(barred)
            weights_NMS = torch.softmax(scores_NMS, dim=-1)  # in float32 inside
            mixed = torch.bmm(weights_NMS, v_NSd).view(q_BHTd.shape)
        ctx.save_for_backward(q_NMd, k_NSd, v_NSd, weights_NMS)
        ctx.shapes, ctx.scale = (q_BHTd.shape, k_BKSd.shape), scale
        ctx.dtypes = q_BHTd.dtype, k_BKSd.dtype, v_BKSd.dtype
        return mixed

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:  # type: ignore[override]
        q_NMd, k_NSd, v_NSd, weights_NMS = ctx.saved_tensors
        (q_shape, kv_shape), (q_dtype, k_dtype, v_dtype) = ctx.shapes, ctx.dtypes
        with torch.autocast("cpu", enabled=False):
            grad_NMd = grad.to(q_NMd.dtype).reshape(q_NMd.shape)
            grad_v = torch.bmm(weights_NMS.transpose(1, 2), grad_NMd)
            slope_NMS = torch.bmm(grad_NMd, v_NSd.transpose(1, 2))
            slope_NMS = torch.ops.aten._softmax_backward_data(slope_NMS, weights_NMS, -1, slope_NMS.dtype)
            grad_q = torch.bmm(slope_NMS, k_NSd).mul_(ctx.scale)
            grad_k = torch.bmm(slope_NMS.transpose(1, 2), q_NMd)
        return grad_q.view(q_shape).to(q_dtype), grad_k.view(kv_shape).to(k_dtype), grad_v.view(kv_shape).to(v_dtype), None, None


def product_dtype(x: Tensor) -> torch.dtype:
    """The type in which matrix products of `x` are taken: autocast's where it is on."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


class LayerPlaces(NamedTuple):
    """What layers of one kind need of the tokens' positions: cosine and sine of every rotation (None: unrotated), and which token may
    attend to which (None: causal)."""

    cos: Tensor | None
    sin: Tensor | None
    attend: Tensor | None


class Attention(nn.Module):
    """Grouped-query causal attention."""

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = spec.heads, spec.kv_heads, spec.head_dim
        self.q_proj = nn.Linear(spec.width, spec.heads * spec.head_dim, bias=spec.qkv_bias)
        self.k_proj = nn.Linear(spec.width, spec.kv_heads * spec.head_dim, bias=spec.qkv_bias)
        self.v_proj = nn.Linear(spec.width, spec.kv_heads * spec.head_dim, bias=spec.qkv_bias)
        self.o_proj = nn.Linear(spec.heads * spec.head_dim, spec.width, bias=False)
        if spec.family.qk_norm:
            self.q_norm = RMSNorm(spec.head_dim, spec.norm_eps)
            self.k_norm = RMSNorm(spec.head_dim, spec.norm_eps)
        self.qk_norm, self.scale = spec.family.qk_norm, spec.score_scale

    def forward(
        self,
        x_ND: Tensor,
        places: LayerPlaces,
        padding: Padding,
        past: LayerCache | None,
        wanted: Wanted | None,
    ) -> tuple[Tensor, LayerCache]:
        """What was attended to [N, D], of the wanted tokens where not of all, and the keys and values up to here."""
        q = self.q_proj(x_ND).view(-1, self.heads, self.head_dim)
        k = self.k_proj(x_ND).view(-1, self.kv_heads, self.head_dim)
        v = self.v_proj(x_ND).view(-1, self.kv_heads, self.head_dim)
        if self.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        if places.cos is not None and places.sin is not None:
            q, k = rotate(q, places.cos, places.sin), rotate(k, places.cos, places.sin)
        q, k, v = (padding.padded(one).transpose(1, 2) for one in (q, k, v))
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        mixed = attention(q, k, v, places.attend, self.scale)
        kept = padding if wanted is None else wanted.of_rows
        return self.o_proj(kept.packed(mixed.transpose(1, 2)).flatten(1)), (k, v)


class FeedForward(nn.Module):
    """A gated linear unit: SwiGLU, or with gelu."""

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(spec.width, spec.ffn_width, bias=False)
        self.up_proj = nn.Linear(spec.width, spec.ffn_width, bias=False)
        self.down_proj = nn.Linear(spec.ffn_width, spec.width, bias=False)
        self.activation = spec.family.activation

    def forward(self, x: Tensor) -> Tensor:
        """down(activation(gate x) * up x)."""
        gated: Tensor = _Gated.apply(self.gate_proj(x), self.up_proj(x), self.activation)  # type: ignore[no-untyped-call]
        product: Tensor = self.down_proj(gated)
        return product


class _Gated(torch.autograd.Function):
    """activation(gate) * up. The activation is computed again backwards: one tensor of the feed-forward's width less is kept."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.activation = activation
        return _ACTIVATIONS[activation][0](gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        gate, up = ctx.saved_tensors
        activated, pulled_back = _ACTIVATIONS[ctx.activation]
        return pulled_back(grad * up, gate), activated(gate).mul_(grad), None


_ACTIVATIONS: dict[Activation, tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "silu": (F.silu, torch.ops.aten.silu_backward),
    "gelu": (partial(F.gelu, approximate="tanh"), partial(torch.ops.aten.gelu_backward, approximate="tanh")),
}
"""Each with its gradient: that of its result and its input to that of its input."""


class Layer(nn.Module):
    """Attention and feed-forward, each after its norm and with a residual; some families normalise what is added, too.

    Names of norms are those of the models' authors: where there are post-norms, `post_attention_layernorm` is one, and elsewhere it is the
    feed-forward's.
    """

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.post_norms = spec.family.post_norms
        self.input_layernorm = RMSNorm(spec.width, spec.norm_eps)
        self.self_attn = Attention(spec)
        self.post_attention_layernorm = RMSNorm(spec.width, spec.norm_eps)
        self.mlp = FeedForward(spec)
        if self.post_norms:
            self.pre_feedforward_layernorm = RMSNorm(spec.width, spec.norm_eps)
            self.post_feedforward_layernorm = RMSNorm(spec.width, spec.norm_eps)

    def forward(
        self,
        x: Tensor,
        places: LayerPlaces,
        padding: Padding,
        past: LayerCache | None,
        wanted: Wanted | None,
    ) -> tuple[Tensor, LayerCache]:
        """The new residual stream [N, D], of the wanted tokens where not of all, and the layer's keys and values.

        Norms return the type of the products that follow: one tensor is made and kept for all of these, not a copy for each.
        """
        dtype = product_dtype(x)
        mixed, cache = self.self_attn(self.input_layernorm(x, dtype), places, padding, past, wanted)
        x = x if wanted is None else wanted.of_tokens.packed(x)
        if self.post_norms:
            x = x + self.post_attention_layernorm(mixed, x.dtype)
            added = self.mlp(self.pre_feedforward_layernorm(x, dtype))
            return x + self.post_feedforward_layernorm(added, x.dtype), cache
        x = x + mixed
        return x + self.mlp(self.post_attention_layernorm(x, dtype)), cache


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
    local_freqs: Tensor
    """Of layers that attend to a window."""
    checkpointing = False
    checkpoint_contexts = staticmethod(noop_context_fn)

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.spec = spec
        self.model = Body(spec)
        self.lm_head = nn.Linear(spec.width, spec.vocab_size, bias=False)
        if spec.tied_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.register_buffer("inverse_freqs", rope_frequencies(spec), persistent=False)
        self.register_buffer("local_freqs", rope_frequencies(spec, local=True), persistent=False)

    def hidden_states(
        self,
        ids_BT: Tensor,
        mask_BS: Tensor | None = None,
        past: PastKeyValues | None = None,
        use_cache: bool = False,
        wanted_BT: Tensor | None = None,
    ) -> Hidden:
        """Hidden states of `ids_BT`, continuing `past` where given.

        `mask_BS` is true where a token is real and covers the cached tokens too (S = P + T); rows are padded on the right, both
        within the cache and within this call. None means that every token is real. A real token's position is the number of
        real tokens before it. `wanted_BT` is true where a real token's state is wanted (None: of all); of the last block the others
        need keys and values only. Outputs at padded and unwanted places are finite and meaningless.
        """
        cached = 0 if past is None else past[0][0].shape[2]
        padding = Padding(None if mask_BS is None else mask_BS[:, cached:], *ids_BT.shape)
        x = self.model.embed_tokens(padding.packed(ids_BT))
        if self.spec.family.scaled_embeddings:
            x = x * self.spec.embedding_scale
        places = self._layer_places(ids_BT, mask_BS, cached, padding, x.dtype)
        caches: list[LayerCache] = []
        of_tokens = None if wanted_BT is None else Places.of(padding.packed(wanted_BT))
        wanted = None if wanted_BT is None or of_tokens is None else Wanted(Padding(wanted_BT, *ids_BT.shape), of_tokens)
        for index, layer in enumerate(self.model.layers):
            last = index + 1 == len(self.model.layers)
            inputs = x, places[index], padding, None if past is None else past[index], wanted if last else None
            if self.checkpointing and torch.is_grad_enabled():  # nothing is random inside, so no generator's state has to be kept
                contexts = self.checkpoint_contexts
                x, cache = checkpoint(layer, *inputs, use_reentrant=False, preserve_rng_state=False, context_fn=contexts)
            else:
                x, cache = layer(*inputs)
            if use_cache:
                caches.append(cache)
        kept = padding if wanted is None else wanted.of_rows
        return Hidden(kept.padded(self.model.norm(x)), tuple(caches) if use_cache else None)

    def forward(self, ids_BT: Tensor, mask_BS: Tensor | None = None, past: PastKeyValues | None = None) -> Tensor:
        """Logits [B, T, V]. For long rows or large vocabularies use `hidden_states` and apply `lm_head` in chunks."""
        logits: Tensor = self.lm_head(self.hidden_states(ids_BT, mask_BS, past).states_BTD)
        return logits

    def _layer_places(
        self, ids_BT: Tensor, mask_BS: Tensor | None, cached: int, padding: Padding, dtype: torch.dtype
    ) -> list[LayerPlaces]:
        """For each layer; those of one kind share them. Rotations are [N, 1, d] and [N, 1, d / 2], d the width of a head."""
        spec = self.spec
        if mask_BS is None:
            positions_BT = torch.arange(cached, cached + ids_BT.shape[1], device=ids_BT.device).expand(ids_BT.shape)
        else:
            positions_BT = (mask_BS.long().cumsum(-1) - 1).clamp_min(0)[:, cached:]
        positions_N11 = padding.packed(positions_BT)[:, None, None].float()
        kinds: dict[tuple[bool, bool], LayerPlaces] = {}
        places = []
        for layer in range(spec.layers):
            local, rotated = kind = spec.is_local(layer), spec.is_rotated(layer)
            if kind not in kinds:
                angles = positions_N11 * (self.local_freqs if local else self.inverse_freqs)
                cos, sin = (angles.cos().repeat(1, 1, 2).to(dtype), angles.sin().to(dtype)) if rotated else (None, None)
                kinds[kind] = LayerPlaces(cos, sin, attention_mask(ids_BT, mask_BS, cached, spec.window if local else 0))
            places.append(kinds[kind])
        return places


def attention_mask(ids_BT: Tensor, mask_BS: Tensor | None, cached: int, window: int = 0) -> Tensor | None:
    """Which token may attend to which, true where allowed: [1 or B, 1, T, P + T]; None where plain causal attention is the same.

    Without a cache it always does, up to the window's length: rows are padded on the right, so no real token can attend to padding. In a
    `window` (0: none) a token attends to that many, itself among them, by their positions: padding within the cache takes none.
    """
    length = ids_BT.shape[1]
    total = cached + length
    windowed = 0 < window < total
    if cached == 0 and not windowed:
        return None
    allowed = torch.ones(length, total, dtype=torch.bool, device=ids_BT.device).tril(cached)
    if mask_BS is None or cached == 0:
        return (allowed.triu(cached - window + 1) if windowed else allowed)[None, None]
    allowed_BTS = allowed & mask_BS.bool()[:, None, :]
    if windowed:
        positions_BS = mask_BS.long().cumsum(-1)
        allowed_BTS &= positions_BS[:, cached:, None] - positions_BS[:, None, :] < window
    return allowed_BTS[:, None]


def load_decoder(path: str | Path, dtype: torch.dtype = torch.float32, device: torch.device = CPU) -> Decoder:
    """The decoder of a GGUF file with its dequantised weights, the matrices of its blocks in `dtype`. Raises ModelFileError where the file
    cannot be used."""
    source = open_gguf(path)
    spec = source.computed_spec()
    with torch.device("meta"):
        decoder = Decoder(spec)
    decoder.to_empty(device=device)
    decoder.inverse_freqs = source.rope_frequencies(spec).to(device)
    decoder.local_freqs = rope_frequencies(spec, local=True).to(device)
    state = {
        name: tensor.to(device, dtype if ".layers." in name and tensor.dim() == 2 else torch.float32)
        for name, tensor in source.decoder_state(spec)
    }
    if spec.tied_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    decoder.load_state_dict(state, assign=True)
    if spec.tied_embeddings:
        decoder.lm_head.weight = decoder.model.embed_tokens.weight
    return decoder.eval()
