"""Reads GGUF files: metadata, and dequantised weights under the decoder's parameter names.

Knows the file format and the two architectures' tensor layouts; knows nothing of the forward pass. Every way in which a file can
be unusable ends in ModelFileError with one line that names the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, cast

import gguf
import torch
from gguf import GGUFReader, ReaderTensor
from torch import Tensor

from edge.core.errors import ModelFileError
from edge.models.decoder import Architecture, DecoderSpec, rope_frequencies
from edge.models.ggml import ggml_type
from edge.models.stored import StoredMatrix

ARCHITECTURES: tuple[Architecture, ...] = ("qwen2", "llama")
MAGIC = b"GGUF"
LAYER_MODULES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OTHER_MODULES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
UNREADABLE = (ValueError, KeyError, IndexError, OverflowError, MemoryError, TypeError, struct.error)
"""What the gguf package raises on files that are cut or damaged."""


def open_gguf(path: str | Path) -> GGUFModel:
    """Open a GGUF file. Raises ModelFileError when it is missing, not GGUF, or damaged."""
    path = Path(path)
    check_magic(path)
    try:
        model = GGUFModel(path, GGUFReader(path))
        model.check_extent()
    except UNREADABLE as error:
        raise _damaged(path, error) from error
    return model


def check_magic(path: Path) -> None:
    """Raises ModelFileError unless `path` is a readable file that begins like GGUF."""
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except FileNotFoundError as error:
        raise ModelFileError(f"model file not found: {path}", hint="check the path or name of the model") from error
    except OSError as error:
        raise ModelFileError(f"cannot read model file {path}: {error.strerror}") from error
    if magic != MAGIC:
        raise ModelFileError(f"not a GGUF file: {path}", hint="models are loaded from GGUF files only")


def _damaged(path: Path, cause: Exception) -> ModelFileError:
    return ModelFileError(f"corrupt or truncated model file: {path} ({cause})", hint="fetch the file again")


class GGUFModel:
    """One open GGUF file, memory-mapped."""

    def __init__(self, path: Path, reader: GGUFReader) -> None:
        self.path = path
        self._reader = reader

    @cached_property
    def tensors(self) -> dict[str, ReaderTensor]:
        """Every tensor by its stored name."""
        return {tensor.name: tensor for tensor in self._reader.tensors}

    @property
    def parameters(self) -> int:
        """Weights in the file."""
        return sum(int(tensor.n_elements) for tensor in self._reader.tensors)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights in the file."""
        return sum(int(tensor.n_bytes) for tensor in self._reader.tensors)

    def metadata(self, key: str, default: Any = None) -> Any:
        """The value of a metadata key as a plain Python value, or `default`."""
        field = self._reader.get_field(key)
        return default if field is None else field.contents()

    def check_extent(self) -> None:
        """Raises ValueError when a tensor does not lie within the file."""
        size = self.path.stat().st_size
        for tensor in self._reader.tensors:
            if tensor.data_offset + tensor.n_bytes > size:
                raise ValueError(f"tensor {tensor.name} ends beyond the file")

    # --- shape ---

    def decoder_spec(self) -> DecoderSpec:
        """The decoder's shape. Raises ModelFileError on an architecture the decoder does not have, or missing keys."""
        architecture = self.metadata(gguf.Keys.General.ARCHITECTURE)
        if architecture not in ARCHITECTURES:
            raise ModelFileError(
                f"unsupported architecture {architecture!r} in {self.path}",
                hint=f"supported: {', '.join(ARCHITECTURES)}",
            )
        try:
            return self._read_spec(cast(Architecture, architecture))
        except UNREADABLE as error:
            raise ModelFileError(f"incomplete model file {self.path}: no {error}") from error

    def _read_spec(self, architecture: Architecture) -> DecoderSpec:
        def number(key: str) -> Any:
            value = self.metadata(f"{architecture}.{key}")
            if value is None:
                raise KeyError(f"{architecture}.{key}")
            return value

        width, heads = int(number("embedding_length")), int(number("attention.head_count"))
        vocab_size, embedding_width = self.tensors["token_embd.weight"].shape[::-1]
        if embedding_width != width:
            raise KeyError(f"embedding of width {width}")
        return DecoderSpec(
            architecture=architecture,
            vocab_size=int(vocab_size),
            width=width,
            layers=int(number("block_count")),
            heads=heads,
            kv_heads=int(self.metadata(f"{architecture}.attention.head_count_kv", heads)),
            head_dim=int(self.metadata(f"{architecture}.attention.key_length", width // heads)),
            ffn_width=int(number("feed_forward_length")),
            context_length=int(number("context_length")),
            rope_base=float(self.metadata(f"{architecture}.rope.freq_base", 10_000.0)),
            norm_eps=float(number("attention.layer_norm_rms_epsilon")),
            qkv_bias="blk.0.attn_q.bias" in self.tensors,
            tied_embeddings="output.weight" not in self.tensors,
        )

    def rope_frequencies(self, spec: DecoderSpec) -> Tensor:
        """Angular frequencies [head_dim / 2], divided by the file's own factors where it brings some."""
        frequencies = rope_frequencies(spec)
        if "rope_freqs.weight" in self.tensors:
            frequencies = frequencies / self.dequantised("rope_freqs.weight")
        return frequencies

    # --- weights ---

    def dequantised(self, name: str) -> Tensor:
        """One tensor in float32, in the shape torch gives it (rows are outputs). Raises ModelFileError for a type ggml cannot read."""
        tensor = self.tensors[name]
        shape = torch_shape(tensor)
        values = torch.empty(shape)
        kind = ggml_type(int(tensor.tensor_type))
        kind.dequantise(tensor.data.ctypes.data, values.data_ptr(), values.numel())
        return values

    def decoder_state(self, spec: DecoderSpec) -> Iterator[tuple[str, Tensor]]:
        """The decoder's parameters by name, without the tied output. Raises ModelFileError on a missing or misshapen one."""
        for name in parameter_shapes(spec):
            yield name, self.parameter(name, spec)

    def parameter(self, name: str, spec: DecoderSpec) -> Tensor:
        """One of the decoder's parameters in float32, its rows in the decoder's order. Raises ModelFileError."""
        tensor = self._checked(name, spec)
        try:
            values = self.dequantised(tensor.name)
        except UNREADABLE as error:
            raise _damaged(self.path, error) from error
        return self._in_neox_order(name, values, spec)

    def stored_matrix(self, name: str, spec: DecoderSpec) -> StoredMatrix:
        """One of the decoder's matrices where it lies in the file. Raises ModelFileError."""
        tensor = self._checked(name, spec)
        rows, width = torch_shape(tensor)
        permuted = spec.architecture == "llama" and (".q_proj." in name or ".k_proj." in name)
        order = (lambda values: self._in_neox_order(name, values, spec)) if permuted else None
        try:
            return StoredMatrix(tensor.data, tensor.data.ctypes.data, ggml_type(int(tensor.tensor_type)), rows, width, order)
        except UNREADABLE as error:
            raise _damaged(self.path, error) from error

    def _checked(self, name: str, spec: DecoderSpec) -> ReaderTensor:
        stored, shape = stored_name(name), parameter_shapes(spec)[name]
        if stored not in self.tensors:
            raise ModelFileError(f"incomplete model file {self.path}: no tensor {stored}")
        tensor = self.tensors[stored]
        if torch_shape(tensor) != shape:
            raise ModelFileError(f"tensor {stored} of {self.path} is {torch_shape(tensor)}, expected {shape}")
        return tensor

    def _in_neox_order(self, name: str, values: Tensor, spec: DecoderSpec) -> Tensor:
        """Undo the row order of q and k in llama-architecture files; other tensors and architectures pass unchanged."""
        if spec.architecture == "llama" and ".q_proj." in name:
            return unpermute_rows(values, spec.heads)
        if spec.architecture == "llama" and ".k_proj." in name:
            return unpermute_rows(values, spec.kv_heads)
        return values


def torch_shape(tensor: ReaderTensor) -> tuple[int, ...]:
    """The shape that torch gives a stored tensor."""
    return tuple(int(size) for size in reversed(tensor.shape))


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
        if spec.qkv_bias:
            shapes |= {f"{prefix}{module}.bias": shape[:1] for module, shape in list(matrices.items())[:3]}
    shapes["model.norm.weight"] = (spec.width,)
    if not spec.tied_embeddings:
        shapes["lm_head.weight"] = (spec.vocab_size, spec.width)
    return shapes


def stored_name(parameter: str) -> str:
    """The GGUF name of a decoder parameter: `model.layers.0.mlp.up_proj.weight` -> `blk.0.ffn_up.weight`."""
    module, kind = parameter.rsplit(".", 1)
    if not module.startswith("model.layers."):
        return f"{_STORED_OTHER[module]}.{kind}"
    _, _, layer, rest = module.split(".", 3)
    return f"blk.{layer}.{_STORED_LAYER[rest]}.{kind}"


_STORED_LAYER = {module: stored for stored, module in LAYER_MODULES.items()}
_STORED_OTHER = {module: stored for stored, module in OTHER_MODULES.items()}


def permute_rows(rows: Tensor, heads: int) -> Tensor:
    """Rows from half-split order into the interleaved order of llama-architecture GGUF files; [heads * head_dim, ...]."""
    half = rows.shape[0] // heads // 2
    return rows.reshape(heads, 2, half, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def unpermute_rows(rows: Tensor, heads: int) -> Tensor:
    """The inverse of `permute_rows`."""
    half = rows.shape[0] // heads // 2
    return rows.reshape(heads, half, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)
