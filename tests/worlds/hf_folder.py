"""Model folders in the hub's layout (config.json, safetensors, tokenizer.json) with random weights, for the converter."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from edge.core.architectures import Architecture
from edge.models.decoder import Decoder, DecoderSpec
from edge.models.hf_folder import PATTERNS
from edge.models.spec import parameter_shapes
from tests.worlds.tiny_gguf import CHAT_TEMPLATE, CONTROL_TOKENS, LAYERS, WINDOW, _merges, byte_level_vocabulary

PATTERN_OF = {name: pattern for pattern, name in PATTERNS.items()}
LLAMA3_ROPE = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip


@dataclass(frozen=True)
class HfFolder:
    """A written folder; `state` holds the stored weights by name."""

    path: Path
    spec: DecoderSpec
    state: dict[str, torch.Tensor]

    def decoder(self) -> Decoder:
        """The torch decoder straight from these weights, without a GGUF file in between."""
        decoder = Decoder(self.spec)
        offset = self.spec.family.norm_offset
        state = {name: values.float() + (offset if "norm." in name else 0.0) for name, values in self.state.items()}
        if self.spec.tied_embeddings:
            state["lm_head.weight"] = state["model.embed_tokens.weight"]
        decoder.load_state_dict(state)
        return decoder.eval()


def spec_of(architecture: Architecture, vocab_size: int) -> DecoderSpec:
    """A small shape; heads of Qwen3 and Gemma 3 are wider together than the model."""
    head_dim = 24 if architecture in ("qwen3", "gemma3") else 16
    gemma = {"window": WINDOW, "local_rope_base": 700.0, "rope_divisor": 2.0} if architecture == "gemma3" else {}
    return DecoderSpec(
        architecture, vocab_size, width=64, layers=LAYERS.get(architecture, 2), heads=4, kv_heads=2, head_dim=head_dim, ffn_width=96,
        context_length=256, rope_base=10_000.0, norm_eps=1e-5, qkv_bias=architecture == "qwen2",
        tied_embeddings=architecture == "gemma3", **gemma,
    )  # fmt: skip


def write_hf_folder(
    path: Path,
    architecture: Architecture = "qwen2",
    *,
    dtype: torch.dtype = torch.float32,
    shards: int = 1,
    rope: dict[str, object] | None = None,
    tokenizer: dict[str, object] | None = None,
    **changes: object,
) -> HfFolder:
    """Write a folder. `changes` are of the shape; `tokenizer` is the content of tokenizer.json (default: the tiny vocabulary)."""
    path.mkdir(parents=True, exist_ok=True)
    spec = replace(spec_of(architecture, len(byte_level_vocabulary())), **changes)  # type: ignore[arg-type]
    state = random_state(spec, dtype)
    config = {"rope_theta": spec.rope_base} | config_of(spec)
    if rope:
        config |= {"rope_parameters": rope | {"rope_theta": spec.rope_base}}
    (path / "config.json").write_text(json.dumps(config))
    (path / "tokenizer.json").write_text(json.dumps(tokenizer or tiny_tokenizer()))
    settings = {"eos_token": {"content": "<|im_end|>"}, "pad_token": "<|endoftext|>", "chat_template": CHAT_TEMPLATE}
    if tokenizer is None:
        (path / "tokenizer_config.json").write_text(json.dumps(settings))
    write_weights(path, state, shards)
    return HfFolder(path, spec, state)


def random_state(spec: DecoderSpec, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Random weights that give distributions worth comparing."""
    random = np.random.Generator(np.random.Philox(11))
    state = {}
    for name, shape in parameter_shapes(spec).items():
        last = "model.embed_tokens.weight" if spec.architecture == "gemma3" else "lm_head.weight"
        values = random.normal(size=shape) / np.sqrt(shape[-1]) * (3.0 if name == last else 1.0)
        middle = 1.0 - spec.family.norm_offset
        state[name] = torch.from_numpy(middle + 0.1 * random.normal(size=shape) if "norm" in name else values).to(dtype)
    return state


def write_weights(path: Path, state: dict[str, torch.Tensor], shards: int) -> None:
    if shards == 1:
        save_file(state, path / "model.safetensors")
        return
    names = list(state)
    weight_map = {name: f"model-{index % shards + 1:05}-of-{shards:05}.safetensors" for index, name in enumerate(names)}
    for file in sorted(set(weight_map.values())):
        save_file({name: state[name] for name in names if weight_map[name] == file}, path / file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


OF_ARCHITECTURE: dict[str, dict[str, object]] = {
    "smollm3": {
        "no_rope_layers": [1, 1, 1, 0], "no_rope_layer_interval": 4, "use_sliding_window": False, "pad_token_id": 0,
        "bos_token_id": 0, "eos_token_id": 0,
    },
    "gemma3": {
        "model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 24, "sliding_window": WINDOW,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"], "rope_local_base_freq": 700.0,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0}, "final_logit_softcapping": None,
    },
}  # fmt: skip
"""What only some architectures have in config.json, in the words of the models on the hub."""


def config_of(spec: DecoderSpec) -> dict[str, object]:
    if spec.architecture == "gemma3":
        return {**_config_of(spec), **OF_ARCHITECTURE["gemma3"]}
    return {**_config_of(spec), "hidden_act": "silu", **OF_ARCHITECTURE.get(spec.architecture, {})}


def _config_of(spec: DecoderSpec) -> dict[str, object]:
    return {
        "model_type": spec.architecture,
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.width,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "intermediate_size": spec.ffn_width,
        "max_position_embeddings": spec.context_length,
        "rms_norm_eps": spec.norm_eps,
        "tie_word_embeddings": spec.tied_embeddings,
    }


def tiny_tokenizer() -> dict[str, object]:
    vocab = byte_level_vocabulary()
    return tokenizer_json(vocab, [index for index, token in enumerate(vocab) if token in CONTROL_TOKENS], _merges(vocab), "qwen2")


def tokenizer_json(tokens: Sequence[str], special: Sequence[int], merges: Sequence[str], pre: str) -> dict[str, object]:
    """A tokenizer.json with these tokens; those in `special` are not part of the merges."""
    outside, plain = set(special), dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "added_tokens": [{"id": index, "content": tokens[index], "special": True, **plain} for index in special],
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": PATTERN_OF[pre]}, "behavior": "Isolated", "invert": False},
                byte_level,
            ],
        },
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {token: index for index, token in enumerate(tokens) if index not in outside},
            "merges": [merge.split(" ") for merge in merges],
        },
    }
