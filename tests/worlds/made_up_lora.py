"""LoRA adapters with random weights for the tiny models, as peft saves them, and the same weights merged."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from edge.core.types import AdapterRef
from edge.inference.adapters import write_gguf_adapter
from tests.worlds.tiny_gguf import TinyModel

MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def write_peft_adapter(
    folder: Path, model: TinyModel, *, seed: int = 3, rank: int = 4, alpha: float = 8.0, rslora: bool = False, size: float = 0.5
) -> dict[str, np.ndarray]:
    """Write a peft folder; returns the model's weights with the adapter merged (Hugging Face names)."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.Generator(np.random.Philox(seed))
    scaling = alpha / np.sqrt(rank) if rslora else alpha / rank
    tensors: dict[str, np.ndarray] = {}
    merged = dict(model.state)
    for name, weight in model.state.items():
        module = name.removesuffix(".weight")
        if not name.endswith(".weight") or not module.endswith(MODULES):
            continue
        a = (random.normal(size=(rank, weight.shape[1])) * size / np.sqrt(weight.shape[1])).astype(np.float32)
        b = (random.normal(size=(weight.shape[0], rank)) * size / np.sqrt(rank)).astype(np.float32)
        tensors[f"base_model.model.{module}.lora_A.weight"] = a
        tensors[f"base_model.model.{module}.lora_B.weight"] = b
        merged[name] = weight + np.float32(scaling) * (b @ a)
    save_file(tensors, str(folder / "adapter_model.safetensors"))
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "use_rslora": rslora, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return merged


def write_adapter(folder: Path, model: TinyModel, version: int, **options: float) -> AdapterRef:
    """A complete adapter folder, ready to be swapped in."""
    write_peft_adapter(folder, model, **options)
    write_gguf_adapter(folder, model.path, folder / "adapter.gguf")
    return AdapterRef(version, str(folder))
