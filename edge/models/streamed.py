"""The decoder over weights that stay in the GGUF file: each matrix is made when a product needs it, in the forward pass and again backward.

Training then holds the adapter, its optimiser and activations, and one matrix at a time. The pages are the file's own in the page cache,
the same ones that llama.cpp maps, so a model that serves and trains is in memory once.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edge.models.decoder import CPU, Decoder, product_dtype
from edge.models.ggml import GgmlType, ggml_type
from edge.models.gguf_reader import GGUFModel, open_gguf
from edge.models.spec import DecoderSpec, parameter_shapes, rope_frequencies, rotated_heads, stored_name, unpermute_rows

ROWS_BYTES = 1 << 19
"""Floats that one thread makes before they are converted to a narrower type: small enough to stay in its cache (measured: 2^18 and 2^21
take a tenth longer)."""
WORTH_A_THREAD = 1 << 16
"""Weights for which handing rows to another thread pays."""


class StoredMatrix:
    """A matrix [rows, width] of a file that is mapped as long as `owner` lives. Immutable.

    `order` puts the file's rows into the order in which the decoder has them (None: as they are).
    """

    def __init__(
        self, owner: Any, address: int, kind: GgmlType, rows: int, width: int, order: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        self._owner, self._address, self._kind, self._order = owner, address, kind, order
        self._row_bytes = kind.row_bytes(width)
        self.rows, self.width = rows, width
        self.shape = rows, width

    def dense(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The whole matrix, [rows, width]."""
        matrix = self._made(0, self.rows, dtype)
        return matrix if self._order is None else self._order(matrix)

    def block(self, start: int, stop: int, dtype: torch.dtype | None = None) -> Tensor:
        """Rows start..stop-1, in float32 unless given. Raises ValueError for a matrix whose rows have an order of their own."""
        if self._order is not None:
            raise ValueError("single rows of a reordered matrix cannot be read")
        return self._made(start, min(stop, self.rows), dtype or torch.float32)

    def gather(self, ids: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """The rows `ids` [...] as [..., width]. Raises IndexError for an id that is not there."""
        wanted, places = torch.unique(ids.cpu(), return_inverse=True)
        if len(wanted) and not 0 <= int(wanted[0]) <= int(wanted[-1]) < self.rows:
            raise IndexError(f"ids must lie in 0..{self.rows - 1}")
        found = torch.empty(len(wanted), self.width)
        for place, row in enumerate(wanted.tolist()):
            self._fill(found[place : place + 1], row)
        return found.to(dtype)[places]

    def _made(self, start: int, stop: int, dtype: torch.dtype) -> Tensor:
        made = torch.empty(stop - start, self.width, dtype=dtype)
        parts = max(1, torch.get_num_threads()) if made.numel() >= WORTH_A_THREAD else 1
        size = -(-(stop - start) // parts)
        jobs = [(made[begin : begin + size], start + begin) for begin in range(0, stop - start, size)]
        if len(jobs) > 1:
            list(_pool(parts).map(lambda job: self._converted(*job), jobs))
        elif jobs:
            self._converted(*jobs[0])
        return made

    def _converted(self, target: Tensor, row: int) -> None:
        """Rows from `row` on into the target [n, width] of any type."""
        if target.dtype == torch.float32:
            self._fill(target, row)
            return
        size = max(1, ROWS_BYTES // (4 * self.width))
        floats = torch.empty(min(size, len(target)), self.width)
        for begin in range(0, len(target), size):
            piece = target[begin : begin + size]
            self._fill(floats[: len(piece)], row + begin)
            piece.copy_(floats[: len(piece)])

    def _fill(self, target: Tensor, row: int) -> None:
        self._kind.dequantise(self._address + row * self._row_bytes, target.data_ptr(), target.numel())


@lru_cache(maxsize=4)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="dequantise")


def stored_matrix(source: GGUFModel, name: str, spec: DecoderSpec) -> StoredMatrix:
    """One of the decoder's matrices where it lies in the file. Raises ModelFileError."""
    tensor, heads = source.tensor(stored_name(name, spec)), rotated_heads(name, spec)
    rows, width = tensor.shape
    order = partial(unpermute_rows, heads=heads) if heads else None
    return StoredMatrix(tensor.data, tensor.data.ctypes.data, ggml_type(int(tensor.kind)), rows, width, order)


class StreamedLinear(nn.Linear):
    """x W^T + b with W in the file. `weight` has W's shape and type for those who ask, but no memory of its own."""

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
    decoder.local_freqs = rope_frequencies(spec, local=True).to(device)
    for name in parameter_shapes(spec):
        module_path, kind = name.rsplit(".", 1)
        parent_path, _, leaf = module_path.rpartition(".")
        parent, module = decoder.get_submodule(parent_path), decoder.get_submodule(module_path)
        if kind == "bias":
            continue  # placed with its matrix
        if isinstance(module, nn.Embedding):
            setattr(parent, leaf, StreamedEmbedding(stored_matrix(source, name, spec), device))
        elif isinstance(module, nn.Linear):
            bias = None if module.bias is None else source.parameter(f"{module_path}.bias", spec).to(device)
            setattr(parent, leaf, StreamedLinear(stored_matrix(source, name, spec), bias, device))
        else:
            module.weight = nn.Parameter(source.parameter(name, spec).to(device), requires_grad=False)
    if spec.tied_embeddings:
        decoder.lm_head = StreamedLinear(stored_matrix(source, "model.embed_tokens.weight", spec), device=device)
    return decoder.requires_grad_(False).eval()
