"""MLX engines on the tiny models. Tests that use them are skipped where MLX has no wheels."""

from __future__ import annotations

import importlib.util
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from edge.core.worker import EngineWorker
from edge.inference.adapters import write_gguf_adapter
from edge.testing.clock import ManualClock
from edge.training.learner import LearnerSettings, LoraSpec
from tests.worlds.tiny_gguf import TinyModel

SPEC = LoraSpec(rank=4, alpha=8.0)


def require_mlx() -> None:
    """Skip the test where MLX is not installed: it has wheels for Apple silicon and Linux only."""
    if importlib.util.find_spec("mlx") is None or importlib.util.find_spec("mlx_lm") is None:
        pytest.skip("MLX is not installed: it has wheels for Apple silicon and Linux only")


def mlx_backend(path: Path, worker: EngineWorker, decoder: Any = None, **options: int) -> Any:
    """A backend over a model file; `decoder` shares its weights."""
    require_mlx()
    from edge.inference.mlx_backend import MlxBackend
    from edge.models.mlx_decoder import load_mlx_decoder

    return MlxBackend(path, decoder or load_mlx_decoder(path), worker, **{"n_ctx": 256, "max_rows": 6, **options})


def mlx_learner(path: Path, worker: EngineWorker, decoder: Any = None, *, seed: int = 3, rank: int = 4, **settings: Any) -> Any:
    """A learner over a model file, with small micro-batches so that every update takes several slices."""
    require_mlx()
    from edge.models.mlx_decoder import load_mlx_decoder
    from edge.training.mlx_learner import MlxLearner

    chosen = {"learning_rate": 1e-2, "tokens_per_slice": 48, "max_mismatch_nats": 100.0, "threads": 1, **settings}
    return MlxLearner(
        (decoder or load_mlx_decoder(path)).twin(),
        worker,
        partial(_convert, path),
        seed=seed,
        lora_spec=LoraSpec(rank=rank, alpha=8.0),
        settings=LearnerSettings(**chosen),
        clock=ManualClock(),
    )


def write_mlx_folder(folder: Path, model: TinyModel) -> Path:
    """The model as a folder of config.json and safetensors, as mlx_lm reads it."""
    import mlx.core as mx

    folder.mkdir()
    config = {
        "model_type": model.architecture, "hidden_size": model.width, "num_hidden_layers": model.layers,
        "intermediate_size": model.ffn_width, "num_attention_heads": model.heads, "num_key_value_heads": model.kv_heads,
        "rms_norm_eps": model.norm_eps, "vocab_size": len(model.vocab), "max_position_embeddings": model.context_length,
        "rope_theta": model.rope_base, "tie_word_embeddings": False,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(folder / "model.safetensors"), {name: mx.array(value) for name, value in model.state.items()})
    return folder


def _convert(base: Path, peft_folder: Path, target: Path) -> None:
    write_gguf_adapter(peft_folder, base, target)
