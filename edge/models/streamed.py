"""The decoder over weights that stay in the file: each matrix is made when a product needs it, in the forward pass and again backward.

Training then holds the adapter, its optimiser and activations, and one matrix at a time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edge.models.decoder import CPU, Decoder, product_dtype
from edge.models.gguf_reader import GGUFModel, open_gguf
from edge.models.spec import parameter_shapes
from edge.models.stored import StoredMatrix


class StreamedLinear(nn.Linear):
    """x W^T + b with W in the file. `weight` has W's shape and type for those who ask, and no memory behind it."""

    def __init__(self, stored: StoredMatrix, bias: Tensor | None = None, device: torch.device = CPU) -> None:
        nn.Module.__init__(self)
        self.out_features, self.in_features = stored.shape
        self.weight = _nothing(stored, device)
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias, requires_grad=False))
        self.stored = stored

    def matrix(self, dtype: torch.dtype) -> Tensor:
        """W, made from the file."""
        return self.stored.dense(dtype).to(self.weight.device)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out], in autocast's type where it is on."""
        product: Tensor = _StoredProduct.apply(x, self, product_dtype(x))  # type: ignore[no-untyped-call]
        return product if self.bias is None else product + self.bias.to(product.dtype)


class StreamedEmbedding(nn.Embedding):
    """Rows of a table in the file."""

    def __init__(self, stored: StoredMatrix, device: torch.device = CPU) -> None:
        nn.Module.__init__(self)
        self.num_embeddings, self.embedding_dim = stored.shape
        self.weight = _nothing(stored, device)
        self.stored = stored

    def forward(self, ids: Tensor) -> Tensor:
        """[...] to [..., width], float32."""
        return self.stored.gather(ids).to(ids.device)


class _StoredProduct(torch.autograd.Function):
    """x W^T, whose gradient makes W again instead of keeping it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: StreamedLinear, dtype: torch.dtype) -> Tensor:
        ctx.layer, ctx.dtype, ctx.input_dtype = layer, dtype, x.dtype
        with torch.autocast(x.device.type, enabled=False):
            return F.linear(x.to(dtype), layer.matrix(dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        with torch.autocast(grad.device.type, enabled=False):
            return (grad.to(ctx.dtype) @ ctx.layer.matrix(ctx.dtype)).to(ctx.input_dtype), None, None


def _nothing(stored: StoredMatrix, device: torch.device) -> nn.Parameter:
    return nn.Parameter(torch.zeros((), device=device).expand(stored.shape), requires_grad=False)


def open_streamed(path: str | Path, device: torch.device = CPU) -> Decoder:
    """The decoder of a GGUF file over its mapped weights; norms and biases in memory. Raises ModelFileError.

    Matrices are made by the processor, and copied to `device` where that is another one.
    """
    source = open_gguf(path)
    spec = source.computed_spec()
    with torch.device("meta"):
        decoder = Decoder(spec)
    decoder.inverse_freqs = source.rope_frequencies(spec).to(device)
    for name in parameter_shapes(spec):
        _place(decoder, source, name, device)
    if spec.tied_embeddings:
        decoder.lm_head = StreamedLinear(source.stored_matrix("model.embed_tokens.weight", spec), device=device)
    return decoder.requires_grad_(False).eval()


def _place(decoder: Decoder, source: GGUFModel, name: str, device: torch.device) -> None:
    """Put one parameter of the file where it belongs."""
    spec = decoder.spec
    path, kind = name.rsplit(".", 1)
    parent_path, _, leaf = path.rpartition(".")
    parent = decoder.get_submodule(parent_path)
    module = decoder.get_submodule(path)
    if kind == "weight" and isinstance(module, nn.Embedding):
        setattr(parent, leaf, StreamedEmbedding(source.stored_matrix(name, spec), device))
    elif kind == "weight" and isinstance(module, nn.Linear):
        bias = None if module.bias is None else source.parameter(f"{path}.bias", spec).to(device)
        setattr(parent, leaf, StreamedLinear(source.stored_matrix(name, spec), bias, device))
    elif kind == "weight":
        module.weight = nn.Parameter(source.parameter(name, spec).to(device), requires_grad=False)
