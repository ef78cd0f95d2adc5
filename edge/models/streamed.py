"""The decoder over weights that stay in the file: each matrix is made when a product needs it, in the forward pass and again backward.

Knows products and their gradients with respect to the input (base weights are frozen); knows nothing of adapters, which peft adds
around these layers as around any other. Training then holds the adapter, its optimiser and activations, and one matrix at a time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edge.models.decoder import Decoder
from edge.models.gguf_reader import GGUFModel, open_gguf
from edge.models.spec import parameter_shapes
from edge.models.stored import StoredMatrix


class StreamedLinear(nn.Linear):
    """x W^T + b with W in the file. `weight` has W's shape and type for those who ask, and no memory behind it."""

    def __init__(self, stored: StoredMatrix, bias: Tensor | None = None) -> None:
        nn.Module.__init__(self)
        self.out_features, self.in_features = stored.shape
        self.weight = nn.Parameter(torch.zeros(()).expand(stored.shape), requires_grad=False)
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias, requires_grad=False))
        self.stored = stored

    def matrix(self, dtype: torch.dtype) -> Tensor:
        """W, made from the file."""
        return self.stored.dense(dtype)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out], in autocast's type where it is on."""
        product: Tensor = _StoredProduct.apply(x, self.stored, _working_dtype(x))  # type: ignore[no-untyped-call]
        return product if self.bias is None else product + self.bias.to(product.dtype)


class StreamedEmbedding(nn.Embedding):
    """Rows of a table in the file."""

    def __init__(self, stored: StoredMatrix) -> None:
        nn.Module.__init__(self)
        self.num_embeddings, self.embedding_dim = stored.shape
        self.weight = nn.Parameter(torch.zeros(()).expand(stored.shape), requires_grad=False)
        self.stored = stored

    def forward(self, ids: Tensor) -> Tensor:
        """[...] to [..., width], float32."""
        return self.stored.gather(ids)


class _StoredProduct(torch.autograd.Function):
    """x W^T, whose gradient makes W again instead of keeping it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, stored: StoredMatrix, dtype: torch.dtype) -> Tensor:
        ctx.stored, ctx.dtype, ctx.input_dtype = stored, dtype, x.dtype
        with torch.autocast("cpu", enabled=False):
            return F.linear(x.to(dtype), stored.dense(dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        with torch.autocast("cpu", enabled=False):
            return (grad.to(ctx.dtype) @ ctx.stored.dense(ctx.dtype)).to(ctx.input_dtype), None, None


def _working_dtype(x: Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype


def open_streamed(path: str | Path) -> Decoder:
    """The decoder of a GGUF file over its mapped weights; norms and biases in memory. Raises ModelFileError."""
    source = open_gguf(path)
    spec = source.decoder_spec()
    source.forget_vocabulary()
    with torch.device("meta"):
        decoder = Decoder(spec)
    decoder.inverse_freqs = source.rope_frequencies(spec)
    for name in parameter_shapes(spec):
        _place(decoder, source, name)
    if spec.tied_embeddings:
        decoder.lm_head = StreamedLinear(source.stored_matrix("model.embed_tokens.weight", spec))
    return decoder.requires_grad_(False).eval()


def _place(decoder: Decoder, source: GGUFModel, name: str) -> None:
    """Put one parameter of the file where it belongs."""
    spec = decoder.spec
    path, kind = name.rsplit(".", 1)
    parent_path, _, leaf = path.rpartition(".")
    parent = decoder.get_submodule(parent_path)
    module = decoder.get_submodule(path)
    if kind == "weight" and isinstance(module, nn.Embedding):
        setattr(parent, leaf, StreamedEmbedding(source.stored_matrix(name, spec)))
    elif kind == "weight" and isinstance(module, nn.Linear):
        setattr(parent, leaf, StreamedLinear(source.stored_matrix(name, spec), _bias_of(source, path, module, decoder)))
    elif kind == "weight":
        module.weight = nn.Parameter(source.parameter(name, spec), requires_grad=False)


def _bias_of(source: GGUFModel, path: str, module: nn.Linear, decoder: Decoder) -> Tensor | None:
    return None if module.bias is None else source.parameter(f"{path}.bias", decoder.spec)
