"""What of a GGUF file the project's own decoders compute.

llama.cpp serves more than these decoders compute: rotary scaling, windows, scales, extra biases. A policy trained (or exported) without
them would not be the one that serves; so whatever is not known to be computed is refused. Serving with llama.cpp alone asks nothing of
this.

Llama 3's rotary factors (`rope_freqs.weight`) are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from edge.core.errors import ModelFileError
from edge.core.gguf_header import GgufHeader, check_shape
from edge.models.spec import ARCHITECTURES, Architecture, DecoderSpec, parameter_shapes, stored_name

ROPE_FACTORS = "rope_freqs.weight"
_HINT = "serve it with llama.cpp without learning, or take a model without it"
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
    architecture = header.metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise ModelFileError(
            f"unsupported architecture {architecture!r} in {header.path}", hint=f"supported: {', '.join(ARCHITECTURES)}"
        )
    check_shape(header)
    shapes = {tensor.name: tensor.shape for tensor in header.tensors}
    number = _numbers(header)
    width, heads = number("embedding_length"), number("attention.head_count")
    return DecoderSpec(
        architecture=cast(Architecture, architecture),
        vocab_size=_vocabulary(header, shapes, width),
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
        qk_norm=architecture == "qwen3",
    )


def check_computed(header: GgufHeader, spec: DecoderSpec) -> None:
    """Raises ModelFileError unless the file is the decoder's parameters in their shapes, and asks for nothing else."""
    shapes = {tensor.name: tensor.shape for tensor in header.tensors}
    expected = {stored_name(name): shape for name, shape in parameter_shapes(spec).items()}
    for name, shape in expected.items():
        check_tensor(header, name, shapes.get(name), shape)
    if ROPE_FACTORS in shapes:
        check_tensor(header, ROPE_FACTORS, shapes[ROPE_FACTORS], (spec.head_dim // 2,))
    if extra := sorted(shapes.keys() - expected.keys() - {ROPE_FACTORS}):
        raise ModelFileError(f"{header.path}: the tensor {extra[0]!r} is not computed by learning, ONNX or MLX", hint=_HINT)
    for key, value in header.metadata.items():
        tail = key.removeprefix(f"{spec.architecture}.")
        if tail != key and not _has_no_effect(tail, value, spec):
            raise ModelFileError(f"{header.path}: {key} = {_told(value)} is not computed by learning, ONNX or MLX", hint=_HINT)


def check_tensor(header: GgufHeader, name: str, shape: tuple[int, ...] | None, expected: tuple[int, ...]) -> None:
    """Raises ModelFileError for a tensor that is missing or of another shape."""
    if shape is None:
        raise ModelFileError(f"incomplete model file {header.path}: no tensor {name}", hint="fetch or convert it again")
    if shape != expected:
        raise ModelFileError(f"tensor {name} of {header.path} is {shape}, expected {expected}", hint="fetch or convert it again")


def _has_no_effect(key: str, value: Any, spec: DecoderSpec) -> bool:
    if key in _COMPUTED or key in _WITHOUT_EFFECT or value in _NEUTRAL.get(key, ()):
        return True
    if key == "attention.sliding_window":
        return isinstance(value, int) and value >= spec.context_length
    return key == "embedding_length_out" and value == spec.width


def _told(value: Any) -> str:
    return f"[{value.length} values]" if hasattr(value, "length") else repr(value)[:80]


def _numbers(header: GgufHeader) -> Callable[[str], Any]:
    def number(key: str) -> Any:
        value = header.of_architecture(key)
        if value is None:
            raise ModelFileError(
                f"incomplete model file {header.path}: no '{header.architecture}.{key}'", hint="fetch or convert it again"
            )
        return value

    return number


def _vocabulary(header: GgufHeader, shapes: Mapping[str, tuple[int, ...]], width: int) -> int:
    """Rows of the embedding."""
    shape = shapes.get("token_embd.weight")
    if shape is None:
        raise ModelFileError(
            f"incomplete model file {header.path}: no tensor token_embd.weight", hint="fetch or convert it again"
        )
    if len(shape) != 2 or shape[1] != width:
        raise ModelFileError(
            f"incomplete model file {header.path}: no embedding of width {width}", hint="fetch or convert it again"
        )
    return shape[0]
