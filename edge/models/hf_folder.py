"""Reads a Hugging Face model folder: `config.json`, `tokenizer.json`, and the safetensors files, whole or in shards.

What a configuration asks for and the decoder does not have (other activations, windows of some architectures, quantised weights, other
kinds of rotary scaling) is rejected rather than left out: a model converted without it would answer, but worse. Weights are memory-mapped:
a tensor costs memory only while it is in use. PyTorch's pickled files are never opened, because loading one can run code.
"""

from __future__ import annotations

import json
import math
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from edge.core.architectures import FAMILIES, Activation, Architecture, Family
from edge.core.errors import ModelFileError
from edge.core.files import open_regular
from edge.core.formatting import shown
from edge.core.gguf_header import MOST_CONTEXT, MOST_HEAD_WIDTH, MOST_HEADS, MOST_VOCABULARY, MOST_WIDTH
from edge.core.limits import MOST_LAYERS
from edge.models.spec import DecoderSpec

_SENSELESS = (
    OSError, KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, ZeroDivisionError, RecursionError,
)  # fmt: skip
"""What missing or senseless values raise."""
_LONGEST_JSON = 1 << 28
_BY_MODEL_TYPE: Mapping[str, Architecture] = {family.model_type or name: name for name, family in FAMILIES.items()}
_AGAIN = "download the folder again"


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises ModelFileError when it is missing or none."""
    try:
        with open_regular(path) as file:
            value = json.loads(file.read(_LONGEST_JSON))
    except FileNotFoundError as error:
        raise ModelFileError(f"{path.parent}: no {path.name}", hint="give the folder of a Hugging Face model") from error
    except RecursionError as error:
        raise ModelFileError(f"{path}: not readable JSON (nested too deep)", hint=_AGAIN) from error
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path}: not readable JSON ({error})", hint=_AGAIN) from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path}: not a JSON object", hint=_AGAIN)
    return value


def _incomplete(path: Path, error: Exception) -> ModelFileError:
    return ModelFileError(f"{path}: incomplete ({error})", hint=_AGAIN)


# --- config.json ---


@dataclass(frozen=True, slots=True)
class HfConfig:
    """The shape, what rotary frequencies are divided by where they are [head_dim / 2], and the whole file for further look-ups."""

    spec: DecoderSpec
    rope_factors: NDArray[np.float32] | None
    raw: Mapping[str, Any]


def read_config(folder: Path, tensor_names: frozenset[str]) -> HfConfig:
    """The configuration of a model folder; which biases and norms there are is read from the tensors. Raises ModelFileError."""
    path = folder / "config.json"
    raw = read_json(path)
    spec = _spec(path, raw, tensor_names)
    if raw.get("quantization_config"):
        raise ModelFileError(
            f"{path}: the weights are quantised already", hint="take the unquantised version; `models quantize` comes after"
        )
    if raw.get("use_sliding_window"):
        raise ModelFileError(f"{path}: sliding-window attention is not supported")
    wanted = _ACTIVATIONS[spec.family.activation]
    found = raw.get("hidden_activation") or raw.get("hidden_act") or wanted
    if found != wanted:
        raise ModelFileError(f"{path}: the activation {shown(repr(found))} is not supported", hint=f"supported: {wanted}")
    try:
        _check_built_in(path, raw, spec)
        return HfConfig(spec, _rope_factors(path, _rope(raw), spec), raw)
    except _SENSELESS as error:
        raise _incomplete(path, error) from error


_ACTIVATIONS: Mapping[Activation, str] = {"silu": "silu", "gelu": "gelu_pytorch_tanh"}
_OTHERWISE = ("attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention")
"""What some models of a family have, and no GGUF file of its architecture can state."""


def _check_built_in(path: Path, raw: Mapping[str, Any], spec: DecoderSpec) -> None:
    """Raises ModelFileError where a configuration differs from what llama.cpp takes for granted of its family."""
    family, layers = spec.family, range(spec.layers)
    named: dict[str, tuple[Any, Any]] = {name: (raw.get(name), None) for name in _OTHERWISE if raw.get(name)}
    if family.unrotated_every:
        wanted = [int(spec.is_rotated(layer)) for layer in layers]
        named["no_rope_layers"] = raw.get("no_rope_layers") or wanted, wanted
        named["no_rope_layer_interval"] = raw.get("no_rope_layer_interval", 4), family.unrotated_every
    if family.global_every:
        kinds = ["sliding_attention" if spec.is_local(layer) else "full_attention" for layer in layers]
        named["layer_types"] = raw.get("layer_types") or kinds, kinds
        named["sliding_window_pattern"] = raw.get("sliding_window_pattern") or family.global_every, family.global_every
        named["query_pre_attn_scalar"] = float(raw["query_pre_attn_scalar"]), round(spec.score_scale**-2, 6)
    for name, (found, wanted) in named.items():
        if found != wanted:
            raise ModelFileError(f"{path}: {name} {shown(repr(found))[:80]} is not supported in a {spec.architecture} model")


def shape_of_folder(folder: Path) -> DecoderSpec:
    """The shape in a folder's config.json, whatever type its weights are stored in. Raises ModelFileError."""
    path = folder / "config.json"
    raw = read_json(path)
    names = set() if raw.get("tie_word_embeddings") else {"lm_head.weight"}
    if raw.get("attention_bias", raw.get("model_type") == "qwen2"):
        names.add("model.layers.0.self_attn.q_proj.bias")
    return _spec(path, raw, frozenset(names))


