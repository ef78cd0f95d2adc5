"""One GGUF file: its shape as a decoder, whether the project's own decoders compute it, and its weights as floats or where they lie.

llama.cpp serves more than these decoders compute: other architectures, rotary scaling, windows of some architectures, scales, extra biases.
A policy trained (or exported) without them would not be the one that serves; so whatever is not known to be computed is rejected. Serving
with llama.cpp alone asks nothing of this. Llama 3's rotary factors (`rope_freqs.weight`) are computed.

Every way in which a file can be unusable ends in ModelFileError with one line that names the file. Importing this needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from edge.core.architectures import ARCHITECTURES, FAMILIES, Family
from edge.core.engines import EngineInfo
from edge.core.errors import ModelFileError, NotComputed
from edge.core.gguf_header import ArrayLength, GgufHeader, TensorEntry, check_shape, read_header
from edge.models.ggml import ggml_type
from edge.models.spec import (
    DecoderSpec,
    parameter_shapes,
    rope_frequencies,
    rotated_heads,
    stored_name,
    unpermute_rows,
)

if TYPE_CHECKING:
    from torch import Tensor

ROPE_FACTORS = "rope_freqs.weight"
_SERVE_IT = "serve it with llama.cpp without learning, or take another model"
_AGAIN = "fetch or convert it again"
_COMPUTED = frozenset((
    "context_length", "embedding_length", "block_count", "feed_forward_length", "vocab_size", "attention.head_count",
    "attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.layer_norm_rms_epsilon",
    "rope.dimension_count", "rope.freq_base",
))  # fmt: skip
_WITHOUT_EFFECT = frozenset((
    "attention.layer_norm_epsilon", "pooling_type", "tensor_data_layout", "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
))  # fmt: skip
"""Keys that change nothing in these architectures, whatever their value."""
_WINDOWED = frozenset(("attention.sliding_window", "rope.freq_base_swa"))
_LINEAR = frozenset(("rope.scaling.type", "rope.scaling.factor"))
"""Computed where a family has local layers, or linear_rope."""
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "rope.scaling.type": ("none",),
    "rope.scaling.factor": (0, 1),
    "rope.scaling.attn_factor": (1,),
    "rope.scale_linear": (0, 1),
    "attention.causal": (True,),
    "attention.scale": (0,),
    "attention.sliding_window": (0,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attn_logit_softcapping": (0,),
    "final_logit_softcapping": (0,),
    "logit_scale": (0, 1),
    "embedding_scale": (0, 1),
    "residual_scale": (0, 1),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "use_parallel_residual": (False,),
    "nextn_predict_layers": (0,),
}
"""Keys that change what is computed, with the values that change nothing."""


def header_spec(header: GgufHeader) -> DecoderSpec:
    """The decoder's shape by a header. Raises ModelFileError for another architecture, and missing or senseless numbers."""
    architecture = header.architecture
    if architecture not in ARCHITECTURES:
        named = header.metadata.get("general.architecture")
        raise NotComputed(
            f"{header.path}: the architecture {named!r} is not computed by learning, ONNX or MLX",
            hint=f"{_SERVE_IT}: {', '.join(ARCHITECTURES)}",
        )
    check_shape(header)

    def number(key: str) -> Any:
        value = header.of_architecture(key)
        if value is None:
            raise ModelFileError(f"incomplete model file {header.path}: no '{architecture}.{key}'", hint=_AGAIN)
        return value

    shapes = {tensor.name: tensor.shape for tensor in header.tensors}
    width, heads = number("embedding_length"), number("attention.head_count")
    embedding = shapes.get("token_embd.weight", ())
    if len(embedding) != 2 or embedding[1] != width:
        raise ModelFileError(f"incomplete model file {header.path}: no tensor token_embd.weight of width {width}", hint=_AGAIN)
    return DecoderSpec(
        architecture=architecture,
        vocab_size=embedding[0],
        width=width,
        layers=number("block_count"),
        heads=heads,
        kv_heads=header.of_architecture("attention.head_count_kv", heads),
        head_dim=header.of_architecture("attention.key_length", width // heads),
        ffn_width=number("feed_forward_length"),
        context_length=number("context_length"),
        rope_base=float(header.of_architecture("rope.freq_base", 10_000.0)),
        norm_eps=float(number("attention.layer_norm_rms_epsilon")),
        qkv_bias="blk.0.attn_q.bias" in shapes,
        tied_embeddings="output.weight" not in shapes,
        **_of_family(header, FAMILIES[architecture], number),
    )


def _of_family(header: GgufHeader, family: Family, number: Callable[[str], Any]) -> dict[str, Any]:
    """What only some families' files state."""
    stated: dict[str, Any] = {}
    if family.global_every:
        stated["window"] = number("attention.sliding_window")
        stated["local_rope_base"] = float(header.of_architecture("rope.freq_base_swa", 10_000.0))
    if family.linear_rope and header.of_architecture("rope.scaling.type", "none") == "linear":
        stated["rope_divisor"] = float(header.of_architecture("rope.scaling.factor", 0.0) or 1.0)
    return stated


def check_computed(header: GgufHeader) -> DecoderSpec:
    """The decoder's shape. Raises ModelFileError unless the file holds exactly its parameters and asks for nothing else."""
    spec, path = header_spec(header), header.path
    shapes = {tensor.name: tensor.shape for tensor in header.tensors}
    expected = {stored_name(name, spec): shape for name, shape in parameter_shapes(spec).items()}
    has_factors = spec.family.rope_factors and ROPE_FACTORS in shapes
    factors = {ROPE_FACTORS: (spec.head_dim // 2,)} if has_factors else {}
    for name, shape in (expected | factors).items():
        if name not in shapes:
            raise ModelFileError(f"incomplete model file {path}: no tensor {name}", hint=_AGAIN)
        if shapes[name] != shape:
            raise ModelFileError(f"tensor {name} of {path} is {shapes[name]}, expected {shape}", hint=_AGAIN)
    if extra := sorted(shapes.keys() - expected.keys() - factors.keys()):
        raise NotComputed(f"{path}: the tensor {extra[0]!r} is not computed by learning, ONNX or MLX", hint=_SERVE_IT)
    computed = _COMPUTED | (_WINDOWED if spec.window else frozenset())
    if spec.rope_divisor != 1.0:
        computed |= _LINEAR
    for key, value in header.metadata.items():
        tail = key.removeprefix(f"{spec.architecture}.")
        if tail == "attention.sliding_window_pattern" and spec.window and value == spec.family.global_every:
            continue
        if tail == key or tail in computed or tail in _WITHOUT_EFFECT or value in _NEUTRAL.get(tail, ()):
            continue
        whole_window = tail == "attention.sliding_window" and isinstance(value, int) and value >= spec.context_length
        if not whole_window and not (tail == "embedding_length_out" and value == spec.width):
            shown = f"[{value.length} values]" if isinstance(value, ArrayLength) else repr(value)[:80]
            raise NotComputed(f"{path}: {key} = {shown} is not computed by learning, ONNX or MLX", hint=_SERVE_IT)
    return spec


@dataclass(frozen=True, slots=True)
class MappedTensor:
    """One tensor in the file: its shape as torch has it (rows first), and its bytes [rows..., bytes of a row]."""

    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    data: NDArray[np.uint8]

    def dequantise(self, address: int) -> None:
        """Write its weights as float32 to an address. Raises ModelFileError for a type that ggml cannot read."""
        ggml_type(int(self.kind)).dequantise(self.data.ctypes.data, address, int(np.prod(self.shape)))


def open_gguf(path: str | Path) -> GGUFModel:
    """Open a GGUF file. Raises ModelFileError when it is missing, not GGUF, or damaged."""
    return GGUFModel(Path(path))


class GGUFModel:
    """One open GGUF file: its header read, its weights memory-mapped as `tensors` by their names in the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header = read_header(path)
        self.parameters = self.header.parameters
        try:
            mapped: NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r")
            self.tensors = {entry.name: self._mapped(entry, mapped) for entry in self.header.tensors}
        except (ValueError, OverflowError, OSError) as error:
            raise self._damaged(error) from error

    def _mapped(self, entry: TensorEntry, mapped: NDArray[np.uint8]) -> MappedTensor:
        kind = GGMLQuantizationType(entry.type_id)
        block, block_bytes = GGML_QUANT_SIZES[kind]
        *rows, width = entry.shape or (1,)
        if width % block:
            raise ValueError(f"rows of {width} weights do not fit {kind.name}'s blocks of {block}")
        shape = (*rows, width // block * block_bytes)
        start = self.header.data_start + entry.offset
        return MappedTensor(entry.shape, kind, mapped[start : start + int(np.prod(shape))].reshape(shape))

    def _damaged(self, cause: Exception) -> ModelFileError:
        return ModelFileError(f"{self.path}: a damaged or truncated GGUF file ({cause})", hint=_AGAIN)

    @cached_property
    def weight_bytes(self) -> int:
        """Bytes of all weights in the file."""
        return sum(tensor.data.nbytes for tensor in self.tensors.values())

    def metadata(self, key: str, default: Any = None) -> Any:
        """The value of a metadata key, or `default`; an array is read from the file now, as a list."""
        value = self.header.metadata.get(key, default)
        if isinstance(value, ArrayLength):
            return list(read_header(self.path, arrays={key}).metadata[key])
        return value

    def decoder_spec(self) -> DecoderSpec:
        """The decoder's shape. Raises ModelFileError on an architecture the decoder does not have, or missing keys."""
        return header_spec(self.header)

    def computed_spec(self, engine: EngineInfo | None = None) -> DecoderSpec:
        """The decoder's shape where it, or another engine's decoder, computes all that the file asks for. Raises ModelFileError where it
        does not."""
        spec = check_computed(self.header)
        if engine is not None and spec.architecture not in engine.architectures:
            raise NotComputed(
                f"{self.path}: the architecture {spec.architecture!r} is not computed by {engine.title}",
                hint="serve it with llama.cpp (engine.backend llamacpp)",
            )
        return spec

    def rope_frequencies(self, spec: DecoderSpec) -> Tensor:
        """Angular frequency of each rotated pair of global layers, [head_dim / 2], divided by the file's own factors where it brings
        some."""
        frequencies = rope_frequencies(spec)
        has_factors = spec.family.rope_factors and ROPE_FACTORS in self.tensors
        return frequencies / self._dequantised(ROPE_FACTORS) if has_factors else frequencies

    def decoder_state(self, spec: DecoderSpec) -> Iterator[tuple[str, Tensor]]:
        """The decoder's parameters by name, without the tied output. `spec` is this file's."""
        for name in parameter_shapes(spec):
            yield name, self.parameter(name, spec)

    def parameter(self, name: str, spec: DecoderSpec) -> Tensor:
        """One of the decoder's parameters in float32, its rows in the decoder's order. Raises ModelFileError."""
        values, heads = self._dequantised(stored_name(name, spec)), rotated_heads(name, spec)
        return cast("Tensor", unpermute_rows(values, heads)) if heads else values

    def tensor(self, name: str) -> MappedTensor:
        """The tensor that the file has under this name. Raises ModelFileError where it has none."""
        if name not in self.tensors:
            raise ModelFileError(f"incomplete model file {self.path}: no tensor {name}", hint=_AGAIN)
        return self.tensors[name]

    def _dequantised(self, name: str) -> Tensor:
        import torch

        tensor = self.tensor(name)
        values = torch.empty(tensor.shape)
        tensor.dequantise(values.data_ptr())
        return values
