"""From a Hugging Face `config.json` to the decoder's shape.

What a configuration asks for and the decoder does not have (other activations, sliding windows, quantised weights, other kinds of rotary
scaling) is refused rather than left out: a model converted without it would answer, but worse.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from edge.core.errors import ModelFileError
from edge.core.files import open_regular
from edge.core.formatting import shown
from edge.core.gguf_header import MOST_CONTEXT, MOST_HEAD_WIDTH, MOST_HEADS, MOST_VOCABULARY, MOST_WIDTH
from edge.core.limits import MOST_LAYERS
from edge.models.spec import ARCHITECTURES, Architecture, DecoderSpec

_SENSELESS = (KeyError, TypeError, ValueError, AttributeError, OverflowError, ZeroDivisionError)
"""What missing or senseless values raise."""
_LONGEST_JSON = 1 << 28
_SUPPORTED = f"supported: {', '.join(ARCHITECTURES)}"


@dataclass(frozen=True, slots=True)
class RotaryFactors:
    """Llama 3 slows slow rotations: by `factor` beyond the wave length original_context / low, not at all below original_context / high."""

    factor: float
    low: float
    high: float
    original_context: int

    def of(self, spec: DecoderSpec) -> NDArray[np.float32]:
        """What each rotation's frequency is divided by, [head_dim / 2]; between the two wave lengths it is blended."""
        exponents = np.arange(0, spec.head_dim, 2, dtype=np.float64) / spec.head_dim
        wave_lengths = 2 * math.pi * spec.rope_base**exponents
        share = (self.original_context / wave_lengths - self.low) / (self.high - self.low)
        kept = np.clip(share, 0.0, 1.0)
        return (1.0 / ((1.0 - kept) / self.factor + kept)).astype(np.float32)


@dataclass(frozen=True, slots=True)
class HfConfig:
    """The shape, the rotary factors where there are some, and the whole file for what else is looked up."""

    spec: DecoderSpec
    rotary: RotaryFactors | None
    raw: Mapping[str, Any]


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises ModelFileError when it is missing or none."""
    try:
        with open_regular(path) as file:
            value = json.loads(file.read(_LONGEST_JSON))
    except FileNotFoundError as error:
        raise ModelFileError(f"{path.parent}: no {path.name}", hint="give the folder of a Hugging Face model") from error
    except RecursionError as error:
        raise ModelFileError(f"{path}: not readable JSON (nested too deep)", hint="download the folder again") from error
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path}: not readable JSON ({error})", hint="download the folder again") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path}: not a JSON object", hint="download the folder again")
    return value


def read_config(folder: Path, tensor_names: frozenset[str]) -> HfConfig:
    """The configuration of a model folder; which biases and norms there are is read from the tensors. Raises ModelFileError."""
    path = folder / "config.json"
    raw = read_json(path)
    architecture = raw.get("model_type")
    if architecture not in ARCHITECTURES:
        raise ModelFileError(f"{path}: the architecture {shown(repr(architecture))} is not supported", hint=_SUPPORTED)
    _refuse_what_is_missing(path, raw)
    try:
        spec = _spec(cast(Architecture, architecture), raw, tensor_names)
        rotary = _rotary(path, raw)
    except _SENSELESS as error:
        raise ModelFileError(f"{path}: incomplete ({error})", hint="download the folder again") from error
    return HfConfig(spec, rotary, raw)


def shape_of_folder(folder: Path) -> DecoderSpec:
    """The shape in a folder's config.json, whatever type its weights are stored in. Raises ModelFileError."""
    path = folder / "config.json"
    raw = read_json(path)
    architecture = raw.get("model_type")
    if architecture not in ARCHITECTURES:
        raise ModelFileError(f"{path}: the architecture {shown(repr(architecture))} is not supported", hint=_SUPPORTED)
    biased = raw.get("attention_bias", architecture == "qwen2")
    untied = {"lm_head.weight"} if not raw.get("tie_word_embeddings") else set()
    names = untied | ({"model.layers.0.self_attn.q_proj.bias"} if biased else set())
    try:
        return _spec(cast(Architecture, architecture), raw, frozenset(names))
    except _SENSELESS as error:
        raise ModelFileError(f"{path}: incomplete ({error})", hint="download the folder again") from error


