"""From a Hugging Face model folder (safetensors) to one GGUF file.

Tensors pass one at a time and wide ones by rows, so that memory stays near the size of the largest tensor in the file's type. Matrices get
the chosen type, vectors stay float32. The file appears under its name when it is complete, or not at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from numpy.typing import NDArray

from edge.core.errors import ModelFileError, UsageError
from edge.models.hf_folder import GgufTokenizer, StoredTensor, read_config, read_tokenizer, stored_tensors
from edge.models.new_file import new_file
from edge.models.spec import DecoderSpec, parameter_shapes, permute_rows, rotated_heads, stored_name

Progress = Callable[[int, int, str], None]
"""Called before each tensor: how many are done, of how many, and the name of the next."""
TYPES: Mapping[str, tuple[GGMLQuantizationType, gguf.LlamaFileType]] = {
    "f32": (GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
    "f16": (GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "bf16": (GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16),
    "q8_0": (GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
}
_ROWS_AT_ONCE = 1 << 22
"""Weights that are widened to float32 at a time."""
_IGNORED = ("rotary_emb.inv_freq", "attn.masked_bias")


@dataclass(frozen=True, slots=True)
class Converted:
    """What was written. `kept_wider` names matrices whose rows do not fit the blocks of the type and were stored as float16."""

    path: Path
    architecture: str
    parameters: int
    file_bytes: int
    chat_template: bool
    kept_wider: tuple[str, ...]


def convert(
    folder: Path, out: Path, type_name: str = "f16", *, force: bool = False, progress: Progress | None = None
) -> Converted:
    """Convert a model folder. Raises ModelFileError for what cannot be converted, UsageError for an unknown type or a taken name."""
    if type_name not in TYPES:
        raise UsageError(f"unknown type {type_name!r}", hint=f"choose one of {', '.join(TYPES)}; others by `models quantize`")
    if not folder.is_dir():
        raise ModelFileError(f"{folder}: not a folder", hint="give the folder of a Hugging Face model")
    kind, file_type = TYPES[type_name]
    with new_file(out, force=force) as partial:
        tensors = stored_tensors(folder)
        config = read_config(folder, frozenset(tensors))
        spec = config.spec
        _check_tensors(folder, tensors, spec)
        tokenizer = read_tokenizer(folder, config.raw, spec.vocab_size)
        factors = config.rope_factors
        plan = {name: _stored_kind(tensors[name].shape, kind) for name in parameter_shapes(spec)}
        writer = GGUFWriter(str(partial), spec.architecture)
        try:
            writer.add_name(folder.resolve().name)
            writer.add_file_type(file_type)
            writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
            add_shape(writer, spec)
            add_tokenizer(writer, tokenizer)
            if factors is not None:
                writer.add_tensor_info("rope_freqs.weight", factors.shape, factors.dtype, factors.nbytes)
            for name, stored in plan.items():
                shape, (block, width) = tensors[name].shape, gguf.GGML_QUANT_SIZES[stored]
                stored_bytes = math.prod(shape) // block * width
                writer.add_tensor_info(stored_name(name, spec), shape, np.dtype(np.float32), stored_bytes, raw_dtype=stored)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            if factors is not None:
                writer.write_tensor_data(factors)
            for done, (name, stored) in enumerate(plan.items()):
                if progress is not None:
                    progress(done, len(plan), name)
                writer.write_tensor_data(_packed(name, tensors[name], stored, spec))
        finally:
            writer.close()
        parameters = sum(math.prod(tensors[name].shape) for name in plan)
        wider = tuple(name for name, stored in plan.items() if stored is GGMLQuantizationType.F16 is not kind)
        has_template = tokenizer.chat_template is not None
        return Converted(out, spec.architecture, parameters, partial.stat().st_size, has_template, wider)


def add_shape(writer: GGUFWriter, spec: DecoderSpec) -> None:
    """The decoder's shape under the architecture's keys."""
    writer.add_context_length(spec.context_length)
    writer.add_embedding_length(spec.width)
    writer.add_block_count(spec.layers)
    writer.add_feed_forward_length(spec.ffn_width)
    writer.add_head_count(spec.heads)
    writer.add_head_count_kv(spec.kv_heads)
    writer.add_key_length(spec.head_dim)
    writer.add_value_length(spec.head_dim)
    writer.add_rope_dimension_count(spec.head_dim)
    writer.add_rope_freq_base(spec.rope_base)
    if spec.window:
        writer.add_sliding_window(spec.window)
        writer.add_float32(gguf.Keys.Rope.FREQ_BASE_SWA.format(arch=spec.architecture), spec.local_rope_base)
    if spec.rope_divisor != 1.0:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(spec.rope_divisor)
    writer.add_layer_norm_rms_eps(spec.norm_eps)
    writer.add_vocab_size(spec.vocab_size)


def add_tokenizer(writer: GGUFWriter, tokenizer: GgufTokenizer) -> None:
    """Tokens, their types, merges, special ids and the chat template."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(tokenizer.pre)
    writer.add_token_list(list(tokenizer.tokens))
    writer.add_token_types(list(tokenizer.types))
    writer.add_token_merges(list(tokenizer.merges))
    for add, token in (
        (writer.add_bos_token_id, tokenizer.bos),
        (writer.add_eos_token_id, tokenizer.eos),
        (writer.add_pad_token_id, tokenizer.pad),
    ):
        if token is not None:
            add(token)
    writer.add_add_bos_token(tokenizer.adds_bos)
    if tokenizer.chat_template is not None:
        writer.add_chat_template(tokenizer.chat_template)


