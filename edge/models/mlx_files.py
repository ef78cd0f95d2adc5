"""Model files as MLX arrays.

MLX stores a quantised matrix as unsigned integers q with a scale and a bias per group: w = scale * q + bias. Three GGUF types have
that very form in groups of 32, so their weights are exact here: Q8_0 (8 bits, scale d, bias -128 d), Q4_0 (4 bits, d, -8 d) and
Q4_1 (4 bits, d, m). F32, F16 and BF16 matrices stay plain. Every other type is dequantised and quantised again to 8 bits in
groups of 32, which moves a weight by at most some 1/500 of the range of its group: a Q4_K file takes twice its size in memory, and its
weights are not exactly those that llama.cpp serves.

Errors: ModelFileError with one line that names the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from edge.core.errors import ModelFileError
from edge.models.computed import ROPE_FACTORS, check_computed, header_spec
from edge.models.mapped import MappedFile, damaged

GROUP_SIZE = 32
_PLAIN = ("F32", "F16", "BF16")


_INCOMPLETE = (ValueError, KeyError, IndexError, OverflowError, TypeError)
"""What missing or senseless metadata and weights raise."""


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
        file = MappedFile(path)
        self.path = path
        self._header = file.header
        self.metadata = file.metadata
        self._tensors = file.tensors
        self.config = self._read_config()

    def rope_factors(self) -> NDArray[np.float32] | None:
        """What the file divides its rotary frequencies by, [head_dim / 2], or None."""
        return self._values(ROPE_FACTORS) if ROPE_FACTORS in self._tensors else None

    def stored(self, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, Stored]]:
        """The parameters asked for, by name (`model.layers.0.mlp.up_proj.weight`) and shape.

        Raises ModelFileError when one is missing or misshapen.
        """
        kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == self.config["model_type"])
        names = gguf.get_tensor_name_map(kind, self.config["num_hidden_layers"])
        wanted = {names.get_name(name, try_suffixes=(".weight", ".bias")): name for name in shapes}
        for file_name, name in wanted.items():
            yield name, self._one(file_name, name, shapes[name])

    def _one(self, file_name: str, name: str, shape: tuple[int, ...]) -> Stored:
        tensor = self._tensors.get(file_name)
        if tensor is None:
            raise ModelFileError(f"incomplete model file {self.path}: no tensor {file_name}")
        if tensor.shape != shape:
            raise ModelFileError(f"tensor {file_name} of {self.path} is {tensor.shape}, expected {shape}")
        kind = tensor.kind.name
        if len(shape) == 2 and kind in _PACKERS:
            return _PACKERS[kind](self._in_neox_order(name, np.asarray(tensor.data).reshape(shape[0], -1)))
        values = self._in_neox_order(name, self._values(file_name).reshape(shape))
        if len(shape) == 1 or kind in _PLAIN:
            return mx.array(values)
        return requantised(values)

    def _values(self, file_name: str) -> NDArray[np.float32]:
        tensor = self._tensors[file_name]
        try:
            return np.array(gguf.quants.dequantize(tensor.data, tensor.kind), dtype=np.float32)
        except NotImplementedError as error:
            raise ModelFileError(f"unsupported quantisation {tensor.kind.name} in {self.path}") from error
        except _INCOMPLETE as error:
            raise damaged(self.path, error) from error

    def _in_neox_order(self, name: str, rows: NDArray[Any]) -> NDArray[Any]:
        """Undo the row order of q and k in llama-architecture files, [heads * head_dim, ...]; others pass unchanged."""
        heads = {"q_proj": self.config["num_attention_heads"], "k_proj": self.config["num_key_value_heads"]}
        part = name.split(".")[-2]
        if self.config["model_type"] != "llama" or part not in heads:
            return rows
        half = rows.shape[0] // heads[part] // 2
        return np.ascontiguousarray(rows.reshape(heads[part], half, 2, -1).swapaxes(1, 2)).reshape(rows.shape)

    def _read_config(self) -> dict[str, Any]:
        spec = header_spec(self._header)
        check_computed(self._header, spec)
        if spec.architecture == "qwen2" and spec.head_dim * spec.heads != spec.width:
            raise ModelFileError(
                f"{self.path}: heads of width {spec.head_dim} are not supported for qwen2 on MLX", hint="use llama.cpp"
            )
        return {
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