def _spec(architecture: Architecture, raw: Mapping[str, Any], tensor_names: frozenset[str]) -> DecoderSpec:
    width, heads = _whole(raw, "hidden_size", MOST_WIDTH), _whole(raw, "num_attention_heads", MOST_HEADS)
    kv_heads = _whole(raw, "num_key_value_heads", MOST_HEADS, heads)
    if heads % kv_heads:
        raise ValueError(f"num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}")
    head_dim = _whole(raw, "head_dim", MOST_HEAD_WIDTH, width // heads)
    if head_dim < 2 or head_dim % 2:
        raise ValueError(f"heads of width {head_dim}")
    return DecoderSpec(
        architecture=architecture,
        vocab_size=_whole(raw, "vocab_size", MOST_VOCABULARY),
        width=width,
        layers=_whole(raw, "num_hidden_layers", MOST_LAYERS),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn_width=_whole(raw, "intermediate_size", MOST_WIDTH),
        context_length=_whole(raw, "max_position_embeddings", MOST_CONTEXT),
        rope_base=_positive("rope_theta", _rope(raw).get("rope_theta") or raw.get("rope_theta") or 10_000.0),
        norm_eps=_positive("rms_norm_eps", raw["rms_norm_eps"]),
        qkv_bias="model.layers.0.self_attn.q_proj.bias" in tensor_names,
        tied_embeddings=bool(raw.get("tie_word_embeddings", False)) or "lm_head.weight" not in tensor_names,
        qk_norm=architecture == "qwen3",
    )


def _whole(raw: Mapping[str, Any], key: str, most: int, absent: int | None = None) -> int:
    """A whole number from 1 to `most`; `absent` where it is null or not there. Raises KeyError, ValueError."""
    value = raw[key] if absent is None else raw.get(key) or absent
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= most or value != int(value):
        raise ValueError(f"{key} is {shown(repr(value))}")
    return int(value)


def _positive(key: str, value: Any) -> float:
    """A positive number that is finite. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
        raise ValueError(f"{key} is {shown(repr(value))}")
    return float(value)


def _rope(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rotary settings under either of the names they have had."""
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise TypeError(f"rotary settings are {shown(repr(rope))}")
    return rope


def _rotary(path: Path, raw: Mapping[str, Any]) -> RotaryFactors | None:
    rope = _rope(raw)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind != "llama3":
        raise ModelFileError(
            f"{path}: rotary scaling {shown(repr(kind))} is not supported",
            hint="supported: default and llama3; remove it to use the plain context",
        )
    factors = RotaryFactors(
        _positive("factor", rope["factor"]),
        _positive("low_freq_factor", rope["low_freq_factor"]),
        _positive("high_freq_factor", rope["high_freq_factor"]),
        _whole(rope, "original_max_position_embeddings", MOST_CONTEXT),
    )
    if factors.low >= factors.high:
        raise ValueError(f"low_freq_factor {factors.low} is not below high_freq_factor {factors.high}")
    return factors


def _refuse_what_is_missing(path: Path, raw: Mapping[str, Any]) -> None:
    if raw.get("quantization_config"):
        raise ModelFileError(
            f"{path}: the weights are quantised already", hint="take the unquantised version; `models quantize` comes after"
        )
    if raw.get("use_sliding_window"):
        raise ModelFileError(f"{path}: sliding-window attention is not supported")
    if raw.get("hidden_act", "silu") != "silu":
        raise ModelFileError(f"{path}: the activation {shown(repr(raw['hidden_act']))} is not supported", hint="supported: silu")