def _check_tensors(folder: Path, tensors: Mapping[str, StoredTensor], spec: DecoderSpec) -> None:
    """Raises ModelFileError unless the folder holds exactly the decoder's parameters in their shapes."""
    expected = parameter_shapes(spec)
    for name, shape in expected.items():
        if name not in tensors:
            raise ModelFileError(f"{folder}: no tensor {name}", hint="download the folder again")
        if tensors[name].shape != shape:
            raise ModelFileError(
                f"{folder}: {name} is {tensors[name].shape}, but config.json expects {shape}",
                hint="do the files belong together?",
            )
    tied = {"lm_head.weight"} if spec.tied_embeddings else set()
    unknown = [name for name in tensors.keys() - expected.keys() - tied if not name.endswith(_IGNORED)]
    if unknown:
        raise ModelFileError(f"{folder}: {sorted(unknown)[0]} has no place in a {spec.architecture} model")


def _stored_kind(shape: tuple[int, ...], kind: GGMLQuantizationType) -> GGMLQuantizationType:
    if len(shape) == 1:
        return GGMLQuantizationType.F32
    block, _ = gguf.GGML_QUANT_SIZES[kind]
    return kind if shape[-1] % block == 0 else GGMLQuantizationType.F16


def _packed(name: str, tensor: StoredTensor, kind: GGMLQuantizationType, spec: DecoderSpec) -> NDArray[Any]:
    """A tensor as the file holds it, its rows in the architecture's order."""
    heads = rotated_heads(name, spec)
    if heads or len(tensor.shape) == 1:
        values = tensor.widened(tensor.raw())
        if "norm." in name:
            values += np.float32(spec.family.norm_offset)
        return _quantised(name, permute_rows(values, heads) if heads else values, kind)
    step = max(1, _ROWS_AT_ONCE // tensor.shape[-1])
    raw = tensor.raw()
    parts = [_quantised(name, tensor.widened(raw[row : row + step]), kind) for row in range(0, len(raw), step)]
    return np.concatenate(parts) if len(parts) > 1 else parts[0]


def _quantised(name: str, values: NDArray[np.float32], kind: GGMLQuantizationType) -> NDArray[Any]:
    values = np.ascontiguousarray(values)
    if not np.isfinite(values).all():
        raise ModelFileError(f"{name} holds values that are no numbers", hint="download the folder again")
    if kind is GGMLQuantizationType.F16 and float(np.abs(values).max(initial=0.0)) > float(np.finfo(np.float16).max):
        raise ModelFileError(f"{name} holds values too large for f16", hint="convert with --type bf16")
    packed: NDArray[Any] = gguf.quants.quantize(values, kind)
    return packed
