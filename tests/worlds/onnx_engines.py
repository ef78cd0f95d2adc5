"""ONNX engines on the tiny models. Tests that use them are skipped where the ONNX packages are not installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from edge.core.worker import EngineWorker

if TYPE_CHECKING:
    from edge.inference.onnx_backend import OnnxBackend


def require_onnx() -> None:
    """Skip the test where ONNX or ONNX Runtime is not installed."""
    if importlib.util.find_spec("onnx") is None or importlib.util.find_spec("onnxruntime") is None:
        pytest.skip("ONNX Runtime is not installed: pip install -e '.[onnx]'")


def onnx_graph(path: Path) -> Path:
    """The model's graph, made next to it the first time."""
    require_onnx()
    from edge.models.onnx_decoder import export_onnx

    graph = path.with_suffix(".onnx")
    if not graph.is_file():
        export_onnx(path, graph)
    return graph


def onnx_backend(path: Path, worker: EngineWorker, **options: int) -> OnnxBackend:
    """A backend over a model file."""
    require_onnx()
    from edge.inference.onnx_backend import OnnxBackend

    return OnnxBackend(path, onnx_graph(path), worker, **{"n_threads": 1, "n_ctx": 256, "max_rows": 6, **options})
