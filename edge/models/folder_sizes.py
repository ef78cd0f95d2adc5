"""The sizes of a model in a folder, from its config.json alone. Knows key names; loads no weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from edge.core.errors import ModelFileError


def folder_sizes(folder: Path) -> dict[str, int]:
    """`parameters` (matrices and embeddings), `vocab_size`, `width`, `layers`, `heads`, `kv_heads`, `head_dim`, `ffn_width`.

    Raises ModelFileError when the file cannot be read or a size is missing.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return _sizes(config)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise ModelFileError(
            f"{folder}: no usable config.json ({error})", hint="give a GGUF file or a folder as mlx_lm writes it"
        ) from error


def _sizes(config: dict[str, Any]) -> dict[str, int]:
    width, layers, heads = (int(config[key]) for key in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    vocab_size, ffn_width = int(config["vocab_size"]), int(config["intermediate_size"])
    kv_heads = int(config.get("num_key_value_heads") or heads)
    head_dim = int(config.get("head_dim") or width // heads)
    block = 2 * width * head_dim * (heads + kv_heads) + 3 * width * ffn_width
    tables = vocab_size * width * (1 if config.get("tie_word_embeddings") else 2)
    return {
        "parameters": layers * block + tables,
        "vocab_size": vocab_size,
        "width": width,
        "layers": layers,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "ffn_width": ffn_width,
    }
