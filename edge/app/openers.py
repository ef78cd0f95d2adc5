"""How each engine and learner is opened: which settings go to which argument. The table edge/core/engines.py names these functions.

A backend opener takes (config, path, worker, weights, rows) and a learner opener (config, path, worker, weights); they run on a thread.
`rows`: how many rows rollouts may fill (None: as many as fit in memory). They raise ModelFileError and UsageError.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from edge.app.settings import state_folder
from edge.config.schema import AgentConfig
from edge.core.errors import StateError
from edge.sizing import (
    learner_settings,
    model_shape,
    serving_memory_of,
    shared_row_tokens,
    training_device,
    trains_in_bf16,
    weights_held,
)

if TYPE_CHECKING:
    from edge.core.worker import EngineWorker
    from edge.inference.llamacpp import LlamaCppBackend
    from edge.inference.mlx_backend import MlxBackend
    from edge.inference.onnx_backend import OnnxBackend
    from edge.models.decoder import Decoder
    from edge.training.mlx_learner import MlxLearner
    from edge.training.torch_learner import TorchLearner

T = TypeVar("T")


class SharedWeights:
    """One copy of a model's weights for an engine that serves and trains, loaded by whoever needs it first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._loaded: object | None = None

    def get(self, load: Callable[[Path], T]) -> T:
        """What `load` makes of the model's path; always the same object. Raises ModelFileError."""
        with self._lock:
            if self._loaded is None:
                self._loaded = load(self._path)
            return cast(T, self._loaded)


def llamacpp_backend(
    config: AgentConfig, path: Path, worker: EngineWorker, weights: SharedWeights, rows: int | None
) -> LlamaCppBackend:
    """Serve a GGUF file with llama.cpp."""
    from edge.inference.llamacpp import LlamaCppBackend

    engine = config.engine
    options: dict[str, Any] = {"n_threads": engine.threads or None, "gpu_layers": engine.gpu_layers, "repack": engine.repack}
    serving, options["unload_after_s"] = serving_memory_of(config, path), engine.unload_after
    return LlamaCppBackend(path, worker, n_ctx=config.learning.context_tokens, max_rows=rows, serving=serving, **options)


def mlx_backend(config: AgentConfig, path: Path, worker: EngineWorker, weights: SharedWeights, rows: int | None) -> MlxBackend:
    """Serve a GGUF file or a folder with MLX."""
    from edge.inference.mlx_backend import MlxBackend
    from edge.models.mlx_decoder import load_mlx_decoder

    return MlxBackend(path, weights.get(load_mlx_decoder), worker, n_ctx=shared_row_tokens(config), max_rows=rows)


def onnx_backend(config: AgentConfig, path: Path, worker: EngineWorker, weights: SharedWeights, rows: int | None) -> OnnxBackend:
    """Serve the graph of a GGUF file with ONNX Runtime."""
    from edge.inference.onnx_backend import OnnxBackend

    return OnnxBackend(
        path,
        onnx_graph(config, path),
        worker,
        providers=config.engine.onnx_providers,
        n_threads=config.engine.threads or None,
        n_ctx=shared_row_tokens(config),
        max_rows=rows,
    )


def onnx_graph(config: AgentConfig, path: Path) -> Path:
    """The graph of a GGUF file: the .onnx next to it, else the one in the state folder, which is exported when it is missing.

    Raises ModelFileError for a model that cannot be exported, StateError where the folder cannot be made.
    """
    from edge.inference.gguf_model import sha256_of
    from edge.models.onnx_decoder import export_onnx

    neighbour = path.with_suffix(".onnx")
    if neighbour.is_file():
        return neighbour
    folder = state_folder(config) / "onnx"
    graph = folder / f"{path.stem}-{sha256_of(path)[:16]}.onnx"
    if not graph.is_file():
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StateError(f"{folder}: cannot be made ({error.strerror})", hint="choose another with --state") from error
        export_onnx(path, graph, force=True)
    return graph


def torch_learner(config: AgentConfig, path: Path, worker: EngineWorker, weights: SharedWeights) -> TorchLearner:
    """Train on a GGUF file with torch."""
    from edge.training.torch_learner import TorchLearner

    spec, settings = learner_settings(config)
    seed, convert = config.learning.seed, _adapter_converter(path)
    return TorchLearner(_torch_decoder(config, path), worker, convert, seed=seed, lora_spec=spec, settings=settings)


def _torch_decoder(config: AgentConfig, path: Path) -> Decoder:
    """The decoder of the file that serves, its weights in memory or left in the file."""
    import torch

    from edge.models.decoder import load_decoder
    from edge.models.streamed import open_streamed

    device = training_device(config)
    if weights_held(config, path) == "streamed":
        return open_streamed(path, device)
    half = trains_in_bf16(config, model_shape(path).parameters)
    return load_decoder(path, torch.bfloat16 if half else torch.float32, device)


def mlx_learner(config: AgentConfig, path: Path, worker: EngineWorker, weights: SharedWeights) -> MlxLearner:
    """Train with MLX on the weights that serve."""
    from edge.models.mlx_decoder import load_mlx_decoder
    from edge.training.mlx_learner import MlxLearner

    spec, settings = learner_settings(config)
    seed, convert = config.learning.seed, _adapter_converter(path)
    return MlxLearner(weights.get(load_mlx_decoder).twin(), worker, convert, seed=seed, lora_spec=spec, settings=settings)


def _adapter_converter(path: Path) -> Callable[[Path, Path], None]:
    """Writes adapter.gguf for the base model; for a folder there is none to write."""
    if path.is_dir():
        return lambda _peft_folder, _out: None
    from edge.inference.adapters import write_gguf_adapter

    return lambda peft_folder, out: write_gguf_adapter(peft_folder, path, out)
