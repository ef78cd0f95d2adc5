"""Training data of adapters, and two ways to spoil an adapter, which prove that a comparison is sensitive."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from edge.core.rng import stream
from edge.core.types import TrainingGroup, TrainingSample
from edge.inference.adapters import write_gguf_adapter
from tests.worlds.tiny_gguf import TinyModel, permute_rows


def convert_adapter(base: Path, peft_folder: Path, target: Path) -> None:
    """A learner's `convert`, with the base model bound."""
    write_gguf_adapter(peft_folder, base, target)


def random_groups(seed: int, vocab: int) -> list[TrainingGroup]:
    """Three prompts of 9 tokens with a better and a worse response of 12."""
    draw = stream(seed, "golden")
    groups = []
    for _ in range(3):
        rows = [tuple(draw.randrange(vocab) for _ in range(12)) for _ in range(2)]
        pair = tuple(TrainingSample(ids, (-5.0,) * 12, advantage) for ids, advantage in zip(rows, (0.5, -0.5), strict=True))
        groups.append(TrainingGroup(tuple(draw.randrange(vocab) for _ in range(9)), pair, 1.0))
    return groups


def twice_the_scale(folder: Path, _model: TinyModel) -> None:
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, "lora_alpha": 2 * config["lora_alpha"]}))


def other_row_order(folder: Path, model: TinyModel) -> None:
    """The export with the wrong row order of q and k."""
    tensors = load_file(folder / "adapter_model.safetensors")
    for name, tensor in tensors.items():
        for part, heads in (("q_proj", model.heads), ("k_proj", model.kv_heads)):
            if f"{part}.lora_B" in name:
                tensors[name] = torch.from_numpy(np.ascontiguousarray(permute_rows(tensor.numpy(), heads)))
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
