"""ONNX engines over the tiny models."""

from __future__ import annotations

from pathlib import Path

from edge.core.worker import EngineWorker
from edge.inference.onnx_backend import OnnxBackend
from edge.models.onnx_decoder import export_onnx


def onnx_graph(path: Path) -> Path:
    """The model's graph, made beside it the first time."""
    graph = path.with_suffix(".onnx")
    if not graph.is_file():
        export_onnx(path, graph)
    return graph


def onnx_backend(path: Path, worker: EngineWorker, **options: int) -> OnnxBackend:
    """A backend over a model file."""
    return OnnxBackend(path, onnx_graph(path), worker, **{"n_threads": 1, "n_ctx": 256, "max_rows": 6, **options})
