"""GGUF files as MLX arrays.

MLX stores a quantised matrix as unsigned integers q with a scale and a bias per group: w = scale * q + bias. Three GGUF types have
that very form in groups of 32, so their weights are exact here: Q8_0 (8 bits, scale d, bias -128 d), Q4_0 (4 bits, d, -8 d) and
Q4_1 (4 bits, d, m). F32, F16 and BF16 matrices stay plain. Every other type is dequantised and quantised again to 8 bits in
groups of 32, which moves a weight by at most some 1/500 of the range of its group: a Q4_K file takes twice its size in memory, and its
weights are not exactly those that llama.cpp serves.

Errors: ModelFileError with one line that names the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from edge.core.errors import ModelFileError
from edge.models.gguf_reader import ROPE_FACTORS, MappedTensor, open_gguf
from edge.models.spec import parameter_shapes, rotated_heads, stored_name, unpermute_rows

GROUP_SIZE = 32
_PLAIN = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class Packed:
    """A quantised matrix [out, in]: words [out, in * bits / 32], scales and biases [out, in / 32]."""

    words: mx.array
    scales: mx.array
    biases: mx.array
    bits: int


Stored = Packed | mx.array


class GgufFile:
    """One open GGUF file: its shape as mlx_lm's model arguments, and its tensors by their Hugging Face names."""

    def __init__(self, path: Path) -> None:
        self._file = open_gguf(path)
        self._spec = spec = self._file.computed_spec()
        if spec.architecture == "qwen2" and spec.head_dim * spec.heads != spec.width:
            raise ModelFileError(
                f"{path}: heads of width {spec.head_dim} are not supported for qwen2 on MLX", hint="use llama.cpp"
            )
        self.config: dict[str, Any] = {
            "model_type": spec.architecture,
            "hidden_size": spec.width,
            "num_hidden_layers": spec.layers,
            "intermediate_size": spec.ffn_width,
            "num_attention_heads": spec.heads,
            "num_key_value_heads": spec.kv_heads,
            "head_dim": spec.head_dim,
            "rms_norm_eps": spec.norm_eps,
            "vocab_size": spec.vocab_size,
            "max_position_embeddings": spec.context_length,
            "rope_theta": spec.rope_base,
            "tie_word_embeddings": spec.tied_embeddings,
        }

    def rope_factors(self) -> NDArray[np.float32] | None:
        """What the file divides its rotary frequencies by, [head_dim / 2], or None."""
        return _floats(self._file.tensors[ROPE_FACTORS]) if ROPE_FACTORS in self._file.tensors else None

    def stored(self) -> Iterator[tuple[str, Stored]]:
        """The decoder's parameters by name (`model.layers.0.mlp.up_proj.weight`), rows in half-split rotary order."""
        for name, shape in parameter_shapes(self._spec).items():
            tensor, heads = self._file.tensor(stored_name(name)), rotated_heads(name, self._spec)
            pack = _PACKERS.get(tensor.kind.name) if len(shape) == 2 else None
            rows: NDArray[Any] = _floats(tensor) if pack is None else np.asarray(tensor.data)
            rows = unpermute_rows(rows, heads) if heads else rows
            if pack is not None:
                yield name, pack(rows)
            elif len(shape) == 1 or tensor.kind.name in _PLAIN:
                yield name, mx.array(rows)
            else:
                yield name, requantised(rows)


def _floats(tensor: MappedTensor) -> NDArray[np.float32]:
    values = np.empty(tensor.shape, dtype=np.float32)
    tensor.dequantise(values.ctypes.data)
    return values


def requantised(values: NDArray[np.float32]) -> Stored:
    """8 bits in groups of 32, where the rows can be cut so; else the plain matrix."""
    if values.shape[1] % GROUP_SIZE:
        return mx.array(values)
    words, scales, biases = mx.quantize(mx.array(values), group_size=GROUP_SIZE, bits=8)
    return Packed(words, scales, biases, 8)


def _pack_q8_0(rows: NDArray[np.uint8]) -> Packed:
    """Blocks of 34 bytes: d (float16) and 32 signed numbers."""
    blocks = rows.reshape(rows.shape[0], -1, 34)
    scales = _float16(blocks[..., :2])
    unsigned = (blocks[..., 2:].view(np.int8).astype(np.int16) + 128).astype(np.uint8)
    words = np.ascontiguousarray(unsigned).reshape(rows.shape[0], -1).view(np.uint32)
    return Packed(mx.array(words), mx.array(scales), mx.array(scales * -128), 8)


def _pack_q4_0(rows: NDArray[np.uint8]) -> Packed:
    """Blocks of 18 bytes: d (float16) and 16 bytes, the first 16 numbers in their low halves and the others in the high ones."""
    blocks = rows.reshape(rows.shape[0], -1, 18)
    scales = _float16(blocks[..., :2])
    return Packed(_nibbles(blocks[..., 2:]), mx.array(scales), mx.array(scales * -8), 4)


def _pack_q4_1(rows: NDArray[np.uint8]) -> Packed:
    """Blocks of 20 bytes: d and m (float16) and 16 bytes as in Q4_0."""
    blocks = rows.reshape(rows.shape[0], -1, 20)
    return Packed(_nibbles(blocks[..., 4:]), mx.array(_float16(blocks[..., :2])), mx.array(_float16(blocks[..., 2:4])), 4)


_PACKERS = {"Q8_0": _pack_q8_0, "Q4_0": _pack_q4_0, "Q4_1": _pack_q4_1}


def _float16(pairs: NDArray[np.uint8]) -> NDArray[np.float32]:
    return np.ascontiguousarray(pairs).view(np.float16)[..., 0].astype(np.float32)


def _nibbles(halves: NDArray[np.uint8]) -> mx.array:
    """[out, groups, 16] bytes of GGUF order as MLX's words: consecutive numbers side by side, the first in the lowest bits."""
    numbers = np.concatenate([halves & 15, halves >> 4], axis=-1).reshape(halves.shape[0], -1)
    return mx.array(np.ascontiguousarray(numbers[:, ::2] | numbers[:, 1::2] << 4).view(np.uint32))
