"""An adapter as the engines take it, and two ways to spoil one, by which a comparison shows that it would notice."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from edge.inference.adapters import write_gguf_adapter
from tests.engine.tiny_gguf import TinyModel, permute_rows


def convert_adapter(base: Path, peft_folder: Path, target: Path) -> None:
    """A learner's `convert`, with the base model bound."""
    write_gguf_adapter(peft_folder, base, target)


def twice_the_scale(folder: Path, _model: TinyModel) -> None:
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, "lora_alpha": 2 * config["lora_alpha"]}))


def other_row_order(folder: Path, model: TinyModel) -> None:
    """What an export would hold that gets the order of the rows of q and k wrong."""
    tensors = load_file(folder / "adapter_model.safetensors")
    for name, tensor in tensors.items():
        for part, heads in (("q_proj", model.heads), ("k_proj", model.kv_heads)):
            if f"{part}.lora_B" in name:
                tensors[name] = torch.from_numpy(np.ascontiguousarray(permute_rows(tensor.numpy(), heads)))
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
