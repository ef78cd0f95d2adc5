"""A bundled GGUF model, or SmolLM2, as a Hugging Face folder: safetensors, config, tokenizer with its chat template. The weights are those
that the agent trains against, dequantised to float32, so that TRL and `edge-agent` start from the same model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.core.errors import ModelFileError, UsageError
from edge.core.files import replacing_folder
from edge.core.formatting import shown
from edge.models.gguf_reader import GGUFModel, open_gguf
from edge.models.spec import DecoderSpec

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_BUNDLED = "bundled:"
_CLASSES = {"qwen2": "Qwen2ForCausalLM", "llama": "LlamaForCausalLM"}
_BUNDLED_SPLIT, _SMOLLM_SPLIT = "qwen2", "smollm"
"""`tokenizer.ggml.pre` of the bundled models and of SmolLM2: how a text is cut before its bytes are merged."""
_CONTROL = 3
"""GGUF's type of a control token."""
_ENDS = {"eos": "eos", "pad": "padding"}
"""Tokens by the names that transformers and GGUF have for them."""
_SOURCE = "source.json"
"""Next to config.json: which file the folder was written from, by the SHA-256 of its content."""
_NAMED = 12
_ANOTHER = "give another folder"


def bundled_name(model: str) -> str | None:
    """The NAME of `bundled:NAME`; None for a hub name or a folder."""
    return model.removeprefix(_BUNDLED) if model.startswith(_BUNDLED) else None


def folder_name(gguf_file: Path) -> str:
    """The name of the model's folder inside a run's: `model-` and the beginning of the SHA-256 of the file, which identifies its weights.

    Raises ModelFileError.
    """
    return f"model-{_sha256_of(gguf_file)[:_NAMED]}"


def write_hf_folder(gguf_file: Path, folder: Path, dtype: str = "float32") -> Path:
    """Write the folder, all or nothing, where it is not there yet; returns it.

    Raises ModelFileError, and UsageError for a folder that holds anything else, also another file's weights, or cannot be written.
    """
    model = open_gguf(gguf_file)
    spec = model.computed_spec()
    if spec.architecture not in _CLASSES:
        raise UsageError(f"{gguf_file}: {spec.architecture} cannot be written as a Hugging Face folder here", hint="use its own")
    source = {"sha256": _sha256_of(gguf_file), "file": gguf_file.name}
    try:
        if not _is_written(folder, source["sha256"]):
            _write(model, spec, source, folder, dtype)
    except OSError as error:
        raise UsageError(f"{shown(str(folder))} cannot be written: {error.strerror}", hint=_ANOTHER) from error
    return folder


def _sha256_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from error


def _is_written(folder: Path, sha256: str) -> bool:
    """Whether the model is there. Raises UsageError where something else is: nothing of another's is ever removed."""
    if folder.is_file():
        raise UsageError(f"{shown(str(folder))} is a file", hint=_ANOTHER)
    if not folder.is_dir() or not any(folder.iterdir()):
        return False
    try:
        found = json.loads((folder / _SOURCE).read_bytes())["sha256"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        found = ""
    if found != sha256:
        what = "another model" if found or (folder / "config.json").exists() else "other files"
        raise UsageError(f"{shown(str(folder))} holds {what}", hint=_ANOTHER)
    return True


def _write(model: GGUFModel, spec: DecoderSpec, source: dict[str, str], folder: Path, dtype: str) -> None:
    ends = {f"{key}_token_id": int(model.metadata(f"tokenizer.ggml.{name}_token_id")) for key, name in _ENDS.items()}
    files = {
        "config.json": {**hf_config(spec, dtype), **ends, "bos_token_id": None},
        "generation_config.json": ends,
        _SOURCE: source,
    }
    with replacing_folder(folder.absolute()) as partial:
        _write_weights(model, spec, partial, dtype)
        _write_tokenizer(model, ends, partial)
        for name, content in files.items():
            (partial / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _write_weights(model: GGUFModel, spec: DecoderSpec, folder: Path, dtype: str) -> None:
    import torch
    from safetensors.torch import save_file

    state = {name: values.contiguous().to(getattr(torch, dtype)) for name, values in model.decoder_state(spec)}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def hf_config(spec: DecoderSpec, dtype: str) -> dict[str, Any]:
    """The config.json of a decoder for transformers. Raises KeyError for an architecture without a class of transformers here."""
    return {
        "architectures": [_CLASSES[spec.architecture]],
        "model_type": spec.architecture,
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.width,
        "intermediate_size": spec.ffn_width,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "max_position_embeddings": spec.context_length,
        "rope_theta": spec.rope_base,
        "rms_norm_eps": spec.norm_eps,
        "tie_word_embeddings": spec.tied_embeddings,
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        "dtype": dtype,
        **({"attention_bias": spec.qkv_bias} if spec.architecture == "llama" else {}),
    }


def _write_tokenizer(model: GGUFModel, ends: Mapping[str, int], folder: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    tokens = model.metadata("tokenizer.ggml.tokens")
    fast = PreTrainedTokenizerFast(
        tokenizer_object=_tokenizer_of(model),
        eos_token=tokens[ends["eos_token_id"]],
        pad_token=tokens[ends["pad_token_id"]],
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = model.metadata("tokenizer.chat_template")
    fast.save_pretrained(folder)


def _tokenizer_of(model: GGUFModel) -> Tokenizer:
    from tools.nano.tokenizer import tokenizer_from

    split = model.metadata("tokenizer.ggml.pre")
    tokens, merges = (model.metadata(f"tokenizer.ggml.{key}") for key in ("tokens", "merges"))
    if split == _BUNDLED_SPLIT:
        return tokenizer_from(tokens, merges)
    if split != _SMOLLM_SPLIT:
        raise UsageError(f"{model.path}: its tokenizer cannot be written here", hint="use the model's own folder")
    kinds = model.metadata("tokenizer.ggml.token_type")
    return smollm_tokenizer(tokens, merges, [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL])


def smollm_tokenizer(tokens: Sequence[str], merges: Sequence[str], control: Sequence[str]) -> Tokenizer:
    """SmolLM2's: every digit is cut off, then bytes as GPT-2 has them."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return tokenizer