def _spec(path: Path, raw: Mapping[str, Any], tensor_names: frozenset[str]) -> DecoderSpec:
    architecture = _BY_MODEL_TYPE.get(str(raw.get("model_type")))
    if architecture is None:
        supported = f"supported: {', '.join(_BY_MODEL_TYPE)}"
        raise ModelFileError(f"{path}: the architecture {shown(repr(raw.get('model_type')))} is not supported", hint=supported)
    family = FAMILIES[architecture]
    try:
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
            rope_base=_positive("rope_theta", _rope(raw).get("rope_theta") or raw.get("rope_theta") or family.default_rope_base),
            norm_eps=_positive("rms_norm_eps", raw["rms_norm_eps"]),
            qkv_bias="model.layers.0.self_attn.q_proj.bias" in tensor_names,
            tied_embeddings=bool(raw.get("tie_word_embeddings", False)) or "lm_head.weight" not in tensor_names,
            **_of_family(raw, family),
        )
    except _SENSELESS as error:
        raise _incomplete(path, error) from error


def _of_family(raw: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """What only some families' configurations state. Raises KeyError, TypeError, ValueError."""
    stated: dict[str, Any] = {}
    if family.global_every:
        local = _rope(raw, "sliding_attention").get("rope_theta") or raw.get("rope_local_base_freq") or 10_000.0
        stated |= {"window": _whole(raw, "sliding_window", MOST_CONTEXT), "local_rope_base": _positive("rope_theta", local)}
    if family.linear_rope and _rope_kind(_rope(raw)) == "linear":
        stated["rope_divisor"] = _positive("factor", _rope(raw)["factor"])
    return stated


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


def _rope(raw: Mapping[str, Any], kind: str = "full_attention") -> Mapping[str, Any]:
    """The rotary settings under either of the names they have had; of layers of this kind where kinds have their own."""
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if isinstance(rope, dict) and {"full_attention", "sliding_attention"} & rope.keys():
        rope = rope.get(kind) or {}
    elif kind != "full_attention":
        rope = {}
    if not isinstance(rope, dict):
        raise TypeError(f"rotary settings are {shown(repr(rope))}")
    return rope


def _rope_kind(rope: Mapping[str, Any]) -> Any:
    return rope.get("rope_type") or rope.get("type") or "default"


def _rope_factors(path: Path, rope: Mapping[str, Any], spec: DecoderSpec) -> NDArray[np.float32] | None:
    """What each rotation's frequency is divided by, [head_dim / 2]; None where all stay.

    Llama 3 slows slow rotations: by `factor` beyond the wave length original_context / low, not at all below original_context / high, and
    blended between the two.
    """
    kind, family = _rope_kind(rope), spec.family
    if kind == "default" or (kind == "linear" and family.linear_rope):
        return None
    if kind != "llama3" or not family.rope_factors:
        supported = ["default", *["linear"] * family.linear_rope, *["llama3"] * family.rope_factors]
        raise ModelFileError(
            f"{path}: rotary scaling {shown(repr(kind))} is not supported in a {spec.architecture} model",
            hint=f"supported: {' and '.join(supported)}; remove it to use the plain context",
        )
    factor, low, high = (_positive(key, rope[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    original_context = _whole(rope, "original_max_position_embeddings", MOST_CONTEXT)
    if low >= high:
        raise ValueError(f"low_freq_factor {low} is not below high_freq_factor {high}")
    wave_lengths = 2 * math.pi * spec.rope_base ** (np.arange(0, spec.head_dim, 2, dtype=np.float64) / spec.head_dim)
    unslowed = np.clip((original_context / wave_lengths - low) / (high - low), 0.0, 1.0)
    return (1.0 / ((1.0 - unslowed) / factor + unslowed)).astype(np.float32)


# --- tokenizer.json ---

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS: Mapping[str, str] = {
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _REST: "qwen2",
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _REST: "llama-bpe",
}
"""llama.cpp's name for each pattern by which text is split before merging.

A GGUF file can only name the rules (`tokenizer.ggml.pre`). An unknown pattern is rejected, because a wrong name gives wrong tokens without
a word. Unicode normalisation (Qwen composes accents, NFC) is not in a GGUF file: text that is not composed tokenises otherwise, as in
every GGUF.
"""


@dataclass(frozen=True, slots=True)
class GgufTokenizer:
    """What a GGUF file holds of a tokenizer. `tokens` by id; ids None where the model names no such token."""

    pre: str
    tokens: tuple[str, ...]
    types: tuple[gguf.TokenType, ...]
    merges: tuple[str, ...]
    bos: int | None
    eos: int | None
    pad: int | None
    adds_bos: bool
    chat_template: str | None


def read_tokenizer(folder: Path, config: Mapping[str, Any], rows: int) -> GgufTokenizer:
    """The tokenizer of a model folder, padded to the embedding's `rows`. Raises ModelFileError when it is none that can be stored."""
    path = folder / "tokenizer.json"
    raw = read_json(path)
    settings = read_json(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").is_file() else {}
    try:
        model = raw["model"]
        if model.get("type", "BPE") != "BPE" or model.get("byte_fallback"):
            raise ModelFileError(
                f"{path}: not a byte-level BPE tokenizer ({model.get('type')})",
                hint="supported: the tokenizers of Qwen2, Qwen3 and Llama 3",
            )
        tokens, types = _token_list(path, model["vocab"], raw.get("added_tokens") or [], rows)
        ids = {token: index for index, token in enumerate(tokens)}
        bos, eos, pad = (_token_id(role, settings, config, ids) for role in ("bos", "eos", "pad"))
        return GgufTokenizer(
            pre=_pre_tokenizer_name(path, raw.get("pre_tokenizer")),
            tokens=tokens,
            types=types,
            merges=tuple(pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]),
            bos=bos,
            eos=eos,
            pad=pad,
            adds_bos=bos is not None and _adds(tokens[bos], raw, settings),
            chat_template=_chat_template(folder, settings),
        )
    except _SENSELESS as error:
        raise _incomplete(path, error) from error


def _pre_tokenizer_name(path: Path, pre_tokenizer: Any) -> str:
    """llama.cpp's name for how a tokenizer splits text before merging. Raises ModelFileError when there is none."""
    parts: Sequence[Mapping[str, Any]] = [pre_tokenizer] if pre_tokenizer else []
    if pre_tokenizer and pre_tokenizer["type"] == "Sequence":
        parts = pre_tokenizer["pretokenizers"]
    kinds = [part["type"] for part in parts]
    splits = [part["pattern"].get("Regex") or part["pattern"].get("String") for part in parts if part["type"] == "Split"]
    byte_level = [part.get("use_regex", True) for part in parts if part["type"] == "ByteLevel"]
    if {"Split", "ByteLevel"}.issuperset(kinds):
        if not splits and byte_level == [True]:
            return "gpt-2"
        if len(splits) == 1 and splits[0] in PATTERNS and byte_level == [False]:
            return PATTERNS[splits[0]]
    raise ModelFileError(
        f"{path}: an unknown way to split text before merging ({splits or kinds})",
        hint="supported: the tokenizers of Qwen2, Qwen3, Llama 3 and GPT-2",
    )


def _token_list(
    path: Path, vocab: Mapping[str, int], added: Sequence[Mapping[str, Any]], rows: int
) -> tuple[tuple[str, ...], tuple[gguf.TokenType, ...]]:
    """Tokens and their types by id; ids that nobody uses are filled up, as many as the embedding has rows."""
    tokens = [f"[PAD{index}]" for index in range(rows)]
    types = [gguf.TokenType.UNUSED] * rows
    kinds = {False: gguf.TokenType.USER_DEFINED, True: gguf.TokenType.CONTROL}
    entries = [(token, index, gguf.TokenType.NORMAL) for token, index in vocab.items()]
    entries += [(entry["content"], entry["id"], kinds[bool(entry.get("special"))]) for entry in added]
    for token, index, kind in entries:
        if not 0 <= index < rows:
            raise ModelFileError(
                f"{path}: token {index} ({token!r}) lies beyond the model's {rows} embeddings",
                hint="is it this model's tokenizer?",
            )
        tokens[index], types[index] = token, kind
    return tuple(tokens), tuple(types)


def _token_id(role: str, settings: Mapping[str, Any], config: Mapping[str, Any], ids: Mapping[str, int]) -> int | None:
    """The id of the beginning, end or padding token: the tokenizer's own word first, then the model's."""
    named = settings.get(f"{role}_token")
    text = named.get("content") if isinstance(named, Mapping) else named
    if isinstance(text, str) and text in ids:
        return ids[text]
    listed = config.get(f"{role}_token_id")
    first = listed[0] if isinstance(listed, list) and listed else listed
    return first if isinstance(first, int) and 0 <= first < len(ids) else None


def _adds(bos: str, raw: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Whether prompts begin with the beginning token: by the settings, or by the post-processor's template."""
    if isinstance(settings.get("add_bos_token"), bool):
        return bool(settings["add_bos_token"])
    processor = raw.get("post_processor") or {}
    processors = processor.get("processors", [processor])
    templates = [part.get("single") or [] for part in processors if part.get("type") == "TemplateProcessing"]
    return any(template and template[0].get("SpecialToken", {}).get("id") == bos for template in templates)


def _chat_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """`chat_template.jinja` first, then the tokenizer's settings, where it is a text or a list of named ones."""
    if (folder / "chat_template.jinja").is_file():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    return template if isinstance(template, str) else None


# --- safetensors ---

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_NUMPY = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies: file, kind (F64, F32, F16 or BF16), shape, and offset in bytes."""

    file: Path
    kind: str
    shape: tuple[int, ...]
    offset: int

    def raw(self) -> NDArray[Any]:
        """The values as stored, mapped; bfloat16, which numpy lacks, as its bits in uint16."""
        mapped = np.memmap(self.file, dtype=_NUMPY[self.kind], mode="r", offset=self.offset, shape=(math.prod(self.shape),))
        return mapped.reshape(self.shape)

    def widened(self, raw: NDArray[Any]) -> NDArray[np.float32]:
        """Some of the stored values in float32 (a copy)."""
        if self.kind == "BF16":
            return (np.ascontiguousarray(raw).astype(np.uint32) << 16).view(np.float32)
        return raw.astype(np.float32)


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of a model folder by name. Raises ModelFileError for missing, damaged or pickled weights."""
    tensors: dict[str, StoredTensor] = {}
    for file, expected in _files(folder).items():
        found = _read_table(file)
        if missing := expected - found.keys():
            raise ModelFileError(f"{file}: lacks {sorted(missing)[0]}, which the index names", hint=_AGAIN)
        if twice := tensors.keys() & found.keys():
            raise ModelFileError(f"{folder}: {sorted(twice)[0]} is stored twice", hint=_AGAIN)
        tensors |= found
    return tensors


def _files(folder: Path) -> dict[Path, set[str]]:
    """The files to read, each with the names the index promises of it."""
    index, others = folder / INDEX, sorted(folder.glob("*.safetensors"))
    if not index.is_file():
        if (folder / SINGLE).is_file() or len(others) == 1:
            return {folder / SINGLE if (folder / SINGLE).is_file() else others[0]: set()}
        if any(folder.glob("*.bin")) or any(folder.glob("*.pt*")):
            raise ModelFileError(
                f"{folder}: its weights are pickled (.bin), which can run code when loaded", hint="get the safetensors version"
            )
        raise ModelFileError(f"{folder}: no {SINGLE} and no {INDEX}", hint="give the folder of a Hugging Face model")
    by_file: dict[Path, set[str]] = {}
    try:
        for name, file in read_json(index)["weight_map"].items():
            if Path(file).name != file:
                raise ValueError(f"{file!r} is not a plain file name")
            by_file.setdefault(folder / file, set()).add(name)
    except _SENSELESS as error:
        raise ModelFileError(f"{index}: not a readable index ({error})", hint=_AGAIN) from error
    for shard in sorted(by_file):
        if not shard.is_file():
            raise ModelFileError(f"{folder}: the shard {shard.name} is missing", hint=_AGAIN)
    return dict(sorted(by_file.items()))


def check_files(folder: Path) -> None:
    """Raises ModelFileError where a file of the weights is missing, cut or damaged; their types may be any."""
    for file in _files(folder):
        _header(file)


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """The table of tensors of one file, checked by safetensors, which does not report where a tensor lies, and where the weights begin."""
    try:
        with open_regular(path) as file:
            with safe_open(path, framework="numpy"):
                (length,) = struct.unpack("<Q", file.read(8))
            table = json.loads(file.read(length))
    except (*_SENSELESS, SafetensorError) as error:
        raise ModelFileError(f"{path}: not a readable safetensors file ({error})", hint=_AGAIN) from error
    table.pop("__metadata__", None)
    return table, 8 + length


def _read_table(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one file."""
    table, start = _header(path)
    for name, entry in table.items():
        if entry["dtype"] not in _NUMPY:
            raise ModelFileError(
                f"{path}: {name} has the type {entry['dtype']}; expected floating point",
                hint="take the model's unquantised version",
            )
    return {
        name: StoredTensor(path, entry["dtype"], tuple(entry["shape"]), start + entry["data_offsets"][0])
        for name, entry in table.items()
    }
