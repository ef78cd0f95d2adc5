"""Which engine serves a model here, and opening it. Knows the engines and what each can read; knows nothing of learning."""

from __future__ import annotations

import asyncio
import importlib.util
import platform
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from edge.app.places import state_folder
from edge.config.schema import AgentConfig
from edge.core.errors import StateError, UsageError
from edge.core.install import install_extra

if TYPE_CHECKING:
    from edge.core.worker import EngineWorker
    from edge.inference.backend import InferenceBackend
    from edge.models.mlx_decoder import MlxDecoder


_SERVING_ONLY_ROWS = 1


def engine_backend(config: AgentConfig, path: Path) -> Literal["llamacpp", "mlx", "onnx"]:
    """Which engine serves this model on this machine; MLX trains too, else torch does.

    Raises UsageError where it is not installed or cannot.
    """
    chosen, folder = config.engine.backend, path.is_dir()
    if chosen in ("llamacpp", "onnx") and folder:
        reader = "llama.cpp" if chosen == "llamacpp" else "ONNX export"
        raise UsageError(f"{path}: {reader} reads GGUF files only", hint="give a .gguf file, or set engine.backend to mlx")
    if chosen == "onnx":
        require_onnx("engine.backend is onnx")
    if (chosen == "mlx" or folder) and not mlx_installed():
        why = f"{path} is a folder" if folder else "engine.backend is mlx"
        raise UsageError(f"{why}, but MLX is not installed", hint=f"{install_extra('mlx')}, or use llama.cpp with a .gguf file")
    if chosen == "auto":
        return "mlx" if folder or (apple_silicon() and mlx_installed()) else "llamacpp"
    return chosen


def with_its_device(config: AgentConfig, path: Path) -> AgentConfig:
    """The configuration without `learning.device` where MLX trains: it is torch's, and MLX has a device of its own. Raises UsageError."""
    if config.learning.device == "auto" or engine_backend(config, path) != "mlx":
        return config
    return config.model_copy(update={"learning": config.learning.model_copy(update={"device": "auto"})})


def mlx_installed() -> bool:
    """Whether both packages of the MLX path are there; they are looked up, not imported."""
    return _installed("mlx", "mlx_lm")


def onnx_installed() -> bool:
    """Whether both packages of the ONNX path are there; they are looked up, not imported."""
    return _installed("onnx", "onnxruntime")


def require_onnx(why: str) -> None:
    """Raises UsageError that begins with `why` where ONNX is not installed."""
    if not onnx_installed():
        raise UsageError(f"{why}, but ONNX is not installed", hint=install_extra("onnx"))


def _installed(*packages: str) -> bool:
    return all(importlib.util.find_spec(package) is not None for package in packages)


def apple_silicon() -> bool:
    """Whether this is a Mac with Apple's own processor."""
    return (platform.system(), platform.machine()) == ("Darwin", "arm64")


class MlxWeights:
    """One copy of a model's weights for serving and training, loaded by whoever needs it first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._decoder: MlxDecoder | None = None

    def decoder(self) -> MlxDecoder:
        """The decoder without an adapter; take a twin of it. Raises ModelFileError."""
        from edge.models.mlx_decoder import load_mlx_decoder

        with self._lock:
            if self._decoder is None:
                self._decoder = load_mlx_decoder(self._path)
            return self._decoder


async def open_backend(
    config: AgentConfig, path: Path, worker: EngineWorker, weights: MlxWeights | None = None, *, serves_only: bool = False
) -> InferenceBackend:
    """The inference engine with the model loaded (on a thread: loading takes a while). Raises ModelFileError, UsageError.

    `serves_only`: with no more memory for rollouts than one row, because learning has an engine of its own.
    """
    rows = _SERVING_ONLY_ROWS if serves_only else config.engine.max_rows or None
    chosen = engine_backend(config, path)
    if chosen == "mlx":
        return await asyncio.to_thread(_mlx_backend, config, path, worker, weights or MlxWeights(path), rows)
    if chosen == "onnx":
        return await asyncio.to_thread(_onnx_backend, config, path, worker, rows)
    from edge.inference.llamacpp import LlamaCppBackend

    tokens, engine = config.model.context_tokens, config.engine
    options: dict[str, Any] = {"n_threads": engine.threads or None, "gpu_layers": engine.gpu_layers, "repack": engine.repack}
    return await asyncio.to_thread(LlamaCppBackend, path, worker, n_ctx=tokens, max_rows=rows, **options)


async def open_rollouts(
    config: AgentConfig, path: Path, worker: EngineWorker, weights: MlxWeights, serving: InferenceBackend
) -> InferenceBackend:
    """A second engine over the weights of the one that serves, with rows and an adapter of its own. Close it before that one."""
    rows = config.engine.max_rows or None
    if engine_backend(config, path) == "mlx":
        return await asyncio.to_thread(_mlx_backend, config, path, worker, weights, rows)
    from edge.inference.llamacpp import LlamaCppBackend
    from edge.inference.onnx_backend import OnnxBackend

    if not isinstance(serving, LlamaCppBackend | OnnxBackend):
        raise UsageError("the engine that serves has no second one over its weights")
    return await asyncio.to_thread(serving.beside, max_rows=rows)


def _mlx_backend(
    config: AgentConfig, path: Path, worker: EngineWorker, weights: MlxWeights, rows: int | None
) -> InferenceBackend:
    from edge.inference.mlx_backend import MlxBackend

    return MlxBackend(path, weights.decoder(), worker, n_ctx=config.model.context_tokens, max_rows=rows)


def _onnx_backend(config: AgentConfig, path: Path, worker: EngineWorker, rows: int | None) -> InferenceBackend:
    from edge.inference.onnx_backend import OnnxBackend

    engine = config.engine
    return OnnxBackend(
        path,
        onnx_graph(config, path),
        worker,
        providers=engine.onnx_providers,
        n_threads=engine.threads or None,
        n_ctx=config.model.context_tokens,
        max_rows=rows,
    )


def onnx_graph(config: AgentConfig, path: Path) -> Path:
    """The graph of a GGUF file: the .onnx beside it, else the state folder's, which is made where it is missing.

    Raises ModelFileError for a model that cannot be exported, StateError where the folder cannot be made.
    """
    from edge.inference.gguf_model import sha256_of
    from edge.models.onnx_decoder import export_onnx

    beside = path.with_suffix(".onnx")
    if beside.is_file():
        return beside
    folder = state_folder(config) / "onnx"
    graph = folder / f"{path.stem}-{sha256_of(path)[:16]}.onnx"
    if not graph.is_file():
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StateError(f"{folder}: cannot be made ({error.strerror})", hint="choose another with --state") from error
        export_onnx(path, graph, force=True)
    return graph


def sound_adapter(folder: Path) -> None:
    """Read an adapter folder through. Raises AdapterError with one line for what is missing, cut short or not finite."""
    from edge.inference.adapters import check_adapter

    check_adapter(folder)


class SharedWorker:
    """The one engine worker, started when the first engine needs it."""

    def __init__(self) -> None:
        self._worker: EngineWorker | None = None

    def get(self) -> EngineWorker:
        """The worker; the first call starts it."""
        if self._worker is None:
            from edge.core.worker import EngineWorker

            self._worker = EngineWorker()
        return self._worker

    def close(self) -> None:
        """Stop it where it was started."""
        if self._worker is not None:
            self._worker.close()
